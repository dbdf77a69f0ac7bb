//! The activation of a gated MLP, for prefill; decode has it in the GEMV.

use super::{Activation, Binding, Kernel, Prelude, fold};

/// `y[m, i] = activation(gate[m, i]) · up[m, i]`. Binds `gate_up [m, 2·columns]`, or `gate` and `up` of
/// `[m, columns]` each, and `y [m, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct GatedAct {
    /// The activation.
    pub activation: Activation,
    /// Rows.
    pub m: u32,
    /// Columns of the result.
    pub columns: u32,
    /// Whether `up` lies apart, rather than beside the gate.
    pub is_apart: bool,
}

impl GatedAct {
    /// The CPU twin. `up` is of interest where it lies apart.
    pub fn cpu(&self, gate_up: &[f32], up: &[f32]) -> Vec<f32> {
        if self.is_apart {
            return gate_up.iter().zip(up).map(|(gate, up)| self.activation.cpu(*gate) * up).collect();
        }
        let columns = self.columns as usize;
        gate_up
            .chunks(2 * columns)
            .flat_map(|row| (0..columns).map(|i| self.activation.cpu(row[i]) * row[columns + i]))
            .collect()
    }
}

impl Kernel for GatedAct {
    fn name(&self) -> &'static str {
        "gated_act"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/gated_act.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        prelude
            .u32("M", self.m)
            .u32("N", self.columns)
            .bool("GELU", self.activation == Activation::GeluTanh)
            .flag("APART", self.is_apart);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = vec![Binding::Read; if self.is_apart { 2 } else { 1 }];
        bindings.push(Binding::Write);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        fold((self.m * self.columns).div_ceil(256))
    }
}
