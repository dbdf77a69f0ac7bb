//! Embedding lookup.

use super::{Binding, Kernel, Prelude, weight};
use crate::checkpoint::WeightFormat;

/// `y[m] = W[tokens[m]] · scale`. Binds the weight, `tokens [m]` (u32), `y [m, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Gather {
    /// Format of the table.
    pub format: WeightFormat,
    /// Tokens.
    pub m: u32,
    /// First row of the table in this shard.
    pub first_row: u32,
    /// Rows of the table in this shard.
    pub rows: u32,
    /// Columns of the table.
    pub columns: u32,
    /// Multiplies every element.
    pub scale: f32,
}

impl Gather {
    /// The CPU twin for a table of one shard, given as f32.
    pub fn cpu(&self, dense: &[f32], tokens: &[u32]) -> Vec<f32> {
        let columns = self.columns as usize;
        tokens
            .iter()
            .flat_map(|&token| dense[token as usize * columns..][..columns].iter().map(|w| w * self.scale))
            .collect()
    }
}

impl Kernel for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/gather.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        weight::prelude(&mut prelude, self.format);
        prelude
            .u32("FIRST_ROW", self.first_row)
            .u32("ROWS", self.rows)
            .u32("K", self.columns)
            .f32("SCALE", self.scale);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = weight::bindings(self.format);
        bindings.extend([Binding::Read, Binding::Write]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.m, 1, 1]
    }
}
