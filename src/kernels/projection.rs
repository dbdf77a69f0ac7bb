//! The side of `lib/projection.wgsl`: the heads of a projection's rows, their norms and rotary embedding.

use super::{Binding, NormKernel, Prelude};

/// Where an attention layer's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValues {
    /// Rows are `[q | k | v]`.
    Projected,
    /// Rows are `[q | k]`: values are the keys before their norm and rotation.
    KeysAsValues,
    /// Rows are `[q]`: another layer's cache is read and nothing appended.
    Shared,
}

/// What a projection's row holds, and what becomes of its heads.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    /// Query heads, a multiple of `kv_heads`.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Elements of a head, a multiple of 4 and at most 512.
    pub head_dim: u32,
    /// Where keys and values come from.
    pub key_values: KeyValues,
    /// The RMSNorm of queries over `head_dim`.
    pub q_norm: Option<NormKernel>,
    /// The RMSNorm of keys over `head_dim`.
    pub k_norm: Option<NormKernel>,
    /// Epsilon of the RMSNorm of values, which has no weight.
    pub v_norm: Option<f32>,
}

impl Projection {
    /// Heads of a row.
    pub fn projected(&self) -> u32 {
        match self.key_values {
            KeyValues::Projected => self.heads + 2 * self.kv_heads,
            KeyValues::KeysAsValues => self.heads + self.kv_heads,
            KeyValues::Shared => self.heads,
        }
    }

    /// Whether keys and values are appended to the cache.
    pub fn appends(&self) -> bool {
        self.key_values != KeyValues::Shared
    }

    /// Sets the constants and flags of `lib/projection.wgsl`.
    pub(super) fn prelude(&self, prelude: &mut Prelude) {
        let k_norm = self.k_norm.filter(|_| self.appends());
        let v_norm = self.v_norm.filter(|_| self.appends());
        prelude
            .u32("HEADS", self.heads)
            .u32("KV_HEADS", self.kv_heads)
            .u32("HEAD_DIM", self.head_dim)
            .u32("PROJECTED", self.projected())
            .flag("APPEND", self.appends())
            .bool("KEYS_AS_VALUES", self.key_values == KeyValues::KeysAsValues)
            .flag("NORMS", self.q_norm.is_some() || k_norm.is_some() || v_norm.is_some())
            .bool("VALUE_NORM", v_norm.is_some())
            .f32("V_EPS", v_norm.unwrap_or_default());
        if let Some(norm) = self.q_norm {
            prelude.flag("Q_NORM", true).f32("Q_EPS", norm.eps).f32("Q_OFFSET", norm.weight_offset());
        }
        if let Some(norm) = k_norm {
            prelude.flag("K_NORM", true).f32("K_EPS", norm.eps).f32("K_OFFSET", norm.weight_offset());
        }
    }

    /// The rows, the turns, and the norms' weights as far as there are any.
    pub(super) fn bindings(&self) -> Vec<Binding> {
        let norms = usize::from(self.q_norm.is_some()) + usize::from(self.appends() && self.k_norm.is_some());
        vec![Binding::Read; 2 + norms]
    }

    /// The CPU twin over one row: queries, keys and values.
    ///
    /// `rope` holds the (cos, sin) of the row, `norms` the weights for queries and keys.
    pub fn cpu(&self, row: &[f32], rope: &[[f32; 2]], norms: [&[f32]; 2]) -> [Vec<f32>; 3] {
        let dim = self.head_dim as usize;
        let heads: Vec<&[f32]> = row.chunks(dim).collect();
        let (queries, rest) = heads.split_at(self.heads as usize);
        let (keys, values) = rest.split_at(rest.len().min(self.kv_heads as usize));
        let values = if self.key_values == KeyValues::KeysAsValues { keys } else { values };
        let turned = |heads: &[&[f32]], norm: Option<NormKernel>, weight: &[f32]| {
            let normed = |head: &&[f32]| norm.map_or(head.to_vec(), |norm| norm.cpu(head, weight));
            heads.iter().map(normed).flat_map(|head| turned(&head, rope)).collect()
        };
        let ones = vec![1.0; dim];
        let value_norm = self.v_norm.map(|eps| NormKernel { eps, unit_offset: false });
        let normed_values = values.iter().flat_map(|head| match value_norm {
            Some(norm) => norm.cpu(head, &ones),
            None => head.to_vec(),
        });
        let queries = turned(queries, self.q_norm, norms[0]);
        [queries, turned(keys, self.k_norm, norms[1]), normed_values.collect()]
    }
}

/// Half-split rotary embedding of one head.
fn turned(head: &[f32], rope: &[[f32; 2]]) -> Vec<f32> {
    let (a, b) = head.split_at(head.len() / 2);
    let pairs = || a.iter().zip(b).zip(rope);
    let first = pairs().map(|((a, b), [cos, sin])| a * cos - b * sin);
    let second = pairs().map(|((a, b), [cos, sin])| b * cos + a * sin);
    first.chain(second).collect()
}
