//! Gemma 4's configuration, and what follows from it for each layer.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::error::Result;
use crate::kernels::{CacheFormat, Route};
use crate::models::config::{LayerType, RopeByLayer, RopeParameters, Sizes, require};
use crate::nn::{CacheSpec, KeyValues, Rope};

#[derive(Deserialize)]
pub(super) struct Gemma4Config {
    pub hidden_size: u32,
    intermediate_size: u32,
    num_hidden_layers: u32,
    num_attention_heads: u32,
    num_key_value_heads: u32,
    num_global_key_value_heads: Option<u32>,
    #[serde(default = "default_head_dim")]
    head_dim: u32,
    #[serde(default = "default_global_head_dim")]
    global_head_dim: u32,
    per_layer_config: Option<BTreeMap<u32, LayerOverrides>>,
    pub vocab_size: u32,
    vocab_size_per_layer_input: Option<u32>,
    hidden_size_per_layer_input: Option<u32>,
    #[serde(default = "default_max_positions")]
    pub max_position_embeddings: u32,
    pub rms_norm_eps: f32,
    sliding_window: u32,
    layer_types: Option<Vec<LayerType>>,
    rope_parameters: Option<RopeByLayer>,
    #[serde(default)]
    num_kv_shared_layers: u32,
    #[serde(default)]
    use_double_wide_mlp: bool,
    #[serde(default)]
    attention_k_eq_v: bool,
    #[serde(default)]
    enable_moe_block: bool,
    num_experts: Option<u32>,
    top_k_experts: Option<u32>,
    moe_intermediate_size: Option<u32>,
    pub final_logit_softcapping: Option<f32>,
    #[serde(default = "default_activation")]
    hidden_activation: String,
    #[serde(default)]
    attention_bias: bool,
    use_bidirectional_attention: Option<String>,
    pub tie_word_embeddings: Option<bool>,
}

/// What transformers 5 writes of a layer that differs from the others, in place of `global_head_dim` and
/// `num_global_key_value_heads`.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerOverrides {
    head_dim: Option<u32>,
    num_key_value_heads: Option<u32>,
}

fn default_head_dim() -> u32 {
    256
}

fn default_global_head_dim() -> u32 {
    512
}

fn default_max_positions() -> u32 {
    131_072
}

fn default_activation() -> String {
    "gelu_pytorch_tanh".to_owned()
}

/// Layers from one full layer to the next, where `layer_types` are not listed.
const PATTERN: u32 = 6;
/// Far above every real model's experts, and low enough for products with the rows of a step.
const MAX_EXPERT_SIZE: u32 = 1 << 16;

/// What one layer is.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerSpec {
    pub layer_type: LayerType,
    pub sizes: Sizes,
    pub key_values: KeyValues,
    pub window: Option<u32>,
    /// The index of its cache, its own or another layer's.
    pub cache: usize,
}

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixtureSpec {
    pub experts: u32,
    pub chosen: u32,
    pub intermediate_size: u32,
}

impl Gemma4Config {
    /// Fails for what the code does not do.
    pub fn check(&self) -> Result<()> {
        let activation = &self.hidden_activation;
        require(activation == "gelu_pytorch_tanh", "hidden_activation", "gelu_pytorch_tanh", activation)?;
        require(!self.attention_bias, "attention_bias", "false", self.attention_bias)?;
        // "vision" concerns the tokens of images, which text has none of.
        let bidirectional = self.use_bidirectional_attention.as_deref();
        let suits = matches!(bidirectional, None | Some("vision"));
        require(suits, "use_bidirectional_attention", "null or vision", bidirectional)?;
        require(self.sliding_window > 0, "sliding_window", "at least 1", self.sliding_window)?;
        let cap = self.final_logit_softcapping;
        let suits = cap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
        require(suits, "final_logit_softcapping", "null or a number above 0", cap)
    }

    /// Every layer in order.
    pub fn layers(&self) -> Result<Vec<LayerSpec>> {
        let types = self.layer_types()?;
        let first_shared = self.first_shared_layer()?;
        let mut layers = Vec::with_capacity(types.len());
        for (index, &layer_type) in types.iter().enumerate() {
            let is_shared = index >= first_shared;
            let producer = types[..first_shared].iter().rposition(|&other| other == layer_type);
            let producer = if is_shared { producer } else { Some(index) };
            require(producer.is_some(), "num_kv_shared_layers", "a layer of each type before them", index)?;
            let sizes = self.sizes(index, layer_type, is_shared)?;
            let is_full = layer_type == LayerType::FullAttention;
            layers.push(LayerSpec {
                layer_type,
                sizes,
                key_values: match (is_shared, self.attention_k_eq_v && is_full) {
                    (true, _) => KeyValues::Shared,
                    (false, true) => KeyValues::KeysAsValues,
                    (false, false) => KeyValues::Projected,
                },
                window: (!is_full).then_some(self.sliding_window),
                cache: producer.unwrap_or(index),
            });
        }
        let heads = |layer: &LayerSpec| (layer.sizes.head_dim, layer.sizes.num_key_value_heads);
        for layer in &layers {
            let producer = &layers[layer.cache];
            let got = heads(layer);
            require(heads(producer) == got, "per_layer_config", "the same for layers that share keys", got)?;
        }
        Ok(layers)
    }

    /// The first layer that reads another's keys and values, and with it all that follow.
    pub fn first_shared_layer(&self) -> Result<usize> {
        let shared = self.num_kv_shared_layers;
        require(shared < self.num_hidden_layers, "num_kv_shared_layers", "fewer than all layers", shared)?;
        Ok((self.num_hidden_layers - shared) as usize)
    }

    /// What a cache must hold, for each layer that has its own.
    pub fn caches(&self, layers: &[LayerSpec], format: CacheFormat) -> Vec<CacheSpec> {
        let own = layers.iter().filter(|layer| layer.key_values != KeyValues::Shared);
        let spec =
            |layer: &LayerSpec| CacheSpec { width: layer.sizes.kv_columns(), window: layer.window, format };
        own.map(spec).collect()
    }

    /// The rotary embedding of sliding layers and of full ones.
    pub fn ropes(&self, layers: &[LayerSpec]) -> Result<[Rope; 2]> {
        let by_layer = self.rope_parameters.clone().unwrap_or_else(|| RopeByLayer {
            sliding_attention: RopeParameters::default(),
            full_attention: RopeParameters::proportional(0.25),
        });
        let head_dim = |layer_type| {
            let mut dims = layers.iter().filter(|layer| layer.layer_type == layer_type);
            let first = dims.next().map_or(self.head_dim, |layer| layer.sizes.head_dim);
            let is_same = dims.all(|layer| layer.sizes.head_dim == first);
            require(is_same, "per_layer_config", "one head_dim for all layers of a type", layer_type)
                .map(|()| first)
        };
        Ok([
            by_layer.sliding_attention.rope(10_000.0, head_dim(LayerType::SlidingAttention)?)?,
            by_layer.full_attention.rope(1_000_000.0, head_dim(LayerType::FullAttention)?)?,
        ])
    }

    /// Elements of the per-layer embedding of one layer, where the model has one.
    pub fn per_layer_columns(&self) -> Result<Option<u32>> {
        let columns = self.hidden_size_per_layer_input.unwrap_or(0);
        if columns == 0 {
            return Ok(None);
        }
        let suits = columns <= self.hidden_size && columns.is_multiple_of(4);
        let expected = "a multiple of 4, at most hidden_size";
        require(suits, "hidden_size_per_layer_input", expected, columns)?;
        let rows = self.per_layer_rows();
        require(rows >= self.vocab_size, "vocab_size_per_layer_input", "at least vocab_size", rows)?;
        Ok(Some(columns))
    }

    /// Rows of the table of per-layer embeddings.
    pub fn per_layer_rows(&self) -> u32 {
        self.vocab_size_per_layer_input.unwrap_or(self.vocab_size)
    }

    /// The mixture of experts beside each layer's MLP, where the model has one.
    pub fn mixture(&self) -> Result<Option<MixtureSpec>> {
        if !self.enable_moe_block {
            return Ok(None);
        }
        let experts = self.num_experts.unwrap_or(0);
        require((1..=Route::MAX_EXPERTS).contains(&experts), "num_experts", "1 to 1024", self.num_experts)?;
        let chosen = self.top_k_experts.unwrap_or(0);
        let suits = (1..=Route::MAX_CHOSEN.min(experts)).contains(&chosen);
        require(suits, "top_k_experts", "1 to 32, at most num_experts", self.top_k_experts)?;
        let size = self.moe_intermediate_size.unwrap_or(0);
        let suits = size > 0 && size <= MAX_EXPERT_SIZE && size.is_multiple_of(4);
        let expected = "a multiple of 4, at most 65536";
        require(suits, "moe_intermediate_size", expected, self.moe_intermediate_size)?;
        Ok(Some(MixtureSpec { experts, chosen, intermediate_size: size }))
    }

    /// Every layer's type. The last one is full, as upstream has it whatever the list says.
    fn layer_types(&self) -> Result<Vec<LayerType>> {
        let count = self.num_hidden_layers;
        let listed = self.layer_types.as_ref().map_or(count as usize, Vec::len);
        require(listed == count as usize, "layer_types", "one per layer", listed)?;
        Sizes::check_layers(count)?;
        let by_pattern = |index: u32| match (index + 1).is_multiple_of(PATTERN) {
            true => LayerType::FullAttention,
            false => LayerType::SlidingAttention,
        };
        let mut types = self.layer_types.clone().unwrap_or_else(|| (0..count).map(by_pattern).collect());
        if let Some(last) = types.last_mut() {
            *last = LayerType::FullAttention;
        }
        Ok(types)
    }

    fn sizes(&self, index: usize, layer_type: LayerType, is_shared: bool) -> Result<Sizes> {
        let overrides = match &self.per_layer_config {
            Some(layers) => u32::try_from(index).ok().and_then(|index| layers.get(&index)).copied(),
            None => (layer_type == LayerType::FullAttention).then_some(LayerOverrides {
                head_dim: Some(self.global_head_dim),
                num_key_value_heads: self.num_global_key_value_heads.filter(|_| self.attention_k_eq_v),
            }),
        };
        let overrides = overrides.unwrap_or_default();
        let width = if is_shared && self.use_double_wide_mlp { 2 } else { 1 };
        let sizes = Sizes {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size.saturating_mul(width),
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: overrides.num_key_value_heads.unwrap_or(self.num_key_value_heads),
            head_dim: overrides.head_dim.unwrap_or(self.head_dim),
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
        };
        sizes.check()?;
        Ok(sizes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::error::Code;
    use crate::models::config::parse;

    /// The text part of E2B's configuration.
    fn e2b() -> Json {
        let layer_type = |index| if index % 5 == 4 { "full_attention" } else { "sliding_attention" };
        json!({
            "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
            "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
            "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
            "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "sliding_window": 512,
            "layer_types": (0..35).map(layer_type).collect::<Vec<_>>(),
            "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "final_logit_softcapping": 30.0,
        })
    }

    /// What declaring a model asks of its configuration.
    fn read(config: &Json) -> Result<Vec<LayerSpec>> {
        let config: Gemma4Config = parse(config)?;
        config.check()?;
        let layers = config.layers()?;
        config.ropes(&layers)?;
        config.per_layer_columns()?;
        config.mixture()?;
        Ok(layers)
    }

    #[test]
    fn shared_layers_read_the_last_of_their_type_before_them() {
        let layers = read(&e2b()).unwrap();
        let of = |index: usize| {
            let LayerSpec { cache, key_values, sizes, window, .. } = layers[index];
            (cache, key_values, sizes.head_dim, sizes.intermediate_size, window)
        };
        assert_eq!(of(13), (13, KeyValues::Projected, 256, 6144, Some(512)));
        assert_eq!(of(14), (14, KeyValues::Projected, 512, 6144, None));
        assert_eq!(of(15), (13, KeyValues::Shared, 256, 12_288, Some(512)));
        assert_eq!(of(34), (14, KeyValues::Shared, 512, 12_288, None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let cases = [
            ("num_kv_shared_layers", json!(35)),
            ("num_kv_shared_layers", json!(4_294_967_295u32)),
            ("num_kv_shared_layers", json!(31)), // no full layer is left before them
            ("num_hidden_layers", json!(0)),
            ("num_hidden_layers", json!(4_000_000_000u32)),
            ("layer_types", json!(["full_attention"])),
            ("hidden_size", json!(0)),
            ("hidden_size", json!(1u32 << 31)),
            ("intermediate_size", json!(4_294_967_292u32)),
            ("global_head_dim", json!(1024)),
            ("global_head_dim", json!(0)),
            ("num_key_value_heads", json!(3)),
            ("sliding_window", json!(0)),
            ("hidden_size_per_layer_input", json!(255)),
            ("hidden_size_per_layer_input", json!(1u32 << 30)),
            ("vocab_size_per_layer_input", json!(1000)),
            ("use_bidirectional_attention", json!("all")),
            ("hidden_activation", json!("silu")),
            ("final_logit_softcapping", json!(0.0)),
            ("attention_bias", json!(true)),
            ("per_layer_config", json!({ "4": { "head_dim": 128 } })),
            ("rope_parameters", json!({ "full_attention": { "rope_type": "yarn" } })),
            (
                "rope_parameters",
                json!({ "full_attention": { "rope_type": "proportional", "partial_rotary_factor": 2.0 } }),
            ),
        ];
        for (field, value) in cases {
            let mut config = e2b();
            config[field] = value.clone();
            let error = read(&config).err().unwrap_or_else(|| panic!("{field} = {value}"));
            assert_eq!(error.code(), Code::Unsupported, "{field} = {value}: {error}");
        }
        let mut config = e2b();
        config["per_layer_config"] = json!({ "4": { "sliding_window": 128 } });
        assert_eq!(read(&config).unwrap_err().code(), Code::Config);
    }

    #[test]
    fn experts_that_cannot_be_are_refused() {
        let mixture = |experts: Json, chosen: Json, size: Json| {
            let mut config = e2b();
            config["enable_moe_block"] = json!(true);
            config["num_experts"] = experts;
            config["top_k_experts"] = chosen;
            config["moe_intermediate_size"] = size;
            read(&config)
        };
        assert!(mixture(json!(128), json!(8), json!(704)).is_ok());
        for (experts, chosen, size) in [
            (json!(null), json!(8), json!(704)),
            (json!(4_000_000_000u32), json!(8), json!(704)),
            (json!(128), json!(129), json!(704)),
            (json!(128), json!(0), json!(704)),
            (json!(128), json!(8), json!(703)),
            (json!(128), json!(8), json!(1u32 << 30)),
        ] {
            assert_eq!(mixture(experts, chosen, size).unwrap_err().code(), Code::Unsupported);
        }
    }
}
