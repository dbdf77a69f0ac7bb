//! A model whose per-layer embeddings stay where they are stored: what is read of them and when, and that a slow
//! server changes nothing but the time.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};
use jird::checkpoint::Checkpoint;
use jird::engine::{GenerateOptions, Generation, LoadOptions, Model, Prompt, RowStats, RowTable};
use jird::error::{Code, Result};
use jird::fetch::{ByteSource, Fault, MemoryStore, Metadata, Opener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
const TABLE: &str = "model.language_model.embed_tokens_per_layer.weight";
/// Rows of 96 values in BF16.
const ROW_BYTES: u64 = 192;
/// Small blocks, so that what is read of a small file can be told apart.
const BLOCK_SIZE: u64 = 4096;

/// A server of the tiny E2B, which delays and counts reads of some bytes of the weights.
#[derive(Clone, Default)]
struct Server {
    slow: Rc<RefCell<Range<u64>>>,
    delay: Rc<Cell<Duration>>,
    reads: Rc<RefCell<Vec<Range<u64>>>>,
}

impl Server {
    /// The reads since the last call that touched the slow bytes.
    fn take_reads(&self) -> usize {
        self.reads.take().len()
    }
}

impl Opener for Server {
    fn name(&self) -> &str {
        "test server"
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        // The tokenizer of another fixture has as many entries.
        let folder = if file.contains("tokenizer") { "llama/tied" } else { "gemma4/e2b" };
        let bytes = std::fs::read(format!("{FIXTURES}/{folder}/{file}")).ok();
        Rc::new(ServedFile { name: file.to_owned(), bytes, server: self.clone() })
    }
}

struct ServedFile {
    name: String,
    bytes: Option<Vec<u8>>,
    server: Server,
}

impl ByteSource for ServedFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        let validator = Some("v1".to_owned());
        let metadata = self.bytes.as_ref().map(|bytes| Metadata { size: bytes.len() as u64, validator });
        ready(Ok(metadata)).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        _: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        let slow = self.server.slow.borrow().clone();
        if self.name == "model.safetensors" && range.start < slow.end && slow.start < range.end {
            self.server.reads.borrow_mut().push(range.clone());
            std::thread::sleep(self.server.delay.get());
        }
        let content = self.bytes.as_ref().expect("a file that is there");
        bytes.extend(&content[range.start as usize..range.end as usize]);
        ready(Ok(())).boxed_local()
    }
}

/// The checkpoint that `server` serves, and the bytes of the table in it.
async fn checkpoint(server: &Server, repo: &Repo) -> Rc<Checkpoint> {
    let checkpoint = Checkpoint::open(repo).await.expect("a checkpoint");
    *server.slow.borrow_mut() = checkpoint.tensor(TABLE).expect("the table").bytes.clone();
    Rc::new(checkpoint)
}

fn repo(server: &Server) -> Repo {
    Repo::new(server.clone()).with_block_size(BLOCK_SIZE)
}

async fn table(server: &Server, repo: &Repo, cache_rows: u64) -> RowTable {
    let checkpoint = checkpoint(server, repo).await;
    let layout = checkpoint.row_layout(TABLE, &[320, 96]).expect("its layout");
    server.take_reads();
    RowTable::with_cache(checkpoint, layout, (cache_rows * ROW_BYTES) as usize)
}

fn counts(stats: RowStats) -> (u64, u64, u64) {
    (stats.hits, stats.misses, stats.bytes)
}

#[test]
fn rows_come_from_memory_as_long_as_they_were_used_last() {
    pollster::block_on(async {
        let server = Server::default();
        let table = table(&server, &repo(&server), 3).await;
        let rows = table.rows(&[5, 300, 5], 96).await.expect("rows");
        assert_eq!(rows.len(), 3 * table.columns());
        assert_eq!(rows[..96], rows[192..]);
        assert_ne!(rows[..96], rows[96..192]);
        assert_eq!(counts(table.stats()), (0, 2, 2 * ROW_BYTES));

        // 5 is used again, so that 300 is the one to go.
        assert_eq!(table.rows(&[5], 96).await.expect("a row"), rows[..96]);
        table.rows(&[6, 7], 96).await.expect("rows");
        assert_eq!(table.cached_bytes() as u64, 3 * ROW_BYTES);
        assert_eq!(counts(table.stats()), (1, 4, 4 * ROW_BYTES));
        assert_eq!(table.rows(&[5, 300], 96).await.expect("rows"), rows[..192]);
        assert_eq!(counts(table.stats()), (2, 5, 5 * ROW_BYTES));

        // A part of their columns.
        let parts = table.rows(&[5, 300], 24).await.expect("rows");
        assert_eq!(parts, [&rows[..24], &rows[96..120]].concat());

        // More rows at once than the cache holds are right all the same.
        let all: Vec<u32> = (0..10).collect();
        let ten = table.rows(&all, 96).await.expect("rows");
        assert_eq!(ten[5 * 96..6 * 96], rows[..96]);
        assert!(table.cached_bytes() as u64 <= 3 * ROW_BYTES);
        let error = table.rows(&[320], 96).await.expect_err("no such row");
        assert_eq!(error.code(), Code::InvalidArgument);
    });
}

#[test]
fn a_prompt_is_fetched_by_few_requests() {
    pollster::block_on(async {
        let server = Server::default();
        let table = table(&server, &repo(&server), 100).await;
        table.prefetch(&[9, 200, 9, 10, 12, 201]).await.expect("rows");
        // Near rows share a request.
        assert!(server.take_reads() <= 2);
        assert_eq!(counts(table.stats()), (0, 5, 5 * ROW_BYTES));
        table.rows(&[200, 12], 96).await.expect("rows");
        assert_eq!(server.take_reads(), 0);
        assert_eq!(counts(table.stats()), (2, 5, 5 * ROW_BYTES));
    });
}

#[test]
fn a_table_that_was_kept_is_not_fetched_again() {
    pollster::block_on(async {
        let server = Server::default();
        let repo = repo(&server).with_store(Rc::new(MemoryStore::new()));
        let table = table(&server, &repo, 3).await;
        let before = table.rows(&[0, 319], 96).await.expect("rows");
        assert!(server.take_reads() > 0);
        table.keep().await.expect("the whole table");
        assert!(server.take_reads() > 0);
        for id in 1..300 {
            table.rows(&[id], 96).await.expect("a row");
        }
        assert_eq!(table.rows(&[0, 319], 96).await.expect("rows"), before);
        assert_eq!(server.take_reads(), 0);
    });
}

async fn finish(generation: &mut Generation) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some(piece) = generation.next().await.expect("a piece") {
        ids.extend(piece.ids);
    }
    ids
}

/// Loads the model and generates 12 tokens; what the generation says of its rows comes with them.
async fn generate(server: &Server, prompt: &str) -> (Vec<u32>, RowStats) {
    let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
    let options = LoadOptions { dtype: WeightDtype::F32, ..LoadOptions::default() };
    checkpoint(server, &repo(server)).await;
    server.take_reads();
    let model = Model::load(&gpu, repo(server), options, Rc::new(())).await.expect("the model");
    // Blocks at the table's ends hold other tensors too.
    assert!(server.take_reads() <= 2, "the load read the table");
    let options = GenerateOptions { max_tokens: Some(12), ..GenerateOptions::default() };
    let prompt = Prompt::Text(prompt.to_owned());
    let mut generation = model.generate(&prompt, options).expect("a generation");
    let ids = finish(&mut generation).await;
    let stats = generation.stats().rows.expect("a model with a table");
    let table = model.row_table().expect("a table");
    assert_eq!(counts(table.stats()), counts(stats), "of a first generation");

    let mut again =
        model.generate(&prompt, GenerateOptions { max_tokens: Some(12), ..GenerateOptions::default() });
    let again = again.as_mut().expect("a generation");
    assert_eq!(finish(again).await, ids);
    let rows = again.stats().rows.expect("a model with a table");
    assert_eq!((rows.misses, rows.bytes), (0, 0), "everything was in memory");
    (ids, stats)
}

#[test]
fn a_slow_server_costs_time_and_nothing_else() {
    pollster::block_on(async {
        let prompt = "the quick fox jumps over the lazy dog";
        let (ids, fast) = generate(&Server::default(), prompt).await;
        let server = Server::default();
        server.delay.set(Duration::from_millis(300));
        let (slow_ids, slow) = generate(&server, prompt).await;
        assert_eq!(slow_ids, ids);
        assert_eq!(counts(slow), counts(fast));
        // The prompt was fetched in one go, each new token by a request at most.
        let requests = server.take_reads() as f64;
        assert!(requests <= 4.0 + ids.len() as f64, "{requests} requests");
        assert!(slow.stall_ms >= 300.0 * requests && slow.stall_ms > fast.stall_ms, "{slow:?} {fast:?}");
        assert!(slow.hits >= 12, "the prompt's rows were there when its prefill asked: {slow:?}");
    });
}
