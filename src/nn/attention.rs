//! Attention layers and their caches.

use std::rc::Rc;

use super::{RmsNorm, RopeTable, StepInputs};
use crate::error::Result;
use crate::gpu::{Buffer, Gpu, Usage};
use crate::kernels::{self, KeyValues};
use crate::plan::{Operand, PlanBuilder, Value};

/// What a cache of keys and values must hold. Layers that share one refer to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Elements of one position's keys, and of its values: `kv_heads · head_dim`.
    pub width: u32,
    /// Keys that the layers see, the query's own included; None: all of the context.
    pub window: Option<u32>,
}

/// Keys and values of past positions, each `[context, width]`.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Rc<Buffer>,
    v: Rc<Buffer>,
    context: u32,
}

impl KvCache {
    /// A cache for a conversation of `context` positions.
    pub fn new(gpu: &Gpu, spec: CacheSpec, context: u32) -> Result<Self> {
        let bytes = u64::from(context) * u64::from(spec.width) * 4;
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
    /// Elements of a head, a multiple of 4 and at most 512.
    pub head_dim: u32,
    /// Multiplies the scores.
    pub scale: f32,
    /// Keys that a query sees, its own included.
    pub window: Option<u32>,
    /// The norm of queries over `head_dim`.
    pub q_norm: Option<RmsNorm>,
    /// The norm of keys over `head_dim`; not used where keys are shared.
    pub k_norm: Option<RmsNorm>,
    /// Epsilon of the norm of values over `head_dim`, which has no weight; not used where values are shared.
    pub v_norm: Option<f32>,
    /// Where keys and values come from.
    pub key_values: KeyValues,
}

impl Attention {
    /// `[rows, heads·head_dim]` from `projected`, which holds `[q | k | v]`, `[q | k]` or `[q]` as
    /// `key_values` says. Keys and values are appended to `cache`, or where they are shared only read there:
    /// then the cache is that of the layer which appended them earlier in the plan.
    pub fn forward(
        &self,
        plan: &mut PlanBuilder,
        inputs: &StepInputs,
        projected: Value,
        rope: &RopeTable,
        cache: &KvCache,
    ) -> Value {
        let q = self.rope_append(plan, inputs, projected, rope, cache);
        let out = plan.value("attention", q.rows, q.columns);
        let kernel = kernels::Attention {
            m: q.rows,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            context: cache.context,
            scale: self.scale,
            causal: true,
            window: self.window,
            subgroup_min: plan.subgroup_min(),
        };
        let caches = [Operand::whole(&cache.k), Operand::whole(&cache.v)];
        let mut operands = vec![Operand::whole(&inputs.step), q.into()];
        operands.extend(caches);
        operands.push(out.into());
        plan.op(kernel, operands);
        out
    }

    /// Queries `[rows, heads·head_dim]` behind norm and rotation; keys and values are appended.
    fn rope_append(
        &self,
        plan: &mut PlanBuilder,
        inputs: &StepInputs,
        projected: Value,
        rope: &RopeTable,
        cache: &KvCache,
    ) -> Value {
        let projection = self.projection();
        let q = plan.value("q", projected.rows, self.heads * self.head_dim);
        let mut operands = Vec::from_iter(projection.appends().then(|| Operand::whole(&inputs.step)));
        operands.extend([projected.into(), Operand::whole(&rope.buffer)]);
        let k_norm = self.k_norm.as_ref().filter(|_| projection.appends());
        operands.extend(self.q_norm.iter().chain(k_norm).map(|norm| Operand::whole(&norm.weight)));
        operands.push(q.into());
        if projection.appends() {
            operands.extend([Operand::whole(&cache.k), Operand::whole(&cache.v)]);
        }
        let (m, context, subgroup_min) = (projected.rows, cache.context, plan.subgroup_min());
        plan.op(kernels::RopeAppend { projection, m, context, subgroup_min }, operands);
        q
    }

    fn projection(&self) -> kernels::Projection {
        kernels::Projection {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            key_values: self.key_values,
            q_norm: self.q_norm.as_ref().map(|norm| norm.kernel),
            k_norm: self.k_norm.as_ref().map(|norm| norm.kernel),
            v_norm: self.v_norm,
        }
    }
}
