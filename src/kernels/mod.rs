//! Floor 2. One file per shader, same stem: variant key, bindings, dispatch size, CPU twin.
//!
//! A kernel is a small struct of everything that is fixed when a plan is made. It renders the prelude of
//! its shader, so the text that is compiled and the key under which the pipeline is kept cannot disagree.
//! What changes from step to step is in [`Step`]. The twins compute the same from slices, plainly.

mod argmax;
mod attention;
mod decode_attention;
mod expert_gemv;
mod expert_sum;
mod gated_act;
mod gather;
mod gemv;
mod kv_cache;
mod matmul;
mod norm;
mod per_layer_inputs;
mod projection;
mod rms_norm;
mod rope_append;
mod route;
mod shader;
mod threshold;
mod weight;

use std::fmt;

pub use argmax::{Argmax, ArgmaxStage};
pub use attention::Attention;
pub use decode_attention::{DecodeAttention, Splits};
pub use expert_gemv::ExpertGemv;
pub use expert_sum::ExpertSum;
pub use gated_act::GatedAct;
pub use gather::Gather;
pub use gemv::{Choice, Gemv, LayerGate, Output};
pub use kv_cache::{CacheFormat, CacheLayout};
pub use matmul::Matmul;
pub use norm::{Combine, Input, NormInput, NormKernel, PostNorm};
pub use per_layer_inputs::PerLayerInputs;
pub use projection::{KeyValues, Projection};
pub use rms_norm::RmsNormKernel;
pub use rope_append::RopeAppend;
pub use route::Route;
pub use shader::Prelude;
pub use threshold::Threshold;

pub use crate::gpu::Binding;

/// A variant of a shader.
pub trait Kernel: fmt::Debug {
    /// The stem of its file.
    fn name(&self) -> &'static str;

    /// Its WGSL template.
    fn template(&self) -> &'static str;

    /// The constants and flags of this variant.
    fn prelude(&self) -> Prelude;

    /// What it binds, in order.
    fn bindings(&self) -> Vec<Binding>;

    /// How many workgroups it takes, at most [`MAX_WORKGROUPS`] in each dimension.
    fn workgroups(&self) -> [u32; 3];

    /// The WGSL of this variant.
    fn source(&self) -> String {
        self.prelude().render(self.template())
    }
}

/// What changes from step to step; the uniform block of `lib/step.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::NoUninit)]
pub struct Step {
    /// Position of the first row in the context.
    pub position: u32,
    /// Rows that are real; the rest of the bucket is padding.
    pub rows: u32,
    /// Seed of the sampling noise.
    pub seed: u32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Divides the logits before sampling; above 0.
    pub temperature: f32,
    /// Keep the smallest set of tokens with at least this probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this probability relative to the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Rounds the block up to the alignment of uniform blocks.
    pub padding: u32,
}

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · σ(x)`
    Silu,
    /// `0.5 x (1 + tanh(√(2/π)(x + 0.044715 x³)))`
    GeluTanh,
}

impl Activation {
    /// The CPU twin.
    pub fn cpu(self, x: f32) -> f32 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }
}

/// Safari allows fewer workgroups in a dimension than the 65,535 that others do.
pub const MAX_WORKGROUPS: u32 = 16_384;

/// `count` workgroups, folded over two dimensions; kernels check the bound.
fn fold(count: u32) -> [u32; 3] {
    let x = count.min(MAX_WORKGROUPS);
    [x, count.div_ceil(x.max(1)), 1]
}
