//! Floor 4. Layers over a plan.
//!
//! A layer's `forward` records kernels and returns the value that they write. Where the plan fuses (one
//! token, decode), norms move into the prologue of the next matrix product and residual additions into the
//! epilogue of the last; otherwise the plain kernels are recorded. Quantisation hides in [`Weight`].

mod attention;
mod embedding;
mod linear;
mod loader;
mod mlp;
mod residual;
mod rope;
mod sampler;
mod weight;

use std::rc::Rc;

pub use attention::{Attention, CacheSpec, KvCache};
pub use embedding::Embedding;
pub use linear::{Linear, Source};
pub use loader::{Loader, Precision, WeightDtype};
pub use mlp::GatedMlp;
pub use residual::{Residual, RmsNorm};
pub use rope::{Rope, RopeTable};
pub use sampler::Sampler;
pub use weight::Weight;

use crate::gpu::Buffer;
pub use crate::kernels::{CacheFormat, KeyValues};

/// What every step of a plan reads: written before each submission.
#[derive(Clone, Debug)]
pub struct StepInputs {
    /// A [`crate::kernels::Step`].
    pub step: Rc<Buffer>,
    /// One token id (u32) per row.
    pub tokens: Rc<Buffer>,
}
