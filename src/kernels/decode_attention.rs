//! Attention of one token, from its projection on.

use super::{Attention, Binding, CacheLayout, Kernel, Prelude, Projection, RopeAppend, Step};

/// How the keys that one query sees are cut over workgroups; the side of `lib/splits.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Splits {
    /// The most spans.
    pub count: u32,
    /// Keys that a workgroup takes at a time, 32, 64 or 128. A span is of whole tiles.
    pub tile: u32,
    /// Keys that the query sees, its own included.
    pub window: Option<u32>,
}

impl Splits {
    /// Spans that a step at `position` has.
    pub fn used(&self, position: u32) -> u32 {
        let before = self.window.map_or(position, |window| position.min(window - 1));
        let span = (before / self.tile + 1).div_ceil(self.count) * self.tile;
        before / span + 1
    }

    pub(super) fn prelude(&self, prelude: &mut Prelude) {
        prelude
            .u32("SPLITS", self.count)
            .u32("TILE", self.tile)
            .u32("WINDOW", self.window.unwrap_or_default());
    }
}

/// `rope_append` and `attention` of one row in one dispatch.
///
/// Binds the step, `projected`, `rope [head_dim/2]` of (cos, sin), the query and key norms' weights, the
/// caches (written where it appends), and the result. That is `out [heads·head_dim]` where there is one
/// split, else `sums [splits, heads·head_dim]` and `softmax [splits, heads]` of (highest score, sum of
/// weights), which [`super::Combine`] reads.
#[derive(Clone, Copy, Debug)]
pub struct DecodeAttention {
    /// The heads.
    pub projection: Projection,
    /// The caches.
    pub cache: CacheLayout,
    /// Multiplies the scores.
    pub scale: f32,
    /// How the keys are cut.
    pub splits: Splits,
    /// Query heads that share a workgroup and so the loads of keys and values: at most 4, a divisor of
    /// `heads / kv_heads`.
    pub group: u32,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

const WORKGROUP: u32 = 128;

impl DecodeAttention {
    /// The CPU twin, splits combined: the twins of its two steps one after the other.
    pub fn cpu(
        &self,
        step: &Step,
        projected: &[f32],
        rope: &[[f32; 2]],
        norms: [&[f32]; 2],
        [k_cache, v_cache]: [&mut [f32]; 2],
    ) -> Vec<f32> {
        let Projection { heads, kv_heads, head_dim, .. } = self.projection;
        let (projection, cache, subgroup_min) = (self.projection, self.cache, self.subgroup_min);
        let append = RopeAppend { projection, m: 1, cache, subgroup_min };
        let q = append.cpu(step, projected, rope, norms, [&mut *k_cache, &mut *v_cache]);
        let (scale, window) = (self.scale, self.splits.window);
        let attention =
            Attention { m: 1, heads, kv_heads, head_dim, cache, scale, causal: true, window, subgroup_min };
        attention.cpu(step, &q, k_cache, v_cache)
    }

    fn is_split(&self) -> bool {
        self.splits.count > 1
    }
}

impl Kernel for DecodeAttention {
    fn name(&self) -> &'static str {
        "decode_attention"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/decode_attention.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        self.projection.prelude(&mut prelude);
        self.cache.prelude(&mut prelude);
        self.splits.prelude(&mut prelude);
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .u32("WORKGROUP", WORKGROUP)
            .u32("GROUP", self.group)
            .f32("SCALE", self.scale)
            .flag("SPLIT", self.is_split());
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let cache = if self.projection.appends() { Binding::Write } else { Binding::Read };
        let mut bindings = vec![Binding::Uniform];
        bindings.extend(self.projection.bindings());
        bindings.extend([cache, cache, Binding::Write]);
        bindings.extend(self.is_split().then_some(Binding::Write));
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.projection.heads / self.group, self.splits.count, 1]
    }
}
