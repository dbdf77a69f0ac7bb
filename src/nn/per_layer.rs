//! Gemma 4's per-layer embeddings: a second, smaller stream that every layer reads its own part of.

use std::ops::Range;
use std::rc::Rc;

use super::{Linear, Residual, RmsNorm, StepInputs};
use crate::gpu::Buffer;
use crate::kernels::{self, Activation, LayerGate};
use crate::plan::{Operand, PlanBuilder, Value};

/// What makes the per-layer inputs of the step's tokens.
#[derive(Clone, Debug)]
pub struct PerLayerInputs {
    /// `[layers · columns, hidden]`
    pub model_projection: Linear,
    /// Over the `columns` of one layer.
    pub projection_norm: RmsNorm,
    /// Layers of the model.
    pub layers: u32,
    /// Elements that each layer gets.
    pub columns: u32,
    /// Multiplies the projection: `hidden_size^-½`.
    pub context_scale: f32,
    /// Multiplies the rows of the tokens.
    pub token_scale: f32,
}

/// The per-layer inputs of some layers.
#[derive(Clone, Debug)]
pub struct PerLayerValues {
    value: Value,
    layers: Range<u32>,
    /// What makes an input of its halves, where `value` holds these: `[1, 2 · layers · columns]`.
    halves: Option<PerLayerInputs>,
}

/// Elements whose halves begin at an offset that every device can bind.
const ALIGNED_HALVES: u32 = 32;

impl PerLayerValues {
    /// `[rows, columns]` of layer `layer`, or their halves.
    fn layer(&self, layer: u32) -> Operand {
        let stride = self.halves.as_ref().map_or(self.value.columns, |inputs| 2 * inputs.columns);
        Operand::Tail(self.value, (layer - self.layers.start) * stride)
    }
}

impl PerLayerInputs {
    /// `[rows, layers · columns]`: what the embeddings tell each of the first `layers`. Where the plan fuses, each
    /// element of every layer beside that of `tokens`, the rows that the table has for the step's tokens.
    pub fn project(
        &self,
        plan: &mut PlanBuilder,
        embedding: Value,
        tokens: &Rc<Buffer>,
        layers: u32,
    ) -> Value {
        if !self.is_halved(plan, embedding.rows) {
            return self.model_projection.forward_first(plan, embedding, layers * self.columns);
        }
        let bytes = u64::from(self.layers) * u64::from(self.columns) * 4;
        self.model_projection.forward_beside(plan, embedding, Operand::Buffer(tokens.clone(), 0..bytes))
    }

    /// Whether the layers' gates make their inputs themselves, which saves a dispatch.
    fn is_halved(&self, plan: &PlanBuilder, rows: u32) -> bool {
        // A gate has a layer's part of the projection's rows, so where that is whole the gate is.
        plan.fuses(rows) && self.columns.is_multiple_of(ALIGNED_HALVES) && self.model_projection.is_whole()
    }

    /// The inputs of `layers` for every row, or with `last_of` for the last real row of those inputs alone.
    /// `context` comes from [`Self::project`] over the same `tokens`, which have as many columns.
    pub fn forward(
        &self,
        plan: &mut PlanBuilder,
        context: Value,
        tokens: &Rc<Buffer>,
        layers: Range<u32>,
        last_of: Option<&StepInputs>,
    ) -> PerLayerValues {
        if self.is_halved(plan, context.rows) {
            return PerLayerValues { value: context, layers: 0..self.layers, halves: Some(self.clone()) };
        }
        let m = if last_of.is_some() { 1 } else { context.rows };
        let kernel = kernels::PerLayerInputs {
            m,
            last_row: last_of.is_some(),
            first_layer: layers.start,
            layers: layers.end - layers.start,
            all_layers: context.columns / self.columns,
            columns: self.columns,
            context_scale: self.context_scale,
            token_scale: self.token_scale,
            norm: self.projection_norm.kernel,
            subgroup_min: plan.subgroup_min(),
        };
        let stride = kernels::PerLayerInputs::layer_stride(m, self.columns);
        let value = plan.value("per_layer_inputs", kernel.layers, stride);
        let rows = u64::from(context.rows) * u64::from(context.columns) * 4;
        let mut operands = vec![
            context.into(),
            Operand::whole(&self.projection_norm.weight),
            Operand::Buffer(tokens.clone(), 0..rows),
        ];
        operands.extend(last_of.map(|inputs| Operand::whole(&inputs.step)));
        operands.push(value.into());
        plan.op(kernel, operands);
        PerLayerValues { value, layers, halves: None }
    }
}

/// A layer's use of its inputs, after its MLP: `residual += norm(projection · (activation(gate · residual) · input))`.
#[derive(Clone, Debug)]
pub struct PerLayerBlock {
    /// `[columns, hidden]`; it reads the residual as it is.
    pub gate: Linear,
    /// `[hidden, columns]`
    pub projection: Linear,
    /// Of the update.
    pub post_norm: RmsNorm,
    /// The activation of the gate.
    pub activation: Activation,
}

impl PerLayerBlock {
    /// Adds layer `layer`'s part of `inputs` to the residual.
    pub fn forward(
        &self,
        plan: &mut PlanBuilder,
        residual: &mut Residual,
        inputs: &PerLayerValues,
        layer: u32,
    ) {
        let (input, activation) = (inputs.layer(layer), self.activation);
        let gated = match &inputs.halves {
            None => self.gate.forward_gated_by(plan, residual, input, activation),
            Some(made_by) => {
                let norm = &made_by.projection_norm;
                let PerLayerInputs { context_scale, token_scale, .. } = *made_by;
                let gate = LayerGate { activation, context_scale, token_scale, norm: norm.kernel };
                self.gate.forward_gated_by_layer(plan, residual, input, norm, gate)
            }
        };
        residual.add(plan, &self.projection, gated, Some(&self.post_norm));
    }
}
