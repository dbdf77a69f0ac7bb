//! Matrix products.

use std::rc::Rc;

use super::{Residual, RmsNorm, StepInputs, Weight};
use crate::kernels::{Activation, GatedAct, Gemv, Input, Matmul, Output};
use crate::plan::{Operand, PlanBuilder, Value};

/// `y = W x`, where `W` may be several matrices of the checkpoint stacked by rows.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Rc<Weight>,
}

/// How the input of a decode product is read: its kernel variant and operands.
pub(super) struct Source {
    pub input: Input,
    pub operands: Vec<Operand>,
    /// Where the updated residual goes, once.
    pub updated: Option<Value>,
}

impl From<Value> for Source {
    fn from(value: Value) -> Self {
        Source { input: Input::Plain, operands: vec![value.into()], updated: None }
    }
}

impl Linear {
    /// A layer over `weight`.
    pub fn new(weight: Rc<Weight>) -> Self {
        Self { weight }
    }

    fn columns_out(&self) -> u32 {
        self.weight.parts() * self.weight.rows
    }

    /// `y [rows, out] = W x [rows, in]`
    pub fn forward(&self, plan: &mut PlanBuilder, x: Value) -> Value {
        let y = plan.value("linear", x.rows, self.columns_out());
        if x.rows == 1 {
            self.gemv_parts(plan, &x.into(), y);
        } else {
            self.matmul(plan, x, y);
        }
        y
    }

    /// `y = W · rms_norm(residual)`; a pending update of the residual is applied on the way.
    pub fn forward_norm(&self, plan: &mut PlanBuilder, residual: &mut Residual, norm: &RmsNorm) -> Value {
        if !plan.fuses(residual.value().rows) {
            let x = residual.normed(plan, norm);
            return self.forward(plan, x);
        }
        let source = residual.source(plan, Some(norm), true);
        let y = plan.value("linear", 1, self.columns_out());
        self.gemv_parts(plan, &source, y);
        y
    }

    /// `residual + W x`, or nothing where the plan does not fuse.
    pub(super) fn forward_add(&self, plan: &mut PlanBuilder, x: Value, residual: Value) -> Option<Value> {
        if !plan.fuses(x.rows) {
            return None;
        }
        let y = plan.value("residual", 1, self.columns_out());
        for shard in self.weight.shards() {
            let kernel = self.gemv(plan, shard.rows.len() as u32, Input::Plain, Output::AddResidual);
            let mut operands = self.weight.operands(shard);
            operands.extend([
                x.into(),
                Operand::Tail(residual, shard.rows.start),
                Operand::Tail(y, shard.rows.start),
            ]);
            plan.op(kernel, operands);
        }
        Some(y)
    }

    /// Logits of the step's last real row: `softcap(W · rms_norm(residual))`.
    pub fn logits(
        &self,
        plan: &mut PlanBuilder,
        inputs: &StepInputs,
        residual: &mut Residual,
        norm: &RmsNorm,
        softcap: Option<f32>,
    ) -> Value {
        let last_row = residual.value().rows > 1;
        let source = residual.source(plan, Some(norm), false);
        let y = plan.value("logits", 1, self.columns_out());
        for shard in self.weight.shards() {
            let output = softcap.map_or(Output::Plain, Output::Softcap);
            let kernel = Gemv { last_row, ..self.gemv(plan, shard.rows.len() as u32, source.input, output) };
            let mut operands = self.weight.operands(shard);
            operands.extend(source.operands.iter().cloned());
            operands.extend(last_row.then(|| Operand::whole(&inputs.step)));
            operands.push(Operand::Tail(y, shard.rows.start));
            plan.op(kernel, operands);
        }
        y
    }

    /// `y [1, rows] = activation(gate) · up` where the parts are gate and up.
    pub(super) fn gemv_gated(
        &self,
        plan: &mut PlanBuilder,
        source: &Source,
        activation: Activation,
    ) -> Value {
        let output = Output::Gated(activation);
        let y = plan.value("gated", 1, self.weight.rows);
        for (index, shard) in self.weight.shards().iter().enumerate() {
            let input = if index == 0 { source.input } else { source.input.without_residual() };
            let mut operands = self.weight.operands(shard);
            operands.extend(source.operands.iter().cloned());
            operands.push(Operand::Tail(y, shard.rows.start));
            operands.extend(source.updated.filter(|_| index == 0).map(Operand::Value));
            plan.op(self.gemv(plan, shard.rows.len() as u32, input, output), operands);
        }
        y
    }

    /// `y [rows, out] = activation(W · residual) · up`, where the residual is not normed and `up` is of the
    /// same shape as `y`; a pending update of the residual is applied on the way.
    pub(super) fn forward_gated_by(
        &self,
        plan: &mut PlanBuilder,
        residual: &mut Residual,
        up: Operand,
        activation: Activation,
    ) -> Value {
        if !plan.fuses(residual.value().rows) {
            let x = residual.settled(plan);
            let gate = self.forward(plan, x);
            let y = plan.value("gated", gate.rows, gate.columns);
            let kernel = GatedAct { activation, m: y.rows, columns: y.columns, is_apart: true };
            plan.op(kernel, vec![gate.into(), up, y.into()]);
            return y;
        }
        let source = residual.source(plan, None, true);
        let y = plan.value("gated", 1, self.columns_out());
        let [shard] = self.weight.shards() else {
            let gate = plan.value("linear", 1, self.columns_out());
            self.gemv_parts(plan, &source, gate);
            let kernel = GatedAct { activation, m: 1, columns: y.columns, is_apart: true };
            plan.op(kernel, vec![gate.into(), up, y.into()]);
            return y;
        };
        let mut operands = self.weight.operands(shard);
        operands.extend(source.operands);
        operands.extend([up, y.into()]);
        operands.extend(source.updated.map(Operand::Value));
        plan.op(self.gemv(plan, y.columns, source.input, Output::GatedBy(activation)), operands);
        y
    }

    fn gemv_parts(&self, plan: &mut PlanBuilder, source: &Source, y: Value) {
        for (index, block) in self.weight.blocks().into_iter().enumerate() {
            let input = if index == 0 { source.input } else { source.input.without_residual() };
            let mut operands = block.operands;
            operands.extend(source.operands.iter().cloned());
            operands.push(Operand::Tail(y, block.first_row));
            operands.extend(source.updated.filter(|_| index == 0).map(Operand::Value));
            plan.op(self.gemv(plan, block.rows, input, Output::Plain), operands);
        }
    }

    fn matmul(&self, plan: &mut PlanBuilder, x: Value, y: Value) {
        for block in self.weight.blocks() {
            let kernel = Matmul {
                format: self.weight.format,
                m: x.rows,
                rows: block.rows,
                columns: self.weight.columns,
                y_stride: y.columns,
            };
            let mut operands = block.operands;
            operands.extend([x.into(), Operand::Tail(y, block.first_row)]);
            plan.op(kernel, operands);
        }
    }

    fn gemv(&self, plan: &PlanBuilder, rows: u32, input: Input, output: Output) -> Gemv {
        Gemv {
            format: self.weight.format,
            rows,
            columns: self.weight.columns,
            input,
            last_row: false,
            output,
            busy_workgroups: plan.gpu().capabilities().busy_workgroups,
            subgroup_min: plan.subgroup_min(),
        }
    }
}
