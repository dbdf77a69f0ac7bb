//! Floor 7. The only wasm-bindgen surface: options in, events out, errors mapped to codes.
//!
//! `pkg-template/index.js` is written by hand over these classes and is what pages import. It checks
//! arguments, queues calls, and turns the errors thrown here into `JirdError`.

mod generation;
mod observer;
mod options;

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{AbortHandle, Either, abortable, select};
use js_sys::{Array, Function, Object, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;
use web_sys::{AbortSignal, Blob};

use crate::engine::{self, GenerateOptions, LoadOptions, Model, Prompt};
use crate::error::{Code, Error, Result};
use crate::fetch::{self, BlobOpener, CacheStore, CachedModel, HttpOpener, Integrity, Repo, base_url};
use crate::gpu::{Gpu, GpuOptions};
use crate::nn::RowTable;
use generation::Generation;
use observer::Observer;
use options::{GenerateJs, LoadJs, SessionJs, now, prompt, read};

/// The cache that holds the blocks of all models of an origin.
const CACHE_NAME: &str = "jird-blocks-v1";

#[wasm_bindgen(module = "/src/js/abort.js")]
extern "C" {
    /// Resolves when the signal aborts; never without one.
    async fn aborted(signal: Option<AbortSignal>);
}

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
    /// Ends the download of the model's table.
    keeping: Option<AbortHandle>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(keeping) = &self.keeping {
            keeping.abort();
        }
    }
}

#[wasm_bindgen]
impl Engine {
    /// Loads the model at `location`: a URL, a hub id, or `{ files: { name: Blob } }`.
    ///
    /// `options`: `dtype`, `context`, `memoryBudget`, `cache`, `integrity`. `callbacks`: `onProgress(event)`,
    /// `signal`, `fetch`.
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
    pub async fn session(&self, options: JsValue) -> std::result::Result<Session, JsValue> {
        let options: SessionJs = read("the options of session", options).map_err(thrown)?;
        let session = self.model.session(options.into()).await;
        session.map(|inner| Session { inner }).map_err(thrown)
    }

    /// `{ modelType, dtype, context, vocabSize, adapter, memory, rows }`, where `rows`, of models that have a
    /// table outside of the GPU, is as in the stats of a generation.
    pub fn info(&self) -> Object {
        object([
            ("modelType", self.model.model_type().into()),
            ("dtype", self.dtype.as_str().into()),
            ("context", self.model.context().into()),
            ("vocabSize", self.model.vocab_size().into()),
            ("adapter", self.model.gpu().capabilities().adapter.as_str().into()),
            ("memory", self.memory().into()),
            ("rows", self.model.row_table().map(|table| generation::rows(table.stats())).into()),
        ])
    }

    /// The ledger in bytes: `{ weights, kvCache, activations, other, total, peak, rowCache, heap }`, where
    /// `total` and `peak` are of the GPU, and `rowCache` is a part of `heap`.
    pub fn memory(&self) -> Object {
        let ledger = self.model.gpu().ledger();
        let bytes = |bytes: u64| JsValue::from(bytes as f64);
        let mut entries: Vec<(&str, JsValue)> =
            ledger.entries().map(|(name, live)| (name, bytes(live))).collect();
        entries.push(("total", bytes(ledger.total())));
        entries.push(("peak", bytes(ledger.peak())));
        let rows = self.model.row_table().map_or(0, |table| table.cached_bytes() as u64);
        entries.push(("rowCache", bytes(rows)));
        entries.push(("heap", bytes(core::arch::wasm32::memory_size(0) as u64 * 65_536)));
        object(entries)
    }

    /// Whether the model at `location`, a URL or a hub id, loads without a network.
    #[wasm_bindgen(js_name = isCached)]
    pub async fn is_cached(location: String) -> std::result::Result<bool, JsValue> {
        async { fetch::is_cached(&CacheStore::open(CACHE_NAME).await?, &base_url(&location)?).await }
            .await
            .map_err(thrown)
    }

    /// Deletes what is kept of the model at `location`; whether there was something.
    #[wasm_bindgen(js_name = deleteCached)]
    pub async fn delete_cached(location: String) -> std::result::Result<bool, JsValue> {
        async { fetch::delete_cached(&CacheStore::open(CACHE_NAME).await?, &base_url(&location)?).await }
            .await
            .map_err(thrown)
    }

    /// What is kept: an array of `{ id, url, bytes, files, complete }`.
    #[wasm_bindgen(js_name = cachedModels)]
    pub async fn cached_models() -> std::result::Result<Array, JsValue> {
        let models = async { fetch::cached_models(&CacheStore::open(CACHE_NAME).await?).await };
        let describe = |model: CachedModel| {
            object([
                ("id", model.id.into()),
                ("url", model.place.into()),
                ("bytes", (model.bytes as f64).into()),
                ("files", model.files.into()),
                ("complete", model.complete.into()),
            ])
        };
        Ok(models.await.map_err(thrown)?.into_iter().map(describe).collect())
    }

    async fn try_load(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Engine> {
        let wish = Wish::read(location, options, callbacks)?;
        let loading = async {
            let (gpu, repo) = wish.open().await?;
            Model::load(&gpu, repo, wish.load, wish.observer.clone()).await
        };
        let model = wish.unless_aborted(loading).await?;
        let keeping = model.row_table().cloned().map(keep);
        Ok(Engine { model, dtype: wish.dtype, keeping })
    }

    async fn try_plan(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Object> {
        let wish = Wish::read(location, options, callbacks)?;
        let planning = async {
            let (gpu, repo) = wish.open().await?;
            Model::plan(&gpu, &repo, wish.load).await
        };
        let plan = wish.unless_aborted(planning).await?;
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
    location: JsValue,
    load: LoadOptions,
    dtype: String,
    cache: bool,
    integrity: BTreeMap<String, Integrity>,
    fetch: Option<Function>,
    signal: Option<AbortSignal>,
    observer: Rc<Observer>,
}

impl Wish {
    fn read(location: JsValue, options: JsValue, callbacks: JsValue) -> Result<Self> {
        let options: LoadJs = read("the options of load", options)?;
        let load = options.load_options()?;
        let callback = |name: &str| Reflect::get(&callbacks, &name.into()).unwrap_or_default();
        let signal: Option<AbortSignal> = callback("signal").dyn_into().ok();
        let on_progress: Option<Function> = callback("onProgress").dyn_into().ok();
        let fetch: Option<Function> = callback("fetch").dyn_into().ok();
        let integrity = options.integrity.iter().flatten();
        let integrity = integrity.map(|(file, hash)| Ok((file.clone(), Integrity::parse(hash)?)));
        let integrity = integrity.collect::<Result<BTreeMap<_, _>>>()?;
        let observer = Rc::new(Observer::new(on_progress, signal.clone()));
        let dtype = options.dtype().to_owned();
        Ok(Self {
            location,
            load,
            dtype,
            cache: options.cache.unwrap_or(true),
            integrity,
            fetch,
            signal,
            observer,
        })
    }

    /// A device, and the files.
    async fn open(&self) -> Result<(Rc<Gpu>, Repo)> {
        let repo = repo(self.location.clone(), self.cache, self.fetch.clone(), &self.observer).await?;
        Ok((Gpu::open(GpuOptions::default()).await?, repo.with_integrity(self.integrity.clone())))
    }

    /// An abort drops `work` where it stands, and with it its requests and its memory on the GPU.
    async fn unless_aborted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match select(pin!(work), pin!(aborted(self.signal.clone()))).await {
            Either::Left((result, _)) => result,
            Either::Right(_) => Err(Error::new(Code::Aborted, "load the model")),
        }
    }
}

/// Downloads `table` in the background, until that is done or the handle ends it.
fn keep(table: Rc<RowTable>) -> AbortHandle {
    let (keeping, handle) = abortable(async move { table.keep().await });
    spawn_local(async {
        // Rows that could not be kept are fetched when they are asked for.
        let _ = keeping.await;
    });
    handle
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
async fn repo(location: JsValue, cache: bool, fetch: Option<Function>, observer: &Observer) -> Result<Repo> {
    if let Some(location) = location.as_string() {
        let repo = Repo::new(HttpOpener::new(&location)?.with_fetch(fetch));
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
        let entry: Array = entry.dyn_into().ok()?;
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
