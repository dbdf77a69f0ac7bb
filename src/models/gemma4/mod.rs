//! Gemma 4 text: sliding and full layers of different head sizes, layers that share keys and values,
//! per-layer embeddings, a factor on the residual after each layer, and in one size a mixture of experts.

mod config;
mod layer;

use std::ops::Range;

use serde_json::Value as Json;

use super::config::{Names, Sizes};
use super::{Dimensions, Rows, State, TextModel, blocks, config as family};
use crate::error::{Code, Error, Result};
use crate::kernels::NormKernel;
use crate::nn::{
    Embedding, Linear, Loader, Logits, PerLayerInputs, PerLayerValues, Precision, Residual, RmsNorm,
};
use crate::plan::{PlanBuilder, Value};
use config::Gemma4Config;
use layer::{Layer, Surroundings};

/// A Gemma 4 decoder.
pub struct Gemma4 {
    dimensions: Dimensions,
    embed_tokens: Embedding,
    per_layer: Option<PerLayerInputs>,
    layers: Vec<Layer>,
    /// From this layer on nothing is added to a cache.
    first_shared_layer: usize,
    norm: RmsNorm,
    lm_head: Linear,
    final_logit_softcapping: Option<f32>,
}

impl Gemma4 {
    /// Declares the weights of the text model that `config` describes: its `text_config`, or where it has none
    /// itself.
    pub fn declare(config: &Json, loader: &mut Loader<'_>) -> Result<Self> {
        let is_tied = config.get("tie_word_embeddings").and_then(Json::as_bool);
        let text = config.get("text_config").unwrap_or(config);
        let config: Gemma4Config = family::parse(text)?;
        config.check()?;
        let specs = config.layers()?;
        let sizes = match specs.first() {
            Some(spec) => spec.sizes,
            None => return Err(Error::new(Code::Config, "read config.json").got("no layers")),
        };
        let hidden = config.hidden_size;
        let Names { body, lm_head } = family::names(loader);
        let embed_tokens = format!("{body}embed_tokens.weight");
        let scale = loader.rounded(&embed_tokens, (hidden as f32).sqrt());
        let weight = blocks::vocabulary(&sizes, embed_tokens, loader)?;
        let declare =
            |(index, spec)| Layer::declare(&config, spec, index, &format!("{body}layers.{index}"), loader);
        let layers = (0..).zip(&specs).map(declare).collect::<Result<_>>()?;
        let table = per_layer_table(&config, &sizes, body, loader)?;
        let is_tied = config.tie_word_embeddings.or(is_tied).unwrap_or(true);
        let lm_head =
            if is_tied { weight.clone() } else { blocks::vocabulary(&sizes, lm_head.to_owned(), loader)? };
        let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
        Ok(Self {
            per_layer: per_layer_inputs(&config, &sizes, body, loader)?,
            dimensions: Dimensions {
                vocab_size: config.vocab_size,
                max_position_embeddings: config.max_position_embeddings,
                caches: config.caches(&specs, loader.cache_format()),
                ropes: config.ropes(&specs)?.to_vec(),
                row_table: table,
            },
            embed_tokens: Embedding { weight, scale },
            layers,
            first_shared_layer: config.first_shared_layer()?,
            norm: loader.norm(format!("{body}norm.weight"), hidden, kernel)?,
            lm_head: Linear::new(lm_head),
            final_logit_softcapping: config.final_logit_softcapping,
        })
    }

    /// Records the layers of `range`, over every row or the last real one.
    fn layers(
        &self,
        plan: &mut PlanBuilder,
        residual: &mut Residual,
        state: &State,
        context: Option<Value>,
        range: Range<usize>,
        is_last_row: bool,
    ) {
        let per_layer = self.per_layer_values(plan, state, context, range.clone(), is_last_row);
        let (inputs, ropes) = match is_last_row {
            true => (&state.last_row.inputs, &state.last_row.ropes),
            false => (&state.inputs, &state.ropes),
        };
        let around = Surroundings { inputs, ropes, caches: &state.caches, per_layer: per_layer.as_ref() };
        for layer in &self.layers[range] {
            layer.forward(plan, residual, &around);
        }
    }

    /// Of how many layers, from the first on, a step passes through any.
    fn needed_layers(&self, wanted: Rows) -> usize {
        if wanted == Rows::None { self.first_shared_layer } else { self.layers.len() }
    }

    /// What the layers of `range` read of the per-layer embeddings.
    fn per_layer_values(
        &self,
        plan: &mut PlanBuilder,
        state: &State,
        context: Option<Value>,
        range: Range<usize>,
        is_last_row: bool,
    ) -> Option<PerLayerValues> {
        let (inputs, rows) = self.per_layer.as_ref().zip(state.table_rows.as_ref())?;
        let last_of = is_last_row.then_some(&state.inputs);
        Some(inputs.forward(plan, context?, rows, range.start as u32..range.end as u32, last_of))
    }
}

impl TextModel for Gemma4 {
    fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// From the first shared layer on no row adds to a cache, so that only rows whose result is wanted need
    /// pass through those layers.
    fn forward(&self, plan: &mut PlanBuilder, state: &State, wanted: Rows) -> Residual {
        let embedding = self.embed_tokens.forward(plan, &state.inputs);
        let per_layer = self.per_layer.as_ref().zip(state.table_rows.as_ref());
        let needed = self.needed_layers(wanted);
        let context = per_layer.map(|(inputs, rows)| inputs.project(plan, embedding, rows, needed as u32));
        let mut residual = Residual::new(embedding);
        let count = self.layers.len();
        let is_one_row = wanted == Rows::Last && plan.rows() == 1;
        let first = if wanted == Rows::All || is_one_row { count } else { self.first_shared_layer };
        self.layers(plan, &mut residual, state, context, 0..first, false);
        if wanted == Rows::Last && first < count {
            residual = residual.last_row(plan, &state.inputs);
            self.layers(plan, &mut residual, state, context, first..count, true);
        }
        residual
    }

    fn table_columns(&self, wanted: Rows) -> usize {
        self.per_layer.as_ref().map_or(0, |inputs| inputs.columns as usize * self.needed_layers(wanted))
    }

    fn logits(&self, plan: &mut PlanBuilder, state: &State, residual: &mut Residual) -> Logits {
        let softcap = self.final_logit_softcapping;
        self.lm_head.logits(plan, &state.inputs, residual, &self.norm, softcap)
    }

    fn all_logits(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value {
        self.lm_head.forward_norm(plan, residual, &self.norm)
    }
}

/// Where the table of per-layer embeddings lies: it stays there, and single rows are read.
fn per_layer_table(
    config: &Gemma4Config,
    sizes: &Sizes,
    body: &str,
    loader: &mut Loader<'_>,
) -> Result<Option<crate::checkpoint::RowLayout>> {
    let Some(columns) = config.per_layer_columns()? else { return Ok(None) };
    let name = format!("{body}{PER_LAYER_TABLE}");
    loader.table(&name, config.per_layer_rows(), sizes.num_hidden_layers * columns).map(Some)
}

const PER_LAYER_TABLE: &str = "embed_tokens_per_layer.weight";

fn per_layer_inputs(
    config: &Gemma4Config,
    sizes: &Sizes,
    body: &str,
    loader: &mut Loader<'_>,
) -> Result<Option<PerLayerInputs>> {
    let Some(columns) = config.per_layer_columns()? else { return Ok(None) };
    let (layers, hidden) = (sizes.num_hidden_layers, config.hidden_size);
    let projection = (format!("{body}per_layer_model_projection.weight"), layers * columns);
    let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
    Ok(Some(PerLayerInputs {
        model_projection: Linear::new(loader.stacked(&[projection], hidden, Precision::High)?),
        projection_norm: loader.norm(format!("{body}per_layer_projection_norm.weight"), columns, kernel)?,
        layers,
        columns,
        context_scale: (hidden as f32).powf(-0.5),
        token_scale: loader.rounded(&format!("{body}{PER_LAYER_TABLE}"), (columns as f32).sqrt()),
    }))
}
