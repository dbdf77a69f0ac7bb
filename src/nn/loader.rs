//! Weights from a checkpoint to the GPU.
//!
//! Models declare their weights first: names and shapes are checked and buffers allocated from the headers
//! alone. Then [`Loader::run`] reads the tensors in the order of the files, a few rows at a time, packs them
//! and writes them to their places, so that no tensor is ever whole in memory.

use std::rc::Rc;

use super::{RmsNorm, Weight};
use crate::checkpoint::{Checkpoint, Dtype, RowEncoder, TensorInfo, WeightFormat, to_f32};
use crate::error::{Code, Error, Result};
use crate::gpu::{Buffer, Gpu, Usage};
use crate::kernels::{CacheFormat, Gemv, NormKernel};

/// How the caller wants weight matrices to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDtype {
    /// As the checkpoint stores them.
    Auto,
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// 8-bit codes in groups of 64.
    Q8,
    /// 4-bit codes in groups of 32, and 8-bit codes where [`Precision::High`] is called for.
    Q4,
}

/// How much a matrix bears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 4 bits will do.
    Normal,
    /// At 4 bits it would cost the model more quality than memory is worth.
    High,
}

impl WeightDtype {
    /// The value of the option `dtype` that names it.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(WeightDtype::Auto),
            "f32" => Ok(WeightDtype::F32),
            "f16" => Ok(WeightDtype::F16),
            "q8" => Ok(WeightDtype::Q8),
            "q4" => Ok(WeightDtype::Q4),
            other => Err(Error::new(Code::InvalidArgument, "read the option dtype")
                .expected("\"auto\", \"f32\", \"f16\", \"q8\" or \"q4\"")
                .got(format!("{other:?}"))),
        }
    }

    /// The format for a matrix that the checkpoint stores as `stored`, in rows of `columns`: the one asked
    /// for, or where rows do not divide into its groups the nearest that holds them.
    fn format(self, stored: Dtype, columns: u32, precision: Precision) -> WeightFormat {
        let as_stored = match stored {
            Dtype::F16 => WeightFormat::F16,
            Dtype::BF16 => WeightFormat::Bf16,
            _ => WeightFormat::F32,
        };
        let affine = |bits, group_size| WeightFormat::Affine { bits, group_size };
        let wishes: &[WeightFormat] = match self {
            WeightDtype::Auto => &[as_stored],
            WeightDtype::F32 => &[WeightFormat::F32],
            WeightDtype::F16 => &[WeightFormat::F16],
            WeightDtype::Q4 if precision == Precision::Normal => &[affine(4, 32), as_stored],
            WeightDtype::Q8 | WeightDtype::Q4 => &[affine(8, 64), affine(8, 32), as_stored],
        };
        let fits = |format: &&WeightFormat| columns.is_multiple_of(Gemv::column_multiple(**format));
        wishes.iter().find(fits).copied().unwrap_or(WeightFormat::F32)
    }
}

/// Where rows of a tensor go.
enum Target {
    Matrix { encoder: RowEncoder, weight: Rc<Weight>, part: u32, first_row: u32 },
    Vector(Rc<Buffer>),
}

struct Fill {
    tensor: String,
    target: Target,
}

/// Declares a model's weights, then fills them.
pub struct Loader<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    dtype: WeightDtype,
    fills: Vec<Fill>,
}

/// Bytes of a tensor that are read, packed and written at a time.
const CHUNK_BYTES: u64 = 4 << 20;

impl<'a> Loader<'a> {
    /// A loader that stores matrices as `dtype` says.
    pub fn new(gpu: &'a Gpu, checkpoint: &'a Checkpoint, dtype: WeightDtype) -> Self {
        Self { gpu, checkpoint, dtype, fills: Vec::new() }
    }

    /// How keys and values are stored beside these weights: exactly beside exact ones, else as halves, which
    /// cost less than rounding the weights does.
    pub fn cache_format(&self) -> CacheFormat {
        if self.dtype == WeightDtype::F32 { CacheFormat::F32 } else { CacheFormat::F16 }
    }

    /// Whether the checkpoint has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.find(name).is_some()
    }

    /// Tensors `(name, rows)` of `columns` columns, stacked by rows into one matrix.
    pub fn stacked(
        &mut self,
        tensors: &[(String, u32)],
        columns: u32,
        precision: Precision,
    ) -> Result<Rc<Weight>> {
        let rows = tensors.iter().map(|(_, rows)| rows).sum();
        let mut first_row = 0;
        let places = tensors.iter().map(|(name, rows)| {
            first_row += rows;
            (name.as_str(), *rows, 0, first_row - rows)
        });
        self.matrix(&places.collect::<Vec<_>>(), [1, rows, columns], precision)
    }

    /// Tensors of `rows × columns` as the parts of one weight.
    pub fn parts(
        &mut self,
        names: &[String],
        rows: u32,
        columns: u32,
        precision: Precision,
    ) -> Result<Rc<Weight>> {
        let places: Vec<_> = (0..).zip(names).map(|(part, name)| (name.as_str(), rows, part, 0)).collect();
        self.matrix(&places, [names.len() as u32, rows, columns], precision)
    }

    /// `places` are (name, rows, part, first row in the part).
    fn matrix(
        &mut self,
        places: &[(&str, u32, u32, u32)],
        [parts, rows, columns]: [u32; 3],
        precision: Precision,
    ) -> Result<Rc<Weight>> {
        let infos: Vec<&TensorInfo> = places
            .iter()
            .map(|(name, rows, ..)| self.tensor(name, &[*rows as usize, columns as usize]))
            .collect::<Result<_>>()?;
        let format = self.dtype.format(infos[0].dtype, columns, precision);
        let weight = Rc::new(Weight::new(self.gpu, places[0].0, format, parts, rows, columns)?);
        for (info, &(name, _, part, first_row)) in infos.iter().zip(places) {
            let encoder = RowEncoder::new(name, info.dtype, columns as usize, format)?;
            let target = Target::Matrix { encoder, weight: weight.clone(), part, first_row };
            self.fills.push(Fill { tensor: name.to_owned(), target });
        }
        Ok(weight)
    }

    /// An RMSNorm whose weight has `columns` elements.
    pub fn norm(&mut self, name: String, columns: u32, kernel: NormKernel) -> Result<RmsNorm> {
        let info = self.tensor(&name, &[columns as usize])?;
        // Checked here, before anything is downloaded.
        to_f32(&name, info.dtype, &[])?;
        let weight = Rc::new(self.gpu.buffer(&name, u64::from(columns) * 4, Usage::Weights)?);
        self.fills.push(Fill { tensor: name, target: Target::Vector(weight.clone()) });
        Ok(RmsNorm { kernel, weight })
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<&'a TensorInfo> {
        let info = self.checkpoint.tensor(name)?;
        if info.shape == shape {
            return Ok(info);
        }
        Err(Error::new(Code::Checkpoint, format!("use the tensor {name}"))
            .expected(format!("shape {shape:?}, as config.json implies"))
            .got(format!("{:?}", info.shape))
            .remedy("See that config.json and the weights are of the same model."))
    }

    /// Reads, packs and writes everything that was declared. `check` is asked before each piece, and its
    /// error ends the loading.
    pub async fn run(self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let names = self.fills.iter().map(|fill| fill.tensor.as_str());
        for info in self.checkpoint.in_file_order(names)? {
            // Tied weights are one fill; a tensor with several fills is read for each.
            for fill in self.fills.iter().filter(|fill| fill.tensor == info.name) {
                self.fill(info, &fill.target, check).await?;
            }
        }
        self.gpu.check()
    }

    async fn fill(&self, info: &TensorInfo, target: &Target, check: &dyn Fn() -> Result<()>) -> Result<()> {
        check()?;
        let (encoder, weight, part, first_row) = match target {
            Target::Vector(buffer) => {
                let bytes = self.checkpoint.read(&info.name).await?;
                let values = to_f32(&info.name, info.dtype, &bytes)?;
                self.gpu.write(buffer, 0, bytemuck::cast_slice(&values));
                return Ok(());
            }
            Target::Matrix { encoder, weight, part, first_row } => (encoder, weight, *part, *first_row),
        };
        let row_bytes = ((info.bytes.end - info.bytes.start) / info.rows().max(1) as u64).max(1);
        let chunk = usize::try_from(CHUNK_BYTES / row_bytes).unwrap_or(1).max(1);
        for begin in (0..info.rows()).step_by(chunk) {
            check()?;
            let rows = begin..info.rows().min(begin + chunk);
            let bytes = self.checkpoint.read_rows(&info.name, rows).await?;
            let encoded = encoder.encode(&bytes)?;
            weight.write(self.gpu, part, first_row + begin as u32, &encoded.codes, &encoded.scales);
        }
        Ok(())
    }
}
