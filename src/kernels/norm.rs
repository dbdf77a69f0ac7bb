//! The sides of `lib/norm.wgsl` and `lib/combine.wgsl`: what stands between a kernel's input and its operands.

use super::{Binding, Prelude, Splits};

/// Constants of the RMSNorms of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NormKernel {
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the checkpoint stores `w` of `1 + w`.
    pub unit_offset: bool,
}

impl NormKernel {
    /// What is added to the stored weight.
    pub fn weight_offset(self) -> f32 {
        if self.unit_offset { 1.0 } else { 0.0 }
    }

    /// The CPU twin over one row.
    pub fn cpu(self, row: &[f32], weight: &[f32]) -> Vec<f32> {
        let mean = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / row.len() as f64;
        let scale = (mean + f64::from(self.eps)).sqrt().recip() as f32;
        row.iter().zip(weight).map(|(v, w)| v * scale * (w + self.weight_offset())).collect()
    }
}

/// What is added to the residual before the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostNorm {
    /// The update as it is.
    None,
    /// The update behind an RMSNorm of its own, as Gemma has it.
    Norm,
    /// The same, and then the whole residual is multiplied by a factor, as Gemma 4 has it. Four elements
    /// follow the norm's weight, of which the first is the factor.
    ScaledNorm,
}

/// The residual update and the norm in front of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormInput {
    /// The constants of the norm, and of the update's.
    pub norm: NormKernel,
    /// A residual update that comes before the norm.
    pub update: Option<PostNorm>,
    /// Whether the residual is normed after the update.
    pub is_normed: bool,
    /// Whether the updated residual is written for later use.
    pub keep_residual: bool,
}

/// The splits of [`super::DecodeAttention`] made one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Combine {
    /// How the keys were cut.
    pub splits: Splits,
    /// Query heads, which divide the input's columns.
    pub heads: u32,
}

impl Combine {
    /// The most of `splits.count · heads`, which workgroup memory holds beside a product's input.
    pub const MAX_SHARES: u32 = 512;

    /// The CPU twin. `sums` is `[splits, columns]`, `softmax [splits, heads]` of (highest score, sum of weights).
    pub fn cpu(&self, position: u32, sums: &[f32], softmax: &[[f32; 2]]) -> Vec<f32> {
        let heads = self.heads as usize;
        let columns = sums.len() / self.splits.count as usize;
        let used = self.splits.used(position) as usize;
        let combined = |column: usize| {
            let parts = || softmax.chunks(heads).map(|split| split[column * heads / columns]).take(used);
            let highest = parts().map(|[highest, _]| highest).fold(f32::MIN, f32::max);
            let share = |part: f32| f64::from(part - highest).exp();
            let total: f64 = parts().map(|[part, weights]| share(part) * f64::from(weights)).sum();
            let columns = sums.chunks(columns).map(|split| f64::from(split[column]));
            (parts().zip(columns).map(|([part, _], sum)| share(part) * sum).sum::<f64>() / total) as f32
        };
        (0..columns).map(combined).collect()
    }
}

impl NormInput {
    fn has_post_norm(&self) -> bool {
        matches!(self.update, Some(PostNorm::Norm | PostNorm::ScaledNorm))
    }
}

/// What a kernel reads its input through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Input {
    /// The value as it is.
    Plain,
    /// The value behind a residual update and an RMSNorm.
    Norm(NormInput),
    /// What a split attention left.
    Combined(Combine),
}

impl Input {
    /// The same input for a kernel that leaves the updated residual to another.
    pub fn without_residual(self) -> Self {
        match self {
            Input::Plain | Input::Combined(_) => self,
            Input::Norm(input) => Input::Norm(NormInput { keep_residual: false, ..input }),
        }
    }

    /// Sets the flags of `lib/norm.wgsl` or `lib/combine.wgsl`.
    pub(super) fn prelude(&self, prelude: &mut Prelude) {
        let input = match self {
            Input::Plain => return,
            Input::Combined(Combine { splits, heads }) => {
                splits.prelude(prelude);
                prelude.flag("COMBINE", true).u32("HEADS", *heads);
                return;
            }
            Input::Norm(input) => input,
        };
        prelude
            .flag("NORM", input.is_normed)
            .flag("DELTA", input.update.is_some())
            .flag("POST_NORM", input.has_post_norm())
            .flag("SCALES_RESIDUAL", input.update == Some(PostNorm::ScaledNorm))
            .flag("RMS", input.is_normed || input.has_post_norm())
            .flag("KEEP_RESIDUAL", input.keep_residual)
            .f32("EPS", input.norm.eps)
            .f32("WEIGHT_OFFSET", input.norm.weight_offset());
    }

    /// The value, then the norm's weight, the update, and the update's norm's weight, as far as there are any;
    /// or the step, the splits' sums, and their highest scores and weights.
    pub(super) fn bindings(&self) -> Vec<Binding> {
        let reads = match self {
            Input::Combined(_) => return vec![Binding::Uniform, Binding::Read, Binding::Read],
            Input::Plain => 1,
            Input::Norm(input) => {
                let further = [input.is_normed, input.update.is_some(), input.has_post_norm()];
                1 + further.into_iter().map(usize::from).sum::<usize>()
            }
        };
        vec![Binding::Read; reads]
    }

    /// The bindings that only the kept residual needs.
    pub(super) fn kept(&self) -> Option<Binding> {
        matches!(self, Input::Norm(NormInput { keep_residual: true, .. })).then_some(Binding::Write)
    }

    /// The CPU twin over one row: the input, and the residual after the update. [`Combine`] has its own.
    ///
    /// `reads` holds the row of the value and, in the order of the bindings, what else the variant reads.
    pub fn cpu(&self, reads: &[&[f32]]) -> (Vec<f32>, Vec<f32>) {
        let (value, reads) = (reads[0].to_vec(), &reads[1..]);
        let Input::Norm(input) = self else { return (value.clone(), value) };
        let (weight, update) = reads.split_at(usize::from(input.is_normed));
        let delta = match input.update {
            None => vec![0.0; value.len()],
            Some(PostNorm::None) => update[0].to_vec(),
            Some(_) => input.norm.cpu(update[0], update[1]),
        };
        let factor = if input.update == Some(PostNorm::ScaledNorm) { update[1][value.len()] } else { 1.0 };
        let residual: Vec<f32> = value.iter().zip(delta).map(|(v, d)| (v + d) * factor).collect();
        let normed = weight.first().map(|weight| input.norm.cpu(&residual, weight));
        (normed.unwrap_or_else(|| residual.clone()), residual)
    }
}
