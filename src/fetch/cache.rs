//! The block store of a browser: the Cache API, on a page and in a worker.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use futures_util::future::{FutureExt, LocalBoxFuture, try_join_all};
use js_sys::{Array, Reflect, Uint8Array, decode_uri_component, encode_uri_component};
use sha2::{Digest, Sha256};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, Cache, CacheStorage, Headers, Request, Response, ResponseInit};

use super::blob::slice_of;
use super::http::describe;
use super::{BlockKey, BlockStore, StoreKey};
use crate::error::{Code, Error, Result};

/// Blocks whose handle is kept for scattered reads. A handle holds no bytes, but finding an entry of the
/// cache anew takes up to 40 ms (Firefox), and cutting a known one 1 ms.
const KEPT_HANDLES: usize = 256;

/// In the response of an entry whose bytes lie in a private file.
const FILE_HEADER: &str = "jird-file";

/// What all keys begin with: no server answers there.
const BLOCK_URL: &str = "https://jird.invalid/block?file=";
const MANIFEST_URL: &str = "https://jird.invalid/manifest?place=";

#[wasm_bindgen(module = "/src/fetch/host.js")]
extern "C" {
    type PrivateFiles;
    #[wasm_bindgen(constructor)]
    fn new(folder: &str) -> PrivateFiles;
    #[wasm_bindgen(method)]
    async fn write(this: &PrivateFiles, name: &str, bytes: Uint8Array) -> JsValue;
    #[wasm_bindgen(method)]
    async fn read(this: &PrivateFiles, name: &str, ranges: Option<Vec<f64>>) -> JsValue;
    #[wasm_bindgen(method)]
    async fn remove(this: &PrivateFiles, name: &str);
    #[wasm_bindgen(method, js_name = removeOthers)]
    async fn remove_others(this: &PrivateFiles, names: Vec<String>);
    #[wasm_bindgen(method)]
    fn close(this: &PrivateFiles);
}

#[wasm_bindgen(module = "/src/fetch/private_files_worker.js")]
extern "C" {
    /// Never called: it has the worker's file laid into the package, beside that of [`PrivateFiles`].
    #[allow(dead_code)]
    fn unused();
}

/// Keeps each entry as a response of its own: the Cache API refuses partial responses (206), so a block is
/// stored as a whole one (200) under a URL that no server answers.
///
/// The bytes of a block of which parts will be read lie in a file of the origin's private file system, where
/// there is one. Its entry is empty and is made when the file is complete, so that the cache alone says what is
/// there.
pub struct CacheStore {
    cache: Cache,
    files: PrivateFiles,
    /// Handles of the blocks that were cut last, by URL.
    handles: RefCell<VecDeque<(String, Handle)>>,
}

/// Where an entry's bytes lie.
#[derive(Clone)]
enum Handle {
    Entry(Blob),
    /// A file of this name.
    File(String),
}

impl Drop for CacheStore {
    fn drop(&mut self) {
        self.files.close();
    }
}

impl CacheStore {
    /// Opens the cache `name` of this origin, and makes it if need be.
    ///
    /// Fails with `Storage` where there is no Cache API, as on a page that was loaded by plain HTTP.
    pub async fn open(name: &str) -> Result<Self> {
        let asked = || Error::new(Code::Storage, format!("open the cache {name}"));
        let caches = Reflect::get(&js_sys::global(), &JsValue::from_str("caches")).ok();
        let caches: CacheStorage = caches.and_then(|caches| caches.dyn_into().ok()).ok_or_else(|| {
            asked()
                .expected("the Cache API")
                .got("none in this context")
                .remedy("Serve the page by HTTPS or from localhost.")
        })?;
        let cache = JsFuture::from(caches.open(name)).await;
        let cache = cache.map_err(|reason| asked().got(describe(&reason)))?;
        let files = PrivateFiles::new(name);
        Ok(Self { cache: cache.unchecked_into(), files, handles: RefCell::default() })
    }

    async fn find(&self, url: &str) -> Result<Option<Response>, JsValue> {
        let found = JsFuture::from(self.cache.match_with_str(url)).await?;
        Ok(found.dyn_into().ok())
    }

    async fn read(&self, key: &StoreKey) -> Result<Option<Vec<u8>>, JsValue> {
        let url = url(key);
        let Some(response) = self.find(&url).await? else { return Ok(None) };
        if is_in_file(&response)? {
            return Ok(self.read_file(&url, &file_name(&url), None).await?.map(|bytes| bytes.to_vec()));
        }
        let buffer = JsFuture::from(response.array_buffer()?).await?;
        Ok(Some(Uint8Array::new(&buffer).to_vec()))
    }

    async fn cut(&self, key: &StoreKey, ranges: &[Range<u64>]) -> Result<Option<Vec<Vec<u8>>>, JsValue> {
        let url = url(key);
        let blob = match self.handle(&url).await? {
            None => return Ok(None),
            Some(Handle::File(name)) => return self.cut_file(&url, &name, ranges).await,
            Some(Handle::Entry(blob)) => blob,
        };
        let cuts = ranges.iter().map(|range| slice_of(&blob, range));
        let cuts = try_join_all(cuts).await.inspect_err(|_| self.let_go(&url))?;
        Ok(Some(cuts.iter().map(Uint8Array::to_vec).collect()))
    }

    async fn cut_file(
        &self,
        url: &str,
        name: &str,
        ranges: &[Range<u64>],
    ) -> Result<Option<Vec<Vec<u8>>>, JsValue> {
        let ends = ranges.iter().flat_map(|range| [range.start as f64, range.end as f64]).collect();
        let Some(bytes) = self.read_file(url, name, Some(ends)).await? else { return Ok(None) };
        let mut end = 0;
        let cuts = ranges.iter().map(|range| {
            let start = end;
            end += (range.end - range.start) as u32;
            bytes.subarray(start, end).to_vec()
        });
        Ok(Some(cuts.collect()))
    }

    /// Reads from the file of an entry. An entry without its file is none.
    async fn read_file(
        &self,
        url: &str,
        name: &str,
        ranges: Option<Vec<f64>>,
    ) -> Result<Option<Uint8Array>, JsValue> {
        let answer = self.files.read(name, ranges).await;
        if answer.is_null() {
            self.let_go(url);
            JsFuture::from(self.cache.delete_with_str(url)).await?;
        }
        Ok(answer.dyn_into().ok())
    }

    async fn handle(&self, url: &str) -> Result<Option<Handle>, JsValue> {
        if let Some((_, handle)) = self.handles.borrow().iter().find(|(kept, _)| kept == url) {
            return Ok(Some(handle.clone()));
        }
        let Some(response) = self.find(url).await? else { return Ok(None) };
        let handle = match is_in_file(&response)? {
            true => Handle::File(file_name(url)),
            false => Handle::Entry(JsFuture::from(response.blob()?).await?.unchecked_into()),
        };
        let mut handles = self.handles.borrow_mut();
        if handles.len() >= KEPT_HANDLES {
            handles.pop_front();
        }
        handles.push_back((url.to_owned(), handle.clone()));
        Ok(Some(handle))
    }

    fn let_go(&self, url: &str) {
        self.handles.borrow_mut().retain(|(kept, _)| kept != url);
    }

    async fn write(&self, key: &StoreKey, bytes: &[u8]) -> Result<(), JsValue> {
        let url = url(key);
        self.let_go(&url);
        let response = Response::new_with_opt_js_u8_array(Some(&Uint8Array::from(bytes)))?;
        JsFuture::from(self.cache.put_with_str(&url, &response)).await.map(drop)
    }

    async fn write_file(&self, key: &StoreKey, bytes: &[u8]) -> Result<(), JsValue> {
        let url = url(key);
        self.let_go(&url);
        if !self.files.write(&file_name(&url), Uint8Array::from(bytes)).await.is_truthy() {
            return self.write(key, bytes).await;
        }
        let (init, headers) = (ResponseInit::new(), Headers::new()?);
        headers.set(FILE_HEADER, "1")?;
        init.set_headers(&headers);
        let response = Response::new_with_opt_str_and_init(None, &init)?;
        JsFuture::from(self.cache.put_with_str(&url, &response)).await.map(drop)
    }

    async fn remove(&self, key: &StoreKey) -> Result<(), JsValue> {
        let url = url(key);
        self.let_go(&url);
        let was_there = JsFuture::from(self.cache.delete_with_str(&url)).await?;
        if was_there.is_truthy() {
            self.files.remove(&file_name(&url)).await;
        }
        Ok(())
    }

    async fn keys(&self) -> Result<Vec<StoreKey>, JsValue> {
        let requests: Array = JsFuture::from(self.cache.keys()).await?.unchecked_into();
        let urls = requests.iter().filter_map(|request| Some(request.dyn_into::<Request>().ok()?.url()));
        Ok(urls.filter_map(|url| parse(&url)).collect())
    }
}

impl BlockStore for CacheStore {
    fn get<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
        self.read(key).map(move |read| failing(&format!("read {key}"), read)).boxed_local()
    }

    fn slices<'a>(
        &'a self,
        key: &'a StoreKey,
        ranges: &'a [Range<u64>],
    ) -> LocalBoxFuture<'a, Result<Option<Vec<Vec<u8>>>>> {
        self.cut(key, ranges).map(move |cut| failing(&format!("read {key}"), cut)).boxed_local()
    }

    fn has<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<bool>> {
        async move {
            let found = self.find(&url(key)).await.map(|found| found.is_some());
            failing(&format!("look up {key}"), found)
        }
        .boxed_local()
    }

    fn put<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        self.write(key, bytes).map(move |written| failing(&format!("store {key}"), written)).boxed_local()
    }

    fn put_for_slices<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        let written = self.write_file(key, bytes);
        written.map(move |written| failing(&format!("store {key}"), written)).boxed_local()
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<()>> {
        self.remove(key).map(move |removed| failing(&format!("delete {key}"), removed)).boxed_local()
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<StoreKey>>> {
        self.keys().map(|keys| failing("list what is kept", keys)).boxed_local()
    }

    fn sweep<'a>(&'a self, keys: &'a BTreeSet<StoreKey>) -> LocalBoxFuture<'a, ()> {
        self.files.remove_others(keys.iter().map(|key| file_name(&url(key))).collect()).boxed_local()
    }
}

/// Whether the bytes of the entry lie in a file.
fn is_in_file(response: &Response) -> Result<bool, JsValue> {
    response.headers().has(FILE_HEADER)
}

/// The name of an entry's file: its URL may be longer than a name.
fn file_name(url: &str) -> String {
    Sha256::digest(url).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn url(key: &StoreKey) -> String {
    match key {
        StoreKey::Manifest(place) => format!("{MANIFEST_URL}{}", encode_uri_component(place)),
        StoreKey::Block(BlockKey { url, validator, block }) => {
            let (file, validator) = (encode_uri_component(url), encode_uri_component(validator));
            format!("{BLOCK_URL}{file}&validator={validator}&block={block}")
        }
    }
}

/// The key whose URL this is.
fn parse(url: &str) -> Option<StoreKey> {
    let decode = |text: &str| decode_uri_component(text).ok().map(String::from);
    if let Some(place) = url.strip_prefix(MANIFEST_URL) {
        return decode(place).map(StoreKey::Manifest);
    }
    let (file, rest) = url.strip_prefix(BLOCK_URL)?.split_once("&validator=")?;
    let (validator, block) = rest.split_once("&block=")?;
    let (url, validator) = (decode(file)?, decode(validator)?);
    Some(BlockKey { url, validator, block: block.parse().ok()? }.into())
}

fn failing<T>(asked: &str, result: Result<T, JsValue>) -> Result<T> {
    result.map_err(|reason| {
        Error::new(Code::Storage, format!("{asked} in the cache"))
            .got(describe(&reason))
            .remedy("The browser may have no room left for this site; the download is not kept.")
    })
}
