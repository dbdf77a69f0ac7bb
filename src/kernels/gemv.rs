//! Matrix times one vector: the kernel of decode.

use super::{Activation, Binding, Input, Kernel, Prelude, fold, weight};
use crate::checkpoint::WeightFormat;

/// What becomes of a row's dot product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Output {
    /// It is the result.
    Plain,
    /// A residual is added. Only with a plain input: a norm's bindings beside it could be one too many.
    AddResidual,
    /// The weight holds `rows` gate rows, then `rows` up rows: `activation(gate) · up`.
    Gated(Activation),
    /// `activation(·) · up`, where `up [rows]` is another value. Not with a norm and an update in front.
    GatedBy(Activation),
    /// `cap · tanh(· / cap)`
    Softcap(f32),
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
const ROWS_PER_TEAM: u32 = 2;

impl Gemv {
    /// What the columns of a weight of `format` must be a multiple of.
    pub fn column_multiple(format: WeightFormat) -> u32 {
        match format {
            WeightFormat::Affine { group_size, .. } => group_size,
            _ => weight::chunk(format),
        }
    }

    /// Invocations that share a row: few, so that a workgroup has many rows to spread its norm over, but as
    /// many as it takes to occupy the device, and no more than a row has loads.
    fn lanes(&self) -> u32 {
        let loads = self.columns / weight::chunk(self.format);
        let most = (loads / 2 + 1).next_power_of_two().clamp(4, 64);
        let busy =
            |lanes: &u32| self.rows.div_ceil(WORKGROUP / lanes * ROWS_PER_TEAM) >= self.busy_workgroups;
        [8, 16, 32].into_iter().find(busy).unwrap_or(64).min(most)
    }

    /// The CPU twin. `dense` is the whole weight as f32, row-major; `input` the kernel's input row; `other` the
    /// residual or `up`.
    pub fn cpu(&self, dense: &[f32], input: &[f32], other: &[f32]) -> Vec<f32> {
        let product = |row: usize| {
            let row = &dense[row * input.len()..][..input.len()];
            row.iter().zip(input).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() as f32
        };
        let rows = self.rows as usize;
        (0..rows)
            .map(|row| match self.output {
                Output::Plain => product(row),
                Output::AddResidual => product(row) + other[row],
                Output::Gated(activation) => activation.cpu(product(row)) * product(rows + row),
                Output::GatedBy(activation) => activation.cpu(product(row)) * other[row],
                Output::Softcap(cap) => cap * (product(row) / cap).tanh(),
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
            _ => None,
        };
        let softcap = match self.output {
            Output::Softcap(cap) => cap,
            _ => 0.0,
        };
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .u32("WORKGROUP", WORKGROUP)
            .u32("LANES", self.lanes())
            .u32("N", self.rows)
            .u32("K", self.columns)
            .bool("GATED", matches!(self.output, Output::Gated(_)))
            .bool("GELU", activation == Some(Activation::GeluTanh))
            .f32("SOFTCAP", softcap)
            .flag("LAST_ROW", self.last_row)
            .flag("ADD_RESIDUAL", self.output == Output::AddResidual)
            .flag("GATED_BY", matches!(self.output, Output::GatedBy(_)));
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = weight::bindings(self.format);
        bindings.extend(vec![Binding::Read; self.input.reads()]);
        bindings.extend(self.last_row.then_some(Binding::Uniform));
        let reads_other = matches!(self.output, Output::AddResidual | Output::GatedBy(_));
        bindings.extend(reads_other.then_some(Binding::Read));
        bindings.push(Binding::Write);
        bindings.extend(self.input.kept());
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        fold(self.rows.div_ceil(WORKGROUP / self.lanes() * ROWS_PER_TEAM))
    }
}
