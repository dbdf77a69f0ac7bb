//! Attention over the KV cache, for prefill and decode.

use super::{Binding, CacheLayout, Kernel, Prelude, Step};

/// `out = softmax(scale · q Kᵀ) V` with grouped queries and online softmax.
///
/// Binds the step, `q [m, heads·head_dim]`, the caches, and `out` like `q`.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Rows of queries.
    pub m: u32,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head, a multiple of 4 and at most 512.
    pub head_dim: u32,
    /// The caches, which hold every position that a row sees.
    pub cache: CacheLayout,
    /// Multiplies the scores.
    pub scale: f32,
    /// Whether a row sees only positions up to its own.
    pub causal: bool,
    /// Keys that a row sees, its own included; on both sides where not causal.
    pub window: Option<u32>,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

const WORKGROUP: u32 = 256;

impl Attention {
    /// Queries that share a workgroup; their tile stays within 8 kB of workgroup memory.
    fn queries(&self) -> u32 {
        match (self.m, self.head_dim) {
            (1, _) => 1,
            (_, ..=256) => 8,
            _ => 4,
        }
    }

    fn sees(&self, position: u32, key: u32) -> bool {
        (!self.causal || key <= position)
            && self.window.is_none_or(|window| key + window > position && position + window > key)
    }

    /// The CPU twin, with a plain softmax.
    pub fn cpu(&self, step: &Step, q: &[f32], k_cache: &[f32], v_cache: &[f32]) -> Vec<f32> {
        let dim = self.head_dim as usize;
        let (heads, kv_heads) = (self.heads as usize, self.kv_heads as usize);
        let mut out = Vec::with_capacity(q.len());
        for (index, q) in q.chunks(dim).enumerate() {
            let position = step.position + (index / heads) as u32;
            let kv_head = index % heads / (heads / kv_heads);
            let row = |cache: &'_ [f32], key: u32| {
                cache[self.cache.range(key, kv_heads * dim)][kv_head * dim..][..dim].to_vec()
            };
            let keys: Vec<u32> =
                (0..step.position + step.rows).filter(|&key| self.sees(position, key)).collect();
            let scores: Vec<f64> = keys
                .iter()
                .map(|&key| {
                    let k = row(k_cache, key);
                    let product: f64 = q.iter().zip(&k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    product * f64::from(self.scale)
                })
                .collect();
            let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; dim];
            for (&key, weight) in keys.iter().zip(weights) {
                for (sum, v) in sums.iter_mut().zip(row(v_cache, key)) {
                    *sum += weight / total * f64::from(v);
                }
            }
            out.extend(sums.into_iter().map(|sum| sum as f32));
        }
        out
    }
}

impl Kernel for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/attention.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        self.cache.prelude(&mut prelude);
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "f32")
            .u32("WORKGROUP", WORKGROUP)
            .u32("QUERIES", self.queries())
            .u32("LANES", WORKGROUP / self.queries())
            .u32("M", self.m)
            .u32("HEADS", self.heads)
            .u32("KV_HEADS", self.kv_heads)
            .u32("HEAD_DIM", self.head_dim)
            .u32("WINDOW", self.window.unwrap_or(0))
            .bool("CAUSAL", self.causal)
            .f32("SCALE", self.scale);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        vec![Binding::Uniform, Binding::Read, Binding::Read, Binding::Read, Binding::Write]
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.heads, self.m.div_ceil(self.queries()), 1]
    }
}
