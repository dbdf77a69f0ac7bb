//! Which markers a model's output has.

use super::super::chat::ChatTemplate;
use super::super::tokenizer::Tokenizer;

/// How a thought is marked.
struct ThinkingFormat {
    open: &'static str,
    close: &'static str,
    /// What the thought begins with besides.
    label: &'static str,
}

const THINKING: [ThinkingFormat; 2] = [
    ThinkingFormat { open: "<|channel>", close: "<channel|>", label: "thought\n" },
    ThinkingFormat { open: "<think>", close: "</think>", label: "" },
];

/// How a tool call is marked and written.
struct CallFormat {
    open: &'static str,
    close: &'static str,
    syntax: CallSyntax,
    /// What stands around strings in place of `"`.
    quote: Option<&'static str>,
    /// Ends the output after the calls: here the caller's answer begins.
    response: Option<&'static str>,
}

const CALLS: [CallFormat; 2] = [
    CallFormat {
        open: "<|tool_call>",
        close: "<tool_call|>",
        syntax: CallSyntax::Bare,
        quote: Some("<|\"|>"),
        response: Some("<|tool_response>"),
    },
    CallFormat {
        open: "<tool_call>",
        close: "</tool_call>",
        syntax: CallSyntax::Json,
        quote: None,
        response: None,
    },
];

/// What stands between the markers of a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSyntax {
    /// `call:NAME{key:value,…}`, as Gemma 4 writes it.
    Bare,
    /// `{"name": …, "arguments": {…}}`, as Hermes and Qwen write it.
    Json,
}

/// What a marker means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    OpenThinking,
    CloseThinking,
    OpenCall,
    CloseCall,
    Quote,
}

impl Marker {
    /// Whether what follows belongs to a tool call.
    pub(super) fn leads_into_call(self) -> bool {
        matches!(self, Marker::OpenCall | Marker::Quote)
    }
}

/// A marker with its spelling.
#[derive(Debug)]
pub(super) struct MarkerToken {
    pub(super) marker: Marker,
    pub(super) text: &'static str,
    /// None where the tokenizer has no such token: then it is found in the text.
    pub(super) id: Option<u32>,
}

/// The markers of one model.
#[derive(Debug)]
pub struct OutputFormat {
    pub(super) markers: Vec<MarkerToken>,
    pub(super) label: &'static str,
    pub(super) syntax: CallSyntax,
    response: Option<u32>,
}

impl OutputFormat {
    /// The first formats of the table whose markers the tokenizer has as tokens, or `template` mentions.
    pub fn of(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Self {
        let is_known = |text: &str| {
            tokenizer.id_of(text).is_some() || template.is_some_and(|template| template.mentions(text))
        };
        let thinking = THINKING.iter().find(|format| is_known(format.open) && is_known(format.close));
        let call = CALLS.iter().find(|format| is_known(format.open) && is_known(format.close));
        let thinking_markers = thinking
            .iter()
            .flat_map(|format| [(Marker::OpenThinking, format.open), (Marker::CloseThinking, format.close)]);
        let call_markers = call.iter().flat_map(|format| {
            let quote = format.quote.map(|quote| (Marker::Quote, quote));
            [(Marker::OpenCall, format.open), (Marker::CloseCall, format.close)].into_iter().chain(quote)
        });
        let markers = thinking_markers.chain(call_markers);
        Self {
            markers: markers
                .map(|(marker, text)| MarkerToken { marker, text, id: tokenizer.id_of(text) })
                .collect(),
            label: thinking.map_or("", |format| format.label),
            syntax: call.map_or(CallSyntax::Json, |format| format.syntax),
            response: call.and_then(|format| format.response).and_then(|token| tokenizer.id_of(token)),
        }
    }

    /// The token with which the caller's answer to a tool call begins, where a model makes it itself: the
    /// output ends there.
    pub fn response_id(&self) -> Option<u32> {
        self.response
    }

    pub(super) fn marker(&self, id: u32) -> Option<Marker> {
        self.markers.iter().find(|token| token.id == Some(id)).map(|token| token.marker)
    }

    pub(super) fn text(&self, marker: Marker) -> &'static str {
        self.markers.iter().find(|token| token.marker == marker).map_or("", |token| token.text)
    }
}
