//! HTTP sources and the Cache API in a browser. The page's `fetch` is replaced by a server in memory that
//! answers as told, so that every kind of answer can be had.

#![cfg(target_arch = "wasm32")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::rc::Rc;

use jird::error::Code;
use jird::fetch::{
    BLOCK_SIZE, BlockKey, BlockStore, ByteSource, CacheStore, FetchEvent, HttpOpener, HttpSource, Metadata,
    Repo,
};
use js_sys::{Array, Function, Reflect};
use wasm_bindgen::JsValue;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};
use web_sys::AbortController;

wasm_bindgen_test_configure!(run_in_browser);

const URL: &str = "https://example.org/m/model.safetensors";

/// Replaces `fetch` by a server of one file whose byte `i` is `i % 251`; returns the log of requests.
///
/// `mode`: `range` honours ranges, `whole` ignores them, `lying` sends another range, `cut` ends early,
/// `changing` sends another ETag with each answer, `missing` and `broken` answer 404 and 500, `hang` never
/// answers, `offline` fails.
fn serve(mode: &str, size: u64) -> Array {
    let code = r#"
        const log = [];
        const byte = (start, end) => Uint8Array.from({ length: end - start }, (_, i) => (start + i) % 251);
        globalThis.fetch = (request) => new Promise((resolve, reject) => {
            request.signal.addEventListener("abort", () => reject(request.signal.reason));
            const range = request.headers.get("range");
            log.push(range);
            let [start, end] = range.slice(6).split("-").map(Number);
            end = Math.min(end + 1, size);
            const etag = mode === "changing" ? `"${log.length}"` : '"v1"';
            if (mode === "hang") return;
            if (mode === "offline") return reject(new TypeError("Failed to fetch"));
            if (mode === "missing") return resolve(new Response("", { status: 404 }));
            if (mode === "broken") return resolve(new Response("", { status: 500 }));
            if (mode === "whole") {
                let at = 0;
                const body = new ReadableStream({
                    pull(controller) {
                        const next = Math.min(at + 65537, size);
                        if (at < size) controller.enqueue(byte(at, next)); else controller.close();
                        at = next;
                    },
                });
                return resolve(new Response(body, { headers: { "Content-Length": size, "ETag": etag } }));
            }
            if (mode === "lying") [start, end] = [start + 1, end + 1];
            const body = mode === "cut" && log.length > 1 ? byte(start, end - 1) : byte(start, end);
            const headers = { "Content-Range": `bytes ${start}-${end - 1}/${size}`, "ETag": etag };
            resolve(new Response(body, { status: 206, headers }));
        });
        return log;
    "#;
    let serve = Function::new_with_args("mode, size", code);
    let log = serve.call2(&JsValue::NULL, &JsValue::from_str(mode), &JsValue::from_f64(size as f64));
    log.unwrap().into()
}

fn content(start: u64, end: u64) -> Vec<u8> {
    (start..end).map(|i| (i % 251) as u8).collect()
}

fn requests(log: &Array) -> Vec<String> {
    log.iter().filter_map(|range| range.as_string()).collect()
}

#[wasm_bindgen_test]
async fn reads_ranges() {
    let log = serve("range", 100_000);
    let source = HttpSource::new(URL, None);
    let metadata = Metadata { size: 100_000, validator: Some("\"v1\"".to_owned()) };
    assert_eq!(source.metadata().await.unwrap(), Some(metadata));
    assert_eq!(source.read(500..70_000).await.unwrap(), content(500, 70_000));
    assert_eq!(source.read(3..4).await.unwrap(), content(3, 4));
    assert!(source.read(7..7).await.unwrap().is_empty());
    assert_eq!(requests(&log), ["bytes=0-0", "bytes=500-69999", "bytes=3-3"]);
}

#[wasm_bindgen_test]
async fn a_server_that_ignores_ranges_is_read_once_by_ascending_reads() {
    let log = serve("whole", 1_000_000);
    let source = HttpSource::new(URL, None);
    assert_eq!(source.metadata().await.unwrap().unwrap().size, 1_000_000);
    assert_eq!(source.read(10..300_000).await.unwrap(), content(10, 300_000));
    assert_eq!(source.read(300_000..300_001).await.unwrap(), content(300_000, 300_001));
    assert_eq!(source.read(999_000..1_000_000).await.unwrap(), content(999_000, 1_000_000));
    assert_eq!(requests(&log).len(), 1);
    assert_eq!(source.read(5..9).await.unwrap(), content(5, 9));
    assert_eq!(requests(&log).len(), 2, "going back needs a request of its own");
}

#[wasm_bindgen_test]
async fn a_missing_file_is_told_from_failures() {
    serve("missing", 1);
    assert_eq!(HttpSource::new(URL, None).metadata().await.unwrap(), None);
    for (mode, expected) in [("broken", "got 500"), ("offline", "CORS"), ("lying", "bytes 0-0/size")] {
        serve(mode, 100);
        let error = HttpSource::new(URL, None).metadata().await.unwrap_err();
        assert_eq!(error.code(), Code::Network, "{mode}");
        assert!(error.to_string().contains(expected) && error.to_string().contains(URL), "{mode}: {error}");
    }
}

#[wasm_bindgen_test]
async fn a_body_that_ends_early_is_an_error() {
    serve("cut", 100);
    let source = HttpSource::new(URL, None);
    source.metadata().await.unwrap();
    let error = source.read(10..20).await.unwrap_err();
    assert_eq!(error.code(), Code::Network);
    assert!(error.to_string().contains("the body's end at byte 19"), "{error}");
}

#[wasm_bindgen_test]
async fn two_versions_of_a_file_do_not_mix() {
    serve("changing", 100);
    let source = HttpSource::new(URL, None);
    source.metadata().await.unwrap();
    let error = source.read(10..20).await.unwrap_err();
    assert!(error.to_string().contains("The file changed on the server"), "{error}");
}

#[wasm_bindgen_test]
async fn an_abort_ends_a_request() {
    serve("hang", 100);
    let controller = AbortController::new().unwrap();
    let source = HttpSource::new(URL, Some(controller.signal()));
    let (answer, ()) = futures_util::join!(source.metadata(), async { controller.abort() });
    assert_eq!(answer.unwrap_err().code(), Code::Aborted);
}

#[wasm_bindgen_test]
async fn the_cache_keeps_blocks() {
    let name = format!("test-{}", js_sys::Math::random());
    let store = CacheStore::open(&name).await.unwrap();
    let key =
        |validator: &str, block| BlockKey { url: URL.to_owned(), validator: validator.to_owned(), block };
    assert_eq!(store.get(&key("\"v&1\"", 0)).await.unwrap(), None);
    store.put(&key("\"v&1\"", 0), &content(0, 5000)).await.unwrap();
    store.put(&key("\"v&1\"", 1), &[]).await.unwrap();
    let reopened = CacheStore::open(&name).await.unwrap();
    assert_eq!(reopened.get(&key("\"v&1\"", 0)).await.unwrap(), Some(content(0, 5000)));
    assert_eq!(reopened.get(&key("\"v&1\"", 1)).await.unwrap(), Some(Vec::new()));
    assert_eq!(reopened.get(&key("\"v", 0)).await.unwrap(), None);
    assert_eq!(reopened.get(&key("\"v&1\"", 10)).await.unwrap(), None);
}

#[wasm_bindgen_test]
async fn a_second_load_comes_from_the_cache() {
    let size = BLOCK_SIZE + 1000;
    let log = serve("range", size);
    let store = Rc::new(CacheStore::open(&format!("test-{}", js_sys::Math::random())).await.unwrap());
    let mut from_cache = Vec::new();
    for _ in 0..2 {
        let events = Rc::new(RefCell::new(0));
        let last = events.clone();
        let repo = Repo::new(HttpOpener::new("https://example.org/m", None).unwrap())
            .with_store(store.clone())
            .with_observer(Rc::new(move |event| {
                if let FetchEvent::Progress(progress) = event {
                    *last.borrow_mut() = progress.from_cache;
                }
            }));
        let bytes = repo.read_all("model.safetensors", size).await.unwrap().unwrap();
        assert!(bytes == content(0, size));
        from_cache.push(*events.borrow());
    }
    assert_eq!(from_cache, [0, size]);
    let (first, second) = (format!("bytes=0-{}", BLOCK_SIZE - 1), format!("bytes={BLOCK_SIZE}-{}", size - 1));
    assert_eq!(requests(&log), ["bytes=0-0", &first, &second, "bytes=0-0"]);
}

#[wasm_bindgen_test]
async fn without_a_cache_api_the_store_says_so() {
    let caches = Reflect::get(&js_sys::global(), &JsValue::from_str("caches")).unwrap();
    let hide = Function::new_with_args(
        "value",
        "Object.defineProperty(globalThis, 'caches', { value, configurable: true, writable: true })",
    );
    hide.call1(&JsValue::NULL, &JsValue::UNDEFINED).unwrap();
    let error = CacheStore::open("test").await.err().unwrap();
    hide.call1(&JsValue::NULL, &caches).unwrap();
    assert_eq!(error.code(), Code::Storage);
    assert!(error.to_string().contains("HTTPS"), "{error}");
}
