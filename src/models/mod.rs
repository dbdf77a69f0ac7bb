//! Floor 5. One file per model family: configuration, weight names, forward.
//!
//! A family reads its part of `config.json` with upstream's field names, declares its weights to the
//! [`Loader`], and records its forward pass into a plan. `docs/adding-a-model.md` shows how to add one.

mod blocks;
mod config;
mod gemma3;
mod llama;

use serde_json::Value as Json;

use crate::error::{Code, Error, Result};
use crate::gpu::Gpu;
use crate::kernels::Step;
use crate::nn::{KvCache, Loader, Residual, Rope, RopeTable, StepInputs};
use crate::plan::{PlanBuilder, Value};

pub use gemma3::Gemma3;
pub use llama::Llama;

/// What the engine must know of a text model.
#[derive(Clone, Debug)]
pub struct Dimensions {
    /// Entries of the vocabulary.
    pub vocab_size: u32,
    /// Positions that the model was made for.
    pub max_position_embeddings: u32,
    /// For each layer, elements of one position's keys: `num_key_value_heads · head_dim`.
    pub cache_widths: Vec<u32>,
    /// The kinds of rotary embedding that the layers use.
    pub ropes: Vec<Rope>,
}

/// The buffers of one conversation, which plans bind.
#[derive(Debug)]
pub struct State {
    /// What every step reads.
    pub inputs: StepInputs,
    /// The turns of the step's rows, as [`Dimensions::ropes`].
    pub ropes: Vec<RopeTable>,
    /// Keys and values, one per layer.
    pub caches: Vec<KvCache>,
}

impl State {
    /// Buffers for `context` positions and steps of up to `rows` rows.
    pub fn new(gpu: &Gpu, dimensions: &Dimensions, context: u32, rows: u32) -> Result<Self> {
        use crate::gpu::Usage::Io;
        let step_bytes = size_of::<Step>() as u64;
        let inputs = StepInputs {
            step: gpu.buffer("step", step_bytes, Io)?.into(),
            tokens: gpu.buffer("tokens", u64::from(rows) * 4, Io)?.into(),
        };
        let ropes = dimensions.ropes.iter().map(|rope| RopeTable::new(gpu, rope.clone(), rows));
        let caches = dimensions.cache_widths.iter().map(|&width| KvCache::new(gpu, context, width));
        Ok(Self { inputs, ropes: ropes.collect::<Result<_>>()?, caches: caches.collect::<Result<_>>()? })
    }
}

impl State {
    /// Writes the tokens of a plan's `rows`. Rows past `ids` are padding: they hold token 0, and nothing reads
    /// what they compute.
    pub fn write_tokens(&self, gpu: &Gpu, ids: &[u32], rows: u32) {
        let mut padded = ids.to_vec();
        padded.resize(rows as usize, 0);
        gpu.write(&self.inputs.tokens, 0, bytemuck::cast_slice(&padded));
    }

    /// Writes `step` and the turns of a plan's `rows`, for the next submission.
    pub fn write_step(&self, gpu: &Gpu, step: &Step, rows: u32) {
        gpu.write(&self.inputs.step, 0, bytemuck::bytes_of(step));
        for rope in &self.ropes {
            rope.write(gpu, step.position, rows);
        }
    }

    /// Whether the next step may begin at `position`, the positions before it being kept: whether every cache
    /// still holds the keys that it sees. Caches of the whole context always do.
    pub fn can_roll_back_to(&self, _position: u32) -> bool {
        true
    }
}

/// A decoder of text.
pub trait TextModel {
    /// What the engine must know.
    fn dimensions(&self) -> &Dimensions;

    /// Records the layers over the step's tokens and returns the residual stream after the last.
    fn forward(&self, plan: &mut PlanBuilder, state: &State) -> Residual;

    /// Records final norm and head: `[1, vocab_size]` logits of the step's last real row.
    fn logits(&self, plan: &mut PlanBuilder, state: &State, residual: &mut Residual) -> Value;

    /// Records final norm and head for every row: `[rows, vocab_size]`, before any soft-cap. For measuring a
    /// model on a text.
    fn all_logits(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value;
}

/// Declares the model that `config` (a parsed `config.json`) describes.
///
/// Fails with [`Code::Unsupported`] for other families, and names those that there are.
pub fn declare(config: &Json, loader: &mut Loader<'_>) -> Result<Box<dyn TextModel>> {
    match config.get("model_type").and_then(Json::as_str) {
        Some("llama" | "mistral") => Ok(Box::new(Llama::declare(config, loader)?)),
        Some("gemma3_text") => Ok(Box::new(Gemma3::declare(config, loader)?)),
        other => Err(Error::new(Code::Unsupported, "load the model")
            .expected("model_type llama, mistral or gemma3_text in config.json")
            .got(other.map_or("none".to_owned(), |name| format!("{name:?}")))
            .remedy("Choose a checkpoint of one of these families.")),
    }
}
