//! The choice of the next token.

use super::{Binding, Kernel, Prelude, Step};

/// Which of the two dispatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgmaxStage {
    /// The best of each slice of the logits: binds `logits [n]`, `pairs`.
    Slices,
    /// The same among logits at or above a threshold, with noise: binds the step, `threshold [2]`, `logits`, `pairs`.
    SampledSlices,
    /// The best of all pairs, of slices or of [`super::Output::Choice`]: binds `pairs [n]`, `token [1]`.
    Final,
}

/// The index of the highest logit, the lowest index among equals.
#[derive(Clone, Copy, Debug)]
pub struct Argmax {
    /// Logits, or in the last dispatch pairs.
    pub n: u32,
    /// Which dispatch.
    pub stage: ArgmaxStage,
}

/// Logits per workgroup of the first dispatch.
const SLICE: u32 = 1024;

impl Argmax {
    /// Pairs that the first dispatch writes, 8 bytes each.
    pub fn pairs(&self) -> u32 {
        self.n.div_ceil(SLICE)
    }

    /// The CPU twin of the greedy choice.
    pub fn cpu(logits: &[f32]) -> u32 {
        (0..)
            .zip(logits)
            .fold((0, f32::MIN), |best, (index, &logit)| if logit > best.1 { (index, logit) } else { best })
            .0
    }

    /// The CPU twin of the sampled choice; `threshold` is the result of [`super::Threshold`].
    pub fn cpu_sampled(step: &Step, threshold: [f32; 2], logits: &[f32]) -> u32 {
        let ranks: Vec<f32> = (0..)
            .zip(logits)
            .map(|(index, &logit)| {
                if logit < threshold[0] {
                    return -3.0e38;
                }
                (logit - threshold[1]) / step.temperature + gumbel(step, index)
            })
            .collect();
        Self::cpu(&ranks)
    }
}

fn hash(value: u32) -> u32 {
    let state = value.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

fn gumbel(step: &Step, index: u32) -> f32 {
    let bits = hash(index ^ hash((step.position + step.rows) ^ hash(step.seed)));
    let uniform = ((bits >> 8) as f32 + 0.5) / 16_777_216.0;
    -(-uniform.ln()).ln()
}

impl Kernel for Argmax {
    fn name(&self) -> &'static str {
        "argmax"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/argmax.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        let last = self.stage == ArgmaxStage::Final;
        prelude
            .flag("SAMPLED", self.stage == ArgmaxStage::SampledSlices)
            .flag("FINAL", last)
            .u32("N", self.n)
            .u32("SLICE", if last { self.n.next_multiple_of(256) } else { SLICE });
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = match self.stage {
            ArgmaxStage::SampledSlices => vec![Binding::Uniform, Binding::Read],
            _ => Vec::new(),
        };
        bindings.extend([Binding::Read, Binding::Write]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        if self.stage == ArgmaxStage::Final { [1, 1, 1] } else { [self.pairs(), 1, 1] }
    }
}
