//! The plan of a model's memory, made from headers alone, against the ledger of the loaded model.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "tests/quantised_checkpoints.rs uses the rest")]
#[path = "shared/mlx.rs"]
mod mlx;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use jird::checkpoint::Dtype;
use jird::engine::{
    GenerateOptions, LoadEvent, LoadObserver, LoadOptions, MemoryPlan, Model, Prompt, SessionOptions,
};
use jird::error::Code;
use jird::fetch::{BLOCK_SIZE, ByteSource, Fault, MemoryOpener, MemorySource, Metadata, Opener, Repo};
use jird::gpu::{Gpu, GpuOptions, Usage};
use jird::nn::WeightDtype;
use mlx::Tensor;
use serde_json::json;

const TOKENIZER: &[u8] = include_bytes!("fixtures/llama/tied/tokenizer.json");

macro_rules! fixture {
    ($name:literal) => {
        (
            include_bytes!(concat!("fixtures/", $name, "/config.json")).as_slice(),
            include_bytes!(concat!("fixtures/", $name, "/model.safetensors")).as_slice(),
        )
    };
}

/// Configuration and weights.
const FIXTURES: [(&[u8], &[u8]); 5] = [
    fixture!("llama/tied"),
    fixture!("llama/rope_llama3"),
    fixture!("llama/mistral"),
    fixture!("gemma3/pattern"),
    fixture!("gemma3/scaled"),
];

type Files = BTreeMap<String, Vec<u8>>;

fn files(config: &[u8], weights: &[u8]) -> Files {
    [("config.json", config), ("model.safetensors", weights), ("tokenizer.json", TOKENIZER)]
        .map(|(name, bytes)| (name.to_owned(), bytes.to_vec()))
        .into()
}

fn repo(files: Files) -> Repo {
    Repo::new(MemoryOpener::new(files))
}

async fn gpu() -> Rc<Gpu> {
    Gpu::open(GpuOptions::default()).await.expect("a GPU device")
}

fn ledger(gpu: &Gpu) -> [u64; 4] {
    Usage::ALL.map(|usage| gpu.ledger().live(usage))
}

fn planned(plan: &MemoryPlan) -> [u64; 4] {
    [plan.weights, plan.kv_cache, plan.activations, plan.other]
}

async fn generate(model: &Rc<Model>, prompt: &str, temperature: f32) {
    let options = GenerateOptions { max_tokens: Some(3), temperature, ..GenerateOptions::default() };
    let mut generation = model.generate(&Prompt::Text(prompt.to_owned()), options).expect("a generation");
    while generation.next().await.expect("a piece").is_some() {}
}

#[test]
fn the_plan_is_the_ledger_to_the_byte_whatever_is_generated() {
    pollster::block_on(async {
        let gpu = gpu().await;
        for (config, weights) in FIXTURES {
            for dtype in [WeightDtype::Auto, WeightDtype::F32, WeightDtype::Q8, WeightDtype::Q4] {
                let options = LoadOptions { dtype, context: Some(400), ..LoadOptions::default() };
                let plan = Model::plan(&gpu, &repo(files(config, weights)), options).await.expect("a plan");
                assert_eq!(ledger(&gpu), [0; 4], "a plan leaves nothing");
                assert!(planned(&plan).iter().all(|bytes| *bytes > 0));
                let model = Model::load(&gpu, repo(files(config, weights)), options, Rc::new(())).await;
                let model = model.expect("the model");
                assert_eq!(ledger(&gpu), planned(&plan), "{dtype:?}, loaded");
                if dtype == WeightDtype::Auto {
                    for (prompt, temperature) in [("a", 0.0), ("a b ", 1.0), (&*"a b ".repeat(80), 0.0)] {
                        generate(&model, prompt, temperature).await;
                        assert_eq!(ledger(&gpu), planned(&plan), "after a generation");
                    }
                }
            }
        }
    });
}

/// Bytes read, by file.
type Reads = Rc<RefCell<BTreeMap<String, u64>>>;

/// Counts the bytes of each file that are read.
struct Counting {
    files: Files,
    read: Reads,
}

struct CountingSource(MemorySource, String, Reads);

impl Opener for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn open(&self, file: &str) -> Rc<dyn ByteSource> {
        match self.files.get(file) {
            Some(bytes) => {
                let source = MemorySource::new(file, bytes.clone());
                Rc::new(CountingSource(source, file.to_owned(), self.read.clone()))
            }
            None => MemoryOpener::new(Files::new()).open(file),
        }
    }
}

impl ByteSource for CountingSource {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        self.0.metadata()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        metadata: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        *self.2.borrow_mut().entry(self.1.clone()).or_default() += range.end - range.start;
        self.0.read(range, metadata, bytes)
    }
}

/// Keeps the total of the downloads.
#[derive(Default)]
struct Total(RefCell<Vec<(u64, u64)>>);

impl LoadObserver for Total {
    fn event(&self, event: LoadEvent<'_>) {
        if let LoadEvent::Download { loaded, total, .. } = event {
            self.0.borrow_mut().push((loaded, total));
        }
    }
}

/// A model inside a multimodal file, with towers of several blocks around it.
async fn with_towers() -> Files {
    let (config, weights) = FIXTURES[0];
    let tower = |name: &str, megabytes: usize| -> Tensor {
        (name.to_owned(), Dtype::U8, vec![megabytes << 20], vec![0; megabytes << 20])
    };
    let mut tensors = vec![tower("model.vision_tower.weight", 25)];
    for (name, dtype, shape, bytes) in mlx::tensors(weights).await {
        tensors.push((name.replace("model.", "model.language_model."), dtype, shape, bytes));
    }
    tensors.push(tower("model.audio_tower.weight", 17));
    files(config, &mlx::file(&tensors))
}

#[test]
fn towers_are_neither_read_nor_counted() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let read = Reads::default();
        let files = with_towers().await;
        let size = files["model.safetensors"].len() as u64;
        let repo = || Repo::new(Counting { files: files.clone(), read: Rc::clone(&read) });
        let total = Rc::new(Total::default());
        let plan = Model::plan(&gpu, &repo(), LoadOptions::default()).await.expect("a plan");
        assert_eq!(read.borrow()["model.safetensors"], BLOCK_SIZE, "a plan reads headers");
        read.borrow_mut().clear();
        Model::load(&gpu, repo(), LoadOptions::default(), total.clone()).await.expect("the model");
        // The header's block, and that of the text model, which begins behind 25 MB.
        assert_eq!(read.borrow()["model.safetensors"], 2 * BLOCK_SIZE);
        assert!(size > 5 * BLOCK_SIZE);
        let expected = 2 * BLOCK_SIZE + TOKENIZER.len() as u64;
        assert_eq!(plan.download_bytes, expected);
        assert_eq!(total.0.borrow().last(), Some(&(expected, expected)));
        assert!(total.0.borrow().iter().all(|(_, total)| *total == expected));
    });
}

#[test]
fn a_budget_refuses_before_weights_are_read_and_bounds_what_comes_later() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let (config, weights) = FIXTURES[0];
        let plan = Model::plan(&gpu, &repo(files(config, weights)), LoadOptions::default()).await;
        let plan = plan.expect("a plan");
        assert!(plan.fits());
        let within = LoadOptions { memory_budget: Some(plan.total_bytes()), ..LoadOptions::default() };
        let below = LoadOptions { memory_budget: Some(plan.total_bytes() - 1), ..LoadOptions::default() };
        let tight = Model::plan(&gpu, &repo(files(config, weights)), below).await.expect("a plan");
        assert!(!tight.fits());

        let read = Reads::default();
        let opener = Counting { files: with_towers().await, read: Rc::clone(&read) };
        let error = Model::load(&gpu, Repo::new(opener), below, Rc::new(())).await.err().expect("an error");
        assert_eq!(error.code(), Code::OutOfMemory);
        for number in
            [plan.weights, plan.kv_cache, plan.activations, plan.total_bytes(), plan.total_bytes() - 1]
        {
            assert!(error.to_string().contains(&number.to_string()), "{number}: {error}");
        }
        assert!(error.to_string().contains("smaller context"), "{error}");
        assert_eq!(read.borrow().get("tokenizer.json"), None);
        assert_eq!(read.borrow()["model.safetensors"], BLOCK_SIZE);
        assert_eq!(ledger(&gpu), [0; 4]);

        let model =
            Model::load(&gpu, repo(files(config, weights)), within, Rc::new(())).await.expect("the model");
        generate(&model, "a", 0.0).await;
        let more = gpu.buffer("more", 1 << 10, Usage::KvCache).expect_err("an error");
        assert_eq!(more.code(), Code::OutOfMemory);
        assert!(more.to_string().contains("memoryBudget"), "{more}");
    });
}

/// The first fixture, made for so many positions.
fn files_for_positions(positions: u32) -> Files {
    let (config, weights) = FIXTURES[0];
    let mut config: serde_json::Value = serde_json::from_slice(config).expect("json");
    config["max_position_embeddings"] = json!(positions);
    files(&serde_json::to_vec(&config).expect("json"), weights)
}

/// What no binding of the device can hold is refused by the plan, not by the first generation.
#[test]
fn limits_of_the_device_are_known_to_the_plan() {
    pollster::block_on(async {
        let options = GpuOptions { max_binding_bytes: Some(512 << 10), ..GpuOptions::default() };
        let gpu = Gpu::open(options).await.expect("a GPU device");
        let plan = async |context| {
            let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
            Model::plan(&gpu, &repo(files_for_positions(32_768)), options).await
        };
        plan(512).await.expect("a plan");
        let error = plan(32_768).await.expect_err("an error");
        assert_eq!(error.code(), Code::OutOfMemory);
        assert!(error.to_string().contains("524288 bytes"), "{error}");
        assert_eq!(ledger(&gpu), [0; 4]);
    });
}

/// Set in a process that may have little memory.
const LIMITED: &str = "JIRD_TEST_LIMITED";
const LIMIT_KIB: u64 = 6 << 20;
/// Positions whose keys take 64 MiB a layer.
const LONG_CONTEXT: u32 = 1 << 20;

/// Whether this process has little memory; if not, runs `test` alone in one that has. The software device takes its
/// memory from the process.
#[cfg(target_os = "linux")]
fn has_little_memory(test: &str) -> bool {
    if std::env::var_os(LIMITED).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("the test's program");
    let status = std::process::Command::new("sh")
        .args(["-c", &format!("ulimit -v {LIMIT_KIB} && exec \"$0\" --exact \"$1\"")])
        .arg(program)
        .arg(test)
        .env(LIMITED, "1")
        .status();
    assert!(status.expect("a run of this test in little memory").success());
    false
}

/// More is planned than the process may have: reserving it costs nothing, and the device's refusal is an error
/// before anything is downloaded.
#[test]
#[cfg(target_os = "linux")]
fn a_device_without_memory_says_so_before_the_download() {
    if !has_little_memory("a_device_without_memory_says_so_before_the_download") {
        return;
    }
    pollster::block_on(async {
        let gpu = gpu().await;
        let mut others = Vec::new();
        while gpu.ledger().total() < 2 * LIMIT_KIB * 1024 {
            others.push(gpu.buffer("another", 64 << 20, Usage::KvCache).expect("a reservation"));
        }
        let read = Reads::default();
        let opener = Counting { files: files_for_positions(512), read: Rc::clone(&read) };
        let error = Model::load(&gpu, Repo::new(opener), LoadOptions::default(), Rc::new(())).await;
        let error = error.err().expect("an error");
        assert_eq!(error.code(), Code::OutOfMemory, "{error}");
        assert!(error.to_string().contains("smaller context"), "{error}");
        assert_eq!(read.borrow().get("tokenizer.json"), None, "{error}");
    });
}

/// The last session that does not fit is refused, and harms nobody.
#[test]
#[cfg(target_os = "linux")]
fn a_session_for_which_the_device_has_no_memory_is_refused() {
    if !has_little_memory("a_session_for_which_the_device_has_no_memory_is_refused") {
        return;
    }
    pollster::block_on(async {
        let gpu = gpu().await;
        let options = LoadOptions { context: Some(64), ..LoadOptions::default() };
        let files = files_for_positions(LONG_CONTEXT);
        let model = Model::load(&gpu, repo(files), options, Rc::new(())).await.expect("the model");
        let mut sessions = Vec::new();
        let error = loop {
            assert!(
                gpu.ledger().total() < 2 * LIMIT_KIB * 1024,
                "the device has more memory than the process"
            );
            match model.session(SessionOptions { context: Some(LONG_CONTEXT) }).await {
                Ok(session) => sessions.push(session),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), Code::OutOfMemory, "{error}");
        assert!(error.to_string().contains("smaller context"), "{error}");
        sessions.pop();
        generate(&model, "a", 0.0).await;
    });
}
