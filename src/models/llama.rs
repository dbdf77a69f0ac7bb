//! Llama 2 and 3, SmolLM2, Mistral: pre-norm decoder, SwiGLU, half-split RoPE.

use serde::Deserialize;
use serde_json::Value as Json;

use super::config::{self, Names, RopeParameters, Sizes, require};
use super::{Dimensions, Rows, State, TextModel, blocks};
use crate::error::Result;
use crate::kernels::{Activation, NormKernel};
use crate::nn::{
    Attention, CacheSpec, Embedding, GatedMlp, KeyValues, Linear, Loader, Logits, Residual, RmsNorm,
};
use crate::plan::{PlanBuilder, Value};

#[derive(Deserialize)]
struct LlamaConfig {
    hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: Option<u32>,
    head_dim: Option<u32>,
    vocab_size: u32,
    #[serde(default = "default_max_positions")]
    max_position_embeddings: u32,
    rms_norm_eps: f32,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
    sliding_window: Option<u32>,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "default_activation")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

fn default_max_positions() -> u32 {
    2048
}

fn default_activation() -> String {
    "silu".to_owned()
}

impl LlamaConfig {
    fn sizes(&self) -> Result<Sizes> {
        let heads = self.num_attention_heads;
        let sizes = Sizes {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_attention_heads: heads,
            num_key_value_heads: self.num_key_value_heads.unwrap_or(heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / heads.max(1)),
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
        };
        sizes.check()?;
        require(self.hidden_act == "silu", "hidden_act", "silu", &self.hidden_act)?;
        require(!self.attention_bias, "attention_bias", "false", self.attention_bias)?;
        require(!self.mlp_bias, "mlp_bias", "false", self.mlp_bias)?;
        Ok(sizes)
    }
}

struct Layer {
    input_layernorm: RmsNorm,
    qkv_proj: Linear,
    attention: Attention,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
    down_proj: Linear,
}

impl Layer {
    fn declare(
        config: &LlamaConfig,
        sizes: &Sizes,
        norm: NormKernel,
        name: &str,
        loader: &mut Loader<'_>,
    ) -> Result<Self> {
        let hidden = sizes.hidden_size;
        let tensor = |part: &str| format!("{name}.{part}.weight");
        Ok(Self {
            input_layernorm: loader.norm(tensor("input_layernorm"), hidden, norm)?,
            qkv_proj: blocks::qkv_proj(sizes, KeyValues::Projected, name, loader)?,
            attention: Attention {
                heads: sizes.num_attention_heads,
                kv_heads: sizes.num_key_value_heads,
                head_dim: sizes.head_dim,
                scale: (sizes.head_dim as f32).powf(-0.5),
                window: config.sliding_window,
                q_norm: None,
                k_norm: None,
                v_norm: None,
                key_values: KeyValues::Projected,
            },
            o_proj: blocks::o_proj(sizes, name, loader)?,
            post_attention_layernorm: loader.norm(tensor("post_attention_layernorm"), hidden, norm)?,
            mlp: blocks::mlp(sizes, Activation::Silu, name, loader)?,
            down_proj: blocks::down_proj(sizes, name, loader)?,
        })
    }
}

/// A Llama-shaped decoder.
pub struct Llama {
    dimensions: Dimensions,
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    lm_head: Linear,
}

impl Llama {
    /// Declares the weights that `config` implies.
    pub fn declare(config: &Json, loader: &mut Loader<'_>) -> Result<Self> {
        let config: LlamaConfig = config::parse(config)?;
        let sizes = config.sizes()?;
        let norm = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
        let parameters = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref()).cloned();
        let rope =
            parameters.unwrap_or_default().rope(config.rope_theta.unwrap_or(10_000.0), sizes.head_dim)?;
        let Names { body, lm_head } = config::names(loader);
        let table = blocks::vocabulary(&sizes, format!("{body}embed_tokens.weight"), loader)?;
        let embed_tokens = Embedding { weight: table, scale: 1.0 };
        let layers = (0..sizes.num_hidden_layers)
            .map(|i| Layer::declare(&config, &sizes, norm, &format!("{body}layers.{i}"), loader))
            .collect::<Result<_>>()?;
        let lm_head = if config.tie_word_embeddings {
            embed_tokens.weight.clone()
        } else {
            blocks::vocabulary(&sizes, lm_head.to_owned(), loader)?
        };
        let cache = CacheSpec {
            width: sizes.kv_columns(),
            window: config.sliding_window,
            format: loader.cache_format(),
        };
        Ok(Self {
            dimensions: Dimensions {
                vocab_size: sizes.vocab_size,
                max_position_embeddings: config.max_position_embeddings,
                caches: vec![cache; sizes.num_hidden_layers as usize],
                ropes: vec![rope],
                row_table: None,
            },
            embed_tokens,
            layers,
            norm: loader.norm(format!("{body}norm.weight"), sizes.hidden_size, norm)?,
            lm_head: Linear::new(lm_head),
        })
    }
}

impl TextModel for Llama {
    fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    fn forward(&self, plan: &mut PlanBuilder, state: &State, _wanted: Rows) -> Residual {
        let mut residual = Residual::new(self.embed_tokens.forward(plan, &state.inputs));
        for (layer, cache) in self.layers.iter().zip(&state.caches) {
            let qkv = layer.qkv_proj.forward_norm(plan, &mut residual, &layer.input_layernorm);
            plan.tap(residual.value());
            let attention = layer.attention.forward(plan, &state.inputs, qkv, &state.ropes[0], cache);
            residual.add(plan, &layer.o_proj, attention, None);
            let gated = layer.mlp.forward_norm(plan, &mut residual, &layer.post_attention_layernorm);
            residual.add(plan, &layer.down_proj, gated, None);
        }
        residual
    }

    fn logits(&self, plan: &mut PlanBuilder, state: &State, residual: &mut Residual) -> Logits {
        self.lm_head.logits(plan, &state.inputs, residual, &self.norm, None)
    }

    fn all_logits(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value {
        self.lm_head.forward_norm(plan, residual, &self.norm)
    }
}
