//! Stored codes, scales and biases to ours, without passing through the values.

use half::f16;
use safetensors::Dtype;

use super::encode::to_f32;
use crate::error::{Code, Error, Result};

/// Codes of `bits` bits, packed from the least significant bit on, in fields of `wider` bits, 4 or 8.
pub(super) fn widen(packed: &[u8], bits: u32, wider: u32) -> Vec<u8> {
    match (bits, wider) {
        // What rows of tables are mostly made of, several times as fast as below.
        (4, 8) => packed.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
        _ => widen_any(packed, bits, wider),
    }
}

fn widen_any(packed: &[u8], bits: u32, wider: u32) -> Vec<u8> {
    let mask = (1u32 << bits) - 1;
    let mut wide = Vec::with_capacity((packed.len() * wider as usize).div_ceil(bits as usize));
    // What has been read and not been taken, and what has been taken and does not fill a byte yet.
    let (mut read, mut read_bits) = (0u32, 0);
    let (mut byte, mut byte_bits) = (0u32, 0);
    for next in packed {
        read |= u32::from(*next) << read_bits;
        read_bits += 8;
        while read_bits >= bits {
            byte |= (read & mask) << byte_bits;
            read >>= bits;
            read_bits -= bits;
            byte_bits += wider;
            if byte_bits == 8 {
                wide.push(byte as u8);
                (byte, byte_bits) = (0, 0);
            }
        }
    }
    wide
}

/// Scales or biases of `dtype` as f16.
///
/// An F16 is kept; so is a BF16 from 2^-17 (7.6e-6) on. Smaller ones and F32 are rounded to f16, by at most
/// 2^-11 of their size or 2^-25. Fails with `Unsupported` for what f16 cannot hold, and with `Checkpoint` for
/// what is not finite.
pub(super) fn halves(tensor: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f16>> {
    let values = to_f32(tensor, dtype, bytes)?;
    match values.iter().find(|value| value.abs() > f16::MAX.to_f32_const()) {
        None => Ok(values.into_iter().map(f16::from_f32).collect()),
        Some(value) => Err(Error::new(Code::Unsupported, format!("pack the scales of tensor {tensor}"))
            .expected(format!("scales and biases of at most {}", f16::MAX))
            .got(value.to_string())
            .remedy("Choose dtype \"f32\".")),
    }
}

/// Scale below bias, a word for each group; each is repeated for `copies` groups of ours.
pub(super) fn interleave(scales: &[f16], biases: &[f16], copies: usize) -> Vec<u8> {
    let words = scales.iter().zip(biases).flat_map(|(scale, bias)| {
        let [s0, s1] = scale.to_le_bytes();
        let [b0, b1] = bias.to_le_bytes();
        std::iter::repeat_n([s0, s1, b0, b1], copies)
    });
    words.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_every_width_come_out_in_order() {
        for (bits, wider) in [(2, 4), (3, 4), (4, 4), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (8, 8)] {
            let codes: Vec<u32> = (0..64u32).map(|i| (i * 37 + 11) % (1 << bits)).collect();
            let pack = |bits: u32| {
                let stream = codes.iter().flat_map(|code| (0..bits).map(move |bit| code >> bit & 1));
                let stream: Vec<u32> = stream.collect();
                let byte = |byte: &[u32]| byte.iter().rev().fold(0, |sum, bit| sum << 1 | bit) as u8;
                stream.chunks(8).map(byte).collect::<Vec<u8>>()
            };
            assert_eq!(widen(&pack(bits), bits, wider), pack(wider), "{bits} to {wider}");
        }
    }
}
