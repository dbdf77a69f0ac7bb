//! How the rows of a matrix lie in the files, and what their bytes mean.
//!
//! A matrix is one tensor of floating-point numbers, or three: MLX's affine quantisation keeps `NAME.weight`
//! (U32 `[rows, columns·bits/32]`, the codes of a row as one stream from the least significant bit on),
//! `NAME.scales` and `NAME.biases` (`[rows, columns/group_size]`), with `w = scale · code + bias`. Bits and group
//! size follow from the shapes, so that modules which a configuration excepts need no special care. Each tensor
//! is a plane of the matrix; a row has one range of bytes in each plane.

use std::ops::Range;

use safetensors::Dtype;

use super::encode::{append_f32, float_size};
use super::repack::widen;
use super::{Checkpoint, TensorInfo, WeightFormat};
use crate::error::{Code, Error, Result};

/// What the planes of a stored matrix hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// One plane of numbers: F64, F32, F16 or BF16.
    Float(Dtype),
    /// Three planes: codes, scales, biases.
    Affine {
        /// Bits of a code: 2, 3, 4, 5, 6 or 8.
        bits: u32,
        /// Columns in a group: 32, 64 or 128.
        group_size: u32,
        /// Type of the scales and of the biases.
        scales: Dtype,
    },
}

impl Encoding {
    /// The weight format that keeps what is stored. Codes move to the next width that kernels have and stay as
    /// they are; their scales and biases are rounded to f16, as [`RowEncoder`](super::RowEncoder) says.
    pub fn format(self) -> WeightFormat {
        match self {
            Encoding::Float(Dtype::F16) => WeightFormat::F16,
            Encoding::Float(Dtype::BF16) => WeightFormat::Bf16,
            Encoding::Float(_) => WeightFormat::F32,
            Encoding::Affine { bits, group_size, .. } => {
                WeightFormat::Affine { bits: if bits <= 4 { 4 } else { 8 }, group_size }
            }
        }
    }
}

/// Rows as a checkpoint stores them: what the bytes of each plane mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRows {
    /// The tensor's name, for errors.
    pub tensor: String,
    /// Elements in a row.
    pub columns: usize,
    /// What the planes hold.
    pub encoding: Encoding,
}

impl StoredRows {
    /// Rows of `columns` numbers of `dtype`.
    pub fn floats(tensor: &str, dtype: Dtype, columns: usize) -> Self {
        Self { tensor: tensor.to_owned(), columns, encoding: Encoding::Float(dtype) }
    }

    /// The beginning of such rows: the first `columns` of them, or a few more where these would cut a group.
    pub fn first(&self, columns: usize) -> Self {
        let columns = match self.encoding {
            Encoding::Float(_) => columns,
            Encoding::Affine { group_size, .. } => columns.next_multiple_of(group_size as usize),
        };
        Self { columns: columns.min(self.columns), ..self.clone() }
    }

    /// Bytes of a row in each plane.
    ///
    /// Fails with `Unsupported` for a dtype other than F64, F32, F16 and BF16.
    pub fn row_bytes(&self) -> Result<Vec<usize>> {
        match self.encoding {
            Encoding::Float(dtype) => Ok(vec![self.columns * float_size(&self.tensor, dtype)?]),
            Encoding::Affine { bits, group_size, scales } => {
                let scale_bytes = self.columns / group_size as usize * float_size(&self.tensor, scales)?;
                Ok(vec![self.columns / 8 * bits as usize, scale_bytes, scale_bytes])
            }
        }
    }

    /// How many rows `planes` hold.
    ///
    /// Fails with `Checkpoint` unless every plane holds the same number of whole rows.
    pub fn count(&self, planes: &[&[u8]]) -> Result<usize> {
        let row_bytes = self.row_bytes()?;
        let lengths: Vec<usize> = planes.iter().map(|plane| plane.len()).collect();
        let rows = match (lengths.first(), row_bytes.first()) {
            (Some(length), Some(bytes)) if *bytes > 0 => length / bytes,
            _ => 0,
        };
        let whole: Vec<usize> = row_bytes.iter().map(|bytes| bytes * rows).collect();
        if lengths == whole {
            return Ok(rows);
        }
        Err(Error::new(Code::Checkpoint, format!("read tensor {}", self.tensor))
            .expected(format!("whole rows of {row_bytes:?} bytes"))
            .got(format!("{lengths:?} bytes")))
    }

    /// Appends the values of the rows that `planes` hold to `values`, row-major.
    ///
    /// Fails with `Checkpoint` if the rows are not whole or a number is not finite.
    pub fn decode(&self, planes: &[&[u8]], values: &mut Vec<f32>) -> Result<()> {
        self.count(planes)?;
        match (self.encoding, planes) {
            (Encoding::Affine { bits, group_size, scales: dtype }, [codes, scales, biases]) => {
                let (mut scale, mut bias) = (Vec::new(), Vec::new());
                append_f32(&self.tensor, dtype, scales, &mut scale)?;
                append_f32(&self.tensor, dtype, biases, &mut bias)?;
                let codes = widen(codes, bits, 8);
                let groups = codes.chunks_exact(group_size as usize);
                for (codes, (scale, bias)) in groups.zip(scale.iter().zip(&bias)) {
                    values.extend(codes.iter().map(|code| scale * f32::from(*code) + bias));
                }
                Ok(())
            }
            (Encoding::Float(dtype), [bytes]) => append_f32(&self.tensor, dtype, bytes, values),
            _ => Ok(()),
        }
    }
}

/// One tensor of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Number of its file in the checkpoint.
    pub file: usize,
    /// Where its first row begins in that file, in bytes.
    pub start: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
}

impl Plane {
    /// Where rows `rows` lie in the file. They must be rows of the matrix.
    pub fn range(&self, rows: Range<usize>) -> Range<u64> {
        self.start + rows.start as u64 * self.row_bytes..self.start + rows.end as u64 * self.row_bytes
    }
}

/// A matrix `[rows, columns]` of the checkpoint: where its rows lie and what they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// What the bytes of the planes mean.
    pub stored: StoredRows,
    /// Rows in all.
    pub rows: usize,
    /// Where each plane lies: one for numbers; codes, scales and biases for affine quantisation.
    pub planes: Vec<Plane>,
}

impl RowLayout {
    /// For each plane, the number of its file and the bytes of `rows` in it, for
    /// [`BlockFile::read`](crate::fetch::BlockFile::read). Their contents, in this order, are what
    /// [`RowLayout::decode`] takes.
    ///
    /// Fails with `InvalidArgument` if the rows are not all there.
    pub fn ranges(&self, rows: Range<usize>) -> Result<Vec<(usize, Range<u64>)>> {
        self.check(&rows)?;
        Ok(self.planes.iter().map(|plane| (plane.file, plane.range(rows.clone()))).collect())
    }

    /// Writes the values of whole rows to `values`, which has room for just these.
    ///
    /// Fails with `Checkpoint` if the planes don't hold such rows or a number is not finite.
    pub fn decode(&self, planes: &[&[u8]], values: &mut [f32]) -> Result<()> {
        let mut decoded = Vec::with_capacity(values.len());
        self.stored.decode(planes, &mut decoded)?;
        if decoded.len() != values.len() {
            return Err(Error::new(Code::Checkpoint, format!("read tensor {}", self.stored.tensor))
                .expected(format!("{} values", values.len()))
                .got(decoded.len().to_string()));
        }
        values.copy_from_slice(&decoded);
        Ok(())
    }

    fn check(&self, rows: &Range<usize>) -> Result<()> {
        if rows.start <= rows.end && rows.end <= self.rows {
            return Ok(());
        }
        let asked = format!("read rows {}..{} of tensor {}", rows.start, rows.end, self.stored.tensor);
        Err(Error::new(Code::InvalidArgument, asked)
            .expected(format!("a range inside its {} rows", self.rows)))
    }
}

impl Checkpoint {
    /// How the matrix `name` of this shape is stored. The last dimension makes a row; `name.weight` is
    /// quantised if there is a tensor `name.scales`.
    ///
    /// Fails with `MissingTensor`, with `Checkpoint` if it is of another shape, and with `Unsupported` for
    /// dtypes and quantisations that are not known.
    pub fn row_layout(&self, name: &str, shape: &[usize]) -> Result<RowLayout> {
        let tensor = self.tensor(name)?;
        let Some((&columns, outer)) = shape.split_last() else {
            return Err(Error::new(Code::Internal, format!("use the tensor {name}")).got("no dimension"));
        };
        let scales = name.strip_suffix(".weight").and_then(|base| self.find(&format!("{base}.scales")));
        let (encoding, tensors) = match scales {
            None => {
                require_shape(tensor, shape)?;
                (Encoding::Float(tensor.dtype), vec![tensor])
            }
            Some(scales) => self.affine(tensor, scales, outer, columns)?,
        };
        let stored = StoredRows { tensor: name.to_owned(), columns, encoding };
        let row_bytes = stored.row_bytes()?;
        let planes = tensors.iter().zip(row_bytes).map(|(tensor, row_bytes)| Plane {
            file: tensor.file,
            start: tensor.bytes.start,
            row_bytes: row_bytes as u64,
        });
        Ok(RowLayout { planes: planes.collect(), stored, rows: outer.iter().product() })
    }

    /// The tensor `name` of `columns` numbers.
    ///
    /// Fails as [`Checkpoint::row_layout`] does.
    pub fn vector(&self, name: &str, columns: usize) -> Result<&TensorInfo> {
        let tensor = self.tensor(name)?;
        require_shape(tensor, &[columns])?;
        float_size(name, tensor.dtype)?;
        Ok(tensor)
    }

    /// The bytes of `rows` in each plane of a matrix.
    pub async fn read_planes(&self, layout: &RowLayout, rows: Range<usize>) -> Result<Vec<Vec<u8>>> {
        let mut planes = Vec::with_capacity(layout.planes.len());
        for (file, range) in layout.ranges(rows)? {
            planes.push(self.file(file)?.read(range).await?);
        }
        Ok(planes)
    }

    /// The bytes of `rows` in one plane of a matrix.
    pub async fn read_plane(&self, layout: &RowLayout, plane: usize, rows: Range<usize>) -> Result<Vec<u8>> {
        match layout.ranges(rows)?.into_iter().nth(plane) {
            Some((file, range)) => self.file(file)?.read(range).await,
            None => Ok(Vec::new()),
        }
    }

    /// The bytes of each of `rows`, its planes one after the other: of a table that is read here and there.
    ///
    /// Fails with `InvalidArgument` if a row is not there, and with what reading fails with.
    pub async fn read_scattered(&self, layout: &RowLayout, rows: &[usize]) -> Result<Vec<Vec<u8>>> {
        let mut contents = vec![Vec::new(); rows.len()];
        for &row in rows {
            layout.check(&(row..row + 1))?;
        }
        // Planes that lie in one file are read by one call.
        for planes in layout.planes.chunk_by(|a, b| a.file == b.file) {
            let ranges: Vec<_> = rows
                .iter()
                .flat_map(|&row| planes.iter().map(move |plane| plane.range(row..row + 1)))
                .collect();
            let Some(plane) = planes.first() else { continue };
            let parts = self.file(plane.file)?.read_scattered(&ranges).await?;
            for (content, parts) in contents.iter_mut().zip(parts.chunks(planes.len())) {
                parts.iter().for_each(|part| content.extend(part));
            }
        }
        Ok(contents)
    }

    /// Downloads a matrix that is read here and there into the store, in the background: see
    /// [`BlockFile::keep`](crate::fetch::BlockFile::keep), which also says with what it fails.
    pub async fn keep(&self, layout: &RowLayout) -> Result<()> {
        for plane in &layout.planes {
            self.file(plane.file)?.keep(plane.range(0..layout.rows)).await?;
        }
        Ok(())
    }

    /// The planes of an affine matrix `[outer…, columns]`, and what their shapes say of it.
    fn affine<'a>(
        &'a self,
        codes: &'a TensorInfo,
        scales: &'a TensorInfo,
        outer: &[usize],
        columns: usize,
    ) -> Result<(Encoding, Vec<&'a TensorInfo>)> {
        let base = codes.name.trim_end_matches(".weight");
        let unsupported = |expected: &str, got: String| {
            Error::new(Code::Unsupported, format!("use the quantised tensor {}", codes.name))
                .expected(expected)
                .got(got)
                .remedy("Choose a checkpoint that is quantised in MLX's mode affine, or not quantised.")
        };
        let biases = self.find(&format!("{base}.biases")).ok_or_else(|| {
            unsupported("biases beside its scales", format!("scales of {} alone", scales.dtype))
        })?;
        let [words, groups] = [codes, scales].map(|tensor| tensor.shape.last().copied().unwrap_or(0));
        if codes.dtype != Dtype::U32 || scales.dtype != biases.dtype {
            return Err(unsupported(
                "codes in U32, scales and biases of one dtype",
                format!("{}, {} and {}", codes.dtype, scales.dtype, biases.dtype),
            ));
        }
        let whole = |count: usize, parts: usize| {
            if parts > 0 && count.is_multiple_of(parts) { count / parts } else { 0 }
        };
        let bits = whole(words.saturating_mul(32), columns);
        let group_size = whole(columns, groups);
        if !matches!(bits, 2..=6 | 8) || !matches!(group_size, 32 | 64 | 128) {
            return Err(unsupported(
                "codes of 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128",
                format!("shapes {:?} and {:?} for {columns} columns", codes.shape, scales.shape),
            ));
        }
        require_shape(codes, &[outer, &[words]].concat())?;
        require_shape(scales, &[outer, &[groups]].concat())?;
        require_shape(biases, &[outer, &[groups]].concat())?;
        let encoding =
            Encoding::Affine { bits: bits as u32, group_size: group_size as u32, scales: scales.dtype };
        Ok((encoding, vec![codes, scales, biases]))
    }
}

/// Fails with `Checkpoint` unless the tensor has this shape.
fn require_shape(tensor: &TensorInfo, shape: &[usize]) -> Result<()> {
    if tensor.shape == shape {
        return Ok(());
    }
    Err(Error::new(Code::Checkpoint, format!("use the tensor {}", tensor.name))
        .expected(format!("shape {shape:?}, as config.json implies"))
        .got(format!("{:?}", tensor.shape))
        .remedy("See that config.json and the weights are of the same model."))
}
