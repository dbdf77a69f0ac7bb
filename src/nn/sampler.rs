//! The choice of the next token on the GPU.

use super::StepInputs;
use crate::kernels::{Argmax, ArgmaxStage, Threshold};
use crate::plan::{Operand, PlanBuilder, Value};

/// How the next token is chosen from the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// The most likely token.
    Greedy,
    /// A draw by the step's temperature, top-k, top-p, min-p and seed.
    Sampled,
}

/// What a head leaves of the step's last row.
#[derive(Clone, Copy, Debug)]
pub struct Logits {
    /// `[1, vocab_size]`
    pub value: Value,
    /// The highest logits of parts of it and their indices `[parts, 2]`, where the plan fuses.
    pub(super) best: Option<Value>,
}

impl Sampler {
    /// Writes the chosen id to the first of the step's tokens, where the next decode step reads it.
    pub fn forward(self, plan: &mut PlanBuilder, inputs: &StepInputs, logits: Logits) {
        let pairs = match (self, logits.best) {
            (Sampler::Greedy, Some(best)) => best,
            _ => self.slices(plan, inputs, logits.value),
        };
        let token = Operand::Buffer(inputs.tokens.clone(), 0..4);
        plan.op(Argmax { n: pairs.rows, stage: ArgmaxStage::Final }, vec![pairs.into(), token]);
    }

    /// The best of each slice of the logits.
    fn slices(self, plan: &mut PlanBuilder, inputs: &StepInputs, logits: Value) -> Value {
        let n = logits.columns;
        let mut operands = Vec::new();
        let stage = match self {
            Sampler::Greedy => ArgmaxStage::Slices,
            Sampler::Sampled => {
                let threshold = plan.value("threshold", 1, 2);
                let step = Operand::whole(&inputs.step);
                let kernel = Threshold { n, subgroup_min: plan.subgroup_min() };
                plan.op(kernel, vec![step.clone(), logits.into(), threshold.into()]);
                operands.extend([step, threshold.into()]);
                ArgmaxStage::SampledSlices
            }
        };
        let slices = Argmax { n, stage };
        let pairs = plan.value("pairs", slices.pairs(), 2);
        operands.extend([logits.into(), pairs.into()]);
        plan.op(slices, operands);
        pairs
    }
}
