//! Floor 1. The device and its broker, buffers and their ledger, the pipeline cache, submission, readback.

mod broker;
mod buffer;
mod device;
mod ledger;
mod pipeline;
mod profile;
mod readback;
mod submit;

pub use buffer::Buffer;
pub use device::{Capabilities, Gpu, GpuOptions};
pub use ledger::{Ledger, Usage};
pub use pipeline::{Binding, Pipeline};
pub use readback::Readback;
pub use submit::{Commands, Dispatch, SubmitPolicy};
