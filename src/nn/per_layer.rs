//! Gemma 4's per-layer embeddings: a second, smaller stream that every layer reads its own part of.

use std::ops::Range;
use std::rc::Rc;

use super::{Linear, Residual, RmsNorm, StepInputs};
use crate::gpu::Buffer;
use crate::kernels::{self, Activation};
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
}

impl PerLayerValues {
    /// `[rows, columns]` of layer `layer`.
    fn layer(&self, layer: u32) -> Operand {
        Operand::Tail(self.value, (layer - self.layers.start) * self.value.columns)
    }
}

impl PerLayerInputs {
    /// `[rows, layers · columns]`: what the embeddings tell every layer.
    pub fn project(&self, plan: &mut PlanBuilder, embedding: Value) -> Value {
        self.model_projection.forward(plan, embedding)
    }

    /// The inputs of `layers` for every row, or with `last_of` for the last real row of those inputs alone.
    /// `context` comes from [`Self::project`]; `tokens` holds the rows that the table has for the step's tokens.
    pub fn forward(
        &self,
        plan: &mut PlanBuilder,
        context: Value,
        tokens: &Rc<Buffer>,
        layers: Range<u32>,
        last_of: Option<&StepInputs>,
    ) -> PerLayerValues {
        let m = if last_of.is_some() { 1 } else { context.rows };
        let kernel = kernels::PerLayerInputs {
            m,
            last_row: last_of.is_some(),
            first_layer: layers.start,
            layers: layers.end - layers.start,
            all_layers: self.layers,
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
        PerLayerValues { value, layers }
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
        let gated = self.gate.forward_gated_by(plan, residual, inputs.layer(layer), self.activation);
        residual.add(plan, &self.projection, gated, Some(&self.post_norm));
    }
}
