//! From token texts back to text, one token at a time.
//!
//! The reference decodes a whole list of tokens, step after step of its decoder. Here every step keeps what
//! it cannot decide yet and passes on the rest, so that decoding all at once and decoding as the tokens come
//! are the same code and give the same text.

use serde::Deserialize;

use super::byte_level::extend_bytes;
use super::pattern::Pattern;
use super::pre_tokenizer::{MetaspaceJson, PrependScheme};

const REPLACEMENT: &str = "\u{FFFD}";

/// The `decoder` of `tokenizer.json`, its sequences laid flat.
#[derive(Deserialize)]
#[serde(try_from = "DecoderJson")]
pub(super) struct Decoder {
    steps: Vec<Step>,
}

enum Step {
    /// Tokens in the byte-level alphabet become bytes, and these one text.
    ByteLevel,
    Replace {
        literal: String,
        content: String,
    },
    /// Runs of tokens such as `<0xE4>` become text.
    ByteFallback,
    /// The tokens become one text.
    Fuse,
    /// At most `start` of `content` are cut from the beginning of each token, `stop` from its end.
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    /// `replacement` becomes a space, or in the first token nothing if `has_prefix`.
    Metaspace {
        replacement: char,
        has_prefix: bool,
    },
    /// A space between tokens: a tokenizer without decoder.
    Join,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderJson {
    ByteLevel,
    Replace { pattern: Pattern, content: String },
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
    Metaspace(MetaspaceJson),
    Sequence { decoders: Vec<Decoder> },
}

impl TryFrom<DecoderJson> for Decoder {
    type Error = String;

    fn try_from(json: DecoderJson) -> Result<Self, String> {
        let step = match json {
            DecoderJson::ByteLevel => Step::ByteLevel,
            DecoderJson::Replace { pattern: Pattern::Literal(literal), content } => {
                Step::Replace { literal, content }
            }
            DecoderJson::Replace { pattern: Pattern::Regex(_), .. } => {
                return Err("unknown variant `Regex` as the pattern of a Replace decoder".into());
            }
            DecoderJson::ByteFallback => Step::ByteFallback,
            DecoderJson::Fuse => Step::Fuse,
            DecoderJson::Strip { content, start, stop } => Step::Strip { content, start, stop },
            DecoderJson::Metaspace(metaspace) => Step::Metaspace {
                replacement: metaspace.replacement,
                has_prefix: metaspace.prepend_scheme() != PrependScheme::Never,
            },
            DecoderJson::Sequence { decoders } => {
                return Ok(Self { steps: decoders.into_iter().flat_map(|decoder| decoder.steps).collect() });
            }
        };
        Ok(Self { steps: vec![step] })
    }
}

impl Decoder {
    /// What a tokenizer without `decoder` does.
    pub(super) fn join() -> Self {
        Self { steps: vec![Step::Join] }
    }

    /// The state before the first token.
    pub(super) fn start(&self) -> DecodeState {
        let mut is_fused = false;
        let holds = self.steps.iter().map(|step| {
            let hold = Hold::new(step, is_fused);
            is_fused |= matches!(step, Step::ByteLevel | Step::Fuse);
            hold
        });
        DecodeState { holds: holds.collect() }
    }

    /// Takes the next token and appends to `out` all text that is certain by now.
    pub(super) fn push(&self, state: &mut DecodeState, token: &str, out: &mut String) {
        push_token(&self.steps, &mut state.holds, token, out);
    }

    /// Ends the text: appends what was held back.
    pub(super) fn finish(&self, mut state: DecodeState, out: &mut String) {
        for index in 0..self.steps.len() {
            let (steps, holds) = (&self.steps[index..], &mut state.holds[index..]);
            if let [Hold::Whole(whole), ..] = holds {
                let token = std::mem::take(whole);
                holds[0] = Hold::new(&steps[0], false);
                push_token(steps, holds, &token, out);
            }
            if let (step, [Hold::Bytes(bytes), later_holds @ ..]) = (&steps[0], holds) {
                match step {
                    Step::ByteFallback => flush_fallback(bytes, &steps[1..], later_holds, out),
                    _ => push_text(&steps[1..], later_holds, &String::from_utf8_lossy(bytes), out),
                }
            }
        }
    }
}

/// What each step of a [`Decoder`] holds back.
pub(in crate::text) struct DecodeState {
    holds: Vec<Hold>,
}

enum Hold {
    Nothing,
    /// Bytes that are not yet text.
    Bytes(Vec<u8>),
    /// Whether a token has come by.
    HasBegun(bool),
    /// Strip on one text: how many characters it may still cut from the beginning, and how many it holds
    /// back at the end, all of them its `content`.
    Strip {
        start_left: usize,
        held: usize,
    },
    /// The whole text: a step that the reference applies to the fused text, and that cannot stream.
    Whole(String),
}

impl Hold {
    fn new(step: &Step, is_fused: bool) -> Self {
        match step {
            Step::Fuse => Hold::Nothing,
            Step::Strip { start, .. } if is_fused => Hold::Strip { start_left: *start, held: 0 },
            _ if is_fused => Hold::Whole(String::new()),
            Step::ByteLevel | Step::ByteFallback => Hold::Bytes(Vec::new()),
            Step::Metaspace { .. } | Step::Join => Hold::HasBegun(false),
            Step::Replace { .. } | Step::Strip { .. } => Hold::Nothing,
        }
    }
}

/// Runs one whole token through `steps`.
fn push_token(steps: &[Step], holds: &mut [Hold], token: &str, out: &mut String) {
    let ([step, later_steps @ ..], [hold, later_holds @ ..]) = (steps, &mut *holds) else {
        out.push_str(token);
        return;
    };
    match (step, hold) {
        (_, Hold::Whole(_) | Hold::Strip { .. }) => push_text(steps, holds, token, out),
        (Step::Fuse, _) => push_text(later_steps, later_holds, token, out),
        (Step::ByteFallback, Hold::Bytes(bytes)) => match fallback_byte(token) {
            Some(byte) => bytes.push(byte),
            None => {
                flush_fallback(bytes, later_steps, later_holds, out);
                push_token(later_steps, later_holds, token, out);
            }
        },
        (_, Hold::Bytes(bytes)) => {
            extend_bytes(bytes, token);
            push_text(later_steps, later_holds, &take_text(bytes), out);
        }
        (Step::Metaspace { replacement, has_prefix }, Hold::HasBegun(has_begun)) => {
            let space = if *has_prefix && !*has_begun { "" } else { " " };
            *has_begun = true;
            push_token(later_steps, later_holds, &token.replace(*replacement, space), out);
        }
        (Step::Replace { literal, content }, _) => {
            push_token(later_steps, later_holds, &token.replace(literal, content), out);
        }
        (Step::Strip { content, start, stop }, _) => {
            push_token(later_steps, later_holds, strip(token, *content, *start, *stop), out);
        }
        (_, Hold::HasBegun(has_begun)) => {
            if std::mem::replace(has_begun, true) {
                out.push(' ');
            }
            out.push_str(token);
        }
        (_, Hold::Nothing) => push_token(later_steps, later_holds, token, out),
    }
}

/// Runs a further stretch of the one fused text through `steps`.
fn push_text(steps: &[Step], holds: &mut [Hold], text: &str, out: &mut String) {
    let ([step, later_steps @ ..], [hold, later_holds @ ..]) = (steps, holds) else {
        out.push_str(text);
        return;
    };
    match (step, hold) {
        (Step::Strip { content, stop, .. }, Hold::Strip { start_left, held }) => {
            let text = strip_start(text, *content, start_left);
            let kept = text.trim_end_matches(*content);
            if !kept.is_empty() {
                push_text(later_steps, later_holds, &repeat(*content, *held), out);
                push_text(later_steps, later_holds, kept, out);
                *held = 0;
            }
            *held += (text.len() - kept.len()) / content.len_utf8();
            let surplus = held.saturating_sub(*stop);
            push_text(later_steps, later_holds, &repeat(*content, surplus), out);
            *held -= surplus;
        }
        (_, Hold::Whole(whole)) => whole.push_str(text),
        _ => push_text(later_steps, later_holds, text, out),
    }
}

fn repeat(c: char, count: usize) -> String {
    std::iter::repeat_n(c, count).collect()
}

/// Cuts up to `left` times `content` from the beginning of the text, as long as nothing else has come.
fn strip_start<'a>(mut text: &'a str, content: char, left: &mut usize) -> &'a str {
    while *left > 0 && !text.is_empty() {
        match text.strip_prefix(content) {
            Some(rest) => {
                text = rest;
                *left -= 1;
            }
            None => *left = 0,
        }
    }
    text
}

fn strip(token: &str, content: char, mut start: usize, stop: usize) -> &str {
    let mut token = strip_start(token, content, &mut start);
    for _ in 0..stop {
        let Some(rest) = token.strip_suffix(content) else { break };
        token = rest;
    }
    token
}

/// The byte that a token such as `<0xE4>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}

/// A run of byte tokens is text only as a whole: if it is not UTF-8, each byte becomes a U+FFFD.
fn flush_fallback(bytes: &mut Vec<u8>, steps: &[Step], holds: &mut [Hold], out: &mut String) {
    if bytes.is_empty() {
        return;
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => push_token(steps, holds, text, out),
        Err(_) => bytes.iter().for_each(|_| push_token(steps, holds, REPLACEMENT, out)),
    }
    bytes.clear();
}

/// Takes from `bytes` the text that no later byte can change: all but an unfinished character at the end.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut taken = 0;
    loop {
        match std::str::from_utf8(&bytes[taken..]) {
            Ok(valid) => {
                text.push_str(valid);
                bytes.clear();
                return text;
            }
            Err(error) => {
                let valid_end = taken + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[taken..valid_end]));
                taken = valid_end;
                let Some(invalid) = error.error_len() else { break };
                text.push_str(REPLACEMENT);
                taken += invalid;
            }
        }
    }
    bytes.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that has come out after each token, and the whole text.
    fn stream(json: &str, tokens: &[&str]) -> (Vec<String>, String) {
        let decoder: Decoder = serde_json::from_str(json).unwrap();
        let mut state = decoder.start();
        let mut text = String::new();
        let mut after = Vec::new();
        for token in tokens {
            decoder.push(&mut state, token, &mut text);
            after.push(text.clone());
        }
        decoder.finish(state, &mut text);
        (after, text)
    }

    const LLAMA: &str = r#"{"type":"Sequence","decoders":[
        {"type":"Replace","pattern":{"String":"▁"},"content":" "},
        {"type":"ByteFallback"},{"type":"Fuse"},
        {"type":"Strip","content":" ","start":1,"stop":0}]}"#;

    #[test]
    fn byte_level_waits_for_the_rest_of_a_character() {
        let (after, text) = stream(r#"{"type":"ByteLevel"}"#, &["ä½", "ł", "Ġx", "å"]);
        assert_eq!(after, ["", "你", "你 x", "你 x"]);
        assert_eq!(text, "你 x\u{FFFD}");
    }

    #[test]
    fn a_run_of_byte_tokens_is_decided_when_it_ends() {
        let (after, text) = stream(LLAMA, &["▁", "<0xE4>", "<0xBD>", "<0xA0>", "▁a", "<0xE4>", "b"]);
        assert_eq!(after, ["", "", "", "", "你 a", "你 a", "你 a\u{FFFD}b"]);
        assert_eq!(text, "你 a\u{FFFD}b");
    }

    #[test]
    fn strip_cuts_the_fused_text_at_both_ends() {
        let json = r#"{"type":"Sequence","decoders":[{"type":"Fuse"},
            {"type":"Strip","content":"_","start":2,"stop":1}]}"#;
        let (after, text) = stream(json, &["_", "_", "_a_", "_", "", "b", "_", "_"]);
        assert_eq!(after, ["", "", "_a", "_a_", "_a_", "_a__b", "_a__b", "_a__b_"]);
        assert_eq!(text, "_a__b_");
    }

    #[test]
    fn steps_that_need_the_whole_text_wait_for_it() {
        let json = r#"{"type":"Sequence","decoders":[{"type":"Fuse"},
            {"type":"Replace","pattern":{"String":"ab"},"content":"x"},
            {"type":"Strip","content":"x","start":1,"stop":0}]}"#;
        let (after, text) = stream(json, &["a", "b", "ab"]);
        assert_eq!(after, ["", "", ""]);
        assert_eq!(text, "x");
    }

    #[test]
    fn metaspace_drops_the_prefix_of_the_first_token_only() {
        let json = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"}"#;
        assert_eq!(stream(json, &["▁a", "▁b"]).1, "a b");
        let json = r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"never"}"#;
        assert_eq!(stream(json, &["▁a", "▁b"]).1, " a b");
    }
}
