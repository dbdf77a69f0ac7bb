//! Matrices of chosen experts times vectors.

use super::{Binding, Kernel, Prelude, fold, weight};
use crate::checkpoint::WeightFormat;

/// `y[m, c, n] = W[e · rows + n] · x`, where `e` is the expert that row `m` is given to as its `c`th, and `x`
/// is row `m` of the input, or the vector of that expert.
///
/// Binds the weight, `x [m, columns]` or `[m, chosen, columns]` (`by_expert`), the pairs `[m, chosen]` that
/// [`super::Route`] wrote, and `y [m, chosen, rows]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertGemv {
    /// Format of the weight, which holds the rows of all experts one after the other.
    pub format: WeightFormat,
    /// Rows of the input.
    pub m: u32,
    /// Experts that a row is given to.
    pub chosen: u32,
    /// Rows of an expert.
    pub rows: u32,
    /// Columns, a multiple of [`super::Gemv::column_multiple`].
    pub columns: u32,
    /// Whether each chosen expert has an input of its own.
    pub by_expert: bool,
    /// First row of the weight in this shard.
    pub first_row: u32,
    /// Rows of the weight in this shard.
    pub shard_rows: u32,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

const WORKGROUP: u32 = 128;

impl ExpertGemv {
    /// Invocations that share a row.
    fn lanes(&self) -> u32 {
        let loads = self.columns / weight::chunk(self.format);
        (loads / 2 + 1).next_power_of_two().clamp(4, 32)
    }

    /// The CPU twin for a weight of one shard, given as f32.
    pub fn cpu(&self, dense: &[f32], pairs: &[(u32, f32)], x: &[f32]) -> Vec<f32> {
        let columns = self.columns as usize;
        let mut y = Vec::new();
        for (index, (expert, _)) in pairs.iter().enumerate() {
            let input = if self.by_expert { index } else { index / self.chosen as usize };
            let x = &x[input * columns..][..columns];
            for row in 0..self.rows {
                let weights = &dense[(expert * self.rows + row) as usize * columns..][..columns];
                let product: f64 = weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                y.push(product as f32);
            }
        }
        y
    }
}

impl Kernel for ExpertGemv {
    fn name(&self) -> &'static str {
        "expert_gemv"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/expert_gemv.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        weight::prelude(&mut prelude, self.format);
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .u32("ROWS", 1)
            .u32("WORKGROUP", WORKGROUP)
            .u32("LANES", self.lanes())
            .u32("CHOSEN", self.chosen)
            .u32("N", self.rows)
            .u32("K", self.columns)
            .bool("BY_EXPERT", self.by_expert)
            .u32("FIRST_ROW", self.first_row)
            .u32("SHARD_ROWS", self.shard_rows);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = weight::bindings(self.format);
        bindings.extend([Binding::Read, Binding::Read, Binding::Write]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        let [x, y, _] = fold(self.rows.div_ceil(WORKGROUP / self.lanes()));
        [x, y, self.m * self.chosen]
    }
}
