//! Token embeddings.

use std::rc::Rc;

use super::{StepInputs, Weight};
use crate::kernels::Gather;
use crate::plan::{Operand, PlanBuilder, Value};

/// Rows of a table `[vocab_size, hidden_size]`, scaled.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// The table.
    pub weight: Rc<Weight>,
    /// Multiplies every row.
    pub scale: f32,
}

impl Embedding {
    /// `[rows, hidden_size]` for the step's tokens.
    pub fn forward(&self, plan: &mut PlanBuilder, inputs: &StepInputs) -> Value {
        let y = plan.value("embedding", plan.rows(), self.weight.columns);
        for shard in self.weight.shards() {
            let kernel = Gather {
                format: self.weight.format,
                m: y.rows,
                first_row: shard.rows.start,
                rows: shard.rows.len() as u32,
                columns: self.weight.columns,
                scale: self.scale,
            };
            let mut operands = self.weight.operands(shard);
            operands.extend([Operand::whole(&inputs.tokens), y.into()]);
            plan.op(kernel, operands);
        }
        y
    }
}
