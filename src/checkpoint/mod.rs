//! Floor 1. safetensors headers, shard indexes, the internal weight formats, quantisation on load.
//!
//! [`Checkpoint`] knows where every tensor of a model lies and reads rows of it; a [`RowLayout`] says in which
//! tensors the rows of a matrix lie, plain or quantised, and what they mean. A [`RowEncoder`] turns rows into
//! the packed layout of a [`WeightFormat`], a chunk at a time, so that no tensor is ever whole in memory.
//! [`decode_rows`] is the way back, as the kernels compute it.

mod affine;
mod encode;
mod format;
mod header;
mod index;
mod layout;
mod open;
mod repack;
mod unique_map;

pub use encode::{EncodedRows, RowEncoder, decode_rows, to_f32};
pub use format::WeightFormat;
pub use header::{Header, HeaderEntry, MAX_HEADER_SIZE, parse_header};
pub use layout::{Encoding, Plane, RowLayout, StoredRows};
pub use open::{Checkpoint, TensorInfo};
pub use safetensors::Dtype;
