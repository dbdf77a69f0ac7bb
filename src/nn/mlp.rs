//! Gated MLPs.

use super::{Linear, Residual, RmsNorm};
use crate::kernels::{Activation, GatedAct};
use crate::plan::{PlanBuilder, Value};

/// `activation(gate x) · up x`; the down projection is the caller's, since it ends in the residual.
#[derive(Clone, Debug)]
pub struct GatedMlp {
    /// Gate and up as the two parts of one weight `[2, intermediate, hidden]`.
    pub gate_up: Linear,
    /// The activation of the gate.
    pub activation: Activation,
}

impl GatedMlp {
    /// `[rows, intermediate]` from `rms_norm(residual)`.
    pub fn forward_norm(&self, plan: &mut PlanBuilder, residual: &mut Residual, norm: &RmsNorm) -> Value {
        if plan.fuses(residual.value().rows) {
            let source = residual.source(plan, Some(norm), true);
            return self.gate_up.gemv_gated(plan, &source, self.activation);
        }
        let gate_up = self.gate_up.forward_norm(plan, residual, norm);
        let y = plan.value("gated", gate_up.rows, gate_up.columns / 2);
        let kernel = GatedAct { activation: self.activation, m: y.rows, columns: y.columns, is_apart: false };
        plan.op(kernel, vec![gate_up.into(), y.into()]);
        y
    }
}
