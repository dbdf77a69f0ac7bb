//! A model's output, token by token → thinking, text and tool calls.
//!
//! Families mark what they think and what they call by tokens of their own: Gemma 4 writes
//! `<|channel>thought\n…<channel|>` and `<|tool_call>call:NAME{…}<tool_call|>`, Qwen and others
//! `<think>…</think>` and `<tool_call>{"name": …}</tool_call>`. One table ([`OutputFormat`]) says which; where
//! the tokenizer has a marker as a token, it is known by its id and its spelling is text like any other, else
//! it is found in the text.

mod call;
mod format;
mod splitter;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use format::OutputFormat;

use super::stream::StreamDecoder;
use super::tokenizer::Tokenizer;
use format::Marker;
use splitter::Splitter;

/// Tokens at the end of a prompt that may hold the beginning of the model's thinking.
const TAIL: usize = 8;

/// A piece of output.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Of the answer.
    Text(String),
    /// Of what the model thought before it.
    Thinking(String),
    /// A whole call.
    ToolCall(ToolCall),
    /// What was marked as a call and is none.
    MalformedToolCall {
        /// The text between the markers, complete.
        raw: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// A function that the model asks to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// As in the tool's declaration, if the model keeps to it.
    pub name: String,
    /// By parameter, unchecked.
    pub arguments: Map<String, Value>,
}

/// Takes tokens as they come and gives the parts that are certain.
///
/// Newlines next to a marker belong to the format and are left out. Without any marker, the text is exactly
/// [`Tokenizer::decode`] of the ids.
pub struct OutputParser {
    tokenizer: Arc<Tokenizer>,
    format: Arc<OutputFormat>,
    decoder: StreamDecoder,
    splitter: Splitter,
}

impl OutputParser {
    /// Begins the output that follows `prompt`, which may end in the beginning of the model's thinking.
    pub fn new(tokenizer: Arc<Tokenizer>, format: Arc<OutputFormat>, prompt: &[u32]) -> Self {
        let tail = tokenizer.decode(&prompt[prompt.len().saturating_sub(TAIL)..], false);
        let splitter = Splitter::new(format.clone(), &tail);
        let decoder = StreamDecoder::new(tokenizer.clone(), true);
        Self { tokenizer, format, decoder, splitter }
    }

    /// Takes the next token; often there is nothing certain yet.
    pub fn push(&mut self, id: u32) -> Vec<Part> {
        let mut parts = Vec::new();
        match self.format.marker(id).filter(|&marker| self.splitter.accepts(marker)) {
            Some(marker) => self.push_marker(marker, &mut parts),
            None => self.splitter.push_text(&self.decoder.push(id), &mut parts),
        }
        parts
    }

    fn push_marker(&mut self, marker: Marker, parts: &mut Vec<Part>) {
        let next = StreamDecoder::new(self.tokenizer.clone(), !marker.leads_into_call());
        let text = std::mem::replace(&mut self.decoder, next).finish();
        self.splitter.push_text(&text, parts);
        self.splitter.push_marker(marker, parts);
    }

    /// Ends the output and gives what was held back.
    pub fn finish(mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        self.splitter.push_text(&self.decoder.finish(), &mut parts);
        self.splitter.finish(&mut parts);
        parts
    }
}
