//! Floor 6. Load, session, generate.
//!
//! [`Model::load`] brings a checkpoint to the GPU; [`Model::generate`] starts a [`Generation`], which is
//! pulled piece by piece. A model runs one generation at a time.

mod generate;
mod load;
mod memory;
mod progress;
mod session;

pub use generate::{FinishReason, GenerateOptions, Generation, Piece, Prompt, Stats};
pub use load::{LoadOptions, Model};
pub use memory::MemoryPlan;
pub use progress::{LoadEvent, LoadObserver};
