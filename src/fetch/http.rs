//! Files behind HTTP, on a page and in a worker.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture};
use js_sys::{Function, Uint8Array};
use wasm_bindgen::prelude::*;

use super::blob::append;
use super::response::{Body, Head, refused};
use super::{ByteSource, Fault, Metadata, Opener, base_url};
use crate::error::Result;

/// A request that brings nothing for so long has failed.
const STALL: Duration = Duration::from_secs(30);

#[wasm_bindgen(module = "/src/fetch/http.js")]
extern "C" {
    type Exchange;
    #[wasm_bindgen(constructor)]
    fn new(fetch: Option<Function>, url: &str, range: &str, stall_ms: f64) -> Exchange;
    #[wasm_bindgen(method, catch)]
    async fn head(this: &Exchange) -> Result<JsHead, JsValue>;
    #[wasm_bindgen(method, catch)]
    async fn read(this: &Exchange) -> Result<JsValue, JsValue>;
    #[wasm_bindgen(method)]
    fn cancel(this: &Exchange);

    type JsHead;
    #[wasm_bindgen(method, getter)]
    fn status(this: &JsHead) -> u16;
    #[wasm_bindgen(method, getter, js_name = contentRange)]
    fn content_range(this: &JsHead) -> Option<String>;
    #[wasm_bindgen(method, getter, js_name = contentLength)]
    fn content_length(this: &JsHead) -> Option<String>;
    #[wasm_bindgen(method, getter, js_name = contentEncoding)]
    fn content_encoding(this: &JsHead) -> Option<String>;
    #[wasm_bindgen(method, getter)]
    fn etag(this: &JsHead) -> Option<String>;
    #[wasm_bindgen(method, getter, js_name = lastModified)]
    fn last_modified(this: &JsHead) -> Option<String>;
    #[wasm_bindgen(method, getter, js_name = retryAfter)]
    fn retry_after(this: &JsHead) -> Option<f64>;
}

/// Bodies that wait between two reads, over all files of a place: each holds one of the few connections that
/// a browser opens to a server.
const MOST_WAITING: usize = 2;

/// How requests are made.
struct Client {
    /// In place of the global `fetch`.
    fetch: Option<Function>,
    stall: Duration,
    /// Has an owner more for each body that waits.
    waiting: Rc<()>,
}

/// The files below a base URL.
pub struct HttpOpener {
    id: String,
    base_url: String,
    client: Rc<Client>,
}

impl HttpOpener {
    /// The files of a model at `location`, which is what [`base_url`] takes.
    pub fn new(location: &str) -> Result<Self> {
        Ok(Self {
            id: location.to_owned(),
            base_url: base_url(location)?,
            client: Rc::new(Client { fetch: None, stall: STALL, waiting: Rc::default() }),
        })
    }

    /// Makes every request by `fetch`, a function like the global one: it gets an address and an object with
    /// `headers`, `cache` and `signal`, and returns a promise of a `Response`.
    pub fn with_fetch(self, fetch: Option<Function>) -> Self {
        let client = Client { fetch, stall: self.client.stall, waiting: Rc::default() };
        Self { client: Rc::new(client), ..self }
    }

    /// Gives up a request that brings nothing for `stall`; 30 s, if this is not called.
    pub fn with_stall(self, stall: Duration) -> Self {
        let client = Client { fetch: self.client.fetch.clone(), stall, waiting: Rc::default() };
        Self { client: Rc::new(client), ..self }
    }
}

impl Opener for HttpOpener {
    fn name(&self) -> &str {
        &self.base_url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        Rc::new(HttpSource {
            url: format!("{}{file}", self.base_url),
            client: self.client.clone(),
            ignores_ranges: Cell::new(false),
            running: RefCell::default(),
        })
    }
}

/// A file behind HTTP, read by ranged requests. A server that ignores ranges is read from its start, once
/// for reads that ascend.
///
/// No request carries `If-Range`: of another origin it would have to be allowed by a request of its own, and
/// where the file has changed it is answered with the whole of the new one. Instead each answer's validator
/// is compared.
struct HttpSource {
    url: String,
    client: Rc<Client>,
    ignores_ranges: Cell<bool>,
    /// The body of a server that ignores ranges, between two reads.
    running: RefCell<Option<Waiting>>,
}

impl HttpSource {
    /// Learns the size from the answer to a request for the first byte: unlike HEAD, it also shows whether
    /// the server honours ranges.
    async fn fetch_metadata(&self) -> Result<Option<Metadata>, Fault> {
        let first = 0..1;
        let (head, transfer) = self.request(&first, "bytes=0-0").await?;
        let size = match head.body(&self.url, &first)? {
            Body::Missing => return Ok(None),
            Body::Empty => 0,
            Body::Part { size: Some(size) } => size,
            Body::Part { size: None } => self.probe_size().await?,
            Body::Whole { size } => {
                self.ignores_ranges.set(true);
                self.leave_waiting(transfer);
                size
            }
        };
        Ok(Some(Metadata { size, validator: head.validator(size) }))
    }

    /// The size of a file whose server hides `Content-Range` from this page: the length of the answer to a
    /// request for all of it, which is then given up.
    async fn probe_size(&self) -> Result<u64, Fault> {
        let (head, _) = self.request(&(0..1), "bytes=0-").await?;
        head.length().filter(|_| matches!(head.status, 200 | 206)).ok_or_else(|| {
            refused(&self.url, &(0..1))
                .expected("a Content-Range or a Content-Length that names the file's size")
                .got(format!("status {} with neither", head.status))
                .remedy("Let the server send Access-Control-Expose-Headers: Content-Range, ETag.")
                .into()
        })
    }

    async fn fetch_range(
        &self,
        range: Range<u64>,
        version: &Metadata,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        let running = self.running.take().filter(|waiting| waiting.transfer.position <= range.start);
        if let Some(waiting) = running {
            return self.read_whole(waiting.transfer, range, version, bytes).await;
        }
        let text = format!("bytes={}-{}", range.start, range.end - 1);
        let (head, mut transfer) = self.request(&range, &text).await?;
        match head.body_of(&self.url, &range, version)? {
            Body::Whole { .. } => {
                self.ignores_ranges.set(true);
                self.read_whole(transfer, range, version, bytes).await
            }
            _ => {
                transfer.position = range.start;
                self.collect(&mut transfer, &range, bytes).await?;
                self.expect_end(&mut transfer, &range).await
            }
        }
    }

    /// Reads on in the body of a server that ignores ranges, and leaves it to the next read.
    async fn read_whole(
        &self,
        mut transfer: Transfer,
        range: Range<u64>,
        version: &Metadata,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        while transfer.position < range.start {
            self.fill(&mut transfer, &range).await?;
            transfer.take(range.start - transfer.position);
        }
        self.collect(&mut transfer, &range, bytes).await?;
        if transfer.position == version.size {
            return self.expect_end(&mut transfer, &range).await;
        }
        self.leave_waiting(transfer);
        Ok(())
    }

    /// Leaves a body to the next read, unless as many wait as may.
    fn leave_waiting(&self, transfer: Transfer) {
        let waiting = &self.client.waiting;
        // One owner is the client.
        if Rc::strong_count(waiting) <= MOST_WAITING {
            self.running.replace(Some(Waiting { transfer, _place: waiting.clone() }));
        }
    }

    async fn request(&self, range: &Range<u64>, header: &str) -> Result<(Head, Transfer), Fault> {
        let stall_ms = self.client.stall.as_millis() as f64;
        let exchange = Exchange::new(self.client.fetch.clone(), &self.url, header, stall_ms);
        let transfer = Transfer { exchange, position: 0, chunk: Uint8Array::new_with_length(0) };
        let head = transfer.exchange.head().await.map_err(|reason| self.broken(range, &describe(&reason)))?;
        let head = Head {
            status: head.status(),
            content_range: head.content_range(),
            content_length: head.content_length(),
            content_encoding: head.content_encoding(),
            etag: head.etag(),
            last_modified: head.last_modified(),
            retry_after: head.retry_after().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        };
        Ok((head, transfer))
    }

    /// Appends the bytes of `range`, at whose start the transfer stands.
    async fn collect(
        &self,
        transfer: &mut Transfer,
        range: &Range<u64>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        while transfer.position < range.end {
            self.fill(transfer, range).await?;
            append(bytes, &transfer.take(range.end - transfer.position));
        }
        Ok(())
    }

    /// A body that goes on after its last byte was compressed on the way, which browsers undo and hide.
    async fn expect_end(&self, transfer: &mut Transfer, range: &Range<u64>) -> Result<(), Fault> {
        if transfer.chunk.length() == 0 {
            let next = transfer.exchange.read().await;
            let next = next.map_err(|reason| self.broken(range, &describe(&reason)))?;
            if next.is_undefined() {
                return Ok(());
            }
        }
        Err(refused(&self.url, range)
            .expected(format!("a body that ends at byte {}", transfer.position))
            .got("more bytes than the server announced, as when it compresses them")
            .remedy("Let the server leave model files uncompressed (no Content-Encoding).")
            .into())
    }

    /// Waits for bytes if none are at hand.
    async fn fill(&self, transfer: &mut Transfer, range: &Range<u64>) -> Result<(), Fault> {
        while transfer.chunk.length() == 0 {
            let next = transfer.exchange.read().await;
            let next = next.map_err(|reason| self.broken(range, &describe(&reason)))?;
            let ended = || self.broken(range, &format!("the body's end at byte {}", transfer.position));
            transfer.chunk = next.dyn_into().map_err(|_| ended())?;
        }
        Ok(())
    }

    /// The fault of a connection that failed. Browsers do not tell a page why; some also fail what is
    /// compressed though ranges were asked for.
    fn broken(&self, range: &Range<u64>, got: &str) -> Fault {
        let error = refused(&self.url, range).got(got).remedy(
            "Check the connection, and that the server lets this page read the file (CORS) and leaves it uncompressed.",
        );
        Fault::Passing { error, retry_after: None }
    }
}

impl ByteSource for HttpSource {
    fn name(&self) -> &str {
        &self.url
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        self.fetch_metadata().boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        version: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        self.fetch_range(range, version, bytes).boxed_local()
    }

    fn is_sequential(&self) -> bool {
        self.ignores_ranges.get()
    }
}

/// A body between two reads.
struct Waiting {
    transfer: Transfer,
    _place: Rc<()>,
}

/// A response's body that is being read. Dropping it ends the transfer of what nobody will read.
struct Transfer {
    exchange: Exchange,
    /// Where in the file the bytes of `chunk` begin.
    position: u64,
    /// Bytes that have arrived and were not taken yet.
    chunk: Uint8Array,
}

impl Transfer {
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

impl Drop for Transfer {
    fn drop(&mut self) {
        self.exchange.cancel();
    }
}

/// What a JavaScript exception says.
pub(super) fn describe(reason: &JsValue) -> String {
    match reason.dyn_ref::<js_sys::Error>() {
        Some(error) => format!("{}: {}", error.name(), error.message()),
        None => format!("{reason:?}"),
    }
}
