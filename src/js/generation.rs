//! A running generation for JavaScript.

use std::cell::{Cell, RefCell};

use js_sys::{Object, Uint32Array};
use wasm_bindgen::prelude::*;
use web_sys::AbortSignal;

use super::{object, thrown};
use crate::engine::{self, FinishReason, RowStats, Stats};
use crate::error::{Code, Error, Result};
use crate::text::{Part, ToolCall};

/// A running continuation, pulled by [`Generation::next`].
#[wasm_bindgen]
pub struct Generation {
    /// Away while a pull is under way.
    inner: RefCell<Option<engine::Generation>>,
    stats: Cell<Stats>,
    cancelled: Cell<bool>,
}

#[wasm_bindgen]
impl Generation {
    /// `{ parts, ids }` of the next piece, or undefined when the output has ended. A part is
    /// `{ type: "text" | "thinking", text }`, `{ type: "toolCall", name, arguments }` or
    /// `{ type: "malformedToolCall", raw, problem }`.
    pub async fn next(&self, signal: Option<AbortSignal>) -> std::result::Result<JsValue, JsValue> {
        let piece = self.pull(signal).await.map_err(thrown)?;
        Ok(piece.map_or(JsValue::UNDEFINED, |piece| {
            let parts: js_sys::Array = piece.parts.into_iter().map(part).collect();
            let ids = js_sys::Array::from(&Uint32Array::from(piece.ids.as_slice()));
            object([("parts", parts.into()), ("ids", ids.into())]).into()
        }))
    }

    /// `{ promptTokens, cachedTokens, newTokens, firstTokenMs, tokensPerSecond, rows, finishReason }`, where
    /// `rows` is `{ hits, misses, bytes, stallMs }`; what is not known yet is undefined.
    pub fn stats(&self) -> Object {
        let stats = self.stats.get();
        let reason = stats.finish_reason.map(|reason| match reason {
            FinishReason::Stop => "stop",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        });
        object([
            ("promptTokens", stats.prompt_tokens.into()),
            ("cachedTokens", stats.cached_tokens.into()),
            ("newTokens", stats.new_tokens.into()),
            ("firstTokenMs", stats.first_token_ms.into()),
            ("tokensPerSecond", stats.tokens_per_second.into()),
            ("rows", stats.rows.map(rows).into()),
            ("finishReason", reason.into()),
        ])
    }

    /// Ends the generation, at once or with the pull that is under way.
    pub fn cancel(&self) {
        self.cancelled.set(true);
        if let Some(generation) = self.inner.borrow_mut().as_mut() {
            generation.cancel();
            self.stats.set(generation.stats());
        }
    }

    pub(super) fn new(generation: engine::Generation) -> Self {
        Self {
            stats: Cell::new(generation.stats()),
            inner: RefCell::new(Some(generation)),
            cancelled: Cell::new(false),
        }
    }

    async fn pull(&self, signal: Option<AbortSignal>) -> Result<Option<engine::Piece>> {
        let taken = self.inner.borrow_mut().take();
        let mut generation = taken.ok_or_else(|| {
            Error::new(Code::InvalidArgument, "pull the next piece").got("a call while another was under way")
        })?;
        let aborted = || signal.as_ref().is_some_and(AbortSignal::aborted);
        let piece = if aborted() { Ok(None) } else { generation.next().await };
        if self.cancelled.get() || aborted() {
            generation.cancel();
        }
        self.stats.set(generation.stats());
        *self.inner.borrow_mut() = Some(generation);
        if aborted() { Err(Error::new(Code::Aborted, "go on generating")) } else { piece }
    }
}

fn part(part: Part) -> JsValue {
    let tagged = |kind: &str, fields: [(&'static str, JsValue); 2]| {
        object([("type", kind.into())].into_iter().chain(fields)).into()
    };
    match part {
        Part::Text(text) => object([("type", "text".into()), ("text", text.into())]).into(),
        Part::Thinking(text) => object([("type", "thinking".into()), ("text", text.into())]).into(),
        Part::ToolCall(ToolCall { name, arguments }) => {
            // What serde_json writes, JavaScript reads.
            let json = serde_json::Value::Object(arguments).to_string();
            let arguments = js_sys::JSON::parse(&json).unwrap_or_default();
            tagged("toolCall", [("name", name.into()), ("arguments", arguments)])
        }
        Part::MalformedToolCall { raw, problem } => {
            tagged("malformedToolCall", [("raw", raw.into()), ("problem", problem.into())])
        }
    }
}

/// What reading the rows of the model's table took.
pub(super) fn rows(stats: RowStats) -> Object {
    object([
        ("hits", (stats.hits as f64).into()),
        ("misses", (stats.misses as f64).into()),
        ("bytes", (stats.bytes as f64).into()),
        ("stallMs", stats.stall_ms.into()),
    ])
}
