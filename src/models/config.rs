//! What the configurations of several families have in common.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::error::{Code, Error, Result};
use crate::nn::{Loader, Rope};

/// A family's part of `config.json`.
pub(super) fn parse<T: DeserializeOwned>(config: &Json) -> Result<T> {
    T::deserialize(config).map_err(|error| Error::new(Code::Config, "read config.json").because(error))
}

/// Fails unless `holds`; `expected` and `got` say what `field` should be and is.
pub(super) fn require(holds: bool, field: &str, expected: &str, got: impl std::fmt::Debug) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(Error::new(Code::Unsupported, format!("use {field} of config.json"))
        .expected(expected)
        .got(format!("{got:?}")))
}

/// The sizes that every decoder has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub hidden_size: u32,
    pub intermediate_size: u32,
    pub num_attention_heads: u32,
    pub num_key_value_heads: u32,
    pub head_dim: u32,
    pub vocab_size: u32,
    pub num_hidden_layers: u32,
}

/// Far above every real model's sizes.
const MAX_SIZE: u32 = 1 << 20;
const MAX_LAYERS: u32 = 1024;
/// The largest head that the attention kernel's tiles hold.
const MAX_HEAD_DIM: u32 = 512;

impl Sizes {
    /// Fails for sizes that no kernel could work with, so that nothing after it divides by zero or overflows.
    pub fn check(&self) -> Result<()> {
        let whole = |size: u32, multiple: u32| size > 0 && size <= MAX_SIZE && size.is_multiple_of(multiple);
        require(whole(self.hidden_size, 4), "hidden_size", "a multiple of 4", self.hidden_size)?;
        require(
            whole(self.intermediate_size, 4),
            "intermediate_size",
            "a multiple of 4",
            self.intermediate_size,
        )?;
        require(whole(self.vocab_size, 1), "vocab_size", "1 to 1048576", self.vocab_size)?;
        Self::check_layers(self.num_hidden_layers)?;
        let head_dim = self.head_dim;
        let suits = whole(head_dim, 4) && head_dim <= MAX_HEAD_DIM;
        require(suits, "head_dim", "a multiple of 4, at most 512", head_dim)?;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        require(kv_heads > 0, "num_key_value_heads", "at least 1", kv_heads)?;
        let divides = heads > 0 && heads <= 1024 && heads.is_multiple_of(kv_heads);
        require(divides, "num_attention_heads", "a multiple of num_key_value_heads, at most 1024", heads)
    }

    /// Fails for a number of layers that no model has.
    pub fn check_layers(layers: u32) -> Result<()> {
        require((1..=MAX_LAYERS).contains(&layers), "num_hidden_layers", "1 to 1024", layers)
    }

    /// Rows of the query projection.
    pub fn q_columns(&self) -> u32 {
        self.num_attention_heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub fn kv_columns(&self) -> u32 {
        self.num_key_value_heads * self.head_dim
    }
}

/// Whether a layer sees a window of the past or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LayerType {
    SlidingAttention,
    FullAttention,
}

/// `rope_parameters` of families whose layer types differ in them.
#[derive(Clone, Default, Deserialize)]
pub(super) struct RopeByLayer {
    #[serde(default)]
    pub full_attention: RopeParameters,
    #[serde(default)]
    pub sliding_attention: RopeParameters,
}

/// `rope_parameters`, or `rope_scaling` of older files.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct RopeParameters {
    pub rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f32>,
    partial_rotary_factor: Option<f64>,
    low_freq_factor: Option<f32>,
    high_freq_factor: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

impl RopeParameters {
    /// Of the type `proportional`, which turns the first `partial_rotary_factor` of a head's pairs.
    pub fn proportional(partial_rotary_factor: f64) -> Self {
        Self {
            rope_type: Some("proportional".to_owned()),
            partial_rotary_factor: Some(partial_rotary_factor),
            ..Self::default()
        }
    }

    /// The frequencies; `theta` is the base where these parameters give none.
    pub fn rope(&self, theta: f64, head_dim: u32) -> Result<Rope> {
        let theta = self.rope_theta.unwrap_or(theta);
        require(theta.is_finite() && theta > 0.0, "rope_theta", "a number above 0", theta)?;
        let rope = Rope::new(theta, head_dim);
        let positive = |field: &str, value: Option<f32>| {
            let suits = value.is_some_and(|value| value.is_finite() && value > 0.0);
            require(suits, field, "a number above 0", value).map(|()| value.unwrap_or(1.0))
        };
        match self.rope_type.as_deref() {
            None | Some("default") => Ok(rope),
            Some("linear") => Ok(rope.scaled_linear(positive("rope_scaling.factor", self.factor)?)),
            Some("llama3") => {
                let low = positive("rope_scaling.low_freq_factor", self.low_freq_factor)?;
                let high = positive("rope_scaling.high_freq_factor", self.high_freq_factor)?;
                require(high > low, "rope_scaling.high_freq_factor", "more than low_freq_factor", high)?;
                let factor = positive("rope_scaling.factor", self.factor)?;
                let original = self.original_max_position_embeddings;
                let original = positive("rope_scaling.original_max_position_embeddings", original)?;
                Ok(rope.scaled_llama3(factor, low, high, original))
            }
            Some("proportional") => {
                let part = self.partial_rotary_factor.unwrap_or(1.0);
                require((0.0..=1.0).contains(&part), "partial_rotary_factor", "0 to 1", part)?;
                let factor = positive("rope_parameters.factor", Some(self.factor.unwrap_or(1.0)))?;
                Ok(Rope::proportional(theta, head_dim, part, factor))
            }
            Some(other) => {
                let known = "rope_type default, linear, llama3 or proportional";
                require(false, "rope_scaling", known, other).map(|()| rope)
            }
        }
    }
}

/// How a checkpoint names the tensors of its text model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// What stands before the names of embedding, layers and final norm.
    pub body: &'static str,
    /// The head, where it is not the embedding.
    pub lm_head: &'static str,
}

/// Text models alone, and inside multimodal ones as transformers and MLX write them.
const NAMES: [Names; 4] = [
    Names { body: "model.", lm_head: "lm_head.weight" },
    Names { body: "model.language_model.", lm_head: "lm_head.weight" },
    Names { body: "language_model.model.", lm_head: "language_model.lm_head.weight" },
    Names { body: "", lm_head: "lm_head.weight" },
];

/// The names that this checkpoint uses: those under which it has an embedding.
pub(super) fn names(loader: &Loader<'_>) -> Names {
    let is_used = |names: &&Names| loader.has(&format!("{}embed_tokens.weight", names.body));
    *NAMES.iter().find(is_used).unwrap_or(&NAMES[0])
}
