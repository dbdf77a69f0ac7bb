//! Matrix products.

use std::rc::Rc;

use super::weight::Shard;
use super::{Logits, Residual, RmsNorm, StepInputs, Weight};
use crate::kernels::{Activation, Choice, GatedAct, Gemv, Input, LayerGate, Matmul, Output};
use crate::plan::{Operand, PlanBuilder, Value};

/// `y = W x`, where `W` may be several matrices of the checkpoint stacked by rows.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Rc<Weight>,
}

/// How a product reads its input: mostly a value as it is, in decode also what comes before in one go.
pub struct Source {
    pub(super) input: Input,
    pub(super) rows: u32,
    pub(super) operands: Vec<Operand>,
    /// Where the updated residual goes, once.
    pub(super) updated: Option<Value>,
}

impl From<Value> for Source {
    fn from(value: Value) -> Self {
        Source { input: Input::Plain, rows: value.rows, operands: vec![value.into()], updated: None }
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
    pub fn forward(&self, plan: &mut PlanBuilder, x: impl Into<Source>) -> Value {
        self.product(plan, &x.into())
    }

    /// The first `rows` of `W x`: `[x.rows, rows]`.
    pub(super) fn forward_first(&self, plan: &mut PlanBuilder, x: Value, rows: u32) -> Value {
        self.first_of_product(plan, &x.into(), rows)
    }

    fn product(&self, plan: &mut PlanBuilder, source: &Source) -> Value {
        self.first_of_product(plan, source, self.columns_out())
    }

    fn first_of_product(&self, plan: &mut PlanBuilder, source: &Source, rows: u32) -> Value {
        let y = plan.value("linear", source.rows, rows);
        if source.rows == 1 {
            self.gemv_parts(plan, source, y);
        } else {
            self.matmul(plan, source, y);
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
        self.product(plan, &source)
    }

    /// `residual + W x`, or nothing where the plan does not fuse.
    pub(super) fn forward_add(
        &self,
        plan: &mut PlanBuilder,
        source: &Source,
        residual: Value,
    ) -> Option<Value> {
        if !plan.fuses(source.rows) {
            return None;
        }
        let y = plan.value("residual", 1, self.columns_out());
        for shard in self.weight.shards() {
            let kernel = self.gemv(plan, shard.rows.len() as u32, source.input, Output::AddResidual);
            let mut operands = self.weight.operands(shard);
            operands.extend(source.operands.iter().cloned());
            operands.extend([Operand::Tail(residual, shard.rows.start), Operand::Tail(y, shard.rows.start)]);
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
    ) -> Logits {
        let last_row = residual.value().rows > 1;
        let source = residual.source(plan, Some(norm), false);
        let value = plan.value("logits", 1, self.columns_out());
        let output = softcap.map_or(Output::Plain, Output::Softcap);
        let product = |shard: &Shard| Gemv {
            last_row,
            ..self.gemv(plan, shard.rows.len() as u32, source.input, output)
        };
        let mut products: Vec<Gemv> = self.weight.shards().iter().map(product).collect();
        let best = plan.fuses(1).then(|| {
            let mut pairs = 0;
            for (product, shard) in products.iter_mut().zip(self.weight.shards()) {
                let choice = Choice { softcap, first_row: shard.rows.start, first_pair: pairs };
                product.output = Output::Choice(choice);
                pairs += product.pairs();
            }
            plan.value("best", pairs, 2)
        });
        for (product, shard) in products.into_iter().zip(self.weight.shards()) {
            let mut operands = self.weight.operands(shard);
            operands.extend(source.operands.iter().cloned());
            operands.extend(last_row.then(|| Operand::whole(&inputs.step)));
            operands.push(Operand::Tail(value, shard.rows.start));
            operands.extend(best.map(Operand::Value));
            plan.op(product, operands);
        }
        Logits { value, best }
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
        if !self.is_whole() {
            let gate = self.product(plan, &source);
            let y = plan.value("gated", 1, gate.columns);
            let kernel = GatedAct { activation, m: 1, columns: y.columns, is_apart: true };
            plan.op(kernel, vec![gate.into(), up, y.into()]);
            return y;
        }
        let y = plan.value("gated", 1, self.columns_out());
        self.gemv_whole(plan, source, Output::GatedBy(activation), vec![up], y);
        y
    }

    /// The same for one row, where `up` is made of its `halves [out, 2]`; see [`LayerGate`].
    pub(super) fn forward_gated_by_layer(
        &self,
        plan: &mut PlanBuilder,
        residual: &mut Residual,
        halves: Operand,
        norm: &RmsNorm,
        gate: LayerGate,
    ) -> Value {
        let source = residual.source(plan, None, true);
        let y = plan.value("gated", 1, self.columns_out());
        let operands = vec![halves, Operand::whole(&norm.weight)];
        self.gemv_whole(plan, source, Output::GatedByLayer(gate), operands, y);
        y
    }

    /// Each element of `W x` beside that of `up`: `[1, 2 · out]`.
    pub(super) fn forward_beside(&self, plan: &mut PlanBuilder, x: Value, up: Operand) -> Value {
        let y = plan.value("halves", 1, 2 * self.columns_out());
        self.gemv_whole(plan, x.into(), Output::Beside, vec![up], y);
        y
    }

    /// Whether one binding holds the weight.
    pub(super) fn is_whole(&self) -> bool {
        self.weight.shards().len() == 1
    }

    /// A product of a weight that is whole; `operands` are those of `output`.
    fn gemv_whole(
        &self,
        plan: &mut PlanBuilder,
        source: Source,
        output: Output,
        operands: Vec<Operand>,
        y: Value,
    ) {
        let mut bound: Vec<Operand> =
            self.weight.shards().iter().flat_map(|shard| self.weight.operands(shard)).collect();
        bound.extend(source.operands);
        bound.extend(operands);
        bound.push(y.into());
        bound.extend(source.updated.map(Operand::Value));
        plan.op(self.gemv(plan, self.columns_out(), source.input, output), bound);
    }

    fn gemv_parts(&self, plan: &mut PlanBuilder, source: &Source, y: Value) {
        for (index, block) in self.weight.blocks(y.columns).into_iter().enumerate() {
            let input = if index == 0 { source.input } else { source.input.without_residual() };
            let mut operands = block.operands;
            operands.extend(source.operands.iter().cloned());
            operands.push(Operand::Tail(y, block.first_row));
            operands.extend(source.updated.filter(|_| index == 0).map(Operand::Value));
            plan.op(self.gemv(plan, block.rows, input, Output::Plain), operands);
        }
    }

    fn matmul(&self, plan: &mut PlanBuilder, source: &Source, y: Value) {
        for block in self.weight.blocks(y.columns) {
            let kernel = Matmul {
                format: self.weight.format,
                m: source.rows,
                rows: block.rows,
                columns: self.weight.columns,
                y_stride: y.columns,
            };
            let mut operands = block.operands;
            operands.extend(source.operands.iter().cloned());
            operands.push(Operand::Tail(y, block.first_row));
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
