//! Floor 5. One file per model family: configuration, weight names, forward.
//!
//! A family reads its part of `config.json` with upstream's field names, declares its weights to the
//! [`Loader`], and records its forward pass into a plan. `docs/adding-a-model.md` shows how to add one.

mod blocks;
mod config;
mod gemma3;
mod gemma4;
mod llama;

use std::cell::Cell;
use std::rc::Rc;

use serde_json::Value as Json;

use crate::checkpoint::RowLayout;
use crate::error::{Code, Error, Result};
use crate::gpu::{Buffer, Gpu};
use crate::kernels::Step;
use crate::nn::{CacheSpec, KvCache, Loader, Logits, Residual, Rope, RopeTable, StepInputs};
use crate::plan::{PlanBuilder, Value};

pub use gemma3::Gemma3;
pub use gemma4::Gemma4;
pub use llama::Llama;

/// What the engine must know of a text model.
#[derive(Clone, Debug)]
pub struct Dimensions {
    /// Entries of the vocabulary.
    pub vocab_size: u32,
    /// Positions that the model was made for.
    pub max_position_embeddings: u32,
    /// The caches of keys and values. Layers refer to them by index: each has its own, but for those that
    /// share another's.
    pub caches: Vec<CacheSpec>,
    /// The kinds of rotary embedding that the layers use.
    pub ropes: Vec<Rope>,
    /// A table of which every step reads its tokens' rows, from where it is stored.
    pub row_table: Option<RowLayout>,
}

/// Which rows of a step somebody reads after the last layer. A family may leave out what nobody does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// All.
    All,
    /// The last real one.
    Last,
    /// None: the step only adds to the caches.
    None,
}

/// The buffers of one conversation, which plans bind.
#[derive(Debug)]
pub struct State {
    /// What every step reads.
    pub inputs: StepInputs,
    /// The turns of the step's rows, as [`Dimensions::ropes`].
    pub ropes: Vec<RopeTable>,
    /// Keys and values, as [`Dimensions::caches`].
    pub caches: Vec<KvCache>,
    /// The rows of [`Dimensions::row_table`] for the step's tokens, in f32.
    pub table_rows: Option<Rc<Buffer>>,
    /// The same for layers that only the step's last real row passes through.
    pub last_row: LastRow,
    /// The furthest position written since a step at position 0, exclusive.
    written: Cell<u32>,
}

/// What the last real row of a step reads where it stands alone.
#[derive(Debug)]
pub struct LastRow {
    /// A step of one row at the last row's position.
    pub inputs: StepInputs,
    /// The turns of that row.
    pub ropes: Vec<RopeTable>,
}

impl State {
    /// Buffers for `context` positions and steps of up to `rows` rows.
    pub fn new(gpu: &Gpu, dimensions: &Dimensions, context: u32, rows: u32) -> Result<Self> {
        use crate::gpu::Usage::Io;
        let step = || Ok(Rc::new(gpu.buffer("step", size_of::<Step>() as u64, Io)?));
        let tokens = Rc::new(gpu.buffer("tokens", u64::from(rows) * 4, Io)?);
        let ropes = |rows| {
            let tables = dimensions.ropes.iter().map(|rope| RopeTable::new(gpu, rope.clone(), rows));
            tables.collect::<Result<Vec<_>>>()
        };
        let caches = dimensions.caches.iter().map(|&spec| KvCache::new(gpu, spec, context, rows));
        let table_rows = dimensions.row_table.as_ref().map(|table| {
            let bytes = u64::from(rows) * table.stored.columns as u64 * 4;
            gpu.buffer("table rows", bytes, Io).map(Rc::new)
        });
        Ok(Self {
            inputs: StepInputs { step: step()?, tokens: tokens.clone() },
            ropes: ropes(rows)?,
            caches: caches.collect::<Result<_>>()?,
            table_rows: table_rows.transpose()?,
            last_row: LastRow { inputs: StepInputs { step: step()?, tokens }, ropes: ropes(1)? },
            written: Cell::new(0),
        })
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

    /// Writes the rows of the table for the tokens of the next submission, as far as it reads them; see
    /// [`TextModel::table_columns`].
    pub fn write_table_rows(&self, gpu: &Gpu, values: &[f32]) {
        if let Some(buffer) = &self.table_rows {
            gpu.write(buffer, 0, bytemuck::cast_slice(values));
        }
    }

    /// Writes `step` and the turns of a plan's `rows`, for the next submission.
    pub fn write_step(&self, gpu: &Gpu, step: &Step, rows: u32) {
        let before = if step.position == 0 { 0 } else { self.written.get() };
        self.written.set(before.max(step.position + step.rows));
        write_step(gpu, &self.inputs, &self.ropes, step, rows);
        if rows > 1 {
            let position = step.position + step.rows.saturating_sub(1);
            let last = Step { position, rows: 1, ..*step };
            write_step(gpu, &self.last_row.inputs, &self.last_row.ropes, &last, 1);
        }
    }

    /// Whether the next step may begin at `position`, the positions before it being kept: whether every cache
    /// still holds the keys that it sees.
    ///
    /// Caches of the whole context always do. The ring of a sliding layer holds its window and as many positions
    /// more as a step has rows; what lies further back than these from the furthest position ever written since
    /// the conversation's start is lost. Position 0 needs nothing.
    pub fn can_roll_back_to(&self, position: u32) -> bool {
        let written = self.written.get();
        position == 0 || self.caches.iter().all(|cache| cache.reaches_back_from(position, written))
    }
}

fn write_step(gpu: &Gpu, inputs: &StepInputs, ropes: &[RopeTable], step: &Step, rows: u32) {
    gpu.write(&inputs.step, 0, bytemuck::bytes_of(step));
    for rope in ropes {
        rope.write(gpu, step.position, rows);
    }
}

/// A decoder of text.
pub trait TextModel {
    /// What the engine must know.
    fn dimensions(&self) -> &Dimensions;

    /// Records the layers over the step's tokens and returns the residual stream after the last, of which
    /// the rows `wanted` are right: where these are [`Rows::Last`], the stream may be of that row alone.
    fn forward(&self, plan: &mut PlanBuilder, state: &State, wanted: Rows) -> Residual;

    /// How many of the first columns of [`Dimensions::row_table`] a step reads of which the rows `wanted` are:
    /// those of the rows that it finds in [`State::table_rows`].
    fn table_columns(&self, _wanted: Rows) -> usize {
        self.dimensions().row_table.as_ref().map_or(0, |table| table.stored.columns)
    }

    /// Records final norm and head: `[1, vocab_size]` logits of the step's last real row. `residual` is a stream
    /// of which [`Rows::Last`] or all were wanted.
    fn logits(&self, plan: &mut PlanBuilder, state: &State, residual: &mut Residual) -> Logits;

    /// Records final norm and head for every row: `[rows, vocab_size]`, before any soft-cap. For measuring a
    /// model on a text; `residual` is a stream of which [`Rows::All`] were wanted.
    fn all_logits(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value;
}

/// Declares the model that `config` (a parsed `config.json`) describes.
///
/// Fails with [`Code::Unsupported`] for other families, and names those that there are; with
/// [`Code::MissingTensor`] if the checkpoint lacks tensors, and names these.
pub fn declare(config: &Json, loader: &mut Loader<'_>) -> Result<Box<dyn TextModel>> {
    let model = declare_family(config, loader)?;
    loader.complete()?;
    Ok(model)
}

/// Tensors beside those of the declared text model that nothing reads.
pub fn unused<'a>(loader: &Loader<'a>) -> Vec<&'a str> {
    loader.unclaimed(config::names(loader).body)
}

fn declare_family(config: &Json, loader: &mut Loader<'_>) -> Result<Box<dyn TextModel>> {
    match config.get("model_type").and_then(Json::as_str) {
        Some("llama" | "mistral") => Ok(Box::new(Llama::declare(config, loader)?)),
        Some("gemma3_text") => Ok(Box::new(Gemma3::declare(config, loader)?)),
        Some("gemma4" | "gemma4_text") => Ok(Box::new(Gemma4::declare(config, loader)?)),
        other => Err(Error::new(Code::Unsupported, "load the model")
            .expected("model_type llama, mistral, gemma3_text, gemma4 or gemma4_text in config.json")
            .got(other.map_or("none".to_owned(), |name| format!("{name:?}")))
            .remedy("Choose a checkpoint of one of these families.")),
    }
}
