//! HTTP sources, the Cache API and locks in a browser, against a server that does what `tools/faults.py` can.

#![cfg(target_arch = "wasm32")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, join, select};
use jird::error::{Code, Error, Result};
use jird::fetch::{
    BLOCK_SIZE, BlockKey, BlockStore, CacheStore, DefaultHost, FetchEvent, Host, HttpOpener, Integrity, Repo,
    StoreKey, cached_models, delete_cached, is_cached,
};
use js_sys::{Array, Function, Promise};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// Where `./run test` serves faults.
const ORIGIN: Option<&str> = option_env!("JIRD_TEST_ORIGIN");
const BLOCK: u64 = 100_000;
const SIZE: u64 = 300_000;
const FILE: &str = "300000.bin";
/// SHA-256 of that file.
const INTEGRITY: &str = "sha256-PGXqk0JKnDYv7A46aeo2Ax6KNYRBR53WZcxhEOq+ewg=";

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|i| (i % 251) as u8).collect()
}

fn javascript(arguments: &str, code: &str) -> Function {
    Function::new_with_args(arguments, code)
}

/// Puts `value` in the place of a global such as `navigator.onLine`, as long as it lives.
struct Patched {
    owner: JsValue,
    name: &'static str,
    before: JsValue,
}

impl Patched {
    fn new(owner: &str, name: &'static str, value: &JsValue) -> Self {
        let owner = javascript("", &format!("return {owner}")).call0(&JsValue::NULL).unwrap();
        let code = "const before = Object.getOwnPropertyDescriptor(owner, name);
            Object.defineProperty(owner, name, { value, configurable: true, writable: true });
            return before;";
        let patch = javascript("owner, name, value", code);
        let before = patch.call3(&JsValue::NULL, &owner, &name.into(), value).unwrap();
        Self { owner, name, before }
    }
}

impl Drop for Patched {
    fn drop(&mut self) {
        let code = "before ? Object.defineProperty(owner, name, before) : delete owner[name]";
        let restore = javascript("owner, name, before", code);
        let _ = restore.call3(&JsValue::NULL, &self.owner, &self.name.into(), &self.before);
    }
}

/// A place on the server whose requests are counted, and a load's surroundings.
struct World {
    session: String,
    place: String,
    store: Rc<CacheStore>,
    events: Rc<RefCell<Vec<String>>>,
}

impl World {
    async fn new(behaviours: &str) -> Self {
        let origin = ORIGIN.expect("JIRD_TEST_ORIGIN, the server of faults, when the tests are compiled");
        let session = format!("{}", (js_sys::Math::random() * 1e15) as u64);
        let place = format!("{origin}/faults/{session}/{behaviours}/");
        let store = Rc::new(CacheStore::open(&format!("test-{session}")).await.unwrap());
        Self { session, place, store, events: Rc::default() }
    }

    fn opener(&self) -> HttpOpener {
        HttpOpener::new(&self.place).unwrap().with_stall(Duration::from_secs(2))
    }

    fn repo_of(&self, opener: HttpOpener) -> Repo {
        let events = self.events.clone();
        let observer = Rc::new(move |event: FetchEvent<'_>| match event {
            FetchEvent::Progress(_) => {}
            FetchEvent::Restart => events.borrow_mut().push("restart".to_owned()),
            FetchEvent::StoreFailed { error, .. } => events.borrow_mut().push(error.to_string()),
            FetchEvent::Retry { delay, error, .. } => {
                events.borrow_mut().push(format!("retry in {} ms: {error}", delay.as_millis()));
            }
        });
        Repo::new(opener).with_block_size(BLOCK).with_observer(observer)
    }

    /// A load's repository, with the store.
    fn repo(&self) -> Repo {
        self.repo_of(self.opener()).with_store(self.store.clone())
    }

    /// The requests for files since the last call, as `range` or `range -> status` where that is no 206.
    async fn requests(&self) -> Vec<String> {
        let origin = ORIGIN.unwrap_or_default();
        let mut requests = Vec::new();
        for session in [self.session.clone(), format!("{}-redirected", self.session)] {
            let code = "return fetch(url).then((response) => response.text())";
            let url = format!("{origin}/faults/{session}/log");
            let text = javascript("url", code).call1(&JsValue::NULL, &url.into()).unwrap();
            let text = JsFuture::from(text.unchecked_into::<Promise>()).await.unwrap().as_string().unwrap();
            let log: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
            requests.extend(log.iter().map(|entry| match entry["status"].as_u64() {
                Some(206) => entry["range"].as_str().unwrap_or_default().to_owned(),
                status => {
                    format!("{} -> {}", entry["range"].as_str().unwrap_or_default(), status.unwrap_or(0))
                }
            }));
        }
        requests
    }
}

async fn load(repo: &Repo) -> Result<Vec<u8>> {
    let bytes = repo.read_all(FILE, 1 << 30).await?;
    repo.finish().await?;
    bytes.ok_or_else(|| Error::new(Code::Checkpoint, "find the file"))
}

/// Loads through each of these behaviours, and says what they have in common.
async fn loads(behaviours: &str) -> World {
    let world = World::new(behaviours).await;
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE), "{behaviours}");
    world
}

const BLOCKS: [&str; 3] = ["bytes=0-99999", "bytes=100000-199999", "bytes=200000-299999"];

/// Whether each block was asked for once, in whichever order requests came to the server.
fn assert_blocks(requests: &[String], others: &[&str]) {
    let mut expected: Vec<&str> = others.iter().chain(&BLOCKS).copied().collect();
    let mut requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    expected.sort_unstable();
    requests.sort_unstable();
    assert_eq!(requests, expected);
}

#[wasm_bindgen_test]
async fn files_come_block_by_block_and_once() {
    for behaviours in ["plain", "weak", "dated"] {
        let world = loads(behaviours).await;
        assert_blocks(&world.requests().await, &["bytes=0-0"]);
        assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
        assert_blocks(&world.requests().await, &["bytes=0-0", "bytes=0-0"]);
        assert!(world.events.take().is_empty());
        assert!(is_cached(world.store.as_ref(), &world.place).await.unwrap());
    }
}

#[wasm_bindgen_test]
async fn what_has_no_version_is_not_stored() {
    let world = loads("bare").await;
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
    assert_eq!(world.requests().await.len(), 8, "every block twice");
    assert!(!is_cached(world.store.as_ref(), &world.place).await.unwrap());
}

#[wasm_bindgen_test]
async fn a_server_that_ignores_ranges_is_read_once() {
    for behaviours in ["whole", "whole,hide"] {
        let world = loads(behaviours).await;
        assert_eq!(world.requests().await, ["bytes=0-0 -> 200"], "{behaviours}");
        assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
        assert_eq!(world.requests().await.len(), 2, "{behaviours}: only the size is asked for again");
    }
    let world = World::new("whole").await;
    let file = world.repo_of(world.opener()).open(FILE).await.unwrap();
    assert_eq!(file.read(250_000..250_007).await.unwrap(), content(250_000..250_007));
    assert_eq!(file.read(5..9).await.unwrap(), content(5..9));
    assert_eq!(world.requests().await.len(), 2, "going back needs a request of its own");
}

#[wasm_bindgen_test]
async fn many_files_of_such_a_server_do_not_use_up_the_connections() {
    let world = World::new("whole").await;
    let repo = world.repo();
    let mut files = Vec::new();
    for size in 3_000_000..3_000_010u64 {
        files.push(repo.open(&format!("{size}.bin")).await.unwrap());
    }
    for file in files {
        assert!(file.read(0..file.size()).await.unwrap() == content(0..file.size()), "{}", file.name());
    }
    assert!(world.events.take().is_empty(), "no request had to wait so long that it failed");
}

#[wasm_bindgen_test]
async fn hidden_headers_are_done_without() {
    let world = loads("hide").await;
    assert_blocks(&world.requests().await, &["bytes=0-0", "bytes=0-"]);
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
    assert_eq!(world.requests().await.len(), 7, "size and date tell the version");
}

#[wasm_bindgen_test]
async fn redirects_to_another_origin_are_followed() {
    let world = loads("redirect").await;
    let requests = world.requests().await;
    assert_eq!(requests.len(), 8);
    assert_blocks(&requests[4..], &["bytes=0-0"]);
}

#[wasm_bindgen_test]
async fn compression_is_named() {
    for behaviours in ["gzip", "gzip,hide"] {
        let world = World::new(behaviours).await;
        let error = load(&world.repo()).await.unwrap_err();
        assert_eq!(error.code(), Code::Network, "{behaviours}");
        assert!(error.to_string().contains("uncompressed"), "{behaviours}: {error}");
    }
}

#[wasm_bindgen_test]
async fn failures_that_pass_are_survived() {
    for (behaviours, failures, wait) in [
        ("fail=2", 2, 250),
        ("fail=1,wait=1", 1, 1000),
        ("fail=1,wait=date", 1, 1000),
        ("drop=1", 0, 0),
        ("cut=3", 3, 0),
        ("stall=1", 1, 0),
        ("whole,cut=1", 1, 0),
    ] {
        let world = loads(behaviours).await;
        let events = world.events.take();
        // Browsers repeat a request of their own accord when a connection that they had kept was closed.
        assert!(events.len() >= failures, "{behaviours}: {events:?}");
        let delays = events
            .iter()
            .filter_map(|event| event.strip_prefix("retry in ")?.split(' ').next()?.parse().ok());
        assert!(delays.max().unwrap_or(0) >= wait, "{behaviours}: {events:?}");
    }
    let world = loads("cut=1").await;
    let requests = world.requests().await;
    assert!(
        requests.iter().any(|range| range.ends_with("50000-99999")
            || range.ends_with("50000-199999")
            || range.ends_with("50000-299999")),
        "the rest alone is asked for again: {requests:?}"
    );
}

#[wasm_bindgen_test]
async fn failures_that_last_are_named() {
    for (behaviours, expected) in [
        ("status=401", "accept its licence"),
        ("status=403", "accept its licence"),
        ("status=416", "got 416"),
        ("status=400", "got 400"),
    ] {
        let world = World::new(behaviours).await;
        let error = load(&world.repo()).await.unwrap_err();
        assert_eq!(error.code(), Code::Network);
        assert!(error.to_string().contains(expected) && error.to_string().contains(&world.place), "{error}");
        assert_eq!(world.requests().await.len(), 1, "{behaviours}");
    }
    assert!(World::new("status=404").await.repo().find(FILE).await.unwrap().is_none());
    let nowhere = World::new("plain").await.repo_of(HttpOpener::new("http://localhost:9/m").unwrap());
    let error = nowhere.open(FILE).await.err().unwrap();
    assert_eq!(error.code(), Code::Network);
    assert!(error.to_string().contains("localhost:9") && error.to_string().contains("CORS"), "{error}");
}

#[wasm_bindgen_test]
async fn a_file_that_changes_is_read_anew_once() {
    let world = World::new("change=2").await;
    let repo = world.repo();
    assert!(load(&repo).await.is_err());
    assert!(repo.restart());
    let changed: Vec<u8> = content(0..SIZE).iter().map(|byte| byte.wrapping_add(1)).collect();
    assert!(load(&repo).await.unwrap() == changed);
    let versions = world.store.list().await.unwrap().into_iter().filter_map(|key| match key {
        StoreKey::Block(key) => Some(key.validator),
        StoreKey::Manifest(_) => None,
    });
    assert_eq!(versions.collect::<Vec<_>>(), ["\"v1-300000\""; 3], "what was of the old version is gone");

    let world = World::new("changing").await;
    let repo = world.repo();
    assert!(load(&repo).await.is_err());
    assert!(repo.restart());
    let error = load(&repo).await.unwrap_err();
    assert!(!repo.restart());
    assert!(error.to_string().contains("changes on the server"), "{error}");
}

#[wasm_bindgen_test]
async fn a_load_that_is_dropped_ends_its_requests_and_keeps_its_blocks() {
    let world = World::new("slow=1000").await;
    let code = "globalThis.signals = []; return (url, init) => { signals.push(init.signal); return fetch(url, init); }";
    let fetch: Function = javascript("", code).call0(&JsValue::NULL).unwrap().unchecked_into();
    let repo = world.repo_of(world.opener().with_fetch(Some(fetch))).with_store(world.store.clone());
    let loading = Box::pin(async {
        let file = repo.open(FILE).await.unwrap();
        file.read(0..BLOCK).await.unwrap();
        load(&repo).await
    });
    let Either::Right((_, loading)) = select(loading, DefaultHost.sleep(Duration::from_millis(1500))).await
    else {
        unreachable!("the server is slow")
    };
    drop(loading);
    drop(repo);
    DefaultHost.sleep(Duration::from_millis(50)).await;
    let pending = javascript("", "return signals.slice(2).filter((signal) => !signal.aborted).length");
    assert_eq!(pending.call0(&JsValue::NULL).unwrap(), 0, "every request on its way is ended");
    let before = world.requests().await.len();
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
    let again = &world.requests().await[before..];
    assert!(!again.contains(&BLOCKS[0].to_owned()), "the first block was kept: {again:?}");
}

#[wasm_bindgen_test]
async fn the_callers_fetch_makes_every_request() {
    let world = World::new("plain").await;
    let code = "globalThis.calls = 0; return (url, init) => { calls++; return fetch(url.replace('nowhere.invalid', host), init); }";
    let host = ORIGIN.unwrap_or_default().strip_prefix("http://").unwrap();
    let fetch: Function =
        javascript("host", code).call1(&JsValue::NULL, &host.into()).unwrap().unchecked_into();
    let opener = HttpOpener::new(&world.place.replace(host, "nowhere.invalid")).unwrap();
    let repo = world.repo_of(opener.with_fetch(Some(fetch))).with_store(world.store.clone());
    assert!(load(&repo).await.unwrap() == content(0..SIZE));
    let calls = javascript("", "return calls").call0(&JsValue::NULL).unwrap();
    assert_eq!(calls, 4);
    assert_eq!(world.requests().await.len(), 4);

    let failing: Function = javascript("", "throw new RangeError('no token')");
    let error = world.repo_of(world.opener().with_fetch(Some(failing))).open(FILE).await.err().unwrap();
    assert!(error.to_string().contains("no token"), "{error}");
}

#[wasm_bindgen_test]
async fn a_model_that_is_kept_loads_without_a_network() {
    let world = loads("plain").await;
    assert!(world.repo().find("chat_template.jinja").await.unwrap().is_none());
    load(&world.repo()).await.unwrap();
    let asked = world.requests().await.len();
    let offline = Patched::new("Object.getPrototypeOf(navigator)", "onLine", &false.into());
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
    assert!(world.repo().find("chat_template.jinja").await.unwrap().is_none());
    assert_eq!(world.requests().await.len(), asked);
    drop(offline);

    let failing: Function = javascript("", "return Promise.reject(new TypeError('Failed to fetch'))");
    let repo = world.repo_of(world.opener().with_fetch(Some(failing))).with_store(world.store.clone());
    assert!(load(&repo).await.unwrap() == content(0..SIZE));
    let never: Function = javascript("", "return new Promise(() => {})");
    let repo = world.repo_of(world.opener().with_fetch(Some(never)).with_stall(Duration::from_secs(60)));
    assert!(load(&repo.with_store(world.store.clone())).await.unwrap() == content(0..SIZE));

    let [model] = cached_models(world.store.as_ref()).await.unwrap().try_into().unwrap();
    assert_eq!((model.bytes, model.complete, model.files.as_slice()), (SIZE, true, &[FILE.to_owned()][..]));
    assert_eq!(model.place, world.place);
    assert!(delete_cached(world.store.as_ref(), &world.place).await.unwrap());
    assert!(world.store.list().await.unwrap().is_empty());
}

#[wasm_bindgen_test]
async fn tabs_that_load_the_same_model_share_its_download() {
    let world = World::new("slow=100").await;
    // Stores of their own, as tabs have them.
    let other = Rc::new(CacheStore::open(&format!("test-{}", world.session)).await.unwrap());
    let (one, other) = (world.repo(), world.repo_of(world.opener()).with_store(other));
    let (one, other) = join(load(&one), load(&other)).await;
    assert!(one.unwrap() == content(0..SIZE) && other.unwrap() == content(0..SIZE));
    assert_blocks(&world.requests().await, &["bytes=0-0", "bytes=0-0"]);
}

#[wasm_bindgen_test]
async fn without_locks_both_load() {
    let _patched = Patched::new("Object.getPrototypeOf(navigator)", "locks", &JsValue::UNDEFINED);
    loads("plain").await;
}

#[wasm_bindgen_test]
async fn a_model_that_does_not_fit_is_not_stored() {
    let world = World::new("plain").await;
    let estimate = javascript("", "return Promise.resolve({ quota: 5000000, usage: 1000000 })");
    let _patched = Patched::new("Object.getPrototypeOf(navigator.storage)", "estimate", &estimate);
    let size = 2 * BLOCK_SIZE + 1000;
    let repo = world.repo().with_block_size(BLOCK_SIZE);
    let bytes = repo.read_all(&format!("{size}.bin"), size).await.unwrap().unwrap();
    assert!(bytes == content(0..size));
    let [told] = world.events.take().try_into().unwrap();
    assert!(told.contains(&size.to_string()) && told.contains("4000000"), "{told}");
    let keys = world.store.list().await.unwrap();
    assert!(keys.iter().all(|key| matches!(key, StoreKey::Manifest(_))), "{keys:?}");
}

#[wasm_bindgen_test]
async fn a_quota_that_is_used_up_in_mid_load_does_not_end_it() {
    let world = World::new("plain").await;
    let code = "const { put } = Cache.prototype; let blocks = 0;
        return function (url, response) {
            if (!url.includes('/block?') || blocks++ < 1) return put.call(this, url, response);
            return Promise.reject(new DOMException('no room', 'QuotaExceededError'));
        }";
    let put = javascript("", code).call0(&JsValue::NULL).unwrap();
    let _patched = Patched::new("Cache.prototype", "put", &put);
    assert!(load(&world.repo()).await.unwrap() == content(0..SIZE));
    let events = world.events.take();
    assert!(!events.is_empty() && events.iter().all(|event| event.contains("no room")), "{events:?}");
    assert!(!is_cached(world.store.as_ref(), &world.place).await.unwrap());
}

#[wasm_bindgen_test]
async fn integrity_is_checked() {
    let demand = |repo: Repo, text: &str| {
        repo.with_integrity(BTreeMap::from([(FILE.to_owned(), Integrity::parse(text).unwrap())]))
    };
    for behaviours in ["plain", "whole"] {
        let world = World::new(behaviours).await;
        assert!(load(&demand(world.repo(), INTEGRITY)).await.unwrap() == content(0..SIZE));
    }
    let world = World::new("change=0").await;
    let error = load(&demand(world.repo(), INTEGRITY)).await.unwrap_err();
    assert_eq!(error.code(), Code::Checkpoint);
    assert!(error.to_string().contains(INTEGRITY), "{error}");
    let keys = world.store.list().await.unwrap();
    assert!(keys.iter().all(|key| matches!(key, StoreKey::Manifest(_))), "{keys:?}");
}

#[wasm_bindgen_test]
async fn rows_are_cut_from_stored_blocks_or_fetched_alone() {
    let world = World::new("plain").await;
    let repo = world.repo();
    let table = repo.open(FILE).await.unwrap();
    table.keep(100_000..200_000).await.unwrap();
    let before = world.requests().await.len();
    let rows = [150_000..150_100, 7..107, 150_000..150_100, 199_950..200_050];
    let expected: Vec<_> = rows.iter().cloned().map(content).collect();
    for _ in 0..2 {
        assert_eq!(table.read_scattered(&rows).await.unwrap(), expected);
    }
    let mut asked = world.requests().await.split_off(before);
    asked.sort();
    assert_eq!(asked, ["bytes=200000-200049", "bytes=200000-200049", "bytes=7-106", "bytes=7-106"]);
    table.keep(0..SIZE).await.unwrap();
    let before = world.requests().await.len();
    assert_eq!(table.read_scattered(&rows).await.unwrap(), expected);
    assert_eq!(world.requests().await.len(), before);
}

#[wasm_bindgen_test]
async fn the_cache_keeps_entries() {
    let name = format!("test-{}", js_sys::Math::random());
    let store = CacheStore::open(&name).await.unwrap();
    let url = "https://example.org/m/model.safetensors?a&b";
    let key = |validator: &str, block| -> StoreKey {
        BlockKey { url: url.to_owned(), validator: validator.to_owned(), block }.into()
    };
    let manifest = StoreKey::Manifest("https://example.org/m/".to_owned());
    assert_eq!(store.get(&key("\"v&1\"", 0)).await.unwrap(), None);
    store.put(&key("\"v&1\"", 0), &content(0..5000)).await.unwrap();
    store.put(&key("\"v&1\"", 1), &[]).await.unwrap();
    store.put(&manifest, b"{}").await.unwrap();
    let reopened = CacheStore::open(&name).await.unwrap();
    assert_eq!(reopened.get(&key("\"v&1\"", 0)).await.unwrap(), Some(content(0..5000)));
    assert_eq!(reopened.get(&key("\"v&1\"", 1)).await.unwrap(), Some(Vec::new()));
    assert_eq!(reopened.get(&key("\"v", 0)).await.unwrap(), None);
    assert_eq!(reopened.get(&key("\"v&1\"", 10)).await.unwrap(), None);
    assert!(reopened.has(&manifest).await.unwrap() && !reopened.has(&key("\"v", 0)).await.unwrap());
    let mut keys = reopened.list().await.unwrap();
    keys.sort();
    assert_eq!(keys, [key("\"v&1\"", 0), key("\"v&1\"", 1), manifest.clone()]);
    let cuts = reopened.slices(&key("\"v&1\"", 0), &[10..20, 4990..5000]).await.unwrap();
    assert_eq!(cuts, Some(vec![content(10..20), content(4990..5000)]));
    reopened.put(&key("\"v&1\"", 0), &content(100..200)).await.unwrap();
    let cuts = reopened.slices(&key("\"v&1\"", 0), std::slice::from_ref(&(0..10))).await.unwrap();
    assert_eq!(cuts, Some(vec![content(100..110)]), "an entry that was replaced is found anew");
    reopened.delete(&key("\"v&1\"", 0)).await.unwrap();
    assert_eq!(reopened.slices(&key("\"v&1\"", 0), &[]).await.unwrap(), None);
    assert_eq!(store.list().await.unwrap().len(), 2);
}

/// The names of the private files in the folder of the cache `name`.
async fn private_files(name: &str) -> Vec<String> {
    let code = "return (async () => {
        const root = await navigator.storage.getDirectory();
        const folder = await root.getDirectoryHandle(name, { create: true });
        const names = [];
        for await (const file of folder.keys()) names.push(file);
        return names;
    })()";
    let names = javascript("name", code).call1(&JsValue::NULL, &name.into()).unwrap();
    let names: Array = JsFuture::from(names.unchecked_into::<Promise>()).await.unwrap().unchecked_into();
    names.iter().filter_map(|name| name.as_string()).collect()
}

/// Removes a private file behind its store's back.
async fn remove_private_file(folder: &str, name: &str) {
    let code = "return navigator.storage.getDirectory()
        .then((root) => root.getDirectoryHandle(folder)).then((folder) => folder.removeEntry(name))";
    let removed = javascript("folder, name", code).call2(&JsValue::NULL, &folder.into(), &name.into());
    JsFuture::from(removed.unwrap().unchecked_into::<Promise>()).await.unwrap();
}

#[wasm_bindgen_test]
async fn blocks_to_be_cut_lie_in_private_files() {
    let name = format!("test-{}", js_sys::Math::random());
    let (store, other) = (CacheStore::open(&name).await.unwrap(), CacheStore::open(&name).await.unwrap());
    let key = |block| -> StoreKey {
        BlockKey { url: "https://example.org/m".to_owned(), validator: "v".to_owned(), block }.into()
    };
    let ranges = [10..20, 4990..5000, 7..7];
    let cuts = Some(ranges.iter().cloned().map(content).collect());
    for block in 0..3 {
        store.put_for_slices(&key(block), &content(0..5000)).await.unwrap();
    }
    assert_eq!(private_files(&name).await.len(), 3);
    // Where only one may have a file open, the other reads more slowly.
    for store in [&store, &other, &store] {
        assert_eq!(store.slices(&key(0), &ranges).await.unwrap(), cuts);
        assert_eq!(store.get(&key(1)).await.unwrap(), Some(content(0..5000)));
    }
    assert_eq!(store.list().await.unwrap().len(), 3);
    assert_eq!(store.slices(&key(3), &ranges).await.unwrap(), None);
    assert_eq!(store.slices(&key(0), std::slice::from_ref(&(4990..5001))).await.unwrap(), None);

    drop((store, other));
    let store = CacheStore::open(&name).await.unwrap();
    store.delete(&key(2)).await.unwrap();
    assert!(!store.has(&key(2)).await.unwrap());
    assert_eq!(private_files(&name).await.len(), 2);

    // What an interruption leaves behind goes a day later.
    let now = js_sys::Date::now();
    let wanted = BTreeSet::from([key(1)]);
    store.sweep(&wanted).await;
    assert_eq!(private_files(&name).await.len(), 2);
    let tomorrow = javascript("", &format!("return {}", now + 25.0 * 3600.0 * 1000.0));
    let patched = Patched::new("Date", "now", &tomorrow);
    store.sweep(&wanted).await;
    drop(patched);
    let [file] = private_files(&name).await.try_into().unwrap();
    assert_eq!(store.get(&key(1)).await.unwrap(), Some(content(0..5000)));

    // An entry whose file is gone is none.
    drop(store);
    let store = CacheStore::open(&name).await.unwrap();
    remove_private_file(&name, &file).await;
    assert!(store.has(&key(1)).await.unwrap());
    assert_eq!(store.slices(&key(1), &ranges).await.unwrap(), None);
    assert!(!store.has(&key(1)).await.unwrap());
}

#[wasm_bindgen_test]
async fn without_private_files_blocks_are_cut_in_the_cache() {
    let missing = javascript("", "return Promise.reject(new DOMException('not here', 'SecurityError'))");
    let patched = Patched::new("Object.getPrototypeOf(navigator.storage)", "getDirectory", &missing);
    let name = format!("test-{}", js_sys::Math::random());
    let store = CacheStore::open(&name).await.unwrap();
    let key = StoreKey::Manifest("m".to_owned());
    store.put_for_slices(&key, &content(0..5000)).await.unwrap();
    let cuts = store.slices(&key, &[10..20, 4990..5000]).await.unwrap();
    assert_eq!(cuts, Some(vec![content(10..20), content(4990..5000)]));
    drop(patched);
    assert!(private_files(&name).await.is_empty());
}

#[wasm_bindgen_test]
async fn without_a_cache_api_the_store_says_so() {
    let _patched = Patched::new("globalThis", "caches", &JsValue::UNDEFINED);
    let error = CacheStore::open("test").await.err().unwrap();
    assert_eq!(error.code(), Code::Storage);
    assert!(error.to_string().contains("HTTPS"), "{error}");
}
