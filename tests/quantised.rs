//! What quantisation of weights, and of keys and values, costs a real model: perplexity and Kullback-Leibler divergence against f32 weights.
//! Slow on a software device, so only with JIRD_FULL; the models lie in the folder JIRD_MODELS.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::rc::Rc;

use jird::checkpoint::Checkpoint;
use jird::fetch::{FolderOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::kernels::Step;
use jird::models::{Rows, State, TextModel, declare};
use jird::nn::{CacheFormat, Loader, WeightDtype};
use jird::plan::{Plan, PlanBuilder, Value};
use jird::text::Tokenizer;
use jird::text::chat::encode_rendered;

const TOKENS: usize = 2048;
const ROWS: u32 = 64;

/// A model whose logits of every row are read.
struct Scorer {
    gpu: Rc<Gpu>,
    state: State,
    plan: Plan,
    logits: Value,
}

impl Scorer {
    async fn load(gpu: &Rc<Gpu>, repo: &Repo, (dtype, format): (WeightDtype, CacheFormat)) -> Self {
        let config = repo.read_all("config.json", 1 << 20).await.expect("a file").expect("config.json");
        let checkpoint = Checkpoint::open(repo).await.expect("a checkpoint");
        let mut loader = Loader::new(gpu, &checkpoint, dtype).with_cache_format(format);
        let config = serde_json::from_slice(&config).expect("a configuration");
        let model: Box<dyn TextModel> = declare(&config, &mut loader).expect("a model");
        loader.run(&|| Ok(())).await.expect("weights");
        let state = State::new(gpu, model.dimensions(), TOKENS as u32, ROWS).expect("a state");
        let mut builder = PlanBuilder::new(gpu, ROWS, true);
        let mut residual = model.forward(&mut builder, &state, Rows::All);
        let logits = model.all_logits(&mut builder, &mut residual);
        builder.keep(logits);
        Self { gpu: gpu.clone(), state, plan: builder.compile().expect("a plan"), logits }
    }

    /// Logits `[ROWS, vocab_size]` of `ids` at `position`.
    async fn score(&self, position: u32, ids: &[u32]) -> Vec<f32> {
        let step = Step { position, rows: ROWS, ..Step::default() };
        self.state.write_tokens(&self.gpu, ids, ROWS);
        self.state.write_step(&self.gpu, &step, ROWS);
        self.gpu.submit(self.gpu.encode(self.plan.dispatches(), &[]));
        let bytes = u64::from(self.logits.rows * self.logits.columns) * 4;
        let buffer = self.plan.buffer(self.logits);
        bytemuck::pod_collect_to_vec(&self.gpu.read(buffer, 0..bytes).await.expect("logits"))
    }
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - highest).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - highest) - total.ln()).collect()
}

/// Perplexities with every dtype of weights and of caches, and the mean KL divergence from the first.
async fn measure(folder: &str, dtypes: &[(WeightDtype, CacheFormat)]) -> Vec<(f64, f64)> {
    let models = PathBuf::from(std::env::var("JIRD_MODELS").expect("JIRD_MODELS"));
    let repo = Repo::new(FolderOpener::new(models.join(folder)));
    let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
    let mut scorers = Vec::new();
    for &dtypes in dtypes {
        scorers.push(Scorer::load(&gpu, &repo, dtypes).await);
    }
    let tokenizer = repo.read_all("tokenizer.json", 1 << 27).await.expect("a file").expect("tokenizer.json");
    let tokenizer = Tokenizer::from_json(&tokenizer).expect("a tokenizer");
    let ids = encode_rendered(&tokenizer, include_str!("fixtures/text-ppl.txt")).expect("ids");
    assert!(ids.len() > TOKENS, "the text has {} tokens", ids.len());

    let mut sums = vec![(0.0, 0.0); dtypes.len()];
    for position in (0..TOKENS).step_by(ROWS as usize) {
        let chunk = &ids[position..position + ROWS as usize];
        let mut reference: Vec<Vec<f64>> = Vec::new();
        for (scorer, (loss, divergence)) in scorers.iter().zip(&mut sums) {
            let logits = scorer.score(position as u32, chunk).await;
            let rows: Vec<Vec<f64>> =
                logits.chunks(scorer.logits.columns as usize).map(log_softmax).collect();
            for (row, log_p) in rows.iter().enumerate() {
                *loss -= log_p[ids[position + row + 1] as usize];
                let exact = reference.get(row).unwrap_or(log_p);
                *divergence += exact.iter().zip(log_p).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            }
            if reference.is_empty() {
                reference = rows;
            }
        }
    }
    let mean = |sum: f64| sum / TOKENS as f64;
    sums.into_iter().map(|(loss, divergence)| (mean(loss).exp(), mean(divergence))).collect()
}

/// Prints the table and fails where q8 is more than 1% or q4 more than 8% worse than f32, or halves as keys and
/// values beside f32 weights more than 0.1% off.
fn check(folder: &str) {
    if std::env::var_os("JIRD_FULL").is_none() {
        println!("skipped: {folder} is measured with JIRD_FULL, as by ./run test --full");
        return;
    }
    let cases = [
        ("f32", (WeightDtype::F32, CacheFormat::F32), 0.0, 1.0),
        ("f32, keys and values f16", (WeightDtype::F32, CacheFormat::F16), 0.999, 1.001),
        ("q8", (WeightDtype::Q8, CacheFormat::F16), 0.0, 1.01),
        ("q4", (WeightDtype::Q4, CacheFormat::F16), 0.0, 1.08),
    ];
    let results = pollster::block_on(measure(folder, &cases.map(|(_, dtypes, ..)| dtypes)));
    let exact = results[0].0;
    for ((perplexity, divergence), (name, _, least, most)) in results.iter().zip(cases) {
        let ratio = perplexity / exact;
        println!("{folder} {name}: perplexity {perplexity:.4} ({ratio:.5} of f32), KL {divergence:.6}");
        assert!((least..=most).contains(&ratio), "{folder} {name}: perplexity {perplexity} against {exact}");
    }
}

#[test]
fn smollm2() {
    check("smollm2");
}

#[test]
fn gemma3() {
    check("gemma3");
}
