//! Reading files as blocks: what is fetched, what is kept, and what happens when either goes wrong.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use futures_util::future::{FutureExt, LocalBoxFuture, join, poll_fn, ready};
use jird::error::{Code, Error, Result};
use jird::fetch::{
    BLOCK_SIZE, BlockKey, BlockStore, ByteSource, Fault, FetchEvent, FileSource, FileStore, FolderOpener,
    MemoryOpener, MemoryStore, Metadata, Opener, Repo, StoreKey, base_url,
};
use pollster::block_on;

const URL: &str = "https://example.org/m/model.safetensors";

/// A file of pseudo-random bytes that counts the reads of it.
struct CountedSource {
    bytes: Vec<u8>,
    reads: RefCell<Vec<Range<u64>>>,
}

impl CountedSource {
    fn new(size: usize) -> Rc<Self> {
        let mut state = 1u32;
        let bytes = (0..size).map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 24) as u8
        });
        Rc::new(Self { bytes: bytes.collect(), reads: RefCell::default() })
    }

    fn part(&self, range: &Range<u64>) -> &[u8] {
        &self.bytes[range.start as usize..range.end as usize]
    }
}

impl ByteSource for CountedSource {
    fn name(&self) -> &str {
        URL
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        let validator = Some("\"v1\"".to_owned());
        ready(Ok(Some(Metadata { size: self.bytes.len() as u64, validator }))).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        _: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        async move {
            self.reads.borrow_mut().push(range.clone());
            give_way().await;
            bytes.extend_from_slice(self.part(&range));
            Ok(())
        }
        .boxed_local()
    }
}

/// Ends a turn, as waiting for the network does, so that other readers run in between.
async fn give_way() {
    let mut polled = false;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// A place whose every file is this one.
struct One(Rc<CountedSource>);

impl Opener for One {
    fn name(&self) -> &str {
        "https://example.org/m/"
    }

    fn open(&self, _: &str) -> Rc<dyn ByteSource> {
        self.0.clone()
    }
}

/// A store that fails as one without room does.
#[derive(Default)]
struct FullStore {
    puts: Cell<u32>,
}

impl BlockStore for FullStore {
    fn get<'a>(&'a self, _: &'a StoreKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
        ready(Err(Error::new(Code::Storage, "read"))).boxed_local()
    }

    fn has<'a>(&'a self, _: &'a StoreKey) -> LocalBoxFuture<'a, Result<bool>> {
        ready(Ok(false)).boxed_local()
    }

    fn put<'a>(&'a self, _: &'a StoreKey, _: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        self.puts.set(self.puts.get() + 1);
        ready(Err(Error::new(Code::Storage, "store"))).boxed_local()
    }

    fn delete<'a>(&'a self, _: &'a StoreKey) -> LocalBoxFuture<'a, Result<()>> {
        ready(Ok(())).boxed_local()
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<StoreKey>>> {
        ready(Ok(Vec::new())).boxed_local()
    }
}

const SIZE: usize = 2 * BLOCK_SIZE as usize + 1000;

fn key(validator: &str, block: u64) -> StoreKey {
    BlockKey { url: URL.to_owned(), validator: validator.to_owned(), block }.into()
}

fn blocks(store: &dyn BlockStore) -> Vec<Option<usize>> {
    let length = |block| block_on(store.get(&key("\"v1\"", block))).unwrap().map(|bytes| bytes.len());
    (0..3).map(length).collect()
}

#[test]
fn reads_across_blocks_and_fetches_each_once() {
    let source = CountedSource::new(SIZE);
    let store = Rc::new(MemoryStore::new());
    let repo = Repo::new(One(source.clone())).with_store(store.clone());
    let file = block_on(repo.open("model.safetensors")).unwrap();
    assert_eq!(file.size(), SIZE as u64);
    let edge = BLOCK_SIZE - 3..BLOCK_SIZE + 5;
    let all = 0..SIZE as u64;
    for range in [edge, 0..0, 7..8, all.clone(), SIZE as u64 - 1..SIZE as u64, 0..10, all] {
        assert!(block_on(file.read(range.clone())).unwrap() == source.part(&range), "{range:?}");
    }
    let (first, second) = (0..BLOCK_SIZE, BLOCK_SIZE..2 * BLOCK_SIZE);
    assert_eq!(*source.reads.borrow(), [first, second, 2 * BLOCK_SIZE..SIZE as u64]);
    assert_eq!(blocks(&*store), [Some(BLOCK_SIZE as usize), Some(BLOCK_SIZE as usize), Some(1000)]);
}

#[test]
fn without_a_store_reads_in_file_order_fetch_each_block_once() {
    let source = CountedSource::new(SIZE);
    let file = block_on(Repo::new(One(source.clone())).open("model.safetensors")).unwrap();
    let step = 1_000_003;
    for start in (0..SIZE as u64).step_by(step) {
        let range = start..(start + step as u64).min(SIZE as u64);
        assert!(block_on(file.read(range.clone())).unwrap() == source.part(&range), "{range:?}");
    }
    assert_eq!(source.reads.borrow().len(), 3);
}

#[test]
fn concurrent_readers_share_a_fetch() {
    let source = CountedSource::new(5000);
    let file = block_on(Repo::new(One(source.clone())).open("model.safetensors")).unwrap();
    let (a, b) = block_on(join(file.read(0..10), file.read(5..20)));
    assert_eq!(a.unwrap(), source.part(&(0..10)));
    assert_eq!(b.unwrap(), source.part(&(5..20)));
    assert_eq!(source.reads.borrow().len(), 1);
}

#[test]
fn a_second_load_comes_from_the_store() {
    let source = CountedSource::new(SIZE);
    let folder = tempfile::tempdir().unwrap();
    let store = Rc::new(FileStore::new(folder.path().join("blocks")));
    for _ in 0..2 {
        let repo = Repo::new(One(source.clone())).with_store(store.clone());
        let file = block_on(repo.open("model.safetensors")).unwrap();
        assert!(block_on(file.read(0..SIZE as u64)).unwrap() == source.bytes);
    }
    assert_eq!(source.reads.borrow().len(), 3);
    assert_eq!(blocks(&*store), [Some(BLOCK_SIZE as usize), Some(BLOCK_SIZE as usize), Some(1000)]);
}

#[test]
fn stored_blocks_of_another_length_are_fetched_anew() {
    let source = CountedSource::new(5000);
    let store = Rc::new(MemoryStore::new());
    let key = key("\"v1\"", 0);
    block_on(store.put(&key, &[0; 4999])).unwrap();
    let repo = Repo::new(One(source.clone())).with_store(store.clone());
    assert!(block_on(repo.read_all("model.safetensors", 5000)).unwrap().unwrap() == source.bytes);
    assert!(block_on(store.get(&key)).unwrap().unwrap() == source.bytes);
}

#[test]
fn blocks_of_another_version_are_not_used() {
    let source = CountedSource::new(5000);
    let store = Rc::new(MemoryStore::new());
    let key = key("\"v0\"", 0);
    block_on(store.put(&key, &[0; 5000])).unwrap();
    let repo = Repo::new(One(source.clone())).with_store(store);
    assert!(block_on(repo.read_all("model.safetensors", 5000)).unwrap().unwrap() == source.bytes);
}

#[test]
fn a_failing_store_does_not_fail_the_load() {
    let source = CountedSource::new(SIZE);
    let store = Rc::new(FullStore::default());
    let failures = Rc::new(Cell::new(0));
    let counter = failures.clone();
    let repo =
        Repo::new(One(source.clone())).with_store(store.clone()).with_observer(Rc::new(move |event| {
            if let FetchEvent::StoreFailed { file, error } = event {
                assert!(["model.safetensors", ""].contains(&file), "a file or the manifest, not {file}");
                assert_eq!(error.code(), Code::Storage);
                counter.set(counter.get() + 1);
            }
        }));
    assert!(block_on(repo.read_all("model.safetensors", SIZE as u64)).unwrap().unwrap() == source.bytes);
    assert_eq!(store.puts.get(), 1, "a full store is not asked again");
    assert_eq!(failures.get(), 5, "the manifest is read and written, then three blocks are read");
}

#[test]
fn progress_counts_each_block_once_and_says_where_it_came_from() {
    let source = CountedSource::new(SIZE);
    let store = Rc::new(MemoryStore::new());
    let first = block_on(Repo::new(One(source.clone())).with_store(store.clone()).open("a")).unwrap();
    block_on(first.read(0..1)).unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = seen.clone();
    let repo = Repo::new(One(source)).with_store(store).with_observer(Rc::new(move |event| {
        if let FetchEvent::Progress(progress) = event {
            log.borrow_mut().push((progress.loaded, progress.total, progress.from_cache));
        }
    }));
    let file = block_on(repo.open("b")).unwrap();
    for _ in 0..2 {
        block_on(file.read(0..SIZE as u64)).unwrap();
    }
    let size = SIZE as u64;
    assert_eq!(
        *seen.borrow(),
        [(BLOCK_SIZE, size, BLOCK_SIZE), (2 * BLOCK_SIZE, size, BLOCK_SIZE), (size, size, BLOCK_SIZE)]
    );
}

/// The rows `rows` of a table of 100 bytes a row.
fn rows(rows: &[u64]) -> Vec<Range<u64>> {
    rows.iter().map(|row| row * 100..(row + 1) * 100).collect()
}

#[test]
fn scattered_reads_take_stored_blocks_and_fetch_no_more_than_the_rows_otherwise() {
    let source = CountedSource::new(200_000);
    let folder = tempfile::tempdir().unwrap();
    let stores: [Rc<dyn BlockStore>; 2] =
        [Rc::new(MemoryStore::new()), Rc::new(FileStore::new(folder.path().join("blocks")))];
    for store in stores {
        let repo = Repo::new(One(source.clone())).with_store(store.clone()).with_block_size(1000);
        let file = block_on(repo.open("table")).unwrap();
        // Rows 40 to 59 are stored.
        block_on(file.keep(4000..6000)).unwrap();
        assert_eq!(source.reads.take(), [4000..5000, 5000..6000]);
        let wanted = rows(&[1999, 42, 0, 42, 59, 1]);
        let got = block_on(file.read_scattered(&wanted)).unwrap();
        for (range, bytes) in wanted.iter().zip(&got) {
            assert_eq!(bytes, source.part(range), "{range:?}");
        }
        assert_eq!(source.reads.take(), [0..200, 199_900..200_000]);
        // Half of this one lies in a stored block.
        assert_eq!(
            block_on(file.read_scattered(&[5990..6010, 7..7])).unwrap(),
            [source.part(&(5990..6010)), &[]]
        );
        assert_eq!(source.reads.take(), std::slice::from_ref(&(6000..6010)));
        let is_block = |key: &StoreKey| matches!(key, StoreKey::Block(_));
        let stored = block_on(store.list()).unwrap().into_iter().filter(is_block).count();
        assert_eq!(stored, 2, "rows are not stored");
        let outside = block_on(file.read_scattered(&[0..1, 199_999..200_001])).unwrap_err();
        assert_eq!(outside.code(), Code::InvalidArgument);
    }
}

#[test]
fn a_stored_block_that_was_cut_off_is_not_used_for_rows() {
    let source = CountedSource::new(5000);
    let folder = tempfile::tempdir().unwrap();
    let store = Rc::new(FileStore::new(folder.path().join("blocks")));
    block_on(store.put(&key("\"v1\"", 0), &[0; 150])).unwrap();
    let repo = Repo::new(One(source.clone())).with_store(store);
    let file = block_on(repo.open("table")).unwrap();
    let wanted = rows(&[1]);
    assert_eq!(block_on(file.read_scattered(&wanted)).unwrap(), [source.part(&wanted[0])]);
}

#[test]
fn keeping_gives_way_to_reads_and_stores_what_is_missing() {
    let source = CountedSource::new(4500);
    let store = Rc::new(MemoryStore::new());
    let repo = Repo::new(One(source.clone())).with_store(store.clone()).with_block_size(1000);
    let file = block_on(repo.open("table")).unwrap();
    block_on(file.read(1000..1001)).unwrap();
    source.reads.take();
    let (rows, kept) = block_on(join(file.read_scattered(&[0..10, 4000..4010]), file.keep(0..4500)));
    assert_eq!(rows.unwrap(), [source.part(&(0..10)), source.part(&(4000..4010))]);
    kept.unwrap();
    let reads = source.reads.take();
    assert_eq!(reads, [0..4010, 0..1000, 2000..3000, 3000..4000, 4000..4500]);
    block_on(file.keep(0..4500)).unwrap();
    assert!(source.reads.take().is_empty(), "all is stored");

    let full = Repo::new(One(source.clone())).with_store(Rc::new(FullStore::default()));
    let error = block_on(block_on(full.open("table")).unwrap().keep(0..10)).unwrap_err();
    assert_eq!(error.code(), Code::Storage);
    let without = block_on(Repo::new(One(source.clone())).open("table")).unwrap();
    source.reads.take();
    block_on(without.keep(0..10)).unwrap();
    assert!(source.reads.take().is_empty(), "there is no place to keep it");
}

#[test]
fn blocks_that_will_be_read_are_fetched_ahead_and_no_others() {
    let source = CountedSource::new(20_000);
    let repo = Repo::new(One(source.clone())).with_block_size(1000);
    let file = block_on(repo.open("model.safetensors")).unwrap();
    file.will_read([500..1500, 5000..9500]);
    assert_eq!(block_on(file.read(500..600)).unwrap(), source.part(&(500..600)));
    assert_eq!(source.reads.take(), [0..1000, 1000..2000, 5000..6000, 6000..7000]);
    assert_eq!(block_on(file.read(600..1500)).unwrap(), source.part(&(600..1500)));
    assert_eq!(block_on(file.read(5000..9500)).unwrap(), source.part(&(5000..9500)));
    assert_eq!(source.reads.take(), [7000..8000, 8000..9000, 9000..10_000]);
}

#[test]
fn what_is_on_its_way_ends_with_the_load() {
    let source = CountedSource::new(20_000);
    let repo = Repo::new(One(source.clone())).with_block_size(1000);
    let file = block_on(repo.open("model.safetensors")).unwrap();
    file.will_read(std::iter::once(0..20_000));
    assert!(file.read(0..10).now_or_never().is_none(), "the source needs a turn");
    assert_eq!(source.reads.borrow().len(), 4);
    drop((file, repo));
    assert_eq!(Rc::strong_count(&source), 1, "a request holds its source");
}

#[test]
fn ranges_outside_the_file_and_files_beyond_the_limit_are_refused() {
    let file = block_on(Repo::new(One(CountedSource::new(100))).open("a")).unwrap();
    for range in [0..101, 100..101, u64::MAX - 1..u64::MAX, Range { start: 9, end: 3 }] {
        assert_eq!(block_on(file.read(range)).unwrap_err().code(), Code::InvalidArgument);
    }
    let error = block_on(file.read_all(99)).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.to_string().contains("at most 99 bytes, got 100"), "{error}");
}

#[test]
fn missing_files_are_told_from_failures() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let files = [("config.json".to_owned(), b"{}".to_vec())];
    for repo in [Repo::new(FolderOpener::new(folder.path())), Repo::new(MemoryOpener::new(files))] {
        assert_eq!(block_on(repo.read_all("config.json", 100)).unwrap().unwrap(), b"{}");
        assert!(block_on(repo.find("tokenizer.json")).unwrap().is_none());
        let error = block_on(repo.open("tokenizer.json")).err().unwrap();
        assert!(error.to_string().contains("open tokenizer.json of"), "{error}");
    }
}

#[test]
fn file_names_stay_below_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let repo = Repo::new(FolderOpener::new(folder.path()));
    for name in
        ["", "/etc/hostname", "../x", "a/../x", "a//b", "./a", "a\\b", "https://x/y", "a?b", "a#b", "a%2f"]
    {
        assert_eq!(
            block_on(repo.find(name)).err().map(|error| error.code()),
            Some(Code::Checkpoint),
            "{name}"
        );
    }
    assert!(block_on(repo.find("onnx/model.safetensors")).unwrap().is_none());
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    std::fs::write(&path, [7; 100]).unwrap();
    let source = FileSource::new(&path);
    let version = block_on(source.metadata()).unwrap().unwrap();
    let mut bytes = Vec::new();
    block_on(source.read(90..100, &version, &mut bytes)).unwrap();
    assert_eq!(bytes, [7; 10]);
    std::fs::write(&path, [7; 50]).unwrap();
    let error = block_on(source.read(40..60, &version, &mut bytes)).unwrap_err().into_error();
    assert!(error.to_string().contains("expected 20 bytes, got 10"), "{error}");
}

#[test]
fn locations() {
    for (location, url) in [
        ("https://example.org/m", "https://example.org/m/"),
        ("http://localhost:8000/m/", "http://localhost:8000/m/"),
        ("a/b-2.0_x", "https://huggingface.co/a/b-2.0_x/resolve/main/"),
        ("a/b@v1.0", "https://huggingface.co/a/b/resolve/v1.0/"),
        ("a/b@refs/pr/3", "https://huggingface.co/a/b/resolve/refs%2Fpr%2F3/"),
    ] {
        assert_eq!(base_url(location).unwrap(), url);
    }
    for location in
        ["", "a", "a/b/c", "a/b@", "../b", "a/..", "a b/c", "https://x/m?y", "ftp://x/m", "a/b@x/../y"]
    {
        assert_eq!(base_url(location).unwrap_err().code(), Code::InvalidArgument, "{location}");
    }
}
