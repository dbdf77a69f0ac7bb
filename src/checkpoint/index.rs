//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::unique_map::UniqueMap;
use crate::error::{Code, Error, Result};

/// The largest index accepted, in bytes. That of a model of 400 billion parameters has some 200 kB.
pub(super) const MAX_INDEX_SIZE: u64 = 16 << 20;

#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// The names of the tensors, with the file that holds each.
pub(super) fn parse_index(file: &str, json: &[u8]) -> Result<BTreeMap<String, String>> {
    let index: Index = serde_json::from_slice(json).map_err(|error| {
        Error::new(Code::Checkpoint, format!("read {file}"))
            .expected("an object with weight_map, from tensor names to file names")
            .because(error)
    })?;
    Ok(index.weight_map.0)
}
