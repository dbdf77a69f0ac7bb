//! jird runs open language models inside a web page: one Rust crate, compiled to wasm32, that drives the
//! GPU through WebGPU. `ARCHITECTURE.md` shows the rooms of the house and the floors they stand on; a
//! room uses only the floors below its own, which `tests/architecture.rs` checks.

pub mod error;

pub mod fetch;
pub mod text;

pub mod checkpoint;
pub mod gpu;

pub mod kernels;

pub mod plan;

pub mod nn;

pub mod models;

pub mod engine;

#[cfg(target_arch = "wasm32")]
pub mod js;
