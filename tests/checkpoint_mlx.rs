//! MLX's affine quantisation: what it means, that repacking keeps it, and what is refused.

#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use half::{bf16, f16};
use jird::checkpoint::{
    Checkpoint, Dtype, Encoding, RowEncoder, RowLayout, StoredRows, WeightFormat, decode_rows, to_f32,
};
use jird::error::{Code, Error};
use jird::fetch::{MemoryOpener, Repo};
use pollster::block_on;
use safetensors::tensor::TensorView;

const ROWS: usize = 3;
const COLUMNS: usize = 128;
const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [(u32, &str, Dtype); 3] =
    [(32, "bf16", Dtype::BF16), (64, "f16", Dtype::F16), (128, "f32", Dtype::F32)];

fn open(bytes: Vec<u8>) -> Checkpoint {
    let files = [("model.safetensors".to_owned(), bytes)];
    block_on(Checkpoint::open(&Repo::new(MemoryOpener::new(files)))).unwrap()
}

/// What tests/reference/make_mlx.py made with MLX.
fn fixture() -> Checkpoint {
    open(include_bytes!("fixtures/mlx.safetensors").to_vec())
}

fn layout(checkpoint: &Checkpoint, name: &str) -> RowLayout {
    checkpoint.row_layout(&format!("{name}.weight"), &[ROWS, COLUMNS]).unwrap()
}

fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    to_f32(name, Dtype::F32, &block_on(checkpoint.read(name)).unwrap()).unwrap()
}

fn planes(checkpoint: &Checkpoint, layout: &RowLayout, rows: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    block_on(checkpoint.read_planes(layout, rows)).unwrap()
}

fn slices(planes: &[Vec<u8>]) -> Vec<&[u8]> {
    planes.iter().map(Vec::as_slice).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn rows_decode_to_what_mlx_makes_of_them() {
    let checkpoint = fixture();
    for bits in BITS {
        for (group_size, dtype, scales) in GROUPS {
            let name = format!("q{bits}_g{group_size}_{dtype}");
            let layout = layout(&checkpoint, &name);
            assert_eq!(layout.stored.encoding, Encoding::Affine { bits, group_size, scales }, "{name}");
            let expected = floats(&checkpoint, &format!("{name}.values"));
            for row in [0, 2, 1] {
                let planes = planes(&checkpoint, &layout, row..row + 1);
                let mut values = vec![f32::NAN; COLUMNS];
                layout.decode(&slices(&planes), &mut values).unwrap();
                // MLX may round a product and a sum as one.
                assert!(
                    distance(&values, &expected[row * COLUMNS..][..COLUMNS]) <= 1e-7,
                    "{name}, row {row}"
                );
            }
        }
    }
}

#[test]
fn repacking_keeps_codes_and_rounds_nothing_but_f32_scales() {
    let checkpoint = fixture();
    for bits in BITS {
        for (group_size, dtype, scales) in GROUPS {
            let name = format!("q{bits}_g{group_size}_{dtype}");
            let layout = layout(&checkpoint, &name);
            let planes = planes(&checkpoint, &layout, 0..ROWS);
            let mut expected = Vec::new();
            layout.stored.decode(&slices(&planes), &mut expected).unwrap();
            let kept = layout.stored.encoding.format();
            assert_eq!(kept, WeightFormat::Affine { bits: if bits <= 4 { 4 } else { 8 }, group_size });
            // As it is stored, and as a stack with other widths and groups may ask.
            for format in [kept, WeightFormat::Affine { bits: 8, group_size: 32 }] {
                let encoder = RowEncoder::new(layout.stored.clone(), format).unwrap();
                assert!(encoder.repacks());
                let got = decode_rows(format, &encoder.encode(&slices(&planes)).unwrap());
                let step = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
                let bound = if scales == Dtype::F32 { 3.0 * step / 2048.0 } else { 0.0 };
                assert!(distance(&got, &expected) <= bound, "{name} as {format}");
            }
        }
    }
}

#[test]
fn narrower_and_floating_formats_go_by_way_of_the_values() {
    let checkpoint = fixture();
    let layout = layout(&checkpoint, "q8_g64_f16");
    let planes = planes(&checkpoint, &layout, 0..ROWS);
    let mut exact = Vec::new();
    layout.stored.decode(&slices(&planes), &mut exact).unwrap();
    let encode = |format| {
        let encoder = RowEncoder::new(layout.stored.clone(), format).unwrap();
        assert!(!encoder.repacks());
        encoder.encode(&slices(&planes)).unwrap()
    };
    assert_eq!(decode_rows(WeightFormat::F32, &encode(WeightFormat::F32)), exact);
    let q4 = WeightFormat::Affine { bits: 4, group_size: 32 };
    let bytes: Vec<u8> = exact.iter().flat_map(|value| value.to_le_bytes()).collect();
    let encoder = RowEncoder::new(StoredRows::floats("w", Dtype::F32, COLUMNS), q4).unwrap();
    assert_eq!(encode(q4), encoder.encode(&[&bytes]).unwrap());
}

/// One row of codes 0, 1, 2, 3 … with this scale and bias; what repacking makes of them.
fn repacked(scale: f32, bias: f32, dtype: Dtype) -> Result<Vec<f32>, Error> {
    let half = |value: f32| match dtype {
        Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
        _ => value.to_le_bytes().to_vec(),
    };
    let codes: Vec<u8> = (0..32).collect();
    let encoding = Encoding::Affine { bits: 8, group_size: 32, scales: dtype };
    let stored = StoredRows { tensor: "w".to_owned(), columns: 32, encoding };
    let format = encoding.format();
    let encoder = RowEncoder::new(stored, format).unwrap();
    Ok(decode_rows(format, &encoder.encode(&[&codes, &half(scale), &half(bias)])?))
}

#[test]
fn scales_in_bf16_are_exact_down_to_the_documented_size_and_bounded_below() {
    for exponent in -40..=15 {
        for mantissa in [1.0f32, 1.0 + 1.0 / 128.0, 1.9921875] {
            let scale = mantissa * 2f32.powi(exponent);
            let got = repacked(scale, -scale, Dtype::BF16).unwrap();
            let exact: Vec<f32> = (0..32).map(|code| scale * code as f32 - scale).collect();
            let bound = if exponent >= -17 { 0.0 } else { 32.0 * 2f32.powi(-25) };
            assert!(distance(&got, &exact) <= bound, "{scale}");
        }
    }
    let scale = 0.1 + 1e-5;
    let exact: Vec<f32> = (0..32).map(|code| scale * code as f32 - 0.7).collect();
    let got = repacked(scale, -0.7, Dtype::F32).unwrap();
    assert!(distance(&got, &exact) <= (31.0 * scale + 0.7) / 2048.0);
    assert!(distance(&got, &exact) > 0.0, "an f32 scale is rounded");
}

#[test]
fn scales_that_f16_cannot_hold_are_errors_that_name_the_tensor() {
    let error = repacked(1e6, 0.0, Dtype::BF16).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert!(error.to_string().contains("tensor w") && error.to_string().contains("65504"), "{error}");
    assert_eq!(repacked(f32::NAN, 0.0, Dtype::F32).unwrap_err().code(), Code::Checkpoint);
    assert_eq!(repacked(1.0, f32::INFINITY, Dtype::BF16).unwrap_err().code(), Code::Checkpoint);
}

/// A checkpoint of zeroed tensors of these names, dtypes and shapes.
fn zeros(tensors: &[(&str, Dtype, &[usize])]) -> Checkpoint {
    let bytes = vec![0; 1 << 16];
    let views: BTreeMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, shape)| {
            let length = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            (*name, TensorView::new(*dtype, shape.to_vec(), &bytes[..length]).unwrap())
        })
        .collect();
    open(safetensors::serialize(views, None).unwrap())
}

#[test]
fn shapes_and_modes_that_are_not_affine_are_refused() {
    use Dtype::{BF16, F16, I32, U8, U32};
    type Case<'a> = (&'a [(&'a str, Dtype, &'a [usize])], Code, &'a str);
    let cases: [Case<'_>; 8] = [
        (&[("x.weight", U32, &[4, 8]), ("x.scales", U8, &[4, 2])], Code::Unsupported, "scales of U8 alone"),
        (
            &[("x.weight", I32, &[4, 8]), ("x.scales", F16, &[4, 1]), ("x.biases", F16, &[4, 1])],
            Code::Unsupported,
            "got I32, F16 and F16",
        ),
        (
            &[("x.weight", U32, &[4, 8]), ("x.scales", F16, &[4, 1]), ("x.biases", BF16, &[4, 1])],
            Code::Unsupported,
            "U32, F16 and BF16",
        ),
        (
            &[("x.weight", U32, &[4, 14]), ("x.scales", F16, &[4, 1]), ("x.biases", F16, &[4, 1])],
            Code::Unsupported,
            "codes of 2, 3, 4, 5, 6 or 8 bits",
        ),
        (
            &[("x.weight", U32, &[4, 8]), ("x.scales", F16, &[4, 4]), ("x.biases", F16, &[4, 4])],
            Code::Unsupported,
            "groups of 32, 64 or 128",
        ),
        (
            &[("x.weight", U32, &[4, 8]), ("x.scales", F16, &[4, 0]), ("x.biases", F16, &[4, 0])],
            Code::Unsupported,
            "[4, 0] for 64 columns",
        ),
        (
            &[("x.weight", U32, &[4, 8]), ("x.scales", F16, &[4, 1]), ("x.biases", F16, &[2, 1])],
            Code::Checkpoint,
            "tensor x.biases",
        ),
        (&[("x.weight", F16, &[4, 32])], Code::Checkpoint, "shape [4, 64]"),
    ];
    for (tensors, code, expected) in cases {
        let error = zeros(tensors).row_layout("x.weight", &[4, 64]).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let good =
        zeros(&[("x.weight", U32, &[2, 4, 8]), ("x.scales", F16, &[2, 4, 2]), ("x.biases", F16, &[2, 4, 2])]);
    let layout = good.row_layout("x.weight", &[2, 4, 64]).unwrap();
    assert_eq!((layout.rows, layout.planes.len()), (8, 3));
    assert_eq!(layout.ranges(7..9).unwrap_err().code(), Code::InvalidArgument);
    let broken = layout.decode(&[&[0; 32], &[0; 4], &[0; 2]], &mut [0.0; 64]).unwrap_err();
    assert!(broken.to_string().contains("whole rows of [32, 4, 4] bytes"), "{broken}");
}

#[test]
fn halves_of_f16_scales_are_kept_bit_by_bit() {
    let checkpoint = fixture();
    let layout = layout(&checkpoint, "q4_g64_f16");
    let planes = planes(&checkpoint, &layout, 0..ROWS);
    let encoder = RowEncoder::new(layout.stored.clone(), layout.stored.encoding.format()).unwrap();
    let packed = encoder.encode(&slices(&planes)).unwrap();
    assert_eq!(packed.codes, planes[0]);
    let scales: Vec<u8> = packed.scales.chunks(4).flat_map(|word| word[..2].to_vec()).collect();
    let biases: Vec<u8> = packed.scales.chunks(4).flat_map(|word| word[2..].to_vec()).collect();
    assert_eq!([scales, biases], [planes[1].clone(), planes[2].clone()]);
    assert!(f16::from_le_bytes([planes[1][0], planes[1][1]]) != f16::ZERO);
}
