//! The choice of experts.

use super::{Binding, Kernel, Prelude};

/// For every row the `chosen` most likely of `experts` and their weights: the softmax over the chosen logits,
/// times `expert_scale` of each.
///
/// Binds `logits [m, experts]`, `expert_scale [experts]`, and `y [m, chosen]` of pairs (the expert's number, a
/// u32, and its weight).
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// Rows.
    pub m: u32,
    /// Experts, at most [`Route::MAX_EXPERTS`].
    pub experts: u32,
    /// Experts that a row is given to, at most [`Route::MAX_CHOSEN`].
    pub chosen: u32,
    /// Multiplies the logits.
    pub scale: f32,
}

impl Route {
    /// The most experts that the kernel holds in workgroup memory.
    pub const MAX_EXPERTS: u32 = 1024;
    /// The most experts that a row is given to.
    pub const MAX_CHOSEN: u32 = 32;

    /// The CPU twin.
    pub fn cpu(&self, logits: &[f32], expert_scale: &[f32]) -> Vec<(u32, f32)> {
        let experts = self.experts as usize;
        logits.chunks(experts).flat_map(|logits| self.row(logits, expert_scale)).collect()
    }

    fn row(&self, logits: &[f32], expert_scale: &[f32]) -> Vec<(u32, f32)> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(self.chosen as usize);
        let likelihood = |expert: usize| ((logits[expert] - logits[order[0]]) * self.scale).exp();
        let total: f32 = order.iter().map(|&expert| likelihood(expert)).sum();
        let pair = |&expert: &usize| (expert as u32, likelihood(expert) / total * expert_scale[expert]);
        order.iter().map(pair).collect()
    }
}

impl Kernel for Route {
    fn name(&self) -> &'static str {
        "route"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/route.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        prelude.u32("EXPERTS", self.experts).u32("CHOSEN", self.chosen).f32("SCALE", self.scale);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        vec![Binding::Read, Binding::Read, Binding::Write]
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.m, 1, 1]
    }
}
