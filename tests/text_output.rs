//! The parts of a model's output: thinking, text and tool calls, however tokens and text are cut.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use jird::text::{ChatTemplate, EncodeOptions, OutputFormat, OutputParser, Part, Tokenizer, ToolCall};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Gemma 4's markers, which its tokenizer has as special tokens.
const GEMMA4: [&str; 8] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<|\"|>",
    "<|turn>",
    "<turn|>",
];

fn tokenizer(name: &str, markers: &[&str]) -> Arc<Tokenizer> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/text/{name}.tokenizer.json"));
    let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let added = json["added_tokens"].as_array_mut().unwrap();
    for (id, content) in (950..).zip(markers) {
        let mut token = added[0].clone();
        token["id"] = json!(id);
        token["content"] = json!(content);
        added.push(token);
    }
    Arc::new(Tokenizer::from_json(json.to_string().as_bytes()).unwrap())
}

/// A family: its tokenizer, and its markers.
struct Family {
    tokenizer: Arc<Tokenizer>,
    format: Arc<OutputFormat>,
}

impl Family {
    fn new(tokenizer: Arc<Tokenizer>, template: &str) -> Self {
        let template = ChatTemplate::from_jinja(template, b"{}").unwrap();
        let format = Arc::new(OutputFormat::of(&tokenizer, Some(&template)));
        Self { tokenizer, format }
    }

    fn gemma4() -> Self {
        Self::new(tokenizer("gemma", &GEMMA4), "")
    }

    /// Markers that are known from the template alone, and have no tokens.
    fn spelled() -> Self {
        Self::new(tokenizer("smollm", &[]), "{# <think> </think> <tool_call> </tool_call> #}")
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_special_tokens: false, parse_special: true }).unwrap()
    }

    fn parse_after(&self, prompt: &str, ids: &[u32]) -> Vec<Part> {
        let mut parser = OutputParser::new(self.tokenizer.clone(), self.format.clone(), &self.encode(prompt));
        let mut parts: Vec<Part> = ids.iter().flat_map(|&id| parser.push(id)).collect();
        parts.extend(parser.finish());
        merged(parts)
    }

    fn parse(&self, text: &str) -> Vec<Part> {
        self.parse_after("", &self.encode(text))
    }
}

/// Neighbours of one kind as one part.
fn merged(parts: Vec<Part>) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for part in parts {
        match (merged.last_mut(), part) {
            (Some(Part::Text(last)), Part::Text(text)) => last.push_str(&text),
            (Some(Part::Thinking(last)), Part::Thinking(text)) => last.push_str(&text),
            (_, part) => merged.push(part),
        }
    }
    merged
}

fn text(text: &str) -> Part {
    Part::Text(text.into())
}

fn thinking(text: &str) -> Part {
    Part::Thinking(text.into())
}

fn call(name: &str, arguments: Value) -> Part {
    Part::ToolCall(ToolCall { name: name.into(), arguments: arguments.as_object().unwrap().clone() })
}

#[test]
fn gemma4_thinks_calls_and_answers() {
    let family = Family::gemma4();
    assert_eq!(
        family.parse("<|channel>thought\nFirst, two\nlines.\n<channel|>The answer.\n\nYes.<turn|>"),
        [thinking("First, two\nlines."), text("The answer.\n\nYes.")]
    );
    let calls = "<|tool_call>call:weather{at:[50.9,{a:null,b:<|\"|>x<|\"|>},[]],city:<|\"|>K: {ö}, ]<|\"|>,\
                 days:2,empty:{},now:true,scale:-1.5}<tool_call|><|tool_call>call:time{}<tool_call|><|tool_response>";
    let arguments = json!({
        "at": [50.9, {"a": null, "b": "x"}, []], "city": "K: {ö}, ]", "days": 2, "empty": {}, "now": true,
        "scale": -1.5
    });
    assert_eq!(
        family.parse(&format!("Let me see.\n{calls}")),
        [text("Let me see."), call("weather", arguments), call("time", json!({}))]
    );
    assert_eq!(family.parse("<|channel>thought\n<channel|>Yes."), [text("Yes.")]);
    assert_eq!(family.parse("<|channel>thought<channel|>Yes."), [text("Yes.")]);
    assert_eq!(family.parse("<|channel>thoughts are free<channel|>"), [thinking("thoughts are free")]);
    assert_eq!(family.parse("<|channel>thou<channel|>"), [thinking("thou")]);
}

#[test]
fn a_prompt_may_begin_the_thought() {
    let gemma4 = Family::gemma4();
    let rest = gemma4.encode("so.\n<channel|>Yes.");
    for prompt in ["<|turn>model\n<|channel>thought\n", "<|channel>"] {
        assert_eq!(gemma4.parse_after(prompt, &rest), [thinking("so."), text("Yes.")], "{prompt}");
    }
    assert_eq!(gemma4.parse_after("<|channel>thought\n<channel|>", &gemma4.encode("Yes.")), [text("Yes.")]);
    let spelled = Family::spelled();
    assert_eq!(
        spelled.parse_after("assistant\n<think>\n", &spelled.encode("so.\n</think>\n\nYes.")),
        [thinking("so."), text("Yes.")]
    );
}

#[test]
fn json_calls_are_read_as_qwen_writes_them() {
    for family in [Family::spelled(), Family::new(tokenizer("qwen2", &[]), "{# <think> </think> #}")] {
        let output = "<think>\nA city.\n</think>\n\nI look.\n<tool_call>\n\
            {\"name\": \"weather\", \"arguments\": {\"city\": \"Köln <b>\"}}\n</tool_call>\n<tool_call>\n\
            {\"name\": \"time\"}\n</tool_call>";
        assert_eq!(
            family.parse(output),
            [
                thinking("A city."),
                text("I look."),
                call("weather", json!({"city": "Köln <b>"})),
                call("time", json!({}))
            ]
        );
        let as_text = "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>";
        assert_eq!(family.parse(as_text), [call("f", json!({"a": 1}))]);
    }
}

#[test]
fn malformed_calls_keep_their_text() {
    let gemma4 = [
        "call:f{a:<|\"|>x}",
        "call:f{a:1",
        "call:f{a:1}}",
        "call:{a:1}",
        "call:f{a}",
        "f{a:1}",
        "",
        "call:f{a:<|\"|>x<|\"|>y}",
        "call:f<|\"|>{}",
    ];
    let nested = format!("call:f{{a:{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for raw in gemma4.into_iter().chain([nested.as_str()]) {
        let parts = Family::gemma4().parse(&format!("a<|tool_call>{raw}<tool_call|>b"));
        let [Part::Text(before), Part::MalformedToolCall { raw: kept, problem }, Part::Text(after)] =
            &parts[..]
        else {
            panic!("{raw}: {parts:?}")
        };
        assert_eq!((before.as_str(), kept.as_str(), after.as_str()), ("a", raw, "b"));
        assert!(!problem.is_empty());
    }
    for raw in [
        "{\"name\": 1}",
        "{\"arguments\": {}}",
        "[1]",
        "nothing",
        "{\"name\": \"f\", \"arguments\": [1]}",
        "{",
    ] {
        let parts = Family::spelled().parse(&format!("<tool_call>{raw}</tool_call>"));
        assert!(
            matches!(&parts[..], [Part::MalformedToolCall { raw: kept, .. }] if kept == raw),
            "{parts:?}"
        );
    }
    // Cut off: what is complete is a call, what is not is malformed.
    let family = Family::gemma4();
    assert_eq!(family.parse("<|tool_call>call:f{a:1}"), [call("f", json!({"a": 1}))]);
    assert!(matches!(&family.parse("<|tool_call>call:f{a:")[..], [Part::MalformedToolCall { .. }]));
}

#[test]
fn words_without_quotes_are_strings() {
    assert_eq!(
        Family::gemma4().parse("<|tool_call>call:set{unit: celsius ,n:1e3,id:007}<tool_call|>"),
        [call("set", json!({"unit": "celsius", "n": 1e3, "id": "007"}))]
    );
}

/// Where a marker is a token, its spelling is text: a model that quotes its user quotes no marker.
#[test]
fn spelled_markers_are_text_where_there_are_tokens() {
    let family = Family::gemma4();
    let plain = EncodeOptions { add_special_tokens: false, parse_special: false };
    let spelled = "<|tool_call>call:f{}<tool_call|> <|channel>thought";
    let ids = family.tokenizer.encode(spelled, plain).unwrap();
    assert_eq!(family.parse_after("", &ids), [text(spelled)]);
}

#[test]
fn a_family_without_markers_gets_its_text_as_it_is() {
    let family = Family::new(tokenizer("smollm", &[]), "{{ messages }}");
    let output = "\n\n<think>x</think>\n<tool_call>\n";
    assert_eq!(family.parse(output), [text(output)]);
}

/// What the parts say, and nothing of what is left out.
fn letters(parts: &[Part]) -> String {
    let said = parts.iter().map(|part| match part {
        Part::Text(text) | Part::Thinking(text) => text.clone(),
        Part::MalformedToolCall { raw, .. } => raw.clone(),
        Part::ToolCall(call) => format!("{}{}", call.name, Value::from(call.arguments.clone())),
    });
    said.collect::<String>().chars().filter(|c| c.is_ascii_uppercase()).collect()
}

const SNIPPETS: &str = "(<think>|</think>|<tool_call>|</tool_call>|<th|</|<tool|>|<|\n|[A-Z]|é|你| |\
                        \\{\"name\": \"Q\", \"arguments\": \\{\"x\": \"R\"\\}\\}){0,24}";

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same text by whichever tokens has the same parts, and no letter is lost.
    #[test]
    fn parts_do_not_depend_on_the_cuts(output in SNIPPETS, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let family = Family::spelled();
        let characters: Vec<char> = output.chars().collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(characters.len() + 1)).collect();
        cuts.extend([0, characters.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|cut| characters[cut[0]..cut[1]].iter().collect::<String>());
        let ids: Vec<u32> = pieces.flat_map(|piece| family.encode(&piece)).collect();
        let whole = family.parse(&output);
        prop_assert_eq!(&family.parse_after("", &ids), &whole);
        let of_text: String = output.chars().filter(|c| c.is_ascii_uppercase()).collect();
        prop_assert_eq!(letters(&whole), of_text);
    }

    /// Whatever tokens come, in whatever order: no panic, and no letter is lost.
    #[test]
    fn any_tokens_are_parsed(
        pieces in prop::collection::vec(
            prop::sample::select([&GEMMA4[..], &["thought\n", "call:A{", "B:", "C", "1", ",", "}", "[", "]", " ", "\n", "é"]].concat()),
            0..40,
        ),
    ) {
        let family = Family::gemma4();
        let ids: Vec<u32> = pieces.iter().flat_map(|piece| family.encode(piece)).collect();
        let parts = family.parse_after("", &ids);
        let written: String = pieces.concat().chars().filter(|c| c.is_ascii_uppercase()).collect();
        // A key that is given twice counts once.
        prop_assert!(letters(&parts).len() <= written.len());
        let has_call = parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
        prop_assert!(has_call || letters(&parts) == written);
    }
}
