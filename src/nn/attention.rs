//! Attention layers and their caches.

use std::rc::Rc;

use super::{RmsNorm, RopeTable, StepInputs};
use crate::error::Result;
use crate::gpu::{Buffer, Gpu, Usage};
use crate::kernels;
use crate::plan::{Operand, PlanBuilder, Value};

/// Keys and values of past positions, each `[context, kv_heads · head_dim]`.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Rc<Buffer>,
    v: Rc<Buffer>,
    context: u32,
}

impl KvCache {
    /// A cache of `context` positions of `width = kv_heads · head_dim` elements.
    pub fn new(gpu: &Gpu, context: u32, width: u32) -> Result<Self> {
        let bytes = u64::from(context) * u64::from(width) * 4;
        let buffer = |label| Ok(Rc::new(gpu.buffer(label, bytes, Usage::KvCache)?));
        Ok(Self { k: buffer("k cache")?, v: buffer("v cache")?, context })
    }
}

/// Everything of an attention layer between its projections.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// Keys that a query sees, its own included.
    pub window: Option<u32>,
    /// Norms of queries and keys over `head_dim`.
    pub qk_norm: Option<[RmsNorm; 2]>,
}

impl Attention {
    /// `[rows, heads·head_dim]` from `qkv [rows, (heads + 2·kv_heads)·head_dim]`; keys and values are
    /// appended to `cache`.
    pub fn forward(
        &self,
        plan: &mut PlanBuilder,
        inputs: &StepInputs,
        qkv: Value,
        rope: &RopeTable,
        cache: &KvCache,
    ) -> Value {
        let Self { heads, kv_heads, head_dim, scale, window, .. } = *self;
        let (m, context, subgroup_min) = (qkv.rows, cache.context, plan.subgroup_min());
        let step = Operand::whole(&inputs.step);
        let caches = [Operand::whole(&cache.k), Operand::whole(&cache.v)];

        let q = plan.value("q", m, heads * head_dim);
        let qk_norm = self.qk_norm.as_ref().map(|[q_norm, _]| q_norm.kernel);
        let append = kernels::RopeAppend { m, heads, kv_heads, head_dim, context, qk_norm, subgroup_min };
        let mut operands = vec![step.clone(), qkv.into(), Operand::whole(&rope.buffer)];
        operands.extend(self.qk_norm.iter().flatten().map(|norm| Operand::whole(&norm.weight)));
        operands.push(q.into());
        operands.extend(caches.clone());
        plan.op(append, operands);

        let out = plan.value("attention", m, heads * head_dim);
        let attention = kernels::Attention {
            m,
            heads,
            kv_heads,
            head_dim,
            context,
            scale,
            causal: true,
            window,
            subgroup_min,
        };
        let mut operands = vec![step, q.into()];
        operands.extend(caches);
        operands.push(out.into());
        plan.op(attention, operands);
        out
    }
}
