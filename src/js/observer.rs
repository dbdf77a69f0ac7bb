//! Progress events for JavaScript.

use js_sys::Function;
use wasm_bindgen::JsValue;
use web_sys::AbortSignal;

use super::object;
use crate::engine::{LoadEvent, LoadObserver};
use crate::error::Error;

/// Calls `onProgress` and asks the signal.
pub(super) struct Observer {
    on_progress: Option<Function>,
    signal: Option<AbortSignal>,
}

impl Observer {
    pub fn new(on_progress: Option<Function>, signal: Option<AbortSignal>) -> Self {
        Self { on_progress, signal }
    }

    /// Says that `file` (or nothing at all, where it is empty) cannot be kept.
    pub fn uncached(&self, file: &str, error: &Error) {
        self.event(LoadEvent::Uncached { file, error });
    }
}

impl LoadObserver for Observer {
    fn event(&self, event: LoadEvent<'_>) {
        let Some(on_progress) = &self.on_progress else { return };
        let bytes = |bytes: u64| JsValue::from(bytes as f64);
        let event = match event {
            LoadEvent::File { file } => object([("type", "file".into()), ("file", file.into())]),
            LoadEvent::Weights { file, loaded_bytes, total_bytes, cached_bytes } => object([
                ("type", "weights".into()),
                ("file", file.into()),
                ("loadedBytes", bytes(loaded_bytes)),
                ("totalBytes", bytes(total_bytes)),
                ("cachedBytes", bytes(cached_bytes)),
            ]),
            LoadEvent::Uncached { file, error } => object([
                ("type", "uncached".into()),
                ("file", file.into()),
                ("message", error.to_string().into()),
            ]),
            LoadEvent::Retry { file, delay, error } => object([
                ("type", "retry".into()),
                ("file", file.into()),
                ("delayMs", (delay.as_millis() as f64).into()),
                ("message", error.to_string().into()),
            ]),
            LoadEvent::Restart => object([("type", "restart".into())]),
            LoadEvent::Compile => object([("type", "compile".into())]),
        };
        // index.js catches what a listener throws.
        let _ = on_progress.call1(&JsValue::NULL, &event);
    }

    fn is_cancelled(&self) -> bool {
        self.signal.as_ref().is_some_and(AbortSignal::aborted)
    }
}
