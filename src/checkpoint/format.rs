//! The internal weight formats and their packed sizes.

use std::fmt;

use crate::error::{Code, Error, Result};

/// How the GPU sees a weight `[rows, cols]`. Rows are contiguous, bytes little-endian.
///
/// - `F32`: the values.
/// - `F16`, `Bf16`: the values, two to a 32-bit word, the first in the low half.
/// - `Affine`: `w = scale * code + bias` per group of `group_size` columns. Codes are unsigned, of `bits`
///   bits, packed along the row with the first in the least significant bits. Beside them lies one 32-bit
///   word per group: `scale` as f16 in the low half, `bias` as f16 in the high half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, 11 bits of precision, up to 65,504.
    F16,
    /// 16-bit floating point, 8 bits of precision, the range of `F32`.
    Bf16,
    /// Groups of unsigned codes.
    Affine {
        /// Bits of a code: 2, 4 or 8.
        bits: u32,
        /// Columns in a group: 32, 64 or 128.
        group_size: u32,
    },
}

impl WeightFormat {
    /// Bytes of a row's values or codes.
    pub fn code_bytes(self, cols: usize) -> usize {
        match self {
            WeightFormat::F32 => cols * 4,
            WeightFormat::F16 | WeightFormat::Bf16 => cols * 2,
            WeightFormat::Affine { bits, .. } => cols / 8 * bits as usize,
        }
    }

    /// Bytes of a row's scales and biases; 0 for the floating-point formats.
    pub fn scale_bytes(self, cols: usize) -> usize {
        match self {
            WeightFormat::Affine { group_size, .. } => cols / group_size as usize * 4,
            _ => 0,
        }
    }

    /// Fails with `Unsupported` unless rows of `cols` columns can be packed in this format. `tensor` is the
    /// weight's name, for the error.
    pub fn check(self, tensor: &str, cols: usize) -> Result<()> {
        let asked = || Error::new(Code::Unsupported, format!("pack tensor {tensor} as {self}"));
        let multiple = match self {
            WeightFormat::F32 => 1,
            WeightFormat::F16 | WeightFormat::Bf16 => 2,
            WeightFormat::Affine { bits: 2 | 4 | 8, group_size: group_size @ (32 | 64 | 128) } => {
                group_size as usize
            }
            WeightFormat::Affine { .. } => {
                return Err(asked().expected("codes of 2, 4 or 8 bits in groups of 32, 64 or 128"));
            }
        };
        if cols.is_multiple_of(multiple) {
            return Ok(());
        }
        Err(asked()
            .expected(format!("rows of a multiple of {multiple} columns"))
            .got(cols.to_string())
            .remedy("Choose another weight format for this model."))
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightFormat::F32 => f.write_str("f32"),
            WeightFormat::F16 => f.write_str("f16"),
            WeightFormat::Bf16 => f.write_str("bf16"),
            WeightFormat::Affine { bits, group_size } => write!(f, "q{bits} in groups of {group_size}"),
        }
    }
}
