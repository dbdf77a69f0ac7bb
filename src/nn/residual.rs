//! The residual stream and the norms that read it.

use std::rc::Rc;

use super::linear::Source;
use super::{Linear, StepInputs};
use crate::gpu::Buffer;
use crate::kernels::{Input, NormInput, NormKernel, PostNorm, RmsNormKernel};
use crate::plan::{Operand, PlanBuilder, Value};

/// An RMSNorm with its weight `[columns]`.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// The norm's constants.
    pub kernel: NormKernel,
    /// The weight, in f32.
    pub weight: Rc<Buffer>,
    /// Whether the weight is followed by a factor, by which the residual is multiplied once it is updated.
    pub scales_residual: bool,
}

impl RmsNorm {
    fn as_post_norm(&self) -> PostNorm {
        if self.scales_residual { PostNorm::ScaledNorm } else { PostNorm::Norm }
    }
}

/// The residual stream `[rows, columns]`, perhaps with an update that the next reader applies.
#[derive(Debug)]
pub struct Residual {
    value: Value,
    update: Option<(Value, Option<RmsNorm>)>,
}

impl Residual {
    /// A stream that begins with `value`.
    pub fn new(value: Value) -> Self {
        Self { value, update: None }
    }

    /// The stream as it was when it was last read.
    pub fn value(&self) -> Value {
        self.value
    }

    /// `residual += W x`, or with `post` `residual += rms_norm(W x)`.
    pub fn add(
        &mut self,
        plan: &mut PlanBuilder,
        linear: &Linear,
        x: impl Into<Source>,
        post: Option<&RmsNorm>,
    ) {
        let source = x.into();
        if post.is_none()
            && let Some(sum) = linear.forward_add(plan, &source, self.value)
        {
            self.value = sum;
            return;
        }
        let update = linear.forward(plan, source);
        self.update(update, post);
    }

    /// `residual += update`, or with `post` `residual += rms_norm(update)`: left to the next reader.
    pub fn update(&mut self, update: Value, post: Option<&RmsNorm>) {
        self.update = Some((update, post.cloned()));
    }

    /// `rms_norm(residual)` as a value of its own.
    pub fn normed(&mut self, plan: &mut PlanBuilder, norm: &RmsNorm) -> Value {
        let source = self.source(plan, Some(norm), true);
        self.rows(plan, "normed", source, None)
    }

    /// The stream as a value of its own, a pending update applied.
    pub fn settled(&mut self, plan: &mut PlanBuilder) -> Value {
        if self.update.is_some() {
            let source = self.source(plan, None, false);
            self.value = self.rows(plan, "residual", source, None);
        }
        self.value
    }

    /// The stream of the step's last real row alone, `[1, columns]`.
    pub fn last_row(&mut self, plan: &mut PlanBuilder, inputs: &StepInputs) -> Self {
        let source = self.source(plan, None, false);
        Self::new(self.rows(plan, "residual", source, Some(inputs)))
    }

    /// Records what `source` reads as a value: every row, or the last real one of `inputs`.
    fn rows(
        &self,
        plan: &mut PlanBuilder,
        label: &'static str,
        source: Source,
        last_of: Option<&StepInputs>,
    ) -> Value {
        let Source { input, mut operands, updated, .. } = source;
        let m = if last_of.is_some() { 1 } else { self.value.rows };
        let y = plan.value(label, m, self.value.columns);
        operands.extend(last_of.map(|inputs| Operand::whole(&inputs.step)));
        operands.push(y.into());
        operands.extend(updated.map(Operand::Value));
        let kernel = RmsNormKernel {
            input,
            m,
            last_row: last_of.is_some(),
            columns: y.columns,
            subgroup_min: plan.subgroup_min(),
        };
        plan.op(kernel, operands);
        y
    }

    /// How a kernel reads the stream by itself, behind `norm` where there is one. A pending update is applied;
    /// with `keep` the kernel also writes the stream after it.
    pub(super) fn source(&mut self, plan: &mut PlanBuilder, norm: Option<&RmsNorm>, keep: bool) -> Source {
        let mut operands = vec![self.value.into()];
        operands.extend(norm.map(|norm| Operand::whole(&norm.weight)));
        let pending = self.update.take();
        let post = pending.as_ref().and_then(|(_, post)| post.as_ref());
        let kernel = norm.or(post).map(|norm| norm.kernel);
        let keep = keep && pending.is_some();
        let update = pending.map(|(delta, post)| {
            operands.push(delta.into());
            operands.extend(post.iter().map(|post| Operand::whole(&post.weight)));
            post.map_or(PostNorm::None, |post| post.as_post_norm())
        });
        let updated = keep.then(|| plan.value("residual", self.value.rows, self.value.columns));
        self.value = updated.unwrap_or(self.value);
        let norm = NormInput {
            norm: kernel.unwrap_or_default(),
            update,
            is_normed: norm.is_some(),
            keep_residual: keep,
        };
        let input = if norm.is_normed || update.is_some() { Input::Norm(norm) } else { Input::Plain };
        Source { input, rows: self.value.rows, operands, updated }
    }
}
