//! A load over a network that fails, changes its mind, or is not there: what is asked for again, what is
//! kept, and that no wrong byte comes out.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::pending;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, join, ready};
use futures_util::lock::Mutex;
use jird::error::{Code, Error, Result};
use jird::fetch::{
    BlockKey, BlockStore, ByteSource, Fault, FetchEvent, Host, Integrity, Lock, MemoryStore, Metadata,
    Opener, Repo, StoreKey, cached_models, collect_garbage, delete_cached, is_cached,
};
use pollster::block_on;
use proptest::prelude::*;

const PLACE: &str = "https://example.org/m/";
const BLOCK: u64 = 1000;

/// A server of files, and what it does wrong. All of its time is virtual.
#[derive(Default)]
struct Server {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    version: Cell<u32>,
    /// Ranges that were asked for, by file.
    requests: RefCell<Vec<(String, Range<u64>)>>,
    lookups: Cell<u32>,
    /// What the next reads do, first one first; then all goes well.
    faults: RefCell<Vec<Misdeed>>,
    is_down: Cell<bool>,
    /// Bytes that are still sent before the program is ended.
    lifetime: Cell<Option<u64>>,
}

#[derive(Clone, Debug)]
enum Misdeed {
    /// Sends so many bytes and breaks off.
    Cut(u64),
    /// Is overburdened and names a time to come back.
    Busy(u64),
    /// Refuses for good.
    Refuse,
    /// Replaces the files by other ones before it answers.
    Change,
}

impl Server {
    fn with(files: &[(&str, Vec<u8>)]) -> Rc<Self> {
        let server = Self::default();
        server
            .files
            .borrow_mut()
            .extend(files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())));
        Rc::new(server)
    }

    fn metadata(&self, name: &str) -> Option<Metadata> {
        let size = self.files.borrow().get(name)?.len() as u64;
        Some(Metadata { size, validator: Some(format!("\"v{}\"", self.version.get())) })
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.files.borrow()[name].clone()
    }

    fn change(&self) {
        self.version.set(self.version.get() + 1);
        self.files.borrow_mut().values_mut().flatten().for_each(|byte| *byte = byte.wrapping_add(1));
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.requests.take().into_iter().map(|(_, range)| range).collect()
    }

    fn answer(
        &self,
        name: &str,
        range: &Range<u64>,
        version: &Metadata,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let failure = |what: &str| Error::new(Code::Network, format!("fetch {name}")).got(what);
        let passing = |what: &str, after| Fault::Passing { error: failure(what), retry_after: after };
        self.requests.borrow_mut().push((name.to_owned(), range.clone()));
        if self.is_down.get() {
            return Err(passing("no network", None));
        }
        let misdeed = next(&self.faults);
        match misdeed {
            Some(Misdeed::Change) => self.change(),
            Some(Misdeed::Busy(seconds)) => return Err(passing("429", Some(Duration::from_secs(seconds)))),
            Some(Misdeed::Refuse) => return Err(Fault::Lasting(failure("403"))),
            Some(Misdeed::Cut(_)) | None => {}
        }
        if self.metadata(name).as_ref() != Some(version) {
            return Err(Fault::Changed(failure("another version")));
        }
        let part = self.bytes(name)[range.start as usize..range.end as usize].to_vec();
        match misdeed {
            Some(Misdeed::Cut(at)) => {
                bytes.extend_from_slice(&part[..part.len().min(at as usize)]);
                Err(passing("the connection broke off", None))
            }
            _ => {
                bytes.extend(part);
                Ok(())
            }
        }
    }
}

/// The first of `list`, which loses it.
fn next<T>(list: &RefCell<Vec<T>>) -> Option<T> {
    let mut list = list.borrow_mut();
    if list.is_empty() { None } else { Some(list.remove(0)) }
}

struct Place(Rc<Server>);

impl Opener for Place {
    fn name(&self) -> &str {
        PLACE
    }

    fn id(&self) -> &str {
        "owner/name"
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        Rc::new(Source { url: format!("{PLACE}{file}"), file: file.to_owned(), server: self.0.clone() })
    }
}

struct Source {
    url: String,
    file: String,
    server: Rc<Server>,
}

impl ByteSource for Source {
    fn name(&self) -> &str {
        &self.url
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        self.server.lookups.set(self.server.lookups.get() + 1);
        if self.server.is_down.get() {
            let error = Error::new(Code::Network, "look up").got("no network");
            return ready(Err(Fault::Passing { error, retry_after: None })).boxed_local();
        }
        ready(Ok(self.server.metadata(&self.file))).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        version: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        async move {
            if let Some(lifetime) = self.server.lifetime.get() {
                let length = range.end - range.start;
                self.server.lifetime.set(Some(lifetime.saturating_sub(length)));
                if length > lifetime {
                    pending::<()>().await;
                }
            }
            self.server.answer(&self.file, &range, version, bytes)
        }
        .boxed_local()
    }
}

/// A platform whose time passes at once.
#[derive(Default)]
struct TestHost {
    slept: RefCell<Vec<Duration>>,
    is_offline: Cell<bool>,
    free: Cell<Option<u64>>,
    persisted: Cell<u32>,
    now: Cell<u64>,
    locks: RefCell<HashMap<String, Arc<Mutex<()>>>>,
}

impl Host for TestHost {
    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
        self.slept.borrow_mut().push(time);
        ready(()).boxed_local()
    }

    fn now(&self) -> u64 {
        self.now.get()
    }

    fn is_offline(&self) -> bool {
        self.is_offline.get()
    }

    fn lock(&self, name: &str) -> LocalBoxFuture<'static, Option<Lock>> {
        let lock = self.locks.borrow_mut().entry(name.to_owned()).or_default().clone();
        async move { Some(Box::new(lock.lock_owned().await) as Lock) }.boxed_local()
    }

    fn free_bytes(&self) -> LocalBoxFuture<'static, Option<u64>> {
        ready(self.free.get()).boxed_local()
    }

    fn persist(&self) {
        self.persisted.set(self.persisted.get() + 1);
    }
}

/// A load's surroundings, with a record of its events.
struct World {
    server: Rc<Server>,
    host: Rc<TestHost>,
    store: Rc<MemoryStore>,
    events: Rc<RefCell<Vec<String>>>,
}

impl World {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        Self {
            server: Server::with(files),
            host: Rc::default(),
            store: Rc::new(MemoryStore::new()),
            events: Rc::default(),
        }
    }

    fn repo(&self) -> Repo {
        let events = self.events.clone();
        let observer = Rc::new(move |event: FetchEvent<'_>| {
            let text = match event {
                FetchEvent::Progress(_) => return,
                FetchEvent::StoreFailed { error, .. } => error.to_string(),
                FetchEvent::Restart => "restart".to_owned(),
                FetchEvent::Retry { failures, .. } => format!("retry after {failures}"),
            };
            events.borrow_mut().push(text);
        });
        Repo::new(Place(self.server.clone()))
            .with_store(self.store.clone())
            .with_host(self.host.clone())
            .with_observer(observer)
            .with_block_size(BLOCK)
    }

    /// What a load does: reads each file as a whole, and finishes.
    fn load(&self, names: &[&str]) -> Result<Vec<Option<Vec<u8>>>> {
        block_on(load(&self.repo(), names))
    }

    fn slept(&self) -> Vec<u64> {
        self.host.slept.take().iter().map(|time| time.as_millis() as u64).collect()
    }
}

async fn load(repo: &Repo, names: &[&str]) -> Result<Vec<Option<Vec<u8>>>> {
    let mut files = Vec::new();
    for name in names {
        files.push(repo.read_all(name, 1 << 30).await?);
    }
    repo.finish().await?;
    Ok(files)
}

fn noise(size: usize) -> Vec<u8> {
    let mut state = size as u32 + 1;
    let next = |_| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    };
    (0..size).map(next).collect()
}

const WEIGHTS: &str = "model.safetensors";

#[test]
fn a_broken_connection_goes_on_where_it_was() {
    let bytes = noise(200_000);
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    world.server.faults.replace(vec![Misdeed::Cut(100_000), Misdeed::Cut(0), Misdeed::Cut(7)]);
    let repo = world.repo().with_block_size(1 << 20);
    assert!(block_on(load(&repo, &[WEIGHTS])).unwrap() == [Some(bytes)]);
    let ranges = [0..200_000, 100_000..200_000, 100_000..200_000, 100_007..200_000];
    assert_eq!(world.server.ranges(), ranges);
    assert_eq!(world.slept(), [500, 1000, 2000], "each failure in a row waits longer");
    assert_eq!(world.events.take(), ["retry after 1", "retry after 2", "retry after 3"]);
}

#[test]
fn progress_makes_a_failure_the_first_again() {
    let world = World::new(&[(WEIGHTS, noise(500_000))]);
    world.server.faults.replace(vec![Misdeed::Cut(0), Misdeed::Cut(100_000), Misdeed::Cut(0)]);
    block_on(load(&world.repo().with_block_size(1 << 20), &[WEIGHTS])).unwrap();
    assert_eq!(world.slept(), [500, 500, 1000]);
}

#[test]
fn the_server_says_when_to_come_back() {
    let world = World::new(&[(WEIGHTS, noise(10))]);
    world.server.faults.replace(vec![Misdeed::Busy(7), Misdeed::Busy(0)]);
    world.load(&[WEIGHTS]).unwrap();
    assert_eq!(world.slept(), [7000, 1000]);
    world.store.delete(&key("\"v0\"", 0)).now_or_never().unwrap().unwrap();
    world.server.faults.replace(vec![Misdeed::Busy(3600)]);
    let error = world.load(&[WEIGHTS]).unwrap_err();
    assert_eq!(error.code(), Code::Network);
    assert!(error.to_string().contains("3600 s") && error.to_string().contains("429"), "{error}");
    assert_eq!(world.slept(), [5000], "the bound on asking for what is kept, and no more");
}

#[test]
fn what_lasts_is_not_tried_again_and_what_passes_not_for_ever() {
    let world = World::new(&[(WEIGHTS, noise(10))]);
    world.server.faults.replace(vec![Misdeed::Refuse]);
    assert!(world.load(&[WEIGHTS]).unwrap_err().to_string().contains("403"));
    assert!(world.slept().is_empty());
    world.server.faults.replace(vec![Misdeed::Cut(0); 100]);
    let error = world.load(&[WEIGHTS]).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.code(), Code::Network);
    assert!(text.contains("8 failures in a row") && text.contains("broke off"), "{text}");
    assert_eq!(world.slept(), [500, 1000, 2000, 4000, 8000, 16_000, 30_000]);
    // An address from which nothing has ever come is given up sooner.
    world.server.is_down.set(true);
    assert!(world.load(&["config.json"]).unwrap_err().to_string().contains("3 failures"));
}

fn key(validator: &str, block: u64) -> StoreKey {
    BlockKey { url: format!("{PLACE}{WEIGHTS}"), validator: validator.to_owned(), block }.into()
}

fn stored_blocks(world: &World) -> Vec<StoreKey> {
    let keys = block_on(world.store.list()).unwrap();
    let mut blocks: Vec<_> = keys.into_iter().filter(|key| matches!(key, StoreKey::Block(_))).collect();
    blocks.sort();
    blocks
}

/// Ends a load after `lifetime` bytes have been sent, loads again, and sees what the second load fetches.
fn end_and_load_again(size: usize, lifetime: u64) {
    let bytes = noise(size);
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    world.server.lifetime.set(Some(lifetime));
    let ended = load(&world.repo(), &[WEIGHTS]).now_or_never();
    let stored = stored_blocks(&world);
    let length = |key| block_on(world.store.get(key)).unwrap().unwrap().len() as u64;
    let stored_bytes: u64 = stored.iter().map(length).sum();
    assert!(ended.is_none() == (lifetime < size as u64), "{lifetime} of {size}");
    world.server.lifetime.set(None);
    world.server.requests.take();
    assert!(world.load(&[WEIGHTS]).unwrap() == [Some(bytes)]);
    let fetched = world.server.ranges();
    assert_eq!(fetched.len(), size.div_ceil(BLOCK as usize) - stored.len(), "{lifetime} of {size}");
    let sent: u64 = fetched.iter().map(|range| range.end - range.start).sum();
    assert_eq!(sent, size as u64 - stored_bytes, "{lifetime} of {size}");
}

#[test]
fn a_load_that_is_ended_at_any_boundary_goes_on_with_what_is_missing() {
    for boundary in (0..=10).map(|block| block * BLOCK) {
        for lifetime in [boundary.saturating_sub(1), boundary, boundary + 1] {
            end_and_load_again(9_500, lifetime);
        }
    }
}

/// Breaks connections off at `cuts` bytes, in turn; the load must come through.
fn cut_and_load(size: usize, cuts: &[u64]) {
    let bytes = noise(size);
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    world.server.faults.replace(cuts.iter().map(|cut| Misdeed::Cut(*cut)).collect());
    assert!(world.load(&[WEIGHTS]).unwrap() == [Some(bytes)]);
    let requests = world.server.ranges();
    assert!(requests.iter().all(|range| range.end - range.start <= BLOCK));
}

#[test]
fn a_connection_that_breaks_off_beside_a_boundary_costs_no_byte() {
    for cut in [0, 1, 2, BLOCK / 2, BLOCK - 2, BLOCK - 1] {
        for fault in 0..10 {
            let mut cuts = vec![BLOCK - 1; fault];
            cuts.push(cut);
            // Each block's failures are counted for themselves, and all but the last are of one byte's rest.
            cut_and_load(9_500, &cuts[cuts.len().saturating_sub(4)..]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_load_survives_any_end(size in 1usize..12_000, lifetime in 0u64..13_000) {
        end_and_load_again(size, lifetime);
    }

    #[test]
    fn a_load_survives_any_cuts(size in 1usize..12_000, cuts in prop::collection::vec(0u64..BLOCK, 0..6)) {
        cut_and_load(size, &cuts);
    }
}

#[test]
fn a_file_that_changes_restarts_the_load_once_and_cleanly() {
    let world = World::new(&[(WEIGHTS, noise(9_500)), ("config.json", noise(10))]);
    let names = ["config.json", WEIGHTS];
    let repo = world.repo();
    // The config, then two blocks, then the change.
    world.server.faults.replace(vec![Misdeed::Cut(0), Misdeed::Cut(0), Misdeed::Cut(0), Misdeed::Change]);
    assert!(block_on(load(&repo, &names)).is_err());
    assert!(repo.restart(), "the load is to begin anew");
    let again = block_on(load(&repo, &names)).unwrap();
    assert!(again == [Some(world.server.bytes("config.json")), Some(world.server.bytes(WEIGHTS))]);
    assert!(!repo.restart());
    assert!(world.events.take().contains(&"restart".to_owned()));
    assert!(
        stored_blocks(&world)
            .iter()
            .all(|key| matches!(key, StoreKey::Block(key) if key.validator == "\"v1\"")),
        "blocks of the old version are deleted"
    );

    world.server.change();
    let repo = world.repo();
    world.server.faults.replace(vec![Misdeed::Change]);
    assert!(block_on(load(&repo, &names)).is_err());
    assert!(repo.restart());
    world.server.faults.replace(vec![Misdeed::Change]);
    let error = block_on(load(&repo, &names)).unwrap_err();
    assert!(!repo.restart(), "once is enough");
    assert_eq!(error.code(), Code::Network);
}

#[test]
fn a_model_that_is_kept_loads_without_a_network() {
    let world = World::new(&[(WEIGHTS, noise(9_500)), ("config.json", noise(10))]);
    let names = ["config.json", "model.safetensors.index.json", WEIGHTS];
    let first = world.load(&names).unwrap();
    assert!(first[1].is_none());
    assert!(block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());

    // With a network, each file is asked for once, and none of its bytes.
    world.server.requests.take();
    world.server.lookups.set(0);
    assert!(world.load(&names).unwrap() == first);
    assert_eq!((world.server.lookups.get(), world.server.ranges()), (3, vec![]));

    // Where the network fails, that shows at the first file.
    world.server.lookups.set(0);
    world.server.is_down.set(true);
    assert!(world.load(&names).unwrap() == first);
    assert_eq!(world.server.lookups.get(), 1);

    // Where it is known to be away, nobody asks.
    world.server.lookups.set(0);
    world.host.is_offline.set(true);
    assert!(world.load(&names).unwrap() == first);
    assert_eq!(world.server.lookups.get(), 0);

    // A block that is lost makes the model incomplete; then the network is needed again.
    block_on(world.store.delete(&key("\"v0\"", 3))).unwrap();
    assert!(!block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());
    assert_eq!(world.load(&names).unwrap_err().code(), Code::Network);
    world.server.is_down.set(false);
    world.server.requests.take();
    assert!(world.load(&names).unwrap() == first);
    assert_eq!(world.server.ranges(), std::slice::from_ref(&(3000..4000)));
}

#[test]
fn what_was_read_of_a_file_is_enough_to_load_it_again() {
    let world = World::new(&[(WEIGHTS, noise(9_500))]);
    let read = |repo: &Repo| {
        block_on(async {
            let file = repo.open(WEIGHTS).await?;
            file.will_read([0..10, 5000..5500]);
            let bytes = [file.read(0..10).await?, file.read(5000..5500).await?];
            repo.finish().await?;
            Ok::<_, Error>(bytes)
        })
    };
    let first = read(&world.repo()).unwrap();
    assert_eq!(stored_blocks(&world), [key("\"v0\"", 0), key("\"v0\"", 5)]);
    world.server.is_down.set(true);
    assert!(read(&world.repo()).unwrap() == first);
    assert!(block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());
}

#[test]
fn a_model_is_complete_when_what_was_to_be_kept_is_there() {
    let world = World::new(&[(WEIGHTS, noise(9_500))]);
    let repo = world.repo();
    block_on(async {
        let file = repo.open(WEIGHTS).await.unwrap();
        file.read(0..1000).await.unwrap();
        repo.finish().await.unwrap();
        assert!(is_cached(world.store.as_ref(), PLACE).await.unwrap());
        world.server.faults.replace(vec![Misdeed::Refuse]);
        assert!(file.keep(4000..9500).await.is_err());
        assert!(!is_cached(world.store.as_ref(), PLACE).await.unwrap());
        file.keep(4000..9500).await.unwrap();
        assert!(is_cached(world.store.as_ref(), PLACE).await.unwrap());
        world.store.delete(&key("\"v0\"", 9)).await.unwrap();
        assert!(!is_cached(world.store.as_ref(), PLACE).await.unwrap());
    });
}

#[test]
fn kept_models_are_listed_and_deleted() {
    let world = World::new(&[(WEIGHTS, noise(9_500)), ("config.json", noise(10))]);
    assert!(block_on(cached_models(world.store.as_ref())).unwrap().is_empty());
    world.load(&[WEIGHTS, "config.json", "merges.txt"]).unwrap();
    let [model] = block_on(cached_models(world.store.as_ref())).unwrap().try_into().unwrap();
    assert_eq!((model.id.as_str(), model.place.as_str()), ("owner/name", PLACE));
    assert_eq!((model.bytes, model.complete), (9_510, true));
    assert_eq!(model.files, ["config.json", WEIGHTS]);

    assert!(!block_on(delete_cached(world.store.as_ref(), "https://example.org/other/")).unwrap());
    assert!(block_on(delete_cached(world.store.as_ref(), PLACE)).unwrap());
    assert!(block_on(world.store.list()).unwrap().is_empty());
    assert!(!block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());
}

#[test]
fn blocks_of_nobody_and_abandoned_models_are_collected() {
    const DAY: u64 = 24 * 3600 * 1000;
    let world = World::new(&[(WEIGHTS, noise(9_500))]);
    world.host.now.set(100 * DAY);
    world.server.lifetime.set(Some(3000));
    assert!(load(&world.repo(), &[WEIGHTS]).now_or_never().is_none());
    let stranger = BlockKey { url: "https://gone.example/".into(), validator: "x".into(), block: 0 };
    block_on(world.store.put(&stranger.into(), b"old")).unwrap();
    block_on(world.store.put(&key("\"older\"", 0), b"old")).unwrap();
    let half = stored_blocks(&world).len() - 2;
    assert!(half > 0);
    block_on(collect_garbage(world.store.as_ref(), 101 * DAY)).unwrap();
    assert_eq!(stored_blocks(&world).len(), half, "a load that broke off may go on");
    block_on(collect_garbage(world.store.as_ref(), 131 * DAY)).unwrap();
    assert!(block_on(world.store.list()).unwrap().is_empty());
}

#[test]
fn a_model_that_does_not_fit_is_loaded_and_not_stored() {
    let bytes = noise(20 << 20);
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    let big = || world.repo().with_block_size(1 << 20);
    world.host.free.set(Some(10 << 20));
    assert!(block_on(load(&big(), &[WEIGHTS])).unwrap() == [Some(bytes.clone())]);
    assert!(stored_blocks(&world).is_empty());
    let [told] = world.events.take().try_into().unwrap();
    assert!(told.contains(&(20 << 20).to_string()) && told.contains(&(10 << 20).to_string()), "{told}");
    assert!(!block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());

    // What is stored already needs no room.
    world.host.free.set(Some(30 << 20));
    assert!(block_on(load(&big(), &[WEIGHTS])).unwrap() == [Some(bytes.clone())]);
    block_on(world.store.delete(&key("\"v0\"", 0))).unwrap();
    world.host.free.set(Some(1 << 20));
    assert!(block_on(load(&big(), &[WEIGHTS])).unwrap() == [Some(bytes)]);
    assert!(world.events.take().is_empty());
    assert!(block_on(is_cached(world.store.as_ref(), PLACE)).unwrap());
    assert_eq!(world.host.persisted.get(), 3);
}

#[test]
fn tabs_that_load_the_same_model_share_its_download() {
    let bytes = noise(9_500);
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    let (one, other) = (world.repo(), world.repo());
    let (one, other) = block_on(join(load(&one, &[WEIGHTS]), load(&other, &[WEIGHTS])));
    assert!(one.unwrap() == [Some(bytes.clone())] && other.unwrap() == [Some(bytes.clone())]);
    assert_eq!(world.server.ranges().len(), 10);

    // A tab that is closed leaves the rest to the other one.
    let world = World::new(&[(WEIGHTS, bytes.clone())]);
    world.server.lifetime.set(Some(4_500));
    let (closed, other) = (world.repo(), world.repo());
    assert!(load(&closed, &[WEIGHTS]).now_or_never().is_none());
    drop(closed);
    let had = stored_blocks(&world).len();
    world.server.lifetime.set(None);
    world.server.requests.take();
    assert!(block_on(load(&other, &[WEIGHTS])).unwrap() == [Some(bytes)]);
    assert_eq!(world.server.ranges().len(), 10 - had);
}

/// SHA-256 of `noise(9_500)`, by Python's hashlib.
const HASH: &str = "sha256-GjLWXs10YQLKu3SX9aWrrkh+yLx2xcejY+vGmyrpBVA=";
const OTHER_HASH: &str = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

fn demand(repo: Repo, hash: &str) -> Repo {
    repo.with_integrity(BTreeMap::from([(WEIGHTS.to_owned(), Integrity::parse(hash).unwrap())]))
}

#[test]
fn integrity_is_checked_once_over_the_whole_file() {
    let world = World::new(&[(WEIGHTS, noise(9_500))]);
    let part = |repo: Repo| {
        block_on(async {
            let file = repo.open(WEIGHTS).await?;
            file.will_read(std::iter::once(7000..7010));
            let bytes = file.read(7000..7010).await?;
            repo.finish().await.map(|()| bytes)
        })
    };
    let expected = noise(9_500)[7000..7010].to_vec();
    assert_eq!(part(demand(world.repo(), HASH)).unwrap(), expected);
    assert_eq!(world.server.ranges().len(), 10, "all of the file is read, each block once");

    // What was checked is trusted, until a part of it comes anew.
    assert_eq!(part(demand(world.repo(), HASH)).unwrap(), expected);
    assert!(world.server.ranges().is_empty());
    block_on(world.store.put(&key("\"v0\"", 2), &[0; 1000])).unwrap();
    assert_eq!(part(demand(world.repo(), HASH)).unwrap(), expected, "block 2 is not read");
    block_on(world.store.delete(&key("\"v0\"", 7))).unwrap();
    let error = part(demand(world.repo(), HASH)).unwrap_err();
    assert_eq!(error.code(), Code::Checkpoint);
    assert!(error.to_string().contains(HASH), "{error}");
    assert!(stored_blocks(&world).is_empty(), "a file that fails the check is deleted");
    assert_eq!(part(demand(world.repo(), HASH)).unwrap(), expected);

    // Another demand is another check.
    let error = part(demand(world.repo(), OTHER_HASH)).unwrap_err();
    assert!(error.to_string().contains(HASH) && error.to_string().contains(OTHER_HASH), "{error}");
}

#[test]
fn integrity_of_a_file_that_nobody_opens_is_an_error() {
    let world = World::new(&[("config.json", noise(10)), (WEIGHTS, Vec::new())]);
    let repo = demand(world.repo(), OTHER_HASH);
    assert_eq!(block_on(load(&repo, &["config.json"])).unwrap_err().code(), Code::InvalidArgument);
    // The hash of nothing fits an empty file, and no other does.
    block_on(load(&demand(world.repo(), OTHER_HASH), &[WEIGHTS])).unwrap();
    assert_eq!(block_on(load(&demand(world.repo(), HASH), &[WEIGHTS])).unwrap_err().code(), Code::Checkpoint);
}
