//! Mixtures of experts.

use std::rc::Rc;

use super::{Linear, Residual, RmsNorm, Weight};
use crate::gpu::Buffer;
use crate::kernels::{Activation, ExpertGemv, ExpertSum, GatedAct, Route};
use crate::plan::{Operand, PlanBuilder, Value};

/// Gated MLPs of which each row is given to a few, chosen by a router.
#[derive(Clone, Debug)]
pub struct Experts {
    /// In front of the router.
    pub router_norm: RmsNorm,
    /// `[experts, hidden]`
    pub router_proj: Linear,
    /// Multiplies the router's logits: `hidden_size^-½`.
    pub router_scale: f32,
    /// `[experts]`: multiplies the weight of each.
    pub expert_scale: Rc<Buffer>,
    /// In front of the experts.
    pub norm: RmsNorm,
    /// `[experts · 2·intermediate, hidden]`: of each expert the gate's rows, then those of up.
    pub gate_up_proj: Rc<Weight>,
    /// `[experts · hidden, intermediate]`
    pub down_proj: Rc<Weight>,
    /// Experts.
    pub experts: u32,
    /// Experts that a row is given to.
    pub chosen: u32,
    /// The activation of the gates.
    pub activation: Activation,
}

impl Experts {
    /// `[rows, hidden]`: the weighted sum of the chosen experts over the residual.
    pub fn forward(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value {
        let pairs = self.route(plan, residual);
        let x = residual.normed(plan, &self.norm);
        let gate_up = self.gemv(plan, &self.gate_up_proj, pairs, x, false);
        let gated = plan.value("gated", gate_up.rows, gate_up.columns / 2);
        let kernel =
            GatedAct { activation: self.activation, m: gated.rows, columns: gated.columns, is_apart: false };
        plan.op(kernel, vec![gate_up.into(), gated.into()]);
        let down = self.gemv(plan, &self.down_proj, pairs, gated, true);
        let y = plan.value("experts", x.rows, down.columns);
        let kernel = ExpertSum { m: y.rows, chosen: self.chosen, columns: y.columns };
        plan.op(kernel, vec![pairs.into(), down.into(), y.into()]);
        y
    }

    /// `[rows, chosen]` of pairs, as [`Route`] writes them.
    fn route(&self, plan: &mut PlanBuilder, residual: &mut Residual) -> Value {
        let logits = self.router_proj.forward_norm(plan, residual, &self.router_norm);
        let pairs = plan.value("pairs", logits.rows, 2 * self.chosen);
        let kernel =
            Route { m: logits.rows, experts: self.experts, chosen: self.chosen, scale: self.router_scale };
        plan.op(kernel, vec![logits.into(), Operand::whole(&self.expert_scale), pairs.into()]);
        pairs
    }

    /// `[rows · chosen, out]`
    fn gemv(
        &self,
        plan: &mut PlanBuilder,
        weight: &Weight,
        pairs: Value,
        x: Value,
        by_expert: bool,
    ) -> Value {
        let rows = weight.rows / self.experts;
        let y = plan.value("linear", pairs.rows * self.chosen, rows);
        for shard in weight.shards() {
            let kernel = ExpertGemv {
                format: weight.format,
                m: pairs.rows,
                chosen: self.chosen,
                rows,
                columns: weight.columns,
                by_expert,
                first_row: shard.rows.start,
                shard_rows: shard.rows.len() as u32,
                subgroup_min: plan.subgroup_min(),
            };
            let mut operands = weight.operands(shard);
            operands.extend([x.into(), pairs.into(), y.into()]);
            plan.op(kernel, operands);
        }
        y
    }
}
