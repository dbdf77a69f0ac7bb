//! Packed weights: what encoding loses, what it must not lose, and what it refuses.

#![cfg(not(target_arch = "wasm32"))]

use half::{bf16, f16};
use jird::checkpoint::{Dtype, EncodedRows, RowEncoder, WeightFormat, decode_rows, to_f32};
use jird::error::Code;
use proptest::prelude::*;

const GROUP_SIZES: [u32; 3] = [32, 64, 128];

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn encode(values: &[f32], cols: usize, format: WeightFormat) -> EncodedRows {
    let encoder = RowEncoder::new("w", Dtype::F32, cols, format).unwrap();
    encoder.encode(&bytes_of(values)).unwrap()
}

fn round_trip(values: &[f32], format: WeightFormat) -> Vec<f32> {
    decode_rows(format, &encode(values, values.len(), format))
}

/// Values of a standard normal distribution, the same for the same seed.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    };
    (0..count).map(|_| (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos()).collect()
}

fn squared_error(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

/// Quantisation from the least to the greatest value, with scale and bias rounded to f16.
fn naive(values: &[f32], bits: u32) -> Vec<f32> {
    let levels = ((1u32 << bits) - 1) as f32;
    let min = values.iter().copied().fold(f32::INFINITY, f32::min);
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = f16::from_f32((max - min) / levels).to_f32();
    let bias = f16::from_f32(min).to_f32();
    let code =
        |value: f32| if scale == 0.0 { 0.0 } else { ((value - bias) / scale).round().clamp(0.0, levels) };
    values.iter().map(|value| scale * code(*value) + bias).collect()
}

#[test]
fn layout_is_codes_from_the_low_bits_and_scale_below_bias() {
    let mut values = vec![-4.0f32; 32];
    values[0] = 3.5;
    values[1] = -3.5;
    values[9] = 1.0;
    let rows = encode(&values, 32, WeightFormat::Affine { bits: 4, group_size: 32 });
    assert_eq!(rows.scales, [f16::from_f32(0.5).to_le_bytes(), f16::from_f32(-4.0).to_le_bytes()].concat());
    assert_eq!(rows.codes[..6], [0x1f, 0, 0, 0, 0xa0, 0]);
    assert_eq!(rows.codes.len(), 16);
}

#[test]
fn packed_sizes_are_as_the_format_says() {
    for format in [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Affine { bits: 2, group_size: 32 },
        WeightFormat::Affine { bits: 4, group_size: 64 },
        WeightFormat::Affine { bits: 8, group_size: 128 },
    ] {
        let rows = encode(&normal(3 * 256, 1), 256, format);
        assert_eq!(rows.codes.len(), 3 * format.code_bytes(256), "{format}");
        assert_eq!(rows.scales.len(), 3 * format.scale_bytes(256), "{format}");
    }
}

#[test]
fn chunks_of_rows_encode_as_the_whole_does() {
    let values = normal(6 * 128, 2);
    let format = WeightFormat::Affine { bits: 4, group_size: 32 };
    let whole = encode(&values, 128, format);
    let (first, second) = (encode(&values[..128], 128, format), encode(&values[128..], 128, format));
    assert_eq!(whole.codes, [first.codes, second.codes].concat());
    assert_eq!(whole.scales, [first.scales, second.scales].concat());
}

#[test]
fn float_formats_round_to_nearest() {
    let values = normal(256, 3);
    assert_eq!(round_trip(&values, WeightFormat::F32), values);
    let halves: Vec<f32> = values.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
    assert_eq!(round_trip(&values, WeightFormat::F16), halves);
    let brains: Vec<f32> = values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
    assert_eq!(round_trip(&values, WeightFormat::Bf16), brains);
}

#[test]
fn every_source_dtype_reads_the_same_values() {
    let values = [0.5f32, -1.25, 96.0, -0.0078125];
    let f64s: Vec<u8> = values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let f16s: Vec<u8> = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    for (dtype, bytes) in
        [(Dtype::F64, f64s), (Dtype::F32, bytes_of(&values)), (Dtype::F16, f16s), (Dtype::BF16, bf16s)]
    {
        assert_eq!(to_f32("w", dtype, &bytes).unwrap(), values, "{dtype}");
    }
}

/// What the search must gain over the range from the least to the greatest value on normal weights.
#[test]
fn search_beats_the_plain_range_on_normal_weights() {
    let values = normal(128 * 512, 4);
    for (bits, group_size, most) in [(4, 32, 0.87), (4, 64, 0.80), (4, 128, 0.73), (8, 64, 1.0)] {
        let format = WeightFormat::Affine { bits, group_size };
        let plain: Vec<f32> =
            values.chunks(group_size as usize).flat_map(|group| naive(group, bits)).collect();
        let ratio = squared_error(&values, &round_trip(&values, format)) / squared_error(&values, &plain);
        println!("{format}: squared error {ratio:.3} of the plain range's");
        assert!(ratio <= most, "{format}: {ratio}");
    }
}
