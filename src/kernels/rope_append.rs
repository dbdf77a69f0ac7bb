//! Query and key norms, rotary embedding, and the append to the KV cache.

use super::{Binding, Kernel, NormKernel, Prelude, Step};

/// RMSNorm of queries and keys over `head_dim`.
pub type QkNorm = NormKernel;

/// Splits `qkv [m, (heads + 2·kv_heads)·head_dim]` into rotated queries and the cache's keys and values.
///
/// Binds the step, `qkv`, `rope [m, head_dim/2]` of (cos, sin), the query and key norm weights (with
/// `qk_norm`), `q [m, heads·head_dim]`, and the caches `[context, kv_heads·head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct RopeAppend {
    /// Rows.
    pub m: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head, an even number.
    pub head_dim: u32,
    /// Positions that the cache holds.
    pub context: u32,
    /// The norm of queries and keys, where the model has one.
    pub qk_norm: Option<QkNorm>,
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
        qkv: &[f32],
        rope: &[[f32; 2]],
        norms: [&[f32]; 2],
        caches: [&mut [f32]; 2],
    ) -> Vec<f32> {
        let dim = self.head_dim as usize;
        let (heads, kv_heads) = (self.heads as usize, self.kv_heads as usize);
        let [k_cache, v_cache] = caches;
        let mut q = Vec::new();
        for (row, qkv) in qkv.chunks((heads + 2 * kv_heads) * dim).enumerate() {
            let rope = &rope[row * dim / 2..][..dim / 2];
            let turned = |head: usize, norm: &[f32]| {
                let plain = &qkv[head * dim..][..dim];
                let normed = self.qk_norm.map_or(plain.to_vec(), |kernel| kernel.cpu(plain, norm));
                let (a, b) = normed.split_at(dim / 2);
                let first = (0..dim / 2).map(|i| a[i] * rope[i][0] - b[i] * rope[i][1]);
                let second = (0..dim / 2).map(|i| b[i] * rope[i][0] + a[i] * rope[i][1]);
                first.chain(second).collect::<Vec<f32>>()
            };
            q.extend((0..heads).flat_map(|head| turned(head, norms[0])));
            if row < step.rows as usize {
                let position = step.position as usize + row;
                for head in 0..kv_heads {
                    let target = (position * kv_heads + head) * dim..(position * kv_heads + head + 1) * dim;
                    k_cache[target.clone()].copy_from_slice(&turned(heads + head, norms[1]));
                    v_cache[target].copy_from_slice(&qkv[(heads + kv_heads + head) * dim..][..dim]);
                }
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
        prelude
            .alias("Acc", "f32")
            .u32("WORKGROUP", 64)
            .u32("HEADS", self.heads)
            .u32("KV_HEADS", self.kv_heads)
            .u32("HEAD_DIM", self.head_dim)
            .u32("CONTEXT", self.context);
        if let Some(norm) = self.qk_norm {
            prelude
                .subgroups(self.subgroup_min)
                .flag("QK_NORM", true)
                .f32("EPS", norm.eps)
                .f32("WEIGHT_OFFSET", norm.weight_offset());
        }
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let norms = if self.qk_norm.is_some() { 2 } else { 0 };
        let mut bindings = vec![Binding::Uniform];
        bindings.extend(vec![Binding::Read; 2 + norms]);
        bindings.extend([Binding::Write; 3]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.heads + 2 * self.kv_heads, self.m, 1]
    }
}
