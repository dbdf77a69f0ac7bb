//! The residual stream and the norms that read it.

use std::rc::Rc;

use super::Linear;
use super::linear::Source;
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
        self.update = Some((linear.forward(plan, source), post.cloned()));
    }

    /// `rms_norm(residual)` as a value of its own.
    pub fn normed(&mut self, plan: &mut PlanBuilder, norm: &RmsNorm) -> Value {
        let Source { input, mut operands, updated, .. } = self.source(plan, norm, true);
        let Input::Norm(input) = input else { return self.value };
        let y = plan.value("normed", self.value.rows, self.value.columns);
        operands.push(y.into());
        operands.extend(updated.map(Operand::Value));
        let kernel =
            RmsNormKernel { input, m: y.rows, columns: y.columns, subgroup_min: plan.subgroup_min() };
        plan.op(kernel, operands);
        y
    }

    /// How a kernel reads `rms_norm(residual)` by itself. A pending update is applied; with `keep` the kernel
    /// also writes the stream after it.
    pub(super) fn source(&mut self, plan: &mut PlanBuilder, norm: &RmsNorm, keep: bool) -> Source {
        let mut operands = vec![self.value.into(), Operand::whole(&norm.weight)];
        let pending = self.update.take();
        let keep = keep && pending.is_some();
        let update = pending.map(|(delta, post)| {
            operands.push(delta.into());
            operands.extend(post.iter().map(|post| Operand::whole(&post.weight)));
            if post.is_some() { PostNorm::Norm } else { PostNorm::None }
        });
        let updated = keep.then(|| plan.value("residual", self.value.rows, self.value.columns));
        self.value = updated.unwrap_or(self.value);
        let input = Input::Norm(NormInput { norm: norm.kernel, update, keep_residual: keep });
        Source { input, rows: self.value.rows, operands, updated }
    }
}
