//! The header of a safetensors file: 8 bytes of length, then JSON, then the tensors' bytes.
//!
//! The `safetensors` crate parses a header only together with the data behind it, and its errors don't
//! name the tensor, so that the checks are made here; the dtypes are the crate's.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::value::{Error as ValueError, StrDeserializer};

use super::unique_map::UniqueMap;
use crate::error::{Code, Error, Result};

/// The largest header accepted, in bytes: the `safetensors` crate's own limit.
pub const MAX_HEADER_SIZE: u64 = 100_000_000;

/// Bytes of the header's length, at the start of the file.
pub(super) const LENGTH_SIZE: u64 = 8;

/// The key of the header that holds no tensor.
const METADATA_KEY: &str = "__metadata__";

/// A tensor as the header of its file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderEntry {
    /// Type of an element.
    pub dtype: Dtype,
    /// Sizes of the dimensions, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Where the tensor lies, in bytes from the start of the file.
    pub bytes: Range<u64>,
}

/// The tensors of one safetensors file by name, without gap or overlap between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The tensors by name.
    pub tensors: BTreeMap<String, HeaderEntry>,
    /// The texts of `__metadata__`, such as `format`.
    pub metadata: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "neither a tensor with dtype, shape and data_offsets nor an object of texts")]
enum Entry {
    Tensor {
        dtype: String,
        shape: Vec<u64>,
        data_offsets: (u64, u64),
    },
    /// MLX writes null for no texts.
    Metadata(Option<BTreeMap<String, String>>),
}

/// Length of the JSON in bytes, from the file's first 8 bytes. `file` is its name, for errors.
pub(super) fn json_length(file: &str, first_bytes: &[u8], file_size: u64) -> Result<u64> {
    let damaged = || Error::new(Code::Checkpoint, format!("read the header of {file}"));
    let first_bytes: [u8; LENGTH_SIZE as usize] = first_bytes.try_into().map_err(|_| {
        damaged().expected("the 8 bytes of the header's length").got(format!("{} bytes", first_bytes.len()))
    })?;
    let length = u64::from_le_bytes(first_bytes);
    let limit = MAX_HEADER_SIZE.min(file_size.saturating_sub(LENGTH_SIZE));
    if length > limit {
        return Err(damaged()
            .expected(format!("a header of at most {limit} bytes in a file of {file_size}"))
            .got(format!("{length} bytes"))
            .remedy("Check that it is a safetensors file and that it is complete."));
    }
    Ok(length)
}

/// Parses the JSON of a header. `file` is the file's name, for errors, `file_size` its bytes.
///
/// Fails with `Unsupported` for a dtype that the format does not list, and with `Checkpoint` if the JSON is
/// damaged, if a tensor's bytes are not what its shape needs, or if the tensors overlap, leave gaps or do
/// not end where the file ends.
pub fn parse_header(file: &str, json: &[u8], file_size: u64) -> Result<Header> {
    let asked = format!("read the header of {file}");
    let UniqueMap(entries) = serde_json::from_slice::<UniqueMap<Entry>>(json).map_err(|error| {
        Error::new(Code::Checkpoint, &asked)
            .expected("an object of tensors with dtype, shape and data_offsets")
            .because(error)
    })?;
    let data_start = LENGTH_SIZE
        .checked_add(json.len() as u64)
        .filter(|start| *start <= file_size)
        .ok_or_else(|| Error::new(Code::Checkpoint, &asked).got(format!("{file_size} bytes in all")))?;
    let mut header = Header::default();
    for (name, entry) in entries {
        match entry {
            Entry::Metadata(metadata) if name == METADATA_KEY => {
                header.metadata = metadata.unwrap_or_default()
            }
            Entry::Tensor { dtype, shape, data_offsets: (start, end) } if name != METADATA_KEY => {
                let tensor = format!("read the header of {file}, tensor {name}");
                let entry = checked_entry(&tensor, &dtype, &shape, start..end, data_start, file_size)?;
                header.tensors.insert(name, entry);
            }
            _ => {
                return Err(Error::new(Code::Checkpoint, &asked)
                    .expected("tensors with dtype, shape and data_offsets, and texts in __metadata__")
                    .got(format!("something else in {name:?}")));
            }
        }
    }
    check_adjacent(&asked, &header.tensors, data_start, file_size)?;
    Ok(header)
}

/// One entry, its dtype known, its bytes inside the file and as many as its shape needs.
fn checked_entry(
    asked: &str,
    dtype: &str,
    shape: &[u64],
    offsets: Range<u64>,
    data_start: u64,
    file_size: u64,
) -> Result<HeaderEntry> {
    let damaged =
        |expected: String, got: String| Error::new(Code::Checkpoint, asked).expected(expected).got(got);
    let dtype = Dtype::deserialize(StrDeserializer::<ValueError>::new(dtype)).map_err(|_| {
        Error::new(Code::Unsupported, asked)
            .expected("a dtype of the safetensors format such as BF16")
            .got(format!("{dtype:?}"))
    })?;
    let data_size = file_size - data_start;
    if offsets.start > offsets.end || offsets.end > data_size {
        return Err(damaged(
            format!("data_offsets that ascend and stay inside the {data_size} bytes of data"),
            format!("{}..{}", offsets.start, offsets.end),
        ));
    }
    let overflow = || damaged("a shape whose elements can be counted".to_owned(), format!("{shape:?}"));
    let dims: Vec<usize> =
        shape.iter().map(|dim| usize::try_from(*dim)).collect::<Result<_, _>>().map_err(|_| overflow())?;
    let bits = bit_count(&dims, dtype).ok_or_else(overflow)?;
    let length = offsets.end - offsets.start;
    if bits != length.saturating_mul(8) {
        return Err(damaged(
            format!("{bits} bits for shape {shape:?} of {dtype}"),
            format!("{length} bytes in data_offsets {}..{}", offsets.start, offsets.end),
        ));
    }
    Ok(HeaderEntry { dtype, shape: dims, bytes: data_start + offsets.start..data_start + offsets.end })
}

/// Bits in a tensor; `None` if they overflow, or the elements of a row do. An empty dimension doesn't hide
/// the overflow of the others, so that any product over the dimensions is safe afterwards.
fn bit_count(dims: &[usize], dtype: Dtype) -> Option<u64> {
    let row = dims.iter().skip(1).try_fold(1usize, |product, dim| product.checked_mul((*dim).max(1)))?;
    let rows = dims.first().copied().unwrap_or(1);
    let bits = (row as u64).checked_mul(dtype.bitsize() as u64)?.checked_mul(rows.max(1) as u64)?;
    Some(if dims.contains(&0) { 0 } else { bits })
}

/// Every byte behind the header belongs to exactly one tensor.
fn check_adjacent(
    asked: &str,
    tensors: &BTreeMap<String, HeaderEntry>,
    data_start: u64,
    file_size: u64,
) -> Result<()> {
    let mut in_order: Vec<_> = tensors.iter().collect();
    in_order.sort_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    let mut position = data_start;
    for (name, entry) in in_order {
        if entry.bytes.start != position {
            let fault = if entry.bytes.start < position { "overlaps" } else { "leaves a gap after" };
            return Err(Error::new(Code::Checkpoint, asked)
                .expected(format!("tensor {name} to start at byte {position} of the file"))
                .got(format!("byte {}, which {fault} the tensor before it", entry.bytes.start)));
        }
        position = entry.bytes.end;
    }
    if position != file_size {
        return Err(Error::new(Code::Checkpoint, asked)
            .expected(format!("a file of {position} bytes, where its last tensor ends"))
            .got(format!("{file_size} bytes")));
    }
    Ok(())
}
