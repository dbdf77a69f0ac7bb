//! Gemma 4's per-layer inputs: what a token and its context tell each layer.

use super::{Binding, Kernel, NormKernel, Prelude};

/// `y[l][m] = (rms_norm(context[m, l] · context_scale) + tokens[m, l] · token_scale) · 2^-½` for the layers
/// `l` of `first_layer …`, layer by layer, each starting at a multiple of [`PerLayerInputs::layer_stride`].
///
/// Binds `context [rows, all_layers · columns]`, the norm's weight `[columns]`, `tokens` like `context`, the
/// step (`last_row`), and `y [layers, layer_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct PerLayerInputs {
    /// Rows of the result.
    pub m: u32,
    /// Whether the one row is made of the step's last real row.
    pub last_row: bool,
    /// The first layer of the result.
    pub first_layer: u32,
    /// Layers of the result.
    pub layers: u32,
    /// Layers that a row of the inputs holds.
    pub all_layers: u32,
    /// Elements that each layer gets.
    pub columns: u32,
    /// Multiplies the context before its norm.
    pub context_scale: f32,
    /// Multiplies the tokens' rows.
    pub token_scale: f32,
    /// The norm's constants.
    pub norm: NormKernel,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

/// Elements of 256 bytes: bindings of the result may start there.
const ALIGNMENT: u32 = 64;

impl PerLayerInputs {
    /// Elements from one layer of the result to the next, for `m` rows of `columns`.
    pub fn layer_stride(m: u32, columns: u32) -> u32 {
        (m * columns).next_multiple_of(ALIGNMENT)
    }

    /// The CPU twin over one row and one layer.
    pub fn cpu(&self, context: &[f32], weight: &[f32], tokens: &[f32]) -> Vec<f32> {
        let scaled: Vec<f32> = context.iter().map(|value| value * self.context_scale).collect();
        let normed = self.norm.cpu(&scaled, weight);
        let sum = normed.iter().zip(tokens).map(|(context, token)| context + token * self.token_scale);
        sum.map(|sum| sum * std::f32::consts::FRAC_1_SQRT_2).collect()
    }
}

impl Kernel for PerLayerInputs {
    fn name(&self) -> &'static str {
        "per_layer_inputs"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/per_layer_inputs.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "f32")
            .u32("WORKGROUP", 64)
            .flag("LAST_ROW", self.last_row)
            .u32("FIRST_LAYER", self.first_layer)
            .u32("ROW_STRIDE", self.all_layers * self.columns)
            .u32("LAYER_STRIDE", Self::layer_stride(self.m, self.columns))
            .u32("N", self.columns)
            .f32("CONTEXT_SCALE", self.context_scale)
            .f32("TOKEN_SCALE", self.token_scale)
            .f32("EPS", self.norm.eps)
            .f32("WEIGHT_OFFSET", self.norm.weight_offset());
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = vec![Binding::Read; 3];
        bindings.extend(self.last_row.then_some(Binding::Uniform));
        bindings.push(Binding::Write);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.layers, self.m, 1]
    }
}
