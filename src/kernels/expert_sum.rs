//! The weighted sum of what the chosen experts made.

use super::{Binding, Kernel, Prelude, fold};

/// `y[m, n] = Σ_c weight[m, c] · x[m, c, n]`. Binds the pairs `[m, chosen]` that [`super::Route`] wrote,
/// `x [m, chosen, columns]` and `y [m, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSum {
    /// Rows.
    pub m: u32,
    /// Experts that a row is given to.
    pub chosen: u32,
    /// Columns.
    pub columns: u32,
}

impl ExpertSum {
    /// The CPU twin.
    pub fn cpu(&self, pairs: &[(u32, f32)], x: &[f32]) -> Vec<f32> {
        let (chosen, columns) = (self.chosen as usize, self.columns as usize);
        let mut y = Vec::new();
        for (pairs, x) in pairs.chunks(chosen).zip(x.chunks(chosen * columns)) {
            let sum = |n: usize| pairs.iter().zip(x.chunks(columns)).map(|((_, w), x)| w * x[n]).sum::<f32>();
            y.extend((0..columns).map(sum));
        }
        y
    }
}

impl Kernel for ExpertSum {
    fn name(&self) -> &'static str {
        "expert_sum"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/expert_sum.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        prelude.u32("M", self.m).u32("CHOSEN", self.chosen).u32("N", self.columns);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        vec![Binding::Read, Binding::Read, Binding::Write]
    }

    fn workgroups(&self) -> [u32; 3] {
        fold((self.m * self.columns).div_ceil(256))
    }
}
