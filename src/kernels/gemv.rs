//! Matrix times one vector: the kernel of decode.

use super::{Activation, Binding, Input, Kernel, NormKernel, Prelude, fold, weight};
use crate::checkpoint::WeightFormat;

/// What becomes of a row's dot product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// It is the result.
    Plain,
    /// A residual is added. Not behind a norm, whose bindings beside it could be one too many.
    AddResidual,
    /// The weight holds `rows` gate rows, then `rows` up rows: `activation(gate) · up`.
    Gated(Activation),
    /// `activation(·) · up`, where `up [rows]` is another value. Not with a norm and an update in front.
    GatedBy(Activation),
    /// `activation(·) · up`, where up is the layer's part of what [`Output::Beside`] left for all of them.
    GatedByLayer(LayerGate),
    /// Each result beside the element of `up`: `y [rows, 2]`.
    Beside,
    /// `cap · tanh(· / cap)`
    Softcap(f32),
    /// Logits, of which the highest of each workgroup is picked for [`super::ArgmaxStage::Final`].
    Choice(Choice),
}

/// What makes a layer's input of its halves, the projected context and the token's row:
/// `(rms_norm(context · context_scale) + token · token_scale) · 2^-½`, as [`super::PerLayerInputs`] does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerGate {
    /// The activation of the gate.
    pub activation: Activation,
    /// Multiplies the context before its norm.
    pub context_scale: f32,
    /// Multiplies the token's row.
    pub token_scale: f32,
    /// The norm's constants.
    pub norm: NormKernel,
}

/// Logits and where the pairs of their shard go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// `cap · tanh(· / cap)`, where the model has it.
    pub softcap: Option<f32>,
    /// The index of the shard's first row.
    pub first_row: u32,
    /// Where the shard's pairs begin.
    pub first_pair: u32,
}

/// `y[rows] = output(W · input)`. Binds the weight, the input's reads, the step (`last_row`), the residual
/// (`AddResidual`) or `up` (`GatedBy`), `y`, and the updated residual (`keep_residual`).
#[derive(Clone, Copy, Debug)]
pub struct Gemv {
    /// Format of the weight.
    pub format: WeightFormat,
    /// Rows of the result.
    pub rows: u32,
    /// Columns of the weight, a multiple of [`Gemv::column_multiple`].
    pub columns: u32,
    /// What stands in front of the input.
    pub input: Input,
    /// Whether the input is the step's last real row, rather than row 0.
    pub last_row: bool,
    /// What becomes of the dot products.
    pub output: Output,
    /// Workgroups that it takes to occupy the device.
    pub busy_workgroups: u32,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

const WORKGROUP: u32 = 128;

impl Gemv {
    /// What the columns of a weight of `format` must be a multiple of.
    pub fn column_multiple(format: WeightFormat) -> u32 {
        match format {
            WeightFormat::Affine { group_size, .. } => group_size,
            _ => weight::chunk(format),
        }
    }

    /// Rows of the weight that a team computes.
    fn rows_per_team(&self) -> u32 {
        if self.is_gated() { 4 } else { 2 }
    }

    fn is_gated(&self) -> bool {
        matches!(self.output, Output::Gated(_))
    }

    /// Results of a workgroup, of two for each team.
    fn results(lanes: u32) -> u32 {
        WORKGROUP / lanes * 2
    }

    /// Invocations that share a row: few, so that a workgroup has many rows to spread its norm over, but as
    /// many as it takes to occupy the device, and no more than a row has loads. To combine splits is more work
    /// than a norm.
    fn lanes(&self) -> u32 {
        let loads = self.columns / weight::chunk(self.format);
        let most = (loads / 2 + 1).next_power_of_two().clamp(4, 64);
        let wanted = match self.input {
            Input::Combined(_) => self.busy_workgroups / 4,
            _ => self.busy_workgroups,
        };
        let busy = |lanes: &u32| self.rows.div_ceil(Self::results(*lanes)) >= wanted;
        [8, 16, 32].into_iter().find(busy).unwrap_or(64).min(most)
    }

    /// Workgroups, and pairs that they write with [`Output::Choice`].
    pub fn pairs(&self) -> u32 {
        self.rows.div_ceil(Self::results(self.lanes()))
    }

    /// The CPU twin. `dense` is the whole weight as f32, row-major; `input` the kernel's input row; `other` the
    /// residual or `up`, with [`Output::GatedByLayer`] as the twin of [`super::PerLayerInputs`] makes it.
    pub fn cpu(&self, dense: &[f32], input: &[f32], other: &[f32]) -> Vec<f32> {
        let product = |row: usize| {
            let row = &dense[row * input.len()..][..input.len()];
            row.iter().zip(input).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() as f32
        };
        let rows = self.rows as usize;
        if self.output == Output::Beside {
            return (0..rows).flat_map(|row| [product(row), other[row]]).collect();
        }
        (0..rows)
            .map(|row| match self.output {
                Output::Plain | Output::Beside | Output::Choice(Choice { softcap: None, .. }) => product(row),
                Output::AddResidual => product(row) + other[row],
                Output::Gated(activation) => activation.cpu(product(row)) * product(rows + row),
                Output::GatedBy(activation) | Output::GatedByLayer(LayerGate { activation, .. }) => {
                    activation.cpu(product(row)) * other[row]
                }
                Output::Softcap(cap) | Output::Choice(Choice { softcap: Some(cap), .. }) => {
                    cap * (product(row) / cap).tanh()
                }
            })
            .collect()
    }
}

impl Kernel for Gemv {
    fn name(&self) -> &'static str {
        "gemv"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/gemv.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        weight::prelude(&mut prelude, self.format);
        self.input.prelude(&mut prelude);
        let activation = match self.output {
            Output::Gated(activation) | Output::GatedBy(activation) => Some(activation),
            Output::GatedByLayer(gate) => Some(gate.activation),
            _ => None,
        };
        let softcap = match self.output {
            Output::Softcap(cap) => cap,
            Output::Choice(choice) => choice.softcap.unwrap_or_default(),
            _ => 0.0,
        };
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .u32("WORKGROUP", WORKGROUP)
            .u32("LANES", self.lanes())
            .u32("ROWS", self.rows_per_team())
            .u32("N", self.rows)
            .u32("K", self.columns)
            .bool("GATED", self.is_gated())
            .bool("GELU", activation == Some(Activation::GeluTanh))
            .f32("SOFTCAP", softcap)
            .flag("LAST_ROW", self.last_row)
            .flag("ADD_RESIDUAL", self.output == Output::AddResidual)
            .flag("UP", matches!(self.output, Output::GatedBy(_) | Output::Beside))
            .flag("GATED_BY", matches!(self.output, Output::GatedBy(_)))
            .flag("BESIDE", self.output == Output::Beside);
        if let Output::GatedByLayer(gate) = self.output {
            prelude
                .flag("GATED_BY_LAYER", true)
                .f32("CONTEXT_SCALE", gate.context_scale)
                .f32("TOKEN_SCALE", gate.token_scale)
                .f32("CONTEXT_EPS", gate.norm.eps)
                .f32("CONTEXT_OFFSET", gate.norm.weight_offset());
        }
        if let Output::Choice(choice) = self.output {
            prelude
                .flag("CHOICE", true)
                .u32("FIRST_ROW", choice.first_row)
                .u32("FIRST_PAIR", choice.first_pair)
                .u32("PAIRS", self.pairs());
        }
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = weight::bindings(self.format);
        bindings.extend(self.input.bindings());
        bindings.extend(self.last_row.then_some(Binding::Uniform));
        match self.output {
            Output::AddResidual | Output::GatedBy(_) | Output::Beside => bindings.push(Binding::Read),
            Output::GatedByLayer(_) => bindings.extend([Binding::Read, Binding::Uniform]),
            _ => {}
        }
        bindings.push(Binding::Write);
        bindings.extend(self.input.kept());
        bindings.extend(matches!(self.output, Output::Choice(_)).then_some(Binding::Write));
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        fold(self.pairs())
    }
}
