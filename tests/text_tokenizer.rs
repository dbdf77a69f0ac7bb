//! The tokenizer against the `tokenizers` crate: equal ids, equal text, equal pieces of a stream.
//!
//! Always on the small tokenizers of `tests/fixtures/text`, one for each kind of pre-tokenizer in use; on
//! real ones too when `JIRD_MODELS` names a folder that holds `smollm2/tokenizer.json` and
//! `tok-gemma/tokenizer.json`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use jird::error::Code;
use jird::text::{EncodeOptions, StreamDecoder, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;

const KINDS: [&str; 9] =
    ["gpt2", "prefix_space", "llama3", "qwen2", "smollm", "llama2", "mistral", "metaspace", "gemma"];

/// Stretches that tokenizers are known to trip over.
const STRETCHES: [&str; 64] = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    "\u{A0}",
    "\u{3000}",
    "\u{200B}",
    "\u{85}",
    "▁",
    "▁▁",
    "a",
    "Hello",
    " world",
    "jird",
    "jirds",
    "it's",
    "WE'LL",
    "'ſ",
    "don’t",
    "ab12cd",
    "7",
    "1234567",
    "½Ⅷ①",
    "٣٤",
    "The quick brown rodent",
    "é",
    "e\u{301}",
    "A\u{30A}",
    "ﬁ",
    "İ",
    "ß",
    "ΟΔΥΣΣΕΥΣ",
    "沙漠里的老鼠",
    "砂漠のネズミ",
    "사막의 쥐",
    "한",
    "สวัสดี",
    "नमस्ते",
    "مرحبا",
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🇩🇪",
    "❤️‍🔥",
    "\u{FFFD}",
    "\u{FEFF}",
    "\u{0}",
    "\u{7F}",
    "<p class=\"x\">",
    "</table>",
    "<table>",
    "{\"a\": [1, 2]}",
    "<|im_end|>",
    "<|endoftext|>",
    "<s>",
    "</s>",
    "<|eot_id|>",
    "[INST]",
    "<left>",
    " <mask> ",
    "<mask>",
];

struct Pair {
    name: String,
    ours: Arc<Tokenizer>,
    reference: tokenizers::Tokenizer,
    /// The same, with special tokens taken for text.
    reference_plain: tokenizers::Tokenizer,
}

impl Pair {
    fn read(name: &str, path: &Path) -> Self {
        Self::new(name, &std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn new(name: &str, json: &[u8]) -> Self {
        let reference = tokenizers::Tokenizer::from_bytes(json).unwrap();
        let mut reference_plain = reference.clone();
        reference_plain.set_encode_special_tokens(true);
        let ours = Arc::new(Tokenizer::from_json(json).unwrap_or_else(|e| panic!("{name}: {e}")));
        Self { name: name.into(), ours, reference, reference_plain }
    }

    fn encode(&self, text: &str, add_special_tokens: bool, parse_special: bool) -> Vec<u32> {
        self.ours.encode(text, EncodeOptions { add_special_tokens, parse_special }).unwrap()
    }

    fn check_text(&self, text: &str) {
        for (add_special_tokens, parse_special) in [(true, true), (false, false)] {
            let reference = if parse_special { &self.reference } else { &self.reference_plain };
            let expected = reference.encode_fast(text, add_special_tokens).unwrap();
            let ids = self.encode(text, add_special_tokens, parse_special);
            assert_eq!(
                ids,
                expected.get_ids(),
                "{} encodes {text:?} (parse_special {parse_special})",
                self.name
            );
            self.check_ids(&ids);
        }
    }

    fn check_ids(&self, ids: &[u32]) {
        for skip_special in [true, false] {
            let text = self.ours.decode(ids, skip_special);
            let expected =
                self.reference.decode(&self.without_overlooked(ids, skip_special), skip_special).unwrap();
            assert_eq!(text, expected, "{} decodes {ids:?} (skip_special {skip_special})", self.name);
            let mut stream = StreamDecoder::new(self.ours.clone(), skip_special);
            let mut streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
            streamed.push_str(&stream.finish());
            assert_eq!(streamed, text, "{} streams {ids:?}", self.name);
        }
    }

    /// The reference overlooks special tokens flagged `normalized` when it skips special tokens; we do not.
    fn without_overlooked(&self, ids: &[u32], skip_special: bool) -> Vec<u32> {
        let added = self.reference.get_added_tokens_decoder();
        let is_overlooked = |id| added.get(id).is_some_and(|token| token.special && token.normalized);
        ids.iter().filter(|id| !skip_special || !is_overlooked(id)).copied().collect()
    }

    /// A third of the ids are low, where special tokens and byte tokens lie; some are no ids at all.
    fn ids(&self) -> impl Strategy<Value = Vec<u32>> {
        let end = self.ours.vocab_size() + 3;
        prop::collection::vec(prop_oneof![9 => 0..end, 4 => 0..300.min(end)], 0..40)
    }
}

fn fixture(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/text/{kind}.tokenizer.json"))
}

static SMALL: LazyLock<Vec<Pair>> =
    LazyLock::new(|| KINDS.iter().map(|kind| Pair::read(kind, &fixture(kind))).collect());

/// The small tokenizers with one component exchanged, for components that none of them has.
const VARIANTS: [(&str, &str, &str); 21] = [
    ("gpt2", "/pre_tokenizer", r#"{"type":"Whitespace"}"#),
    ("gpt2", "/pre_tokenizer", r#"{"type":"WhitespaceSplit"}"#),
    ("gpt2", "/pre_tokenizer", r#"{"type":"Digits","individual_digits":false}"#),
    ("gpt2", "/pre_tokenizer", "null"),
    ("gpt2", "/decoder", "null"),
    (
        "gpt2",
        "/pre_tokenizer",
        r#"{"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Removed","invert":false}"#,
    ),
    (
        "gpt2",
        "/pre_tokenizer",
        r#"{"type":"Split","pattern":{"Regex":"\\p{L}+"},"behavior":"Removed","invert":true}"#,
    ),
    (
        "gpt2",
        "/pre_tokenizer",
        r#"{"type":"Split","pattern":{"String":"l"},"behavior":"MergedWithNext","invert":false}"#,
    ),
    (
        "gpt2",
        "/pre_tokenizer",
        r#"{"type":"Split","pattern":{"String":"l"},"behavior":"Contiguous","invert":false}"#,
    ),
    (
        "gpt2",
        "/pre_tokenizer",
        r#"{"type":"Split","pattern":{"Regex":"[0-9]"},"behavior":"MergedWithPrevious","invert":true}"#,
    ),
    ("qwen2", "/normalizer", r#"{"type":"NFD"}"#),
    ("qwen2", "/normalizer", r#"{"type":"NFKD"}"#),
    ("llama2", "/normalizer", r#"{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"▁"}"#),
    ("metaspace", "/model/fuse_unk", "true"),
    ("metaspace", "/normalizer", r#"{"type":"Strip","strip_left":true,"strip_right":false}"#),
    ("metaspace", "/pre_tokenizer/prepend_scheme", r#""first""#),
    ("metaspace", "/pre_tokenizer/prepend_scheme", r#""never""#),
    (
        "metaspace",
        "/decoder",
        r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true}"#,
    ),
    // Without its byte the characters that need it become <unk>, between others that are spelt in bytes.
    ("gemma", "/model/vocab", r#"{"<0xE4>":"<no byte>"}"#),
    ("mistral", "/decoder/decoders/3", r#"{"type":"Strip","content":"e","start":2,"stop":0}"#),
    ("prefix_space", "/pre_tokenizer/use_regex", "false"),
];

fn variant((kind, pointer, json): &(&str, &str, &str)) -> Pair {
    let mut file: Value = serde_json::from_slice(&std::fs::read(fixture(kind)).unwrap()).unwrap();
    let part = file.pointer_mut(pointer).unwrap();
    let change: Value = serde_json::from_str(json).unwrap();
    match (part, change) {
        (Value::Object(vocab), Value::Object(renamed)) if *pointer == "/model/vocab" => {
            for (token, name) in renamed {
                let id = vocab.remove(&token).unwrap();
                vocab.insert(name.as_str().unwrap().to_owned(), id);
            }
        }
        (part, change) => *part = change,
    }
    Pair::new(&format!("{kind} with {pointer} {json}"), file.to_string().as_bytes())
}

static REAL: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let Some(folder) = std::env::var_os("JIRD_MODELS").map(PathBuf::from) else {
        println!("skipped: JIRD_MODELS is not set, so no real tokenizers are compared");
        return Vec::new();
    };
    let paths = ["smollm2", "tok-gemma"].map(|name| (name, folder.join(name).join("tokenizer.json")));
    paths.iter().map(|(name, path)| Pair::read(name, path)).collect()
});

fn pairs() -> impl Iterator<Item = &'static Pair> {
    SMALL.iter().chain(&*REAL)
}

/// Random text: known stretches, random characters of any script, runs of one character.
fn text() -> impl Strategy<Value = String> {
    let run = ("[ \t\n▁a<一]", 1..32_usize).prop_map(|(c, count)| c.repeat(count));
    let part = prop_oneof![
        6 => prop::sample::select(&STRETCHES[..]).prop_map(str::to_owned),
        2 => run,
        2 => "[a-zA-Z0-9 .,;:'!?<>|_/-]{0,12}",
        1 => "[\u{20}-\u{24F}\u{300}-\u{36F}\u{370}-\u{3FF}\u{4E00}-\u{4E40}\u{1F600}-\u{1F64F}]{0,8}",
        // Characters of the last years are left out: the reference's Unicode tables do not know them.
        1 => "[\u{20}-\u{8FF}\u{1E00}-\u{A6FF}\u{AC00}-\u{D7FF}\u{F900}-\u{FFFD}\u{1D400}-\u{1F6FF}]{0,6}",
    ];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

/// Every run of the tests sees the same cases.
fn run_cases<S: Strategy>(cases: u32, strategy: &S, check: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let outcome = TestRunner::new_with_rng(config, rng).run(strategy, |value| {
        check(value);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn known_stretches_encode_and_decode_as_in_the_reference() {
    for pair in pairs() {
        STRETCHES.iter().for_each(|stretch| pair.check_text(stretch));
        pair.check_text(&STRETCHES.concat());
        pair.check_text(&STRETCHES.join(" "));
        pair.check_text("");
        for count in 1..=31 {
            pair.check_text(&" ".repeat(count));
            pair.check_text(&format!("x{}y{}", " ".repeat(count), "\n".repeat(count)));
        }
    }
}

#[test]
fn random_text_encodes_and_decodes_as_in_the_reference() {
    SMALL.iter().for_each(|pair| run_cases(600, &text(), |text| pair.check_text(&text)));
    REAL.iter().for_each(|pair| run_cases(1500, &text(), |text| pair.check_text(&text)));
}

#[test]
fn random_ids_decode_and_stream_as_in_the_reference() {
    pairs().for_each(|pair| run_cases(600, &pair.ids(), |ids| pair.check_ids(&ids)));
}

#[test]
fn components_that_no_small_tokenizer_has_do_as_in_the_reference() {
    for pair in VARIANTS.iter().map(variant) {
        STRETCHES.iter().for_each(|stretch| pair.check_text(stretch));
        pair.check_text(&STRETCHES.concat());
        run_cases(300, &text(), |text| pair.check_text(&text));
    }
}

#[test]
fn a_long_word_encodes_as_in_the_reference_and_in_no_time() {
    let letters = "abcdefghijklmnopqrstuvwxyz".bytes().cycle();
    let word: String = letters.step_by(7).map(char::from).take(100_000).collect();
    let spaces = " ".repeat(100_000);
    for pair in pairs() {
        for text in [&word, &spaces, &"的".repeat(20_000)] {
            let begin = std::time::Instant::now();
            let ids = pair.encode(text, false, true);
            let took = begin.elapsed();
            let expected = pair.reference.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(ids, expected.get_ids(), "{}", pair.name);
            assert!(took.as_secs() < 5, "{} took {took:?} for {} bytes", pair.name, text.len());
        }
    }
}

#[test]
fn a_long_stream_costs_each_token_the_same() {
    for pair in SMALL.iter() {
        let mut stream = StreamDecoder::new(pair.ours.clone(), true);
        let ids = (0..pair.ours.vocab_size()).cycle().step_by(7).take(300_000);
        let begin = std::time::Instant::now();
        let text: String = ids.clone().map(|id| stream.push(id)).collect();
        assert!(begin.elapsed().as_secs() < 5, "{} took {:?}", pair.name, begin.elapsed());
        assert_eq!(
            text + &stream.finish(),
            pair.ours.decode(&ids.collect::<Vec<_>>(), true),
            "{}",
            pair.name
        );
    }
}

#[test]
fn tokens_and_ids_answer_to_each_other() {
    for pair in pairs() {
        let added = pair.reference.get_added_tokens_decoder();
        for id in 0..pair.ours.vocab_size() {
            let content = added.get(&id).map(|token| token.content.clone());
            assert_eq!(pair.ours.token(id), content.or_else(|| pair.reference.id_to_token(id)).as_deref());
            if let Some(token) = pair.ours.token(id) {
                assert_eq!(pair.ours.id_of(token), pair.reference.token_to_id(token), "{token:?}");
            }
        }
        assert_eq!(pair.ours.vocab_size() as usize, pair.reference.get_vocab_size(true), "{}", pair.name);
    }
}

#[test]
fn user_text_cannot_spell_a_special_token() {
    for pair in pairs() {
        for id in (0..pair.ours.vocab_size()).filter(|&id| pair.ours.is_special(id)) {
            let content = pair.ours.token(id).unwrap();
            // A byte-level or bytewise tokenizer has no need of <unk>; the others may give it for any text.
            let is_unk = content == "<unk>";
            let ids = pair.encode(&format!("a{content}b"), false, false);
            assert!(is_unk || !ids.contains(&id), "{} finds {content:?} in plain text", pair.name);
        }
    }
}

#[test]
fn the_frame_is_what_the_post_processor_adds() {
    let frames: Vec<(&str, usize, usize)> =
        SMALL.iter().map(|p| (p.name.as_str(), p.ours.prefix().len(), p.ours.suffix().len())).collect();
    assert!(frames.contains(&("llama3", 1, 0)));
    assert!(frames.contains(&("mistral", 1, 1)));
    assert!(frames.contains(&("smollm", 0, 0)));
}

/// A tokenizer file made of parts, each of which a case may replace.
fn file(changes: &[(&str, &str)]) -> String {
    let mut parts = vec![
        ("added_tokens", r#"[{"id":2,"content":"<s>","special":true}]"#),
        ("normalizer", "null"),
        ("pre_tokenizer", "null"),
        ("post_processor", "null"),
        ("decoder", "null"),
        ("type", r#""BPE""#),
        ("unk_token", "null"),
        ("vocab", r#"{"a":0,"b":1,"ab":3}"#),
        ("merges", r#"["a b"]"#),
    ];
    for &(name, json) in changes {
        parts.iter_mut().filter(|(part, _)| *part == name).for_each(|part| part.1 = json);
    }
    let join = |parts: &[(&str, &str)]| {
        parts.iter().map(|(name, json)| format!("{name:?}:{json}")).collect::<Vec<_>>().join(",")
    };
    format!("{{{},\"model\":{{{}}}}}", join(&parts[..5]), join(&parts[5..]))
}

#[test]
fn the_small_file_of_the_next_test_is_sound() {
    let tokenizer = Tokenizer::from_json(file(&[]).as_bytes()).unwrap();
    let options = EncodeOptions { add_special_tokens: true, parse_special: true };
    assert_eq!(tokenizer.encode("ab<s>ba", options).unwrap(), [3, 2, 1, 0]);
    assert_eq!(tokenizer.decode(&[3, 2, 9, 1], false), "ab <s> b");
    // The merges may stand before the vocabulary.
    let turned = r#"{"model":{"merges":[["a","b"]],"vocab":{"ab":7,"b":1,"a":0},"type":"BPE"}}"#;
    let tokenizer = Tokenizer::from_json(turned.as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("ab", options).unwrap(), [7]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.token(3)), (8, None));
}

#[test]
fn files_that_cannot_be_used_are_typed_errors() {
    let nested = format!(
        "{}{{\"type\":\"NFC\"}}{}",
        r#"{"type":"Sequence","normalizers":["#.repeat(500),
        "]}".repeat(500)
    );
    let long_regex = format!(
        r#"{{"type":"Split","pattern":{{"Regex":"{}"}},"behavior":"Isolated","invert":false}}"#,
        "a?".repeat(10_000)
    );
    let big_regex = r#"{"type":"Split","pattern":{"Regex":"((\\p{L}{500}){500}){500}"},"behavior":"Isolated","invert":false}"#;
    let bad_regex = r#"{"type":"Split","pattern":{"Regex":"(a"},"behavior":"Isolated","invert":false}"#;
    let cases: &[(&str, &str, Code, &str)] = &[
        ("type", r#""Unigram""#, Code::Unsupported, "Unigram"),
        ("normalizer", r#"{"type":"Precompiled"}"#, Code::Unsupported, "Precompiled"),
        ("pre_tokenizer", r#"{"type":"UnicodeScripts"}"#, Code::Unsupported, "UnicodeScripts"),
        ("post_processor", r#"{"type":"BertProcessing"}"#, Code::Unsupported, "BertProcessing"),
        ("decoder", r#"{"type":"CTC"}"#, Code::Unsupported, "CTC"),
        ("decoder", r#"{"type":"Replace","pattern":{"Regex":"a"},"content":""}"#, Code::Unsupported, "Regex"),
        ("normalizer", r#"{"type":"Prepend"}"#, Code::Tokenizer, "normalizer"),
        ("normalizer", "7", Code::Tokenizer, "normalizer"),
        ("normalizer", &nested, Code::Tokenizer, "recursion"),
        ("pre_tokenizer", &long_regex, Code::Tokenizer, "limit"),
        ("pre_tokenizer", big_regex, Code::Tokenizer, "regular expression"),
        ("pre_tokenizer", bad_regex, Code::Tokenizer, "regular expression"),
        ("vocab", r#"{"a":0,"b":1000000000,"ab":3}"#, Code::Tokenizer, "1000000000"),
        ("vocab", r#"{"a":0,"b":-1,"ab":3}"#, Code::Tokenizer, "-1"),
        ("vocab", r#"{"a":0,"b":0,"ab":3}"#, Code::Tokenizer, "id 0"),
        ("vocab", r#"{"a":0,"b":1,"ab":3,"a":4}"#, Code::Tokenizer, "two ids"),
        ("vocab", "[]", Code::Tokenizer, "token"),
        ("merges", r#"["b a"]"#, Code::Tokenizer, "\"ba\""),
        ("merges", r#"["a c"]"#, Code::Tokenizer, "\"c\""),
        ("merges", r#"["a b b"]"#, Code::Tokenizer, "space"),
        ("merges", r#"["a b","a b"]"#, Code::Tokenizer, "same pair"),
        ("merges", r#"[["a"]]"#, Code::Tokenizer, "two tokens"),
        ("merges", r#"[["a","b","c"]]"#, Code::Tokenizer, "two tokens"),
        ("merges", r#"[7]"#, Code::Tokenizer, "merge"),
        ("merges", "null", Code::Tokenizer, "merges"),
        ("unk_token", r#""<unk>""#, Code::Tokenizer, "<unk>"),
        ("added_tokens", r#"[{"id":2,"content":"a"}]"#, Code::Tokenizer, "\"a\""),
        ("added_tokens", r#"[{"id":1,"content":"c"}]"#, Code::Tokenizer, "\"c\""),
        ("added_tokens", r#"[{"id":5,"content":"c"},{"id":5,"content":"d"}]"#, Code::Tokenizer, "both 5"),
        ("added_tokens", r#"[{"id":4000000000,"content":"c"}]"#, Code::Tokenizer, "4000000000"),
    ];
    for (part, json, code, word) in cases {
        let error = Tokenizer::from_json(file(&[(part, json)]).as_bytes()).unwrap_err();
        assert_eq!(error.code(), *code, "{part} {json:.80}: {error}");
        assert!(error.to_string().contains(word), "{part} {json:.80}: {error}");
    }
    for damaged in ["", "{", "[]", "{}", "\u{FEFF}{}", r#"{"model":{}}"#] {
        assert_eq!(
            Tokenizer::from_json(damaged.as_bytes()).unwrap_err().code(),
            Code::Tokenizer,
            "{damaged:?}"
        );
    }
    assert_eq!(Tokenizer::from_json(b"{\"model\":\"\xFF\"}").unwrap_err().code(), Code::Tokenizer);
}

#[test]
fn a_damaged_file_never_panics() {
    let json = std::fs::read(fixture("gemma")).unwrap();
    let damage = prop::collection::vec((0..json.len(), any::<u8>()), 1..4);
    let options = EncodeOptions { add_special_tokens: true, parse_special: true };
    run_cases(2000, &(damage, 0..json.len()), |(changes, cut)| {
        let mut damaged = json.clone();
        changes.iter().for_each(|&(at, byte)| damaged[at] = byte);
        if cut % 4 == 0 {
            damaged.truncate(cut);
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&damaged)
            && let Ok(ids) = tokenizer.encode("Hello  <bos>world 你好\n\n", options)
        {
            tokenizer.decode(&ids, false);
        }
    });
}
