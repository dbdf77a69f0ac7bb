//! Floor 7. The only wasm-bindgen surface: options in, events out, errors mapped to codes.
//!
//! `pkg-template/index.js` is written by hand over these classes and is what pages import. It checks
//! arguments, queues calls, and turns the errors thrown here into `JirdError`.

mod generation;
mod observer;
mod options;

use std::rc::Rc;

use js_sys::{Function, Object, Reflect};
use wasm_bindgen::prelude::*;
use web_sys::{AbortSignal, Blob};

use crate::engine::{self, GenerateOptions, LoadOptions, Model, Prompt};
use crate::error::{Code, Error, Result};
use crate::fetch::{BlobOpener, CacheStore, HttpOpener, Repo};
use crate::gpu::{Gpu, GpuOptions};
use generation::Generation;
use observer::Observer;
use options::{GenerateJs, LoadJs, SessionJs, now, prompt, read};

/// The cache that holds the blocks of all models of an origin.
const CACHE_NAME: &str = "jird-blocks-v1";

/// Shows panics, which are bugs, in the console.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// An `Error` of JavaScript with a `code`.
fn thrown(error: Error) -> JsValue {
    let thrown = js_sys::Error::new(&error.to_string());
    // Setting a property of a fresh object cannot fail.
    let _ = Reflect::set(&thrown, &"code".into(), &error.code().as_str().into());
    thrown.into()
}

/// One loaded model, on a device of its own.
#[wasm_bindgen]
pub struct Engine {
    model: Rc<Model>,
    dtype: String,
}

#[wasm_bindgen]
impl Engine {
    /// Loads the model at `location`: a URL, a hub id, or `{ files: { name: Blob } }`.
    ///
    /// `options`: `dtype`, `context`, `memoryBudget`, `cache`. `callbacks`: `onProgress(event)`, `signal`.
    pub async fn load(
        location: JsValue,
        options: JsValue,
        callbacks: JsValue,
    ) -> std::result::Result<Engine, JsValue> {
        Self::try_load(location, options, callbacks).await.map_err(thrown)
    }

    /// What a load with these arguments would take, in bytes: `{ weights, kvCache, activations, other,
    /// gpuBytes, tokenizer, rows, staging, heapBytes, totalBytes, downloadBytes, fits }`.
    pub async fn plan(
        location: JsValue,
        options: JsValue,
        callbacks: JsValue,
    ) -> std::result::Result<Object, JsValue> {
        Self::try_plan(location, options, callbacks).await.map_err(thrown)
    }

    /// Prepares the continuation of `input`, a string or an array of messages.
    pub async fn start(&self, input: JsValue, options: JsValue) -> std::result::Result<Generation, JsValue> {
        start_with(input, options, |prompt, options| self.model.generate(prompt, options))
    }

    /// Opens a further session. `options`: `context`.
    pub fn session(&self, options: JsValue) -> std::result::Result<Session, JsValue> {
        let options: Result<SessionJs> = read("the options of session", options);
        let session = options.and_then(|options| self.model.session(options.into()));
        session.map(|inner| Session { inner }).map_err(thrown)
    }

    /// `{ modelType, dtype, context, vocabSize, adapter, memory }`
    pub fn info(&self) -> Object {
        object([
            ("modelType", self.model.model_type().into()),
            ("dtype", self.dtype.as_str().into()),
            ("context", self.model.context().into()),
            ("vocabSize", self.model.vocab_size().into()),
            ("adapter", self.model.gpu().capabilities().adapter.as_str().into()),
            ("memory", self.memory().into()),
        ])
    }

    /// The ledger in bytes: `{ weights, kvCache, activations, other, total, peak, heap }`, where `total` and
    /// `peak` are of the GPU.
    pub fn memory(&self) -> Object {
        let ledger = self.model.gpu().ledger();
        let bytes = |bytes: u64| JsValue::from(bytes as f64);
        let mut entries: Vec<(&str, JsValue)> =
            ledger.entries().map(|(name, live)| (name, bytes(live))).collect();
        entries.push(("total", bytes(ledger.total())));
        entries.push(("peak", bytes(ledger.peak())));
        entries.push(("heap", bytes(core::arch::wasm32::memory_size(0) as u64 * 65_536)));
        object(entries)
    }

    async fn try_load(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Engine> {
        let Wish { repo, gpu, load, dtype, observer } = Wish::read(location, options, callbacks).await?;
        let model = Model::load(&gpu, repo, load, observer).await?;
        Ok(Engine { model, dtype })
    }

    async fn try_plan(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Object> {
        let Wish { repo, gpu, load, .. } = Wish::read(location, options, callbacks).await?;
        let plan = Model::plan(&gpu, &repo, load).await?;
        let bytes = |bytes: u64| JsValue::from(bytes as f64);
        Ok(object([
            ("weights", bytes(plan.weights)),
            ("kvCache", bytes(plan.kv_cache)),
            ("activations", bytes(plan.activations)),
            ("other", bytes(plan.other)),
            ("gpuBytes", bytes(plan.gpu_bytes())),
            ("tokenizer", bytes(plan.tokenizer)),
            ("rows", bytes(plan.rows)),
            ("staging", bytes(plan.staging)),
            ("heapBytes", bytes(plan.heap_bytes())),
            ("totalBytes", bytes(plan.total_bytes())),
            ("downloadBytes", bytes(plan.download_bytes)),
            ("fits", plan.fits().into()),
        ]))
    }
}

/// The arguments of a load or a plan.
struct Wish {
    repo: Repo,
    gpu: Rc<Gpu>,
    load: LoadOptions,
    dtype: String,
    observer: Rc<Observer>,
}

impl Wish {
    async fn read(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Self> {
        let options: LoadJs = read("the options of load", options)?;
        let load = options.load_options()?;
        let callback = |name: &str| Reflect::get(&callbacks, &name.into()).unwrap_or_default();
        let signal: Option<AbortSignal> = callback("signal").dyn_into().ok();
        let on_progress: Option<Function> = callback("onProgress").dyn_into().ok();
        let observer = Rc::new(Observer::new(on_progress, signal));
        let repo = repo(location, options.cache.unwrap_or(true), &observer).await?;
        let gpu = Gpu::open(GpuOptions::default()).await?;
        Ok(Self { repo, gpu, load, dtype: options.dtype().to_owned(), observer })
    }
}

/// A conversation beside the model's own.
#[wasm_bindgen]
pub struct Session {
    inner: engine::Session,
}

#[wasm_bindgen]
impl Session {
    /// Prepares the continuation of `input` in this session.
    pub async fn start(&self, input: JsValue, options: JsValue) -> std::result::Result<Generation, JsValue> {
        start_with(input, options, |prompt, options| self.inner.generate(prompt, options))
    }
}

fn start_with(
    input: JsValue,
    options: JsValue,
    generate: impl FnOnce(&Prompt, GenerateOptions) -> Result<engine::Generation>,
) -> std::result::Result<Generation, JsValue> {
    let options: Result<GenerateJs> = read("the options of generate", options);
    let started = options.and_then(|options| generate(&prompt(input)?, options.into_options(now())));
    started.map(Generation::new).map_err(thrown)
}

/// The files at `location`, with the Cache API behind those that come over the network.
async fn repo(location: JsValue, cache: bool, observer: &Observer) -> Result<Repo> {
    if let Some(location) = location.as_string() {
        let repo = Repo::new(HttpOpener::new(&location)?);
        if !cache {
            return Ok(repo);
        }
        return match CacheStore::open(CACHE_NAME).await {
            Ok(store) => Ok(repo.with_store(Rc::new(store))),
            Err(error) => {
                observer.uncached("", &error);
                Ok(repo)
            }
        };
    }
    let files =
        Reflect::get(&location, &"files".into()).ok().and_then(|files| files.dyn_into::<Object>().ok());
    let files = files.ok_or_else(|| {
        Error::new(Code::InvalidArgument, "find the model")
            .expected("a URL, a hub id, or files")
            .got(format!("{location:?}"))
    })?;
    let entries = Object::entries(&files);
    let blobs = entries.iter().filter_map(|entry| {
        let entry: js_sys::Array = entry.dyn_into().ok()?;
        Some((entry.get(0).as_string()?, entry.get(1).dyn_into::<Blob>().ok()?))
    });
    Ok(Repo::new(BlobOpener::new(blobs)))
}

fn object<'a>(entries: impl IntoIterator<Item = (&'a str, JsValue)>) -> Object {
    let object = Object::new();
    for (name, value) in entries {
        // Setting a property of a fresh object cannot fail.
        let _ = Reflect::set(&object, &name.into(), &value);
    }
    object
}
