//! Rows of a checkpoint's matrix to rows of a packed weight, and back.

use half::{bf16, f16};
use safetensors::Dtype;

use super::affine;
use super::repack::{halves, interleave, widen};
use super::{Encoding, StoredRows, WeightFormat};
use crate::error::{Code, Error, Result};

/// Packed rows, as [`WeightFormat`] describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRows {
    /// Values or codes: [`WeightFormat::code_bytes`] for each row.
    pub codes: Vec<u8>,
    /// Scales and biases: [`WeightFormat::scale_bytes`] for each row.
    pub scales: Vec<u8>,
}

/// Packs the rows of one matrix, a chunk at a time.
///
/// Quantised rows are repacked where the format has room for their codes: these stay as they are, while
/// scales and biases become f16. That is exact for F16, and for BF16 from 2^-17 (7.6e-6) on. F32 scales are
/// rounded by at most 2^-11 of their size, smaller ones by at most 2^-25; a weight then moves by at most
/// 2^-11 · (code · scale + |bias|). Everything else goes by way of the values.
#[derive(Clone, Debug)]
pub struct RowEncoder {
    stored: StoredRows,
    format: WeightFormat,
}

/// How codes are repacked.
#[derive(Clone, Copy, Debug)]
struct Repack {
    bits: u32,
    wider: u32,
    /// Groups of the format in one that is stored.
    copies: usize,
    scales: Dtype,
}

impl RowEncoder {
    /// An encoder of rows that are `stored` in some way.
    ///
    /// Fails with `Unsupported` for a dtype other than F64, F32, F16 and BF16, and for rows that `format`
    /// cannot pack: so that this shows before anything is downloaded.
    pub fn new(stored: StoredRows, format: WeightFormat) -> Result<Self> {
        stored.row_bytes()?;
        format.check(&stored.tensor, stored.columns)?;
        Ok(Self { stored, format })
    }

    /// Packs whole rows. `planes` hold them as [`StoredRows`] says: one plane of numbers, or codes, scales and
    /// biases.
    ///
    /// Fails with `Checkpoint` if a value is not finite or a row is not whole, and with `Unsupported` if a
    /// value is too large for the format.
    pub fn encode(&self, planes: &[&[u8]]) -> Result<EncodedRows> {
        let rows = self.stored.count(planes)?;
        if let (true, [codes, scales, biases]) = (self.repacks(), planes) {
            let [scales, biases] = [self.halves(scales)?, self.halves(biases)?];
            return Ok(EncodedRows {
                codes: self.repack_codes(codes.to_vec()),
                scales: self.interleave(&scales, &biases),
            });
        }
        let mut encoded = EncodedRows {
            codes: Vec::with_capacity(rows * self.format.code_bytes(self.stored.columns)),
            scales: Vec::with_capacity(rows * self.format.scale_bytes(self.stored.columns)),
        };
        let row_bytes = self.stored.row_bytes()?;
        let mut values = Vec::with_capacity(self.stored.columns);
        for row in 0..rows {
            values.clear();
            let planes = planes
                .iter()
                .zip(&row_bytes)
                .filter_map(|(plane, bytes)| plane.get(row * bytes..(row + 1) * bytes));
            self.stored.decode(&planes.collect::<Vec<_>>(), &mut values)?;
            self.encode_row(&values, &mut encoded)?;
        }
        Ok(encoded)
    }

    /// Whether codes, scales and biases are packed each by itself, so that their planes need not be read
    /// together.
    pub fn repacks(&self) -> bool {
        self.repack().is_some()
    }

    /// The packed form of a plane of codes, where the encoder [repacks](RowEncoder::repacks).
    pub fn repack_codes(&self, codes: Vec<u8>) -> Vec<u8> {
        match self.repack() {
            Some(Repack { bits, wider, .. }) if bits != wider => widen(&codes, bits, wider),
            _ => codes,
        }
    }

    /// A plane of scales or of biases as f16, where the encoder [repacks](RowEncoder::repacks).
    ///
    /// Fails with `Unsupported` for what f16 cannot hold, and with `Checkpoint` for what is not finite.
    pub fn halves(&self, plane: &[u8]) -> Result<Vec<f16>> {
        self.repack().map_or(Ok(Vec::new()), |repack| halves(&self.stored.tensor, repack.scales, plane))
    }

    /// The packed form of scales and biases.
    pub fn interleave(&self, scales: &[f16], biases: &[f16]) -> Vec<u8> {
        self.repack().map_or(Vec::new(), |repack| interleave(scales, biases, repack.copies))
    }

    fn repack(&self) -> Option<Repack> {
        match (self.stored.encoding, self.format) {
            (
                Encoding::Affine { bits, group_size: stored, scales },
                WeightFormat::Affine { bits: wider @ (4 | 8), group_size },
            ) if wider >= bits && stored.is_multiple_of(group_size) => {
                Some(Repack { bits, wider, copies: (stored / group_size) as usize, scales })
            }
            _ => None,
        }
    }

    fn encode_row(&self, values: &[f32], encoded: &mut EncodedRows) -> Result<()> {
        match self.format {
            WeightFormat::F32 => encoded.codes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            WeightFormat::F16 => {
                self.check_range(values, f16::MAX.to_f32_const())?;
                encoded.codes.extend(values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()));
            }
            WeightFormat::Bf16 => {
                self.check_range(values, bf16::MAX.to_f32_const())?;
                encoded.codes.extend(values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()));
            }
            WeightFormat::Affine { bits, group_size } => {
                self.check_range(values, f16::MAX.to_f32_const())?;
                let precision = precision(self.stored.encoding);
                for group in values.chunks_exact(group_size as usize) {
                    affine::encode(group, bits, precision, &mut encoded.codes, &mut encoded.scales);
                }
            }
        }
        Ok(())
    }

    /// Fails if a value is beyond `limit`, rather than saturate or overflow silently.
    fn check_range(&self, values: &[f32], limit: f32) -> Result<()> {
        match values.iter().find(|value| value.abs() > limit) {
            None => Ok(()),
            Some(value) => Err(Error::new(Code::Unsupported, self.asked())
                .expected(format!("values of at most {limit}"))
                .got(value.to_string())
                .remedy("Choose the weight format f32, or bf16 if the weights are BF16.")),
        }
    }

    fn asked(&self) -> String {
        format!("pack tensor {} as {}", self.stored.tensor, self.format)
    }
}

/// The values of packed rows, row-major: what the kernels compute with. `rows` are those of an encoder of
/// this `format`.
pub fn decode_rows(format: WeightFormat, rows: &EncodedRows) -> Vec<f32> {
    let halves = rows.codes.as_chunks::<2>().0;
    match format {
        WeightFormat::F32 => {
            rows.codes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        WeightFormat::F16 => halves.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        WeightFormat::Bf16 => halves.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
        WeightFormat::Affine { bits, group_size } => {
            affine::decode(bits, group_size as usize, &rows.codes, &rows.scales)
        }
    }
}

/// The values of a floating-point tensor or of rows of it. `tensor` is its name, for errors.
///
/// Fails with `Unsupported` for a dtype other than F64, F32, F16 and BF16, and with `Checkpoint` if a value
/// is not finite or `bytes` doesn't hold whole values.
pub fn to_f32(tensor: &str, dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut values = Vec::with_capacity(bytes.len() / float_size(tensor, dtype)?);
    append_f32(tensor, dtype, bytes, &mut values)?;
    Ok(values)
}

pub(super) fn append_f32(tensor: &str, dtype: Dtype, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
    let asked = || Error::new(Code::Checkpoint, format!("read tensor {tensor}"));
    let size = float_size(tensor, dtype)?;
    if !bytes.len().is_multiple_of(size) {
        return Err(asked().expected(format!("whole values of {size} bytes")).got(bytes.len().to_string()));
    }
    let first = values.len();
    match dtype {
        Dtype::F64 => {
            values.extend(bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32))
        }
        Dtype::F32 => values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        Dtype::F16 => {
            values.extend(bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()))
        }
        _ => values.extend(bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
    }
    match values.iter().skip(first).find(|value| !value.is_finite()) {
        None => Ok(()),
        Some(value) => Err(asked()
            .expected("finite values")
            .got(value.to_string())
            .remedy("The checkpoint is damaged or was made by a training run that diverged.")),
    }
}

/// Bytes of a value of the dtypes that weights may have.
pub(super) fn float_size(tensor: &str, dtype: Dtype) -> Result<usize> {
    match dtype {
        Dtype::F64 => Ok(8),
        Dtype::F32 => Ok(4),
        Dtype::F16 | Dtype::BF16 => Ok(2),
        _ => Err(Error::new(Code::Unsupported, format!("read tensor {tensor}"))
            .expected("dtype F64, F32, F16 or BF16")
            .got(dtype.to_string())),
    }
}

/// The spacing of stored values relative to their size.
fn precision(encoding: Encoding) -> f32 {
    match encoding {
        Encoding::Float(Dtype::BF16) => bf16::EPSILON.to_f32_const(),
        Encoding::Float(Dtype::F16) => f16::EPSILON.to_f32_const(),
        _ => f32::EPSILON,
    }
}
