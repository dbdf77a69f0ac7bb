//! The marks that keep the text of special tokens in messages from becoming special tokens.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Code, Error, Result};
use crate::text::tokenizer::Tokenizer;

/// Plane 15: characters without meaning, which fonts of icons seldom use.
const CANDIDATES: RangeInclusive<char> = '\u{F0000}'..='\u{FFFFD}';

/// Keys of names from a closed list, which templates compare and make control tokens of:
/// `'<|' + message.role + '|>'`. A value that is no name is marked all the same.
const NAMES: [&str; 2] = ["role", "type"];

/// Marks special tokens' text in messages and takes the marks out of what was rendered.
pub(super) struct Marks<'a> {
    tokenizer: &'a Tokenizer,
    /// Candidates that occur in the texts of this prompt.
    used: BTreeSet<char>,
    mark: char,
}

impl<'a> Marks<'a> {
    /// `sources` are the texts besides the messages that may come out of the template.
    pub(super) fn new(tokenizer: &'a Tokenizer, sources: &[String]) -> Self {
        let mut marks = Self { tokenizer, used: BTreeSet::new(), mark: *CANDIDATES.start() };
        sources.iter().for_each(|source| marks.note_used(source));
        marks
    }

    /// Messages and further variables with a mark at each place where a special token begins, or might begin
    /// if the string were followed by another one.
    pub(super) fn mark(
        &mut self,
        messages: &Value,
        extra: &Map<String, Value>,
    ) -> Result<(Value, Map<String, Value>)> {
        self.note_used_in(messages);
        extra.values().for_each(|value| self.note_used_in(value));
        self.mark = CANDIDATES.clone().find(|c| !self.used.contains(c)).ok_or_else(|| {
            Error::new(Code::Template, "mark the text of special tokens in the messages")
                .expected("a character of plane 15 that they do not use")
                .got("messages that use all of them")
        })?;
        let extra = extra.iter().map(|(name, value)| (name.clone(), self.marked(value))).collect();
        Ok((self.marked(messages), extra))
    }

    /// The text without marks, and the byte offsets in it where they stood.
    pub(super) fn take_out(&self, rendered: &str) -> (String, Vec<usize>) {
        let mut text = String::with_capacity(rendered.len());
        let mut offsets = Vec::new();
        for (index, part) in rendered.split(self.mark).enumerate() {
            if index > 0 {
                offsets.push(text.len());
            }
            text.push_str(part);
        }
        (text, offsets)
    }

    fn note_used(&mut self, text: &str) {
        self.used.extend(text.chars().filter(|c| CANDIDATES.contains(c)));
    }

    fn note_used_in(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.note_used(text),
            Value::Array(items) => items.iter().for_each(|item| self.note_used_in(item)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                self.note_used(name);
                self.note_used_in(value);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn marked(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.marked_text(text)),
            Value::Array(items) => items.iter().map(|item| self.marked(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| self.marked_field(name, value)).collect()
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    fn marked_field(&self, name: &str, value: &Value) -> (String, Value) {
        let value = match value {
            Value::String(text) if NAMES.contains(&name) && is_name(text) => value.clone(),
            _ => self.marked(value),
        };
        (self.marked_text(name), value)
    }

    fn marked_text(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        let mut end = 0;
        for at in self.tokenizer.special_starts(text) {
            marked.push_str(&text[end..at]);
            marked.push(self.mark);
            end = at;
        }
        marked.push_str(&text[end..]);
        marked
    }
}

fn is_name(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}
