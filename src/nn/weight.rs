//! A weight matrix on the GPU: packed, and cut into shards that one binding can hold.

use std::ops::Range;
use std::rc::Rc;

use crate::checkpoint::{EncodedRows, WeightFormat};
use crate::error::{Code, Error, Result};
use crate::gpu::{Buffer, Gpu, Usage};
use crate::kernels::Gemv;
use crate::plan::Operand;

/// Rows of a shard come in multiples of this, so that results of shards meet at aligned offsets.
const SHARD_ROWS: u32 = 64;

/// Consecutive rows of the matrix in a buffer of their own.
#[derive(Debug)]
pub(super) struct Shard {
    /// Rows of each part that lie here.
    pub rows: Range<u32>,
    codes: Rc<Buffer>,
    scales: Option<Rc<Buffer>>,
}

/// A run of rows of the stacked parts, as kernels take it.
pub(super) struct Block {
    /// Its first row in the stack.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
    /// The weight operands.
    pub operands: Vec<Operand>,
}

/// `parts` matrices `[rows, columns]` of one format. With two parts (gate and up) each shard holds the same
/// rows of both, first those of the one, then those of the other.
#[derive(Debug)]
pub struct Weight {
    /// How the rows are packed.
    pub format: WeightFormat,
    /// Rows of a part.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    parts: u32,
    shards: Vec<Shard>,
}

impl Weight {
    /// Allocates the shards; [`Weight::write`] fills them.
    pub(super) fn new(
        gpu: &Gpu,
        label: &str,
        format: WeightFormat,
        parts: u32,
        rows: u32,
        columns: u32,
    ) -> Result<Self> {
        let multiple = Gemv::column_multiple(format);
        if columns == 0 || rows == 0 || !columns.is_multiple_of(multiple) {
            return Err(Error::new(Code::Unsupported, format!("put {label} on the GPU"))
                .expected(format!("rows of a multiple of {multiple} columns for {format}"))
                .got(format!("shape [{rows}, {columns}]"))
                .remedy("Choose another dtype."));
        }
        let row_bytes = (format.code_bytes(columns as usize) * parts as usize) as u64;
        let limit = gpu.capabilities().max_binding_bytes.min(gpu.capabilities().max_buffer_bytes);
        let fitting = u32::try_from(limit / row_bytes).unwrap_or(u32::MAX);
        let per_shard = if fitting >= rows { rows } else { fitting / SHARD_ROWS * SHARD_ROWS };
        // Results of shards and parts meet at multiples of SHARD_ROWS.
        let is_cut = per_shard < rows;
        if per_shard == 0 || (is_cut && parts > 1 && !rows.is_multiple_of(SHARD_ROWS)) {
            return Err(Error::new(Code::OutOfMemory, format!("put {label} on the GPU"))
                .expected(format!(
                    "{rows} rows within bindings of {limit} bytes, or a multiple of {SHARD_ROWS} rows"
                ))
                .got(format!("{row_bytes} bytes a row"))
                .remedy("Choose a smaller dtype such as \"q4\"."));
        }
        let shards = (0..rows)
            .step_by(per_shard as usize)
            .map(|first| Shard::new(gpu, label, format, parts, first..rows.min(first + per_shard), columns))
            .collect::<Result<_>>()?;
        Ok(Self { format, rows, columns, parts, shards })
    }

    pub(super) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    pub(super) fn parts(&self) -> u32 {
        self.parts
    }

    /// Writes packed `rows` of `part`; codes or scales may be missing, to be written apart.
    pub(super) fn write(&self, gpu: &Gpu, part: u32, rows: Range<u32>, packed: &EncodedRows) {
        for shard in &self.shards {
            let begin = rows.start.max(shard.rows.start);
            let end = rows.end.min(shard.rows.end);
            if begin >= end {
                continue;
            }
            let row = shard.row_of(part, begin);
            let write = |buffer: &Buffer, bytes: &[u8], row_bytes: usize| {
                let within =
                    (begin - rows.start) as usize * row_bytes..(end - rows.start) as usize * row_bytes;
                if let Some(bytes) = bytes.get(within) {
                    gpu.write(buffer, u64::from(row) * row_bytes as u64, bytes);
                }
            };
            write(&shard.codes, &packed.codes, self.format.code_bytes(self.columns as usize));
            if let Some(scales) = &shard.scales {
                write(scales, &packed.scales, self.format.scale_bytes(self.columns as usize));
            }
        }
    }

    /// All rows of a shard, as the weight operands of a kernel.
    pub(super) fn operands(&self, shard: &Shard) -> Vec<Operand> {
        std::iter::once(&shard.codes).chain(&shard.scales).map(Operand::whole).collect()
    }

    /// The first `rows` rows of the stacked parts `[parts · rows, columns]`, as runs of rows that lie together.
    pub(super) fn blocks(&self, rows: u32) -> Vec<Block> {
        let mut blocks = self.all_blocks();
        blocks.retain(|block| block.first_row < rows);
        for block in &mut blocks {
            block.rows = block.rows.min(rows - block.first_row);
        }
        blocks
    }

    fn all_blocks(&self) -> Vec<Block> {
        if let [shard] = self.shards.as_slice() {
            let rows = self.parts * self.rows;
            return vec![Block { first_row: 0, rows, operands: self.operands(shard) }];
        }
        let parts = 0..self.parts;
        let block = |shard: &Shard, part: u32| Block {
            first_row: part * self.rows + shard.rows.start,
            rows: shard.rows.len() as u32,
            operands: self.part_operands(shard, part),
        };
        self.shards.iter().flat_map(|shard| parts.clone().map(move |part| block(shard, part))).collect()
    }

    /// A shard's rows of one part, as the weight operands of a kernel.
    fn part_operands(&self, shard: &Shard, part: u32) -> Vec<Operand> {
        let columns = self.columns as usize;
        let range = |row_bytes: usize| {
            let bytes = (shard.rows.len() * row_bytes) as u64;
            u64::from(part) * bytes..u64::from(part + 1) * bytes
        };
        let codes = Operand::Buffer(shard.codes.clone(), range(self.format.code_bytes(columns)));
        let scales = shard
            .scales
            .iter()
            .map(|scales| Operand::Buffer(scales.clone(), range(self.format.scale_bytes(columns))));
        std::iter::once(codes).chain(scales).collect()
    }
}

impl Shard {
    fn new(
        gpu: &Gpu,
        label: &str,
        format: WeightFormat,
        parts: u32,
        rows: Range<u32>,
        columns: u32,
    ) -> Result<Self> {
        let bytes = |row_bytes: usize| rows.len() as u64 * u64::from(parts) * row_bytes as u64;
        let codes = gpu.buffer(label, bytes(format.code_bytes(columns as usize)), Usage::Weights)?;
        let scale_bytes = bytes(format.scale_bytes(columns as usize));
        let scales = match scale_bytes {
            0 => None,
            _ => Some(Rc::new(gpu.buffer(label, scale_bytes, Usage::Weights)?)),
        };
        Ok(Self { rows, codes: Rc::new(codes), scales })
    }

    /// Where row `row` of `part` lies in the shard's buffers.
    fn row_of(&self, part: u32, row: u32) -> u32 {
        part * self.rows.len() as u32 + row - self.rows.start
    }
}
