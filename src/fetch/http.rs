//! Files behind HTTP, on a page and in a worker.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture};
use gloo_net::http::{Request, Response};
use js_sys::{Reflect, Uint8Array};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{AbortSignal, ReadableStreamDefaultReader, RequestCache};

use super::response::{Body, Head, refused};
use super::{ByteSource, Metadata, Opener, base_url};
use crate::error::{Code, Error, Result};

/// The files below a base URL.
pub struct HttpOpener {
    base_url: String,
    signal: Option<AbortSignal>,
}

impl HttpOpener {
    /// The files of a model at `location`, which is what [`base_url`] takes. `signal` ends its requests.
    pub fn new(location: &str, signal: Option<AbortSignal>) -> Result<Self> {
        Ok(Self { base_url: base_url(location)?, signal })
    }
}

impl Opener for HttpOpener {
    fn name(&self) -> &str {
        &self.base_url
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        Rc::new(HttpSource::new(format!("{}{file}", self.base_url), self.signal.clone()))
    }
}

/// A file behind HTTP, read by ranged requests. A server that ignores ranges is read from its start, once
/// for reads that ascend.
pub struct HttpSource {
    url: String,
    signal: Option<AbortSignal>,
    /// The body of a server that ignores ranges, between two reads.
    whole: RefCell<Option<BodyReader>>,
    metadata: RefCell<Option<Metadata>>,
}

impl HttpSource {
    /// The file at `url`. `signal` ends its requests.
    pub fn new(url: impl Into<String>, signal: Option<AbortSignal>) -> Self {
        Self { url: url.into(), signal, whole: RefCell::default(), metadata: RefCell::default() }
    }

    /// Learns the size from the answer to a request for the first byte: unlike HEAD, it also shows whether
    /// the server honours ranges.
    async fn fetch_metadata(&self) -> Result<Option<Metadata>> {
        let (head, response) = self.request(&(0..1)).await?;
        let size = match head.body(&self.url, &(0..1))? {
            Body::Missing => return Ok(None),
            Body::Empty => 0,
            Body::Part { size } => size,
            Body::Whole { size } => {
                *self.whole.borrow_mut() = Some(self.reader(&response, 0)?);
                size
            }
        };
        let metadata = Metadata { size, validator: head.validator(size) };
        *self.metadata.borrow_mut() = Some(metadata.clone());
        Ok(Some(metadata))
    }

    async fn fetch_range(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let running = self.whole.borrow_mut().take().filter(|body| body.position <= range.start);
        let (mut body, is_whole) = match running {
            Some(body) => (body, true),
            None => self.request_body(&range).await?,
        };
        self.skip(&mut body, &range).await?;
        let bytes = self.collect(&mut body, &range).await?;
        if is_whole {
            *self.whole.borrow_mut() = Some(body);
        }
        Ok(bytes)
    }

    /// The body of the answer to a request of `range`, and whether it is the whole file.
    async fn request_body(&self, range: &Range<u64>) -> Result<(BodyReader, bool)> {
        let (head, response) = self.request(range).await?;
        let (size, is_whole) = match head.body(&self.url, range)? {
            Body::Part { size } => (size, false),
            Body::Whole { size } => (size, true),
            Body::Missing | Body::Empty => {
                return Err(refused(&self.url, range).got(format!("status {}: it is gone", head.status)));
            }
        };
        self.check_version(range, Metadata { size, validator: head.validator(size) })?;
        let start = if is_whole { 0 } else { range.start };
        Ok((self.reader(&response, start)?, is_whole))
    }

    /// Blocks of two versions of a file must not mix.
    fn check_version(&self, range: &Range<u64>, now: Metadata) -> Result<()> {
        match self.metadata.borrow().as_ref() {
            Some(before) if *before != now => Err(refused(&self.url, range)
                .expected(format!("{} bytes of version {:?} as before", before.size, before.validator))
                .got(format!("{} bytes of version {:?}", now.size, now.validator))
                .remedy("The file changed on the server: load the model again.")),
            _ => Ok(()),
        }
    }

    async fn request(&self, range: &Range<u64>) -> Result<(Head, Response)> {
        let last = range.end.saturating_sub(1);
        // The block store keeps what is fetched: a second copy in the browser's own cache helps nobody.
        let sent = Request::get(&self.url)
            .header("Range", &format!("bytes={}-{last}", range.start))
            .cache(RequestCache::NoStore)
            .abort_signal(self.signal.as_ref())
            .send()
            .await;
        let response = sent.map_err(|error| self.failure(range).because(error))?;
        let headers = response.headers();
        let head = Head {
            status: response.status(),
            content_range: headers.get("content-range"),
            content_length: headers.get("content-length"),
            content_encoding: headers.get("content-encoding"),
            etag: headers.get("etag"),
            last_modified: headers.get("last-modified"),
        };
        Ok((head, response))
    }

    fn reader(&self, response: &Response, position: u64) -> Result<BodyReader> {
        let reader = response.body().and_then(|body| body.get_reader().dyn_into().ok());
        let reader = reader.ok_or_else(|| {
            Error::new(Code::Network, format!("read the body of {}", self.url)).got("no stream")
        })?;
        Ok(BodyReader { reader, position, chunk: Uint8Array::new_with_length(0) })
    }

    async fn skip(&self, body: &mut BodyReader, range: &Range<u64>) -> Result<()> {
        while body.position < range.start {
            self.fill(body, range).await?;
            body.take(range.start - body.position);
        }
        Ok(())
    }

    async fn collect(&self, body: &mut BodyReader, range: &Range<u64>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(length).map_err(|_| {
            Error::new(Code::OutOfMemory, format!("fetch {} at once", self.url))
                .expected(format!("{length} bytes of free memory"))
        })?;
        while body.position < range.end {
            self.fill(body, range).await?;
            let chunk = body.take(range.end - body.position);
            let start = bytes.len();
            bytes.resize(start + chunk.length() as usize, 0);
            if let Some(place) = bytes.get_mut(start..) {
                chunk.copy_to(place);
            }
        }
        Ok(bytes)
    }

    /// Waits for bytes if none are at hand.
    async fn fill(&self, body: &mut BodyReader, range: &Range<u64>) -> Result<()> {
        while body.chunk.length() == 0 {
            let next = JsFuture::from(body.reader.read()).await;
            let next = next.map_err(|reason| self.failure(range).got(describe(&reason)))?;
            let value = Reflect::get(&next, &JsValue::from_str("value")).ok();
            body.chunk = value.and_then(|value| value.dyn_into().ok()).ok_or_else(|| {
                self.failure(range).got(format!("the body's end at byte {}", body.position))
            })?;
        }
        Ok(())
    }

    /// The error of a request that failed: it was aborted, or the network did it.
    fn failure(&self, range: &Range<u64>) -> Error {
        if self.signal.as_ref().is_some_and(AbortSignal::aborted) {
            return Error::new(Code::Aborted, format!("fetch {}", self.url));
        }
        refused(&self.url, range)
            .remedy("Check the connection, and that the server lets this page read the file (CORS).")
    }
}

impl ByteSource for HttpSource {
    fn name(&self) -> &str {
        &self.url
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>>> {
        self.fetch_metadata().boxed_local()
    }

    fn read(&self, range: Range<u64>) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
        self.fetch_range(range).boxed_local()
    }
}

/// A response's body that is being read.
struct BodyReader {
    reader: ReadableStreamDefaultReader,
    /// Where in the file the bytes of `chunk` begin.
    position: u64,
    /// Bytes that have arrived and were not taken yet.
    chunk: Uint8Array,
}

impl BodyReader {
    /// Takes at most `limit` bytes of those at hand.
    fn take(&mut self, limit: u64) -> Uint8Array {
        let length = self.chunk.length();
        let count = u32::try_from(limit).unwrap_or(u32::MAX).min(length);
        let taken = self.chunk.subarray(0, count);
        self.chunk = self.chunk.subarray(count, length);
        self.position += u64::from(count);
        taken
    }
}

impl Drop for BodyReader {
    /// Ends the transfer of what nobody will read.
    fn drop(&mut self) {
        let cancelled = JsFuture::from(self.reader.cancel());
        spawn_local(async move {
            // A body that has failed can't be cancelled, and needn't be.
            let _ = cancelled.await;
        });
    }
}

/// What a JavaScript exception says.
pub(super) fn describe(reason: &JsValue) -> String {
    match reason.dyn_ref::<js_sys::Error>() {
        Some(error) => format!("{}: {}", error.name(), error.message()),
        None => format!("{reason:?}"),
    }
}
