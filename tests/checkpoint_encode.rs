//! Packed weights: what encoding loses, what it must not lose, and what it refuses.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use half::{bf16, f16};
use jird::checkpoint::{Dtype, EncodedRows, RowEncoder, StoredRows, WeightFormat, decode_rows, to_f32};
use jird::error::Code;
use proptest::prelude::*;

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn encode(values: &[f32], cols: usize, format: WeightFormat) -> EncodedRows {
    let encoder = RowEncoder::new(StoredRows::floats("w", Dtype::F32, cols), format).unwrap();
    encoder.encode(&[&bytes_of(values)]).unwrap()
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

/// The squared error as the search weighs it: by the root mean square plus the value's size.
fn weighted_error(values: &[f32], decoded: &[f32]) -> f64 {
    let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    let root_mean_square = (squares / values.len() as f64).sqrt();
    let pairs = values.iter().zip(decoded);
    pairs.map(|(a, b)| (root_mean_square + f64::from(a.abs())) * f64::from(a - b).powi(2)).sum()
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
    for (bits, group_size, most) in [(4, 32, 0.85), (4, 64, 0.87), (4, 128, 0.87), (8, 64, 0.96)] {
        let format = WeightFormat::Affine { bits, group_size };
        let plain: Vec<f32> =
            values.chunks(group_size as usize).flat_map(|group| naive(group, bits)).collect();
        let ratio = squared_error(&values, &round_trip(&values, format)) / squared_error(&values, &plain);
        assert!(ratio <= most, "{format}: {ratio}");
    }
}

#[test]
fn values_that_cannot_be_packed_are_errors_that_name_the_tensor() {
    let q4 = WeightFormat::Affine { bits: 4, group_size: 32 };
    for (value, format, code) in [
        (f32::NAN, WeightFormat::F32, Code::Checkpoint),
        (f32::INFINITY, q4, Code::Checkpoint),
        (f32::NEG_INFINITY, WeightFormat::Bf16, Code::Checkpoint),
        (65_520.0, WeightFormat::F16, Code::Unsupported),
        (-70_000.0, q4, Code::Unsupported),
        (f32::MAX, WeightFormat::Bf16, Code::Unsupported),
    ] {
        let mut values = normal(64, 5);
        values[40] = value;
        let encoder = RowEncoder::new(StoredRows::floats("layers.3.up", Dtype::F32, 32), format).unwrap();
        let error = encoder.encode(&[&bytes_of(&values)]).unwrap_err();
        assert_eq!(error.code(), code, "{value} as {format}");
        assert!(error.to_string().contains("tensor layers.3.up"), "{error}");
    }
    let huge = 1e300f64.to_le_bytes();
    assert_eq!(to_f32("w", Dtype::F64, &huge).unwrap_err().code(), Code::Checkpoint);
}

#[test]
fn encoders_are_refused_before_any_bytes_are_read() {
    for (dtype, cols, format, expected) in [
        (Dtype::I32, 64, WeightFormat::F32, "dtype F64, F32, F16 or BF16, got I32"),
        (
            Dtype::F32,
            48,
            WeightFormat::Affine { bits: 4, group_size: 32 },
            "a multiple of 32 columns, got 48",
        ),
        (Dtype::F32, 63, WeightFormat::F16, "a multiple of 2 columns, got 63"),
        (Dtype::F32, 64, WeightFormat::Affine { bits: 3, group_size: 32 }, "codes of 2, 4 or 8 bits"),
        (Dtype::F32, 64, WeightFormat::Affine { bits: 4, group_size: 16 }, "groups of 32, 64 or 128"),
        (Dtype::F32, 64, WeightFormat::Affine { bits: 4, group_size: 0 }, "groups of 32, 64 or 128"),
    ] {
        let error = RowEncoder::new(StoredRows::floats("w", dtype, cols), format).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn broken_rows_are_errors() {
    let encoder = RowEncoder::new(StoredRows::floats("w", Dtype::F32, 32), WeightFormat::F32).unwrap();
    let error = encoder.encode(&[&[0; 129]]).unwrap_err();
    assert!(error.to_string().contains("whole rows of [128] bytes, got [129] bytes"), "{error}");
    assert!(to_f32("w", Dtype::F32, &[0; 5]).is_err());
}

#[test]
fn extreme_groups_stay_within_the_format() {
    let q4 = WeightFormat::Affine { bits: 4, group_size: 32 };
    assert_eq!(round_trip(&[0.0; 32], q4), [0.0; 32]);
    assert_eq!(round_trip(&[-0.375; 32], q4), [-0.375; 32]);
    assert_eq!(round_trip(&[65_504.0; 32], q4), [65_504.0; 32]);
    // A constant has the precision of two f16.
    let third = round_trip(&[1.0 / 3.0; 32], q4)[0];
    assert!((third - 1.0 / 3.0).abs() < 1e-7, "{third}");
    // Below the least f16 (6e-8) nothing can be held, and nothing larger comes out.
    let tiny: Vec<f32> = (0..32).map(|i| i as f32 * 1e-40).collect();
    assert!(round_trip(&tiny, q4).iter().all(|value| value.abs() <= 6e-8));
    // The widest range is held to the precision of f16.
    let wide: Vec<f32> = (0..32).map(|i| if i % 2 == 0 { -65_504.0 } else { 65_504.0 }).collect();
    let decoded = round_trip(&wide, q4);
    assert!(wide.iter().zip(&decoded).all(|(value, decoded)| (value - decoded).abs() <= 64.0), "{decoded:?}");
}

/// Half a step between the nearest f16 values outside the range: what the format can always hold.
fn covering_bound(group: &[f32], bits: u32) -> f64 {
    let min = group.iter().copied().fold(f32::INFINITY, f32::min);
    let max = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let ulp = |value: f32| f64::from(value.abs()) / 1024.0 + 6e-8;
    let range = f64::from(max - min) + ulp(min);
    let step = range / f64::from((1u32 << bits) - 1);
    (step + ulp(step as f32)) / 2.0 + f64::from(max.abs().max(min.abs())) * 1e-6
}

fn group_sizes() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![32u32, 64, 128])
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// The weighted squared error is at most that of plain quantisation, and of any that covers the range.
    #[test]
    fn error_is_bounded(
        seed in any::<u64>(),
        bits in prop::sample::select(vec![2u32, 4, 8]),
        group_size in group_sizes(),
        size in -14f32..6.0,
        center in -20f32..20.0,
    ) {
        let group: Vec<f32> =
            normal(group_size as usize, seed).iter().map(|value| (value + center) * size.exp2()).collect();
        let decoded = round_trip(&group, WeightFormat::Affine { bits, group_size });
        let error = weighted_error(&group, &decoded);
        let bound = covering_bound(&group, bits) as f32;
        let at_bound: Vec<f32> = group.iter().map(|value| value + bound).collect();
        let slack = 1.0 + 1e-5;
        prop_assert!(error <= weighted_error(&group, &naive(&group, bits)) * slack);
        prop_assert!(error <= weighted_error(&group, &at_bound) * 1.001);
    }

    /// Values that lie on a lattice which the format can hold come out as they went in, whichever of the
    /// codes are in use.
    #[test]
    fn lattices_are_recovered_exactly(
        scale in 0.0005f32..2.0,
        zero_point in -20f32..8.0,
        codes in prop::collection::vec(0u8..16, 128),
        least in 0u8..8,
        group_size in group_sizes(),
    ) {
        let scale = f16::from_f32(scale).to_f32();
        let bias = f16::from_f32(scale * zero_point).to_f32();
        let values: Vec<f32> = codes[..group_size as usize]
            .iter()
            .map(|code| scale * f32::from((*code).max(least)) + bias)
            .collect();
        let format = WeightFormat::Affine { bits: 4, group_size };
        prop_assert_eq!(round_trip(&values, format), values);
    }

    /// What was quantised once is not changed by quantising it again.
    #[test]
    fn encoding_what_was_decoded_changes_nothing(seed in any::<u64>(), group_size in group_sizes()) {
        let format = WeightFormat::Affine { bits: 4, group_size };
        let once = round_trip(&normal(256, seed), format);
        prop_assert_eq!(&round_trip(&once, format), &once);
    }

    /// A checkpoint trained for quantisation keeps its lattice through BF16: `d * k` with `k` in -8..=7.
    #[test]
    fn lattices_survive_bf16(step in 0.0005f32..0.5, codes in prop::collection::vec(-8i8..8, 32)) {
        let step = f16::from_f32(step).to_f32();
        let exact: Vec<f32> = codes.iter().map(|code| step * f32::from(*code)).collect();
        let rounded: Vec<u8> =
            exact.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
        let format = WeightFormat::Affine { bits: 4, group_size: 32 };
        let rows = RowEncoder::new(StoredRows::floats("w", Dtype::BF16, 32), format).unwrap().encode(&[&rounded]).unwrap();
        for (value, exact) in decode_rows(format, &rows).iter().zip(&exact) {
            prop_assert!((value - exact).abs() <= 8.0 * step / 256.0, "{value} for {exact}");
        }
    }
}
