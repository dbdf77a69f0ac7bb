//! Floor 4. Layers over a plan.
//!
//! A layer's `forward` records kernels and returns the value that they write. Where the plan fuses (one
//! token, decode), norms move into the prologue of the next matrix product and residual additions into the
//! epilogue of the last; otherwise the plain kernels are recorded. Quantisation hides in [`Weight`].

mod attention;
mod embedding;
mod experts;
mod linear;
mod loader;
mod mlp;
mod per_layer;
mod residual;
mod rope;
mod row_table;
mod sampler;
mod weight;

use std::rc::Rc;

pub use attention::{Attention, CacheSpec, KvCache};
pub use embedding::Embedding;
pub use experts::Experts;
pub use linear::{Linear, Source};
pub use loader::{Loader, Precision, WeightDtype};
pub use mlp::GatedMlp;
pub use per_layer::{PerLayerBlock, PerLayerInputs, PerLayerValues};
pub use residual::{Residual, RmsNorm};
pub use rope::{Rope, RopeTable};
pub use row_table::{RowStats, RowTable};
pub use sampler::{Logits, Sampler};
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
