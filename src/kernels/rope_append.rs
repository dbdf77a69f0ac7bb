//! Norms and rotary embedding of a projection's heads, and the append to the KV cache.

use super::{Binding, CacheLayout, Kernel, Prelude, Projection, Step};

/// Splits `projected [m, projected · head_dim]` into turned queries and the cache's keys and values.
///
/// Binds the step (where it appends), `projected`, `rope [m, head_dim/2]` of (cos, sin), the query and key
/// norms' weights, `q [m, heads·head_dim]`, and the caches (where it appends).
#[derive(Clone, Copy, Debug)]
pub struct RopeAppend {
    /// The heads.
    pub projection: Projection,
    /// Rows.
    pub m: u32,
    /// The caches.
    pub cache: CacheLayout,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

impl RopeAppend {
    /// The CPU twin: writes `k` and `v` of the step's rows into the caches and returns `q`.
    ///
    /// `norms` are the weights for queries and keys.
    pub fn cpu(
        &self,
        step: &Step,
        projected: &[f32],
        rope: &[[f32; 2]],
        norms: [&[f32]; 2],
        caches: [&mut [f32]; 2],
    ) -> Vec<f32> {
        let Projection { kv_heads, head_dim, .. } = self.projection;
        let width = (kv_heads * head_dim) as usize;
        let [k_cache, v_cache] = caches;
        let mut q = Vec::new();
        let rows = projected.chunks((self.projection.projected() * head_dim) as usize);
        for (row, (projected, rope)) in rows.zip(rope.chunks(head_dim as usize / 2)).enumerate() {
            let [queries, keys, values] = self.projection.cpu(projected, rope, norms);
            q.extend(queries);
            if row < step.rows as usize {
                let range = self.cache.range(step.position + row as u32, width);
                let cached =
                    |values: Vec<f32>| values.into_iter().map(|value| self.cache.format.rounded(value));
                k_cache[range.clone()].iter_mut().zip(cached(keys)).for_each(|(slot, key)| *slot = key);
                v_cache[range].iter_mut().zip(cached(values)).for_each(|(slot, value)| *slot = value);
            }
        }
        q
    }
}

impl Kernel for RopeAppend {
    fn name(&self) -> &'static str {
        "rope_append"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/rope_append.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        self.projection.prelude(&mut prelude);
        self.cache.prelude(&mut prelude);
        prelude.subgroups(self.subgroup_min).alias("Acc", "f32").u32("WORKGROUP", 64);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let appends = self.projection.appends();
        let mut bindings = Vec::from_iter(appends.then_some(Binding::Uniform));
        bindings.extend(self.projection.bindings());
        bindings.extend(vec![Binding::Write; if appends { 3 } else { 1 }]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.projection.projected(), self.m, 1]
    }
}
