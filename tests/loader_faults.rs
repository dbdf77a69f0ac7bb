//! What reaches the GPU over a network that breaks off is what the file holds, byte for byte.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, pending, ready};
use jird::checkpoint::Checkpoint;
use jird::error::{Code, Error, Result};
use jird::fetch::{ByteSource, Fault, Host, MemoryStore, Metadata, Opener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::kernels::NormKernel;
use jird::nn::{Loader, WeightDtype};

/// Elements of the vectors in the file: none, one, and sizes that lie across blocks.
const SIZES: [usize; 8] = [1, 7, 500, 999, 1, 1024, 3, 2500];
const BLOCK: u64 = 1000;

/// A safetensors file of vectors of these sizes, and where the first begins.
fn file() -> (Vec<u8>, usize) {
    let mut entries = serde_json::Map::new();
    let mut end = 0;
    for (number, size) in SIZES.iter().enumerate() {
        let offsets = [end, end + size * 4];
        end = offsets[1];
        let entry = serde_json::json!({ "dtype": "F32", "shape": [size], "data_offsets": offsets });
        entries.insert(format!("v{number}"), entry);
    }
    let header = serde_json::Value::Object(entries).to_string().into_bytes();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(&header);
    let start = bytes.len();
    // Any finite numbers, no two of them alike.
    bytes.extend((0..end / 4).flat_map(|i| (i as f32 * 1.000_1 - 77.5).to_le_bytes()));
    (bytes, start)
}

/// A connection that breaks off after each of `cuts` bytes in turn, and hangs after the last one if `hangs`.
struct Connection {
    bytes: Vec<u8>,
    cuts: RefCell<Vec<u64>>,
    hangs: Cell<bool>,
    requests: Cell<u32>,
}

impl Connection {
    fn next_cut(&self) -> Option<u64> {
        let mut cuts = self.cuts.borrow_mut();
        if cuts.is_empty() { None } else { Some(cuts.remove(0)) }
    }
}

impl ByteSource for Connection {
    fn name(&self) -> &str {
        "https://example.org/m/model.safetensors"
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        let metadata = Metadata { size: self.bytes.len() as u64, validator: Some("\"v\"".to_owned()) };
        ready(Ok(Some(metadata))).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        _: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        async move {
            self.requests.set(self.requests.get() + 1);
            let cut = self.next_cut();
            if cut.is_none() && self.hangs.get() {
                pending::<()>().await;
            }
            let length = (range.end - range.start).min(cut.unwrap_or(u64::MAX));
            bytes.extend(&self.bytes[range.start as usize..(range.start + length) as usize]);
            if length == range.end - range.start {
                return Ok(());
            }
            let error = Error::new(Code::Network, "fetch").got("a connection that broke off");
            Err(Fault::Passing { error, retry_after: None })
        }
        .boxed_local()
    }
}

struct Place(Rc<Connection>);

impl Opener for Place {
    fn name(&self) -> &str {
        "https://example.org/m/"
    }

    fn open(&self, _: &str) -> Rc<dyn ByteSource> {
        self.0.clone()
    }
}

/// Whose time passes at once.
struct Hasty;

impl Host for Hasty {
    fn sleep(&self, _: Duration) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }

    fn now(&self) -> u64 {
        0
    }
}

/// Loads all vectors, and reads them back from the GPU.
async fn load(gpu: &Gpu, repo: &Repo) -> Result<Vec<u8>> {
    let checkpoint = Checkpoint::open(repo).await?;
    let mut loader = Loader::new(gpu, &checkpoint, WeightDtype::Auto);
    let kernel = NormKernel { eps: 1e-6, unit_offset: false };
    let norms: Vec<_> = SIZES
        .iter()
        .enumerate()
        .map(|(number, size)| loader.norm(format!("v{number}"), *size as u32, kernel))
        .collect::<Result<_>>()?;
    loader.run(&|| Ok(())).await?;
    repo.finish().await?;
    let mut bytes = Vec::new();
    for (norm, size) in norms.iter().zip(SIZES) {
        bytes.extend(gpu.read(&norm.weight, 0..size as u64 * 4).await?);
    }
    Ok(bytes)
}

#[test]
fn the_gpu_gets_the_files_bytes_however_the_connection_breaks_off() {
    pollster::block_on(async {
        let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
        let (bytes, start) = file();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        // Each boundary and its neighbours, then random places.
        let boundaries = (0..=bytes.len() as u64 / BLOCK).flat_map(|block| {
            [BLOCK - 1, BLOCK, 1].map(|cut| [vec![BLOCK; block as usize], vec![cut % BLOCK]].concat())
        });
        let mut cases: Vec<Vec<u64>> = boundaries.collect();
        cases.extend((0..40).map(|_| (0..random(12)).map(|_| random(BLOCK)).collect()));
        for cuts in cases {
            for hangs in [false, true] {
                let connection = Rc::new(Connection {
                    bytes: bytes.clone(),
                    cuts: RefCell::new(cuts.clone()),
                    hangs: Cell::new(hangs),
                    requests: Cell::new(0),
                });
                let store = Rc::new(MemoryStore::new());
                let repo = || {
                    let repo = Repo::new(Place(connection.clone())).with_store(store.clone());
                    repo.with_host(Rc::new(Hasty)).with_block_size(BLOCK)
                };
                if hangs {
                    // The page is closed where the connection hangs, if it came so far; the next visit goes on.
                    drop(load(&gpu, &repo()).now_or_never());
                    connection.hangs.set(false);
                }
                let loaded = load(&gpu, &repo()).await.expect("a load");
                assert!(loaded == bytes[start..], "{cuts:?}, then {hangs}: other bytes than the file's");
            }
        }
    });
}
