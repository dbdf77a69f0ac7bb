//! The block store of a browser: the Cache API, on a page and in a worker.

use futures_util::future::{FutureExt, LocalBoxFuture};
use js_sys::{Reflect, Uint8Array, encode_uri_component};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use web_sys::{Cache, CacheStorage, Response};

use super::http::describe;
use super::{BlockKey, BlockStore};
use crate::error::{Code, Error, Result};

/// Keeps each block as a response of its own: the Cache API refuses partial responses (206), so a block is
/// stored as a whole one (200) under a URL that no server answers.
pub struct CacheStore {
    cache: Cache,
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
        Ok(Self { cache: cache.unchecked_into() })
    }

    async fn read(&self, key: &BlockKey) -> Result<Option<Vec<u8>>, JsValue> {
        let found = JsFuture::from(self.cache.match_with_str(&synthetic_url(key))).await?;
        let Ok(response) = found.dyn_into::<Response>() else { return Ok(None) };
        let buffer = JsFuture::from(response.array_buffer()?).await?;
        Ok(Some(Uint8Array::new(&buffer).to_vec()))
    }

    async fn write(&self, key: &BlockKey, bytes: &[u8]) -> Result<(), JsValue> {
        let response = Response::new_with_opt_js_u8_array(Some(&Uint8Array::from(bytes)))?;
        JsFuture::from(self.cache.put_with_str(&synthetic_url(key), &response)).await.map(drop)
    }
}

impl BlockStore for CacheStore {
    fn get<'a>(&'a self, key: &'a BlockKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
        async move { self.read(key).await.map_err(|reason| failure("read", key, &reason)) }.boxed_local()
    }

    fn put<'a>(&'a self, key: &'a BlockKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        async move { self.write(key, bytes).await.map_err(|reason| failure("store", key, &reason)) }
            .boxed_local()
    }
}

fn synthetic_url(key: &BlockKey) -> String {
    let file = encode_uri_component(&key.url);
    let validator = encode_uri_component(&key.validator);
    format!("https://jird.invalid/block?file={file}&validator={validator}&block={}", key.block)
}

fn failure(asked: &str, key: &BlockKey, reason: &JsValue) -> Error {
    Error::new(Code::Storage, format!("{asked} block {} of {} in the cache", key.block, key.url))
        .got(describe(reason))
        .remedy("The browser may have no room left for this site; the download is not kept.")
}
