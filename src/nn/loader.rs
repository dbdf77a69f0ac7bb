//! Weights from a checkpoint to the GPU.
//!
//! Models declare their weights first: names and shapes are checked and buffers allocated from the headers
//! alone. Then [`Loader::run`] reads the tensors in the order of the files, a few rows at a time, packs them
//! and writes them to their places, so that no tensor is ever whole in memory, and none is read twice.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use half::{bf16, f16};

use super::{RmsNorm, Weight};
use crate::checkpoint::{
    Checkpoint, Dtype, EncodedRows, RowEncoder, RowLayout, StoredRows, TensorInfo, WeightFormat, to_f32,
};
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

    /// The format for a matrix of rows of `columns` that `kept` would keep as it is stored: the one asked
    /// for, or where rows do not divide into its groups the nearest that holds them. What is quantised to no
    /// more bits than asked for is kept, as quantising it anew could only lose.
    fn format(self, kept: WeightFormat, columns: u32, precision: Precision) -> WeightFormat {
        let affine = |bits, group_size| WeightFormat::Affine { bits, group_size };
        let wishes: &[WeightFormat] = match self {
            WeightDtype::Auto => &[kept],
            WeightDtype::F32 => &[WeightFormat::F32],
            WeightDtype::F16 => &[WeightFormat::F16],
            WeightDtype::Q4 if precision == Precision::Normal => &[affine(4, 32), kept],
            WeightDtype::Q8 | WeightDtype::Q4 => &[affine(8, 64), affine(8, 32), kept],
        };
        let fits = |format: &&WeightFormat| columns.is_multiple_of(Gemv::column_multiple(**format));
        let wished = wishes.iter().find(fits).copied().unwrap_or(WeightFormat::F32);
        match (kept, wished) {
            (WeightFormat::Affine { bits, .. }, WeightFormat::Affine { bits: wished, .. })
                if bits <= wished =>
            {
                kept
            }
            _ => wished,
        }
    }
}

/// The format that keeps two matrices which are to be one.
fn common(a: WeightFormat, b: WeightFormat) -> WeightFormat {
    match (a, b) {
        (a, b) if a == b => a,
        // Codes keep their values in wider fields, and a group may be cut into smaller ones.
        (
            WeightFormat::Affine { bits: bits_a, group_size: group_a },
            WeightFormat::Affine { bits: bits_b, group_size: group_b },
        ) => WeightFormat::Affine { bits: bits_a.max(bits_b), group_size: group_a.min(group_b) },
        _ => WeightFormat::F32,
    }
}

/// Where the rows of a stored matrix go in a weight.
#[derive(Clone, Copy)]
struct Place {
    part: u32,
    /// The first row.
    first: u32,
    /// Rows that stay together.
    run: u32,
    /// From one run to the next.
    stride: u32,
}

impl Place {
    /// All rows together.
    fn whole(part: u32, first: u32) -> Self {
        Self { part, first, run: u32::MAX, stride: 0 }
    }

    /// Where `rows`, all of one run, go.
    fn rows(&self, rows: &Range<usize>) -> Range<u32> {
        let start = rows.start as u32;
        let first = self.first + start / self.run * self.stride + start % self.run;
        first..first + rows.len() as u32
    }
}

/// Rows of a weight that are filled from the rows of one stored matrix.
struct Rows {
    layout: RowLayout,
    encoder: RowEncoder,
    weight: Rc<Weight>,
    place: Place,
    /// Scales or biases, whichever comes first in the file, wait here for the others: two bytes for each group.
    halves: RefCell<Vec<f16>>,
}

/// What is read in one go along a file, and where it goes.
enum Source {
    /// Every plane of the rows.
    Rows(Rc<Rows>),
    /// The codes alone.
    Codes(Rc<Rows>),
    /// Scales (plane 1) or biases (plane 2) alone.
    Halves(Rc<Rows>, usize),
    /// A norm's weight or another vector, and the byte of the buffer where it begins.
    Vector(TensorInfo, Rc<Buffer>, u64),
}

impl Source {
    /// What is read: numbers of files and bytes in them, the first one being where it begins.
    fn ranges(&self) -> Vec<(usize, Range<u64>)> {
        let of_planes = |rows: &Rows, planes: Range<usize>| {
            let planes = rows.layout.planes.get(planes).unwrap_or_default();
            planes.iter().map(|plane| (plane.file, plane.range(0..rows.layout.rows))).collect()
        };
        match self {
            Source::Rows(rows) => of_planes(rows, 0..rows.layout.planes.len()),
            Source::Codes(rows) => of_planes(rows, 0..1),
            Source::Halves(rows, plane) => of_planes(rows, *plane..plane + 1),
            Source::Vector(tensor, ..) => vec![(tensor.file, tensor.bytes.clone())],
        }
    }

    fn position(&self) -> Option<(usize, u64)> {
        self.ranges().first().map(|(file, range)| (*file, range.start))
    }
}

/// Declares a model's weights, then fills them.
pub struct Loader<'a> {
    gpu: &'a Gpu,
    checkpoint: &'a Checkpoint,
    dtype: WeightDtype,
    cache_format: CacheFormat,
    sources: Vec<Source>,
    /// Names that were declared.
    claimed: BTreeSet<String>,
    /// Those of them that the checkpoint lacks.
    missing: Vec<String>,
}

/// Bytes of a tensor that are read, packed and written at a time.
const CHUNK_BYTES: u64 = 4 << 20;

/// A piece, and its packed form, which has twice its size where BF16 becomes F32.
const PIECE_COPIES: u64 = 3;

/// How many names an error for missing tensors lists.
const NAMES_LISTED: usize = 8;

impl<'a> Loader<'a> {
    /// A loader that stores matrices as `dtype` says.
    pub fn new(gpu: &'a Gpu, checkpoint: &'a Checkpoint, dtype: WeightDtype) -> Self {
        Self {
            gpu,
            checkpoint,
            dtype,
            cache_format: if dtype == WeightDtype::F32 { CacheFormat::F32 } else { CacheFormat::F16 },
            sources: Vec::new(),
            claimed: BTreeSet::new(),
            missing: Vec::new(),
        }
    }

    /// How keys and values are stored beside these weights: exactly beside exact ones, else as halves, which
    /// cost less than rounding the weights does.
    pub fn cache_format(&self) -> CacheFormat {
        self.cache_format
    }

    /// Stores keys and values so whatever the weights are, as tests do that look at the weights' errors alone.
    pub fn with_cache_format(mut self, format: CacheFormat) -> Self {
        self.cache_format = format;
        self
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
            (name.as_str(), vec![*rows, columns], Place::whole(0, first_row - rows))
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
        let places =
            (0..).zip(names).map(|(part, name)| (name.as_str(), vec![rows, columns], Place::whole(part, 0)));
        let places: Vec<_> = places.collect();
        self.matrix(&places, [names.len() as u32, rows, columns], precision)
    }

    /// The matrices of several experts below each other: `tensors` are (name, rows of an expert), each
    /// `[experts, rows, columns]`, and an expert's rows of all of them are stacked.
    pub fn experts(&mut self, tensors: &[(String, u32)], experts: u32, columns: u32) -> Result<Rc<Weight>> {
        let stride = tensors.iter().map(|(_, rows)| rows).sum();
        let mut first = 0;
        let places = tensors.iter().map(|(name, rows)| {
            first += rows;
            let place = Place { part: 0, first: first - rows, run: *rows, stride };
            (name.as_str(), vec![experts, *rows, columns], place)
        });
        self.matrix(&places.collect::<Vec<_>>(), [1, experts * stride, columns], Precision::Normal)
    }

    /// A table `[rows, columns]` that is not put on the GPU: where its rows lie, for a [`super::RowTable`].
    pub fn table(&mut self, name: &str, rows: u32, columns: u32) -> Result<RowLayout> {
        let layout = self.layout(name, &[rows, columns])?;
        for plane in &layout.planes {
            // Without it the model would not work offline.
            self.checkpoint.file(plane.file)?.will_keep(plane.range(0..layout.rows));
        }
        Ok(layout)
    }

    /// `value` as the type holds it in which the numbers of the matrix `name` are stored.
    pub fn rounded(&self, name: &str, value: f32) -> f32 {
        let scales =
            name.strip_suffix(".weight").and_then(|base| self.checkpoint.find(&format!("{base}.scales")));
        match scales.or(self.checkpoint.find(name)).map(|tensor| tensor.dtype) {
            Some(Dtype::F16) => f16::from_f32(value).to_f32(),
            Some(Dtype::BF16) => bf16::from_f32(value).to_f32(),
            _ => value,
        }
    }

    /// `places` are (name, shape, where its rows go).
    fn matrix(
        &mut self,
        places: &[(&str, Vec<u32>, Place)],
        [parts, rows, columns]: [u32; 3],
        precision: Precision,
    ) -> Result<Rc<Weight>> {
        let layouts: Vec<RowLayout> =
            places.iter().map(|(name, shape, _)| self.layout(name, shape)).collect::<Result<_>>()?;
        let formats = layouts.iter().map(|layout| layout.stored.encoding.format());
        let kept = formats.reduce(common).unwrap_or(WeightFormat::F32);
        let format = self.dtype.format(kept, columns, precision);
        let weight = Rc::new(Weight::new(self.gpu, places[0].0, format, parts, rows, columns)?);
        for (layout, &(_, _, place)) in layouts.into_iter().zip(places) {
            let encoder = RowEncoder::new(layout.stored.clone(), format)?;
            let halves = RefCell::default();
            let rows = Rc::new(Rows { layout, encoder, weight: weight.clone(), place, halves });
            if rows.encoder.repacks() {
                let halves = [1, 2].map(|plane| Source::Halves(rows.clone(), plane));
                self.sources.extend(halves.into_iter().chain([Source::Codes(rows)]));
            } else {
                self.sources.push(Source::Rows(rows));
            }
        }
        Ok(weight)
    }

    /// An RMSNorm whose weight has `columns` elements.
    pub fn norm(&mut self, name: String, columns: u32, kernel: NormKernel) -> Result<RmsNorm> {
        let weight = self.vector(&name, columns)?;
        Ok(RmsNorm { kernel, weight, scales_residual: false })
    }

    /// An RMSNorm of a residual's update, after which the residual is multiplied by the tensor `factor [1]`.
    pub fn scaled_norm(
        &mut self,
        name: String,
        factor: &str,
        columns: u32,
        kernel: NormKernel,
    ) -> Result<RmsNorm> {
        let bytes = u64::from(columns) * 4;
        // The factor is followed by three elements that nobody reads: kernels read four at a time.
        let weight = Rc::new(self.gpu.buffer(&name, bytes + 16, Usage::Weights)?);
        self.vector_into(&name, columns, &weight, 0)?;
        self.vector_into(factor, 1, &weight, bytes)?;
        Ok(RmsNorm { kernel, weight, scales_residual: true })
    }

    /// A vector of `columns` elements, in f32.
    pub fn vector(&mut self, name: &str, columns: u32) -> Result<Rc<Buffer>> {
        let buffer = Rc::new(self.gpu.buffer(name, u64::from(columns) * 4, Usage::Weights)?);
        self.vector_into(name, columns, &buffer, 0)?;
        Ok(buffer)
    }

    /// A vector of `columns` elements to `buffer`, from byte `offset` on.
    fn vector_into(&mut self, name: &str, columns: u32, buffer: &Rc<Buffer>, offset: u64) -> Result<()> {
        if self.claim(name) {
            let tensor = self.checkpoint.vector(name, columns as usize)?;
            self.sources.push(Source::Vector(tensor.clone(), buffer.clone(), offset));
        }
        Ok(())
    }

    /// How the matrix is stored. What is missing has a layout too, without planes, so that the declaration goes
    /// on and [`Loader::complete`] can name everything that is missing.
    fn layout(&mut self, name: &str, shape: &[u32]) -> Result<RowLayout> {
        let shape: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
        if self.claim(name) {
            return self.checkpoint.row_layout(name, &shape);
        }
        let stored = StoredRows::floats(name, Dtype::F32, shape.last().copied().unwrap_or(1));
        Ok(RowLayout { stored, rows: 0, planes: Vec::new() })
    }

    /// Notes that a tensor was declared, and whether it is there.
    fn claim(&mut self, name: &str) -> bool {
        self.claimed.insert(name.to_owned());
        let is_there = self.has(name);
        if !is_there {
            self.missing.push(name.to_owned());
        }
        is_there
    }

    /// Fails with [`Code::MissingTensor`] if tensors that were declared are not in the checkpoint.
    pub fn complete(&self) -> Result<()> {
        let Some(first) = self.missing.first() else { return Ok(()) };
        let Err(error) = self.checkpoint.tensor(first) else { return Ok(()) };
        if self.missing.len() == 1 {
            return Err(error);
        }
        let listed =
            self.missing.iter().take(NAMES_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let others = self.missing.len().saturating_sub(NAMES_LISTED);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        Err(Error::new(Code::MissingTensor, format!("find {} tensors", self.missing.len()))
            .expected(format!("{listed}{others}"))
            .because(error))
    }

    /// Names of tensors that begin with `prefix` and were not declared, scales and biases of what was declared
    /// aside.
    pub fn unclaimed(&self, prefix: &str) -> Vec<&'a str> {
        let is_claimed = |name: &str| {
            let stem = name.strip_suffix(".scales").or(name.strip_suffix(".biases"));
            self.claimed.contains(name)
                || stem.is_some_and(|stem| self.claimed.contains(&format!("{stem}.weight")))
        };
        self.checkpoint.names().filter(|name| name.starts_with(prefix) && !is_claimed(name)).collect()
    }

    /// What [`Loader::run`] will read: numbers of files and bytes in them.
    pub fn ranges(&self) -> Vec<(usize, Range<u64>)> {
        self.sources.iter().flat_map(Source::ranges).collect()
    }

    /// Bytes that [`Loader::run`] holds on the heap at most, blocks of files aside: a piece of a tensor as it is
    /// read, unpacked to f32 and packed, and scales or biases that wait for the others.
    pub fn staging_bytes(&self) -> u64 {
        let waiting = |source: &Source| match source {
            Source::Halves(rows, 1) => {
                let WeightFormat::Affine { group_size, .. } = rows.layout.stored.encoding.format() else {
                    return 0;
                };
                rows.layout.rows as u64 * rows.layout.stored.columns as u64 / u64::from(group_size) * 2
            }
            _ => 0,
        };
        PIECE_COPIES * CHUNK_BYTES + self.sources.iter().map(waiting).sum::<u64>()
    }

    /// Reads, packs and writes everything that was declared. `check` is asked before each piece, and its
    /// error ends the loading.
    pub async fn run(mut self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        self.complete()?;
        self.sources.sort_by_cached_key(Source::position);
        self.checkpoint.will_read(&self.ranges())?;
        for source in &self.sources {
            check()?;
            match source {
                Source::Vector(tensor, buffer, offset) => {
                    let bytes = self.checkpoint.read(&tensor.name).await?;
                    let values = to_f32(&tensor.name, tensor.dtype, &bytes)?;
                    self.gpu.write(buffer, *offset, bytemuck::cast_slice(&values));
                }
                Source::Rows(rows) => self.rows(rows, check).await?,
                Source::Codes(rows) => self.codes(rows, check).await?,
                Source::Halves(rows, plane) => self.halves(rows, *plane, check).await?,
            }
            // What the device cannot hold shows here, before the rest is downloaded for nothing.
            self.gpu.check()?;
        }
        Ok(())
    }

    async fn rows(&self, rows: &Rows, check: &dyn Fn() -> Result<()>) -> Result<()> {
        for range in rows.chunks(0) {
            check()?;
            let planes = self.checkpoint.read_planes(&rows.layout, range.clone()).await?;
            let planes: Vec<&[u8]> = planes.iter().map(Vec::as_slice).collect();
            rows.write(self.gpu, range, &rows.encoder.encode(&planes)?);
        }
        Ok(())
    }

    async fn codes(&self, rows: &Rows, check: &dyn Fn() -> Result<()>) -> Result<()> {
        for range in rows.chunks(0) {
            check()?;
            let bytes = self.checkpoint.read_plane(&rows.layout, 0, range.clone()).await?;
            let codes = rows.encoder.repack_codes(bytes);
            rows.write(self.gpu, range, &EncodedRows { codes, scales: Vec::new() });
        }
        Ok(())
    }

    /// Scales and biases share a word on the GPU: those that come first wait for the others.
    async fn halves(&self, rows: &Rows, plane: usize, check: &dyn Fn() -> Result<()>) -> Result<()> {
        let waiting = rows.halves.take();
        let mut kept = Vec::new();
        for range in rows.chunks(plane) {
            check()?;
            let bytes = self.checkpoint.read_plane(&rows.layout, plane, range.clone()).await?;
            let halves = rows.encoder.halves(&bytes)?;
            let groups = halves.len() / range.len().max(1);
            match waiting.get(range.start * groups..range.end * groups) {
                Some(others) if !waiting.is_empty() => {
                    let [scales, biases] = if plane == 1 { [&halves, others] } else { [others, &halves] };
                    let scales = rows.encoder.interleave(scales, biases);
                    rows.write(self.gpu, range, &EncodedRows { codes: Vec::new(), scales });
                }
                _ => kept.extend(halves),
            }
        }
        rows.halves.replace(kept);
        Ok(())
    }
}

impl Rows {
    /// Ranges of rows, each of one run, whose bytes in `plane` are read at a time.
    fn chunks(&self, plane: usize) -> impl Iterator<Item = Range<usize>> {
        let row_bytes = self.layout.planes.get(plane).map_or(1, |plane| plane.row_bytes.max(1));
        let chunk = usize::try_from(CHUNK_BYTES / row_bytes).unwrap_or(1).max(1);
        let (rows, run) = (self.layout.rows, self.place.run as usize);
        (0..rows).step_by(run).flat_map(move |begin| {
            let end = rows.min(begin.saturating_add(run));
            (begin..end).step_by(chunk).map(move |begin| begin..end.min(begin + chunk))
        })
    }

    fn write(&self, gpu: &Gpu, rows: Range<usize>, encoded: &EncodedRows) {
        self.weight.write(gpu, self.place.part, self.place.rows(&rows), encoded);
    }
}
