//! The lowest logit that sampling may choose.

use super::{Binding, Kernel, Prelude, Step};

/// `result = [threshold, highest]` by top-k, then top-p, then min-p. Binds the step, `logits [n]`, `result [2]`.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    /// Logits.
    pub n: u32,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

impl Threshold {
    /// The CPU twin, by sorting.
    pub fn cpu(&self, step: &Step, logits: &[f32]) -> [f32; 2] {
        let mut sorted = logits.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let highest = sorted[0];
        if step.top_k > 0 && (step.top_k as usize) < sorted.len() {
            let kth = sorted[step.top_k as usize - 1];
            sorted.retain(|&logit| logit >= kth);
        }
        let mass = |logit: f32| f64::from((logit - highest) / step.temperature).exp();
        if step.top_p < 1.0 {
            let goal = f64::from(step.top_p) * sorted.iter().copied().map(mass).sum::<f64>();
            let mut reached = 0.0;
            let kept = sorted.iter().take_while(|&&logit| {
                let before = reached;
                reached += mass(logit);
                before < goal
            });
            let last = kept.copied().last().unwrap_or(highest);
            sorted.retain(|&logit| logit >= last);
        }
        let mut threshold = sorted.last().copied().unwrap_or(highest);
        if step.min_p > 0.0 {
            threshold = threshold.max(highest + step.temperature * step.min_p.ln());
        }
        [threshold.min(highest), highest]
    }
}

impl Kernel for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/threshold.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        prelude.subgroups(self.subgroup_min).alias("Acc", "vec4<f32>").u32("WORKGROUP", 256).u32("N", self.n);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        vec![Binding::Uniform, Binding::Read, Binding::Write]
    }

    fn workgroups(&self) -> [u32; 3] {
        [1, 1, 1]
    }
}
