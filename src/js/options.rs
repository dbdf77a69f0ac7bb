//! Options from JavaScript. `index.js` has checked their types; what is wrong here is still an error.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::engine::{ContextFull, GenerateOptions, LoadOptions, Prompt, SessionOptions};
use crate::error::{Code, Error, Result};
use crate::nn::WeightDtype;
use crate::text::chat::LocalTime;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoadJs {
    dtype: Option<String>,
    context: Option<u32>,
    memory_budget: Option<f64>,
    pub cache: Option<bool>,
    pub integrity: Option<BTreeMap<String, String>>,
}

impl LoadJs {
    pub fn dtype(&self) -> &str {
        self.dtype.as_deref().unwrap_or("auto")
    }

    pub fn load_options(&self) -> Result<LoadOptions> {
        Ok(LoadOptions {
            dtype: WeightDtype::parse(self.dtype())?,
            context: self.context,
            memory_budget: self.memory_budget.map(|bytes| bytes as u64),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GenerateJs {
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: Option<u32>,
    stop: Option<Vec<String>>,
    context_full: Option<ContextFullJs>,
    tools: Option<serde_json::Value>,
    thinking: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum ContextFullJs {
    Error,
    Slide,
}

#[derive(Deserialize)]
pub(super) struct SessionJs {
    context: Option<u32>,
}

impl From<SessionJs> for SessionOptions {
    fn from(options: SessionJs) -> Self {
        Self { context: options.context }
    }
}

impl GenerateJs {
    pub fn into_options(self, now: LocalTime) -> GenerateOptions {
        let defaults = GenerateOptions::default();
        GenerateOptions {
            max_tokens: self.max_tokens,
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            seed: self.seed.unwrap_or_else(|| (js_sys::Math::random() * 4_294_967_296.0) as u32),
            stop: self.stop.unwrap_or_default(),
            context_full: match self.context_full {
                None | Some(ContextFullJs::Error) => ContextFull::Error,
                Some(ContextFullJs::Slide) => ContextFull::Slide,
            },
            tools: self.tools,
            thinking: self.thinking,
            now: Some(now),
        }
    }
}

/// `value` as a `T`; `what` names it in the error.
pub(super) fn read<T: DeserializeOwned>(what: &str, value: JsValue) -> Result<T> {
    serde_wasm_bindgen::from_value(value)
        .map_err(|error| Error::new(Code::InvalidArgument, format!("read {what}")).got(error.to_string()))
}

/// A string or an array of messages.
pub(super) fn prompt(input: JsValue) -> Result<Prompt> {
    match input.as_string() {
        Some(text) => Ok(Prompt::Text(text)),
        None => read("the messages", input).map(Prompt::Messages),
    }
}

/// The user's clock.
pub(super) fn now() -> LocalTime {
    let date = js_sys::Date::new_0();
    LocalTime {
        year: date.get_full_year() as i32,
        month: date.get_month() + 1,
        day: date.get_date(),
        hour: date.get_hours(),
        minute: date.get_minutes(),
        second: date.get_seconds(),
    }
}
