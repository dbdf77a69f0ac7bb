//! Attention layers and their caches.

use std::rc::Rc;

use super::{RmsNorm, RopeTable, Source, StepInputs};
use crate::error::Result;
use crate::gpu::{Buffer, Gpu, Usage};
use crate::kernels::{self, CacheFormat, CacheLayout, Input, KeyValues, Splits};
use crate::plan::{Operand, PlanBuilder, Value};

/// What a cache of keys and values must hold. Layers that share one refer to the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Elements of one position's keys, and of its values: `kv_heads · head_dim`.
    pub width: u32,
    /// Keys that the layers see, the query's own included; None: all of the context.
    pub window: Option<u32>,
    /// How it stores elements.
    pub format: CacheFormat,
}

impl CacheSpec {
    /// The positions that it holds of a conversation of `context` positions, in steps of up to `rows`. With a
    /// window it is a ring: a step appends its rows first, and the earliest row still sees its window.
    fn slots(&self, context: u32, rows: u32) -> u32 {
        self.window.map_or(context, |window| context.min(window.saturating_add(rows)))
    }

    /// Bytes of its keys and values.
    pub fn bytes(&self, context: u32, rows: u32) -> u64 {
        2 * u64::from(self.slots(context, rows)) * u64::from(self.width) * u64::from(self.format.bytes())
    }
}

/// Keys and values of past positions.
#[derive(Clone, Debug)]
pub struct KvCache {
    k: Rc<Buffer>,
    v: Rc<Buffer>,
    layout: CacheLayout,
    window: Option<u32>,
}

impl KvCache {
    /// A cache for a conversation of `context` positions, in steps of up to `rows`.
    pub fn new(gpu: &Gpu, spec: CacheSpec, context: u32, rows: u32) -> Result<Self> {
        let bytes = spec.bytes(context, rows) / 2;
        let buffer = |label| Ok(Rc::new(gpu.buffer(label, bytes, Usage::KvCache)?));
        let layout = CacheLayout { slots: spec.slots(context, rows), format: spec.format };
        Ok(Self { k: buffer("k cache")?, v: buffer("v cache")?, layout, window: spec.window })
    }

    /// Whether it holds every key that a query at `position` sees, after `written` positions.
    pub fn reaches_back_from(&self, position: u32, written: u32) -> bool {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first + self.layout.slots >= written
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

/// Keys that a workgroup of decode takes at a time.
const TILE: u32 = 32;
/// The most workgroups over which a head's keys are cut; each more makes the output projection read more.
const MAX_SPLITS: u32 = 32;

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
    ) -> Source {
        if plan.fuses(projected.rows) {
            return self.decode(plan, inputs, projected, rope, cache);
        }
        let q = self.rope_append(plan, inputs, projected, rope, cache);
        let out = plan.value("attention", q.rows, q.columns);
        let kernel = kernels::Attention {
            m: q.rows,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            cache: cache.layout,
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
        out.into()
    }

    /// All of it for one row in one dispatch, its splits left for the output projection to combine.
    fn decode(
        &self,
        plan: &mut PlanBuilder,
        inputs: &StepInputs,
        projected: Value,
        rope: &RopeTable,
        cache: &KvCache,
    ) -> Source {
        let (projection, splits) = (self.projection(), self.splits(plan, cache));
        let kernel = kernels::DecodeAttention {
            projection,
            cache: cache.layout,
            scale: self.scale,
            splits,
            group: self.group(),
            subgroup_min: plan.subgroup_min(),
        };
        let step = Operand::whole(&inputs.step);
        let mut operands = vec![step.clone(), projected.into(), Operand::whole(&rope.buffer)];
        operands.extend(self.norm_weights());
        operands.extend([Operand::whole(&cache.k), Operand::whole(&cache.v)]);
        let out = plan.value("attention", splits.count, self.heads * self.head_dim);
        operands.push(out.into());
        if splits.count == 1 {
            plan.op(kernel, operands);
            return out.into();
        }
        let softmax = plan.value("softmax", splits.count, 2 * self.heads);
        operands.push(softmax.into());
        plan.op(kernel, operands);
        let input = Input::Combined(kernels::Combine { splits, heads: self.heads });
        Source { input, rows: 1, operands: vec![step, out.into(), softmax.into()], updated: None }
    }

    /// How the keys are cut where the context is full: a tile each, as far as the device has use for them.
    fn splits(&self, plan: &PlanBuilder, cache: &KvCache) -> Splits {
        let visible = self.window.map_or(cache.layout.slots, |window| window.min(cache.layout.slots));
        let busy = plan.gpu().capabilities().busy_workgroups;
        let most = MAX_SPLITS.min(busy).min(kernels::Combine::MAX_SHARES / self.heads).max(1);
        Splits { count: visible.div_ceil(TILE).min(most), tile: TILE, window: self.window }
    }

    /// Query heads that share a workgroup in decode.
    fn group(&self) -> u32 {
        let heads = self.heads / self.kv_heads;
        (1..=4).rev().find(|&group| heads.is_multiple_of(group)).unwrap_or(1)
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
        operands.extend(self.norm_weights());
        operands.push(q.into());
        if projection.appends() {
            operands.extend([Operand::whole(&cache.k), Operand::whole(&cache.v)]);
        }
        let (m, cache, subgroup_min) = (projected.rows, cache.layout, plan.subgroup_min());
        plan.op(kernels::RopeAppend { projection, m, cache, subgroup_min }, operands);
        q
    }

    fn norm_weights(&self) -> impl Iterator<Item = Operand> {
        let k_norm = self.k_norm.as_ref().filter(|_| self.key_values != KeyValues::Shared);
        self.q_norm.iter().chain(k_norm).map(|norm| Operand::whole(&norm.weight))
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
