//! Gemma 3 text: norms of 1 + w before and after each sublayer, q/k norm, sliding and full layers.

use serde::Deserialize;
use serde_json::Value as Json;

use super::config::{self, LayerType, Names, RopeByLayer, RopeParameters, Sizes, require};
use super::{Dimensions, Rows, State, TextModel, blocks};
use crate::error::Result;
use crate::kernels::{Activation, NormKernel};
use crate::nn::{
    Attention, CacheSpec, Embedding, GatedMlp, KeyValues, Linear, Loader, Logits, Residual, RmsNorm,
};
use crate::plan::{PlanBuilder, Value};

#[derive(Deserialize)]
struct Gemma3Config {
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    #[serde(default = "default_head_dim")]
    head_dim: u32,
    vocab_size: u32,
    max_position_embeddings: u32,
    rms_norm_eps: f32,
    #[serde(default = "default_head_dim")]
    query_pre_attn_scalar: u32,
    sliding_window: u32,
    #[serde(default = "default_pattern")]
    sliding_window_pattern: u32,
    layer_types: Option<Vec<LayerType>>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeByLayer>,
    final_logit_softcapping: Option<f32>,
    attn_logit_softcapping: Option<f32>,
    #[serde(default = "default_activation")]
    hidden_activation: String,
    #[serde(default)]
    attention_bias: bool,
    use_bidirectional_attention: Option<bool>,
}

fn default_head_dim() -> u32 {
    256
}

fn default_pattern() -> u32 {
    6
}

fn default_activation() -> String {
    "gelu_pytorch_tanh".to_owned()
}

impl Gemma3Config {
    fn sizes(&self) -> Result<Sizes> {
        let sizes = Sizes {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
        };
        sizes.check()?;
        let activation = &self.hidden_activation;
        require(activation == "gelu_pytorch_tanh", "hidden_activation", "gelu_pytorch_tanh", activation)?;
        require(!self.attention_bias, "attention_bias", "false", self.attention_bias)?;
        let cap = self.attn_logit_softcapping;
        require(cap.is_none(), "attn_logit_softcapping", "null", cap)?;
        let bidirectional = self.use_bidirectional_attention;
        require(bidirectional != Some(true), "use_bidirectional_attention", "false", bidirectional)?;
        let scalar = self.query_pre_attn_scalar;
        require(scalar > 0, "query_pre_attn_scalar", "at least 1", scalar)?;
        require(self.sliding_window > 0, "sliding_window", "at least 1", self.sliding_window)?;
        Ok(sizes)
    }

    /// Every layer's type: as listed, or every `sliding_window_pattern`th full.
    fn layer_types(&self) -> Result<Vec<LayerType>> {
        let count = self.num_hidden_layers as usize;
        if let Some(types) = &self.layer_types {
            require(types.len() == count, "layer_types", "one per layer", types.len())?;
            return Ok(types.clone());
        }
        let pattern = self.sliding_window_pattern;
        require(pattern > 0, "sliding_window_pattern", "at least 1", pattern)?;
        let is_full = |i: u32| (i + 1).is_multiple_of(pattern);
        let layer_type = |i| if is_full(i) { LayerType::FullAttention } else { LayerType::SlidingAttention };
        Ok((0..self.num_hidden_layers).map(layer_type).collect())
    }

    /// Keys that a layer of this type sees.
    fn window(&self, layer_type: LayerType) -> Option<u32> {
        (layer_type == LayerType::SlidingAttention).then_some(self.sliding_window)
    }

    /// The parameters of sliding and of full layers.
    fn ropes(&self) -> Result<[crate::nn::Rope; 2]> {
        let by_layer = self.rope_parameters.clone().unwrap_or_else(|| RopeByLayer {
            full_attention: self.rope_scaling.clone().unwrap_or_default(),
            sliding_attention: RopeParameters::default(),
        });
        Ok([
            by_layer.sliding_attention.rope(self.rope_local_base_freq.unwrap_or(10_000.0), self.head_dim)?,
            by_layer.full_attention.rope(self.rope_theta.unwrap_or(1_000_000.0), self.head_dim)?,
        ])
    }
}

struct Layer {
    layer_type: LayerType,
    input_layernorm: RmsNorm,
    qkv_proj: Linear,
    attention: Attention,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    down_proj: Linear,
    post_feedforward_layernorm: RmsNorm,
}

impl Layer {
    fn declare(
        config: &Gemma3Config,
        sizes: &Sizes,
        layer_type: LayerType,
        name: &str,
        loader: &mut Loader<'_>,
    ) -> Result<Self> {
        let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: true };
        let tensor = |part: &str| format!("{name}.{part}.weight");
        let q_norm = loader.norm(tensor("self_attn.q_norm"), sizes.head_dim, kernel)?;
        let k_norm = loader.norm(tensor("self_attn.k_norm"), sizes.head_dim, kernel)?;
        let mut norm = |part: &str| loader.norm(tensor(part), sizes.hidden_size, kernel);
        Ok(Self {
            layer_type,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            qkv_proj: blocks::qkv_proj(sizes, KeyValues::Projected, name, loader)?,
            attention: Attention {
                heads: sizes.num_attention_heads,
                kv_heads: sizes.num_key_value_heads,
                head_dim: sizes.head_dim,
                scale: (config.query_pre_attn_scalar as f32).powf(-0.5),
                window: config.window(layer_type),
                q_norm: Some(q_norm),
                k_norm: Some(k_norm),
                v_norm: None,
                key_values: KeyValues::Projected,
            },
            o_proj: blocks::o_proj(sizes, name, loader)?,
            mlp: blocks::mlp(sizes, Activation::GeluTanh, name, loader)?,
            down_proj: blocks::down_proj(sizes, name, loader)?,
        })
    }
}

/// A Gemma 3 decoder.
pub struct Gemma3 {
    dimensions: Dimensions,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
    final_logit_softcapping: Option<f32>,
}

impl Gemma3 {
    /// Declares the weights that `config` implies.
    pub fn declare(config: &Json, loader: &mut Loader<'_>) -> Result<Self> {
        let config: Gemma3Config = config::parse(config)?;
        let sizes = config.sizes()?;
        let Names { body, .. } = config::names(loader);
        let weight = blocks::vocabulary(&sizes, format!("{body}embed_tokens.weight"), loader)?;
        let types = config.layer_types()?;
        let layers = (0..)
            .zip(&types)
            .map(|(i, &kind)| Layer::declare(&config, &sizes, kind, &format!("{body}layers.{i}"), loader))
            .collect::<Result<_>>()?;
        let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: true };
        let (width, format) = (sizes.kv_columns(), loader.cache_format());
        let cache = |kind: &LayerType| CacheSpec { width, window: config.window(*kind), format };
        Ok(Self {
            dimensions: Dimensions {
                vocab_size: sizes.vocab_size,
                max_position_embeddings: config.max_position_embeddings,
                caches: types.iter().map(cache).collect(),
                ropes: config.ropes()?.to_vec(),
                row_table: None,
            },
            embed_tokens: Embedding { weight: weight.clone(), scale: (sizes.hidden_size as f32).sqrt() },
            layers,
            norm: loader.norm(format!("{body}norm.weight"), sizes.hidden_size, kernel)?,
            lm_head: Linear::new(weight),
            final_logit_softcapping: config.final_logit_softcapping,
        })
    }
}

impl TextModel for Gemma3 {
    fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    fn forward(&self, plan: &mut PlanBuilder, state: &State, _wanted: Rows) -> Residual {
        let mut residual = Residual::new(self.embed_tokens.forward(plan, &state.inputs));
        for (layer, cache) in self.layers.iter().zip(&state.caches) {
            let rope = &state.ropes[usize::from(layer.layer_type == LayerType::FullAttention)];
            let qkv = layer.qkv_proj.forward_norm(plan, &mut residual, &layer.input_layernorm);
            plan.tap(residual.value());
            let attention = layer.attention.forward(plan, &state.inputs, qkv, rope, cache);
            residual.add(plan, &layer.o_proj, attention, Some(&layer.post_attention_layernorm));
            let gated = layer.mlp.forward_norm(plan, &mut residual, &layer.pre_feedforward_layernorm);
            residual.add(plan, &layer.down_proj, gated, Some(&layer.post_feedforward_layernorm));
        }
        residual
    }

    fn logits(&self, plan: &mut PlanBuilder, state: &State, residual: &mut Residual) -> Logits {
        let softcap = self.final_logit_softcapping;
        self.lm_head.logits(plan, &state.inputs, residual, &self.norm, softcap)
    }

    fn all_logits(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value {
        self.lm_head.forward_norm(plan, residual, &self.norm)
    }
}
