//! Rows of a checkpoint's tensor to rows of a packed weight, and back.

use half::{bf16, f16};
use safetensors::Dtype;

use super::WeightFormat;
use super::affine;
use crate::error::{Code, Error, Result};

/// Packed rows, as [`WeightFormat`] describes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedRows {
    /// Values or codes: [`WeightFormat::code_bytes`] for each row.
    pub codes: Vec<u8>,
    /// Scales and biases: [`WeightFormat::scale_bytes`] for each row.
    pub scales: Vec<u8>,
}

/// Packs the rows of one tensor, a chunk at a time.
#[derive(Clone, Debug)]
pub struct RowEncoder {
    tensor: String,
    dtype: Dtype,
    cols: usize,
    format: WeightFormat,
}

impl RowEncoder {
    /// An encoder of the tensor `tensor` (a name, for errors), whose rows have `cols` elements of `dtype`.
    ///
    /// Fails with `Unsupported` for a dtype other than F64, F32, F16 and BF16, and for rows that `format`
    /// cannot pack: so that this shows before anything is downloaded.
    pub fn new(tensor: &str, dtype: Dtype, cols: usize, format: WeightFormat) -> Result<Self> {
        float_size(tensor, dtype)?;
        format.check(tensor, cols)?;
        Ok(Self { tensor: tensor.to_owned(), dtype, cols, format })
    }

    /// Packs `bytes`, which hold any number of whole rows in the checkpoint's layout.
    ///
    /// Fails with `Checkpoint` if a value is not finite or a row is not whole, and with `Unsupported` if a
    /// value is too large for the format.
    pub fn encode(&self, bytes: &[u8]) -> Result<EncodedRows> {
        let row_bytes = self.cols * float_size(&self.tensor, self.dtype)?;
        if row_bytes == 0 {
            return Ok(EncodedRows::default());
        }
        if !bytes.len().is_multiple_of(row_bytes) {
            return Err(Error::new(Code::Checkpoint, self.asked())
                .expected(format!("whole rows of {row_bytes} bytes"))
                .got(format!("{} bytes", bytes.len())));
        }
        let rows = bytes.len() / row_bytes;
        let mut encoded = EncodedRows {
            codes: Vec::with_capacity(rows * self.format.code_bytes(self.cols)),
            scales: Vec::with_capacity(rows * self.format.scale_bytes(self.cols)),
        };
        let mut values = Vec::with_capacity(self.cols);
        for row in bytes.chunks_exact(row_bytes) {
            values.clear();
            append_f32(&self.tensor, self.dtype, row, &mut values)?;
            self.encode_row(&values, &mut encoded)?;
        }
        Ok(encoded)
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
                let precision = precision(self.dtype);
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
        format!("pack tensor {} as {}", self.tensor, self.format)
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

fn append_f32(tensor: &str, dtype: Dtype, bytes: &[u8], values: &mut Vec<f32>) -> Result<()> {
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
fn float_size(tensor: &str, dtype: Dtype) -> Result<usize> {
    match dtype {
        Dtype::F64 => Ok(8),
        Dtype::F32 => Ok(4),
        Dtype::F16 | Dtype::BF16 => Ok(2),
        _ => Err(Error::new(Code::Unsupported, format!("read tensor {tensor}"))
            .expected("dtype F64, F32, F16 or BF16")
            .got(dtype.to_string())),
    }
}

/// The spacing of a dtype's values relative to their size.
fn precision(dtype: Dtype) -> f32 {
    match dtype {
        Dtype::BF16 => bf16::EPSILON.to_f32_const(),
        Dtype::F16 => f16::EPSILON.to_f32_const(),
        _ => f32::EPSILON,
    }
}
