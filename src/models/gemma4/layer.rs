//! One decoder layer of Gemma 4.

use super::config::{Gemma4Config, LayerSpec, MixtureSpec};
use crate::error::Result;
use crate::kernels::{Activation, KeyValues, NormKernel};
use crate::models::blocks;
use crate::models::config::LayerType;
use crate::nn::{
    Attention, Experts, GatedMlp, KvCache, Linear, Loader, PerLayerBlock, PerLayerValues, Precision,
    Residual, RmsNorm, RopeTable, StepInputs,
};
use crate::plan::{PlanBuilder, Value};

/// What the layers of a plan read beside the residual.
pub(super) struct Surroundings<'a> {
    pub inputs: &'a StepInputs,
    pub ropes: &'a [RopeTable],
    pub caches: &'a [KvCache],
    pub per_layer: Option<&'a PerLayerValues>,
}

pub(super) struct Layer {
    index: u32,
    layer_type: LayerType,
    cache: usize,
    input_layernorm: RmsNorm,
    qkv_proj: Linear,
    attention: Attention,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    down_proj: Linear,
    mixture: Option<Mixture>,
    post_feedforward_layernorm: RmsNorm,
    per_layer: Option<PerLayerBlock>,
}

impl Layer {
    /// Declares the weights of the layer `name`, the `index`th.
    pub fn declare(
        config: &Gemma4Config,
        spec: &LayerSpec,
        index: u32,
        name: &str,
        loader: &mut Loader<'_>,
    ) -> Result<Self> {
        let sizes = &spec.sizes;
        let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
        let tensor = |part: &str| format!("{name}.{part}.weight");
        let q_norm = loader.norm(tensor("self_attn.q_norm"), sizes.head_dim, kernel)?;
        let k_norm = match spec.key_values {
            KeyValues::Shared => None,
            _ => Some(loader.norm(tensor("self_attn.k_norm"), sizes.head_dim, kernel)?),
        };
        // The layer's factor on the whole residual comes with its last update.
        let factor = format!("{name}.layer_scalar");
        let per_layer = per_layer_block(config, &factor, name, loader)?;
        let post_feedforward = tensor("post_feedforward_layernorm");
        let post_feedforward_layernorm = match &per_layer {
            Some(_) => loader.norm(post_feedforward, sizes.hidden_size, kernel)?,
            None => loader.scaled_norm(post_feedforward, &factor, sizes.hidden_size, kernel)?,
        };
        let mixture = config.mixture()?;
        let mixture = mixture.map(|mixture| Mixture::declare(config, mixture, name, loader)).transpose()?;
        let mut norm = |part: &str| loader.norm(tensor(part), sizes.hidden_size, kernel);
        Ok(Self {
            index,
            layer_type: spec.layer_type,
            cache: spec.cache,
            input_layernorm: norm("input_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            qkv_proj: blocks::qkv_proj(sizes, spec.key_values, name, loader)?,
            attention: Attention {
                heads: sizes.num_attention_heads,
                kv_heads: sizes.num_key_value_heads,
                head_dim: sizes.head_dim,
                scale: 1.0,
                window: spec.window,
                q_norm: Some(q_norm),
                k_norm,
                v_norm: Some(config.rms_norm_eps),
                key_values: spec.key_values,
            },
            o_proj: blocks::o_proj(sizes, name, loader)?,
            mlp: blocks::mlp(sizes, Activation::GeluTanh, name, loader)?,
            down_proj: blocks::down_proj(sizes, name, loader)?,
            mixture,
            post_feedforward_layernorm,
            per_layer,
        })
    }

    /// Records the layer.
    pub fn forward(&self, plan: &mut PlanBuilder, residual: &mut Residual, around: &Surroundings<'_>) {
        let rope = &around.ropes[usize::from(self.layer_type == LayerType::FullAttention)];
        let projected = self.qkv_proj.forward_norm(plan, residual, &self.input_layernorm);
        plan.tap(residual.value());
        let cache = &around.caches[self.cache];
        let attention = self.attention.forward(plan, around.inputs, projected, rope, cache);
        residual.add(plan, &self.o_proj, attention, Some(&self.post_attention_layernorm));

        let gated = self.mlp.forward_norm(plan, residual, &self.pre_feedforward_layernorm);
        match &self.mixture {
            None => residual.add(plan, &self.down_proj, gated, Some(&self.post_feedforward_layernorm)),
            Some(mixture) => {
                let dense = self.down_proj.forward(plan, gated);
                let sum = mixture.forward(plan, residual, dense);
                residual.update(sum, Some(&self.post_feedforward_layernorm));
            }
        }

        if let Some((block, inputs)) = self.per_layer.as_ref().zip(around.per_layer) {
            block.forward(plan, residual, inputs, self.index);
        }
    }
}

fn per_layer_block(
    config: &Gemma4Config,
    factor: &str,
    name: &str,
    loader: &mut Loader<'_>,
) -> Result<Option<PerLayerBlock>> {
    let Some(columns) = config.per_layer_columns()? else { return Ok(None) };
    let hidden = config.hidden_size;
    let tensor = |part: &str| format!("{name}.{part}.weight");
    let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
    let gate = (tensor("per_layer_input_gate"), columns);
    let projection = (tensor("per_layer_projection"), hidden);
    Ok(Some(PerLayerBlock {
        // Small beside the others, and every token passes through all of them.
        gate: Linear::new(loader.stacked(&[gate], hidden, Precision::High)?),
        projection: Linear::new(loader.stacked(&[projection], columns, Precision::High)?),
        post_norm: loader.scaled_norm(tensor("post_per_layer_input_norm"), factor, hidden, kernel)?,
        activation: Activation::GeluTanh,
    }))
}

/// Gate and up, and down, of all experts: (name, rows of an expert). MLX has taken gate and up apart.
fn expert_tensors(
    experts: &str,
    spec: MixtureSpec,
    hidden: u32,
    loader: &Loader<'_>,
) -> (Vec<(String, u32)>, (String, u32)) {
    let rows = spec.intermediate_size;
    let of_mlx = |part: &str| format!("{experts}.switch_glu.{part}_proj.weight");
    if loader.has(&of_mlx("gate")) {
        return (vec![(of_mlx("gate"), rows), (of_mlx("up"), rows)], (of_mlx("down"), hidden));
    }
    (vec![(format!("{experts}.gate_up_proj"), 2 * rows)], (format!("{experts}.down_proj"), hidden))
}

/// The experts beside the MLP.
struct Mixture {
    experts: Experts,
    post_feedforward_layernorm_1: RmsNorm,
    post_feedforward_layernorm_2: RmsNorm,
}

impl Mixture {
    fn declare(
        config: &Gemma4Config,
        spec: MixtureSpec,
        name: &str,
        loader: &mut Loader<'_>,
    ) -> Result<Self> {
        let MixtureSpec { experts, chosen, intermediate_size } = spec;
        let hidden = config.hidden_size;
        let kernel = NormKernel { eps: config.rms_norm_eps, unit_offset: false };
        let router_proj = (format!("{name}.router.proj.weight"), experts);
        let (gate_up_proj, down_proj) = expert_tensors(&format!("{name}.experts"), spec, hidden, loader);
        let mut norm = |part: &str| loader.norm(format!("{name}.{part}"), hidden, kernel);
        let router_norm = norm("router.scale")?;
        let pre_feedforward_layernorm_2 = norm("pre_feedforward_layernorm_2.weight")?;
        Ok(Self {
            post_feedforward_layernorm_1: norm("post_feedforward_layernorm_1.weight")?,
            post_feedforward_layernorm_2: norm("post_feedforward_layernorm_2.weight")?,
            experts: Experts {
                router_norm,
                router_proj: Linear::new(loader.stacked(&[router_proj], hidden, Precision::High)?),
                router_scale: (hidden as f32).powf(-0.5),
                expert_scale: loader.vector(&format!("{name}.router.per_expert_scale"), experts)?,
                norm: pre_feedforward_layernorm_2,
                gate_up_proj: loader.experts(&gate_up_proj, experts, hidden)?,
                down_proj: loader.experts(&[down_proj], experts, intermediate_size)?,
                experts,
                chosen,
                activation: Activation::GeluTanh,
            },
        })
    }

    /// The sum of MLP (`dense`) and experts, each behind its norm.
    fn forward(&self, plan: &mut PlanBuilder, residual: &mut Residual, dense: Value) -> Value {
        let routed = self.experts.forward(plan, residual);
        let dense = Residual::new(dense).normed(plan, &self.post_feedforward_layernorm_1);
        let mut sum = Residual::new(dense);
        sum.update(routed, Some(&self.post_feedforward_layernorm_2));
        sum.settled(plan)
    }
}
