//! Floor 6. Load, session, generate.
//!
//! [`Model::load`] brings a checkpoint to the GPU; [`Model::generate`] starts a [`Generation`], which is
//! pulled piece by piece. A [`Session`] is a conversation that keeps its keys and values beside those of
//! others; each runs one generation at a time, and computes only what it does not hold yet.

mod fit;
mod generate;
mod load;
mod memory;
mod progress;
mod session;

pub use crate::nn::{RowStats, RowTable};
pub use fit::ContextFull;
pub use generate::{FinishReason, GenerateOptions, Generation, Piece, Prompt, Stats};
pub use load::{LoadOptions, Model};
pub use memory::MemoryPlan;
pub use progress::{LoadEvent, LoadObserver};
pub use session::{Session, SessionOptions};
