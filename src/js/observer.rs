//! Progress events for JavaScript.

use js_sys::{Array, Function};
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
            LoadEvent::Open { file } => object([("phase", "open".into()), ("file", file.into())]),
            LoadEvent::Download { file, loaded, total, from_cache } => object([
                ("phase", "download".into()),
                ("file", file.into()),
                ("loaded", bytes(loaded)),
                ("total", bytes(total)),
                ("fromCache", bytes(from_cache)),
            ]),
            LoadEvent::Compile => object([("phase", "compile".into())]),
            LoadEvent::Uncached { file, error } => object([
                ("phase", "uncached".into()),
                ("file", file.into()),
                ("message", error.to_string().into()),
            ]),
            LoadEvent::Unused { tensors } => {
                let names: Array = tensors.iter().map(|name| JsValue::from_str(name)).collect();
                object([("phase", "unused".into()), ("tensors", names.into())])
            }
            LoadEvent::Retry { file, delay, error } => object([
                ("phase", "retry".into()),
                ("file", file.into()),
                ("delayMs", (delay.as_millis() as f64).into()),
                ("message", error.to_string().into()),
            ]),
            LoadEvent::Restart => object([("phase", "restart".into())]),
        };
        // index.js catches what a listener throws.
        let _ = on_progress.call1(&JsValue::NULL, &event);
    }

    fn is_cancelled(&self) -> bool {
        self.signal.as_ref().is_some_and(AbortSignal::aborted)
    }
}
