//! The tensors of a model, in one safetensors file or in several.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;

use super::header::{self, Header, LENGTH_SIZE, parse_header};
use super::index::{MAX_INDEX_SIZE, parse_index};
use crate::error::{Code, Error, Result};
use crate::fetch::{BlockFile, Repo};

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// How many existing names the error for a missing tensor offers.
const NAMES_OFFERED: usize = 3;

/// A tensor and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the checkpoint.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Sizes of the dimensions, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Number of its file in the checkpoint.
    pub file: usize,
    /// Where it lies, in bytes from the start of that file.
    pub bytes: Range<u64>,
}

impl TensorInfo {
    /// The size of the first dimension; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements in a row: the product of the dimensions after the first.
    pub fn cols(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Bytes in a row, or the error that rows of it don't fill whole bytes.
    fn row_bytes(&self) -> Result<u64> {
        let bits = self.cols() as u64 * self.dtype.bitsize() as u64;
        if bits.is_multiple_of(8) {
            return Ok(bits / 8);
        }
        Err(Error::new(Code::Unsupported, format!("read rows of tensor {}", self.name))
            .expected("rows of whole bytes")
            .got(format!("shape {:?} of {}", self.shape, self.dtype)))
    }
}

/// A model's tensors: which there are, where they lie, and their bytes on demand.
pub struct Checkpoint {
    name: String,
    files: Vec<BlockFile>,
    /// Where the header of each file lies in it.
    headers: Vec<Range<u64>>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Checkpoint {
    /// Opens `model.safetensors` of `repo`, or the shards that `model.safetensors.index.json` lists, and
    /// reads the headers.
    ///
    /// Fails with `Checkpoint` if there is neither, or if a header, the index or their agreement is broken.
    pub async fn open(repo: &Repo) -> Result<Self> {
        let name = repo.name().to_owned();
        if let Some(file) = repo.find(SINGLE_FILE).await? {
            let (header, extent) = read_header(&file).await?;
            let tensors = header.tensors.into_iter().map(|(name, entry)| tensor_info(name, 0, entry));
            return Ok(Self { name, tensors: by_name(tensors), files: vec![file], headers: vec![extent] });
        }
        let index = repo.read_all(INDEX_FILE, MAX_INDEX_SIZE).await?.ok_or_else(|| {
            Error::new(Code::Checkpoint, format!("open the weights of {name}"))
                .expected(format!("{SINGLE_FILE} or {INDEX_FILE}"))
                .got("neither")
                .remedy("Check the model's name or URL, and that its weights are safetensors files.")
        })?;
        Self::open_shards(repo, parse_index(INDEX_FILE, &index)?).await
    }

    /// Opens the files that `weight_map` names. Tensors that it doesn't list are left out.
    async fn open_shards(repo: &Repo, weight_map: BTreeMap<String, String>) -> Result<Self> {
        let mut names_by_file: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, file) in weight_map {
            names_by_file.entry(file).or_default().push(tensor);
        }
        let mut checkpoint = Self {
            name: repo.name().to_owned(),
            files: Vec::new(),
            headers: Vec::new(),
            tensors: BTreeMap::new(),
        };
        for (file_name, names) in names_by_file {
            let file = repo.open(&file_name).await?;
            let (mut header, extent) = read_header(&file).await?;
            for name in names {
                let entry = header.tensors.remove(&name).ok_or_else(|| {
                    Error::new(Code::Checkpoint, format!("open the weights of {}", checkpoint.name))
                        .expected(format!("tensor {name} in {file_name}, where {INDEX_FILE} puts it"))
                        .got("a header without it")
                })?;
                let info = tensor_info(name, checkpoint.files.len(), entry);
                checkpoint.tensors.insert(info.name.clone(), info);
            }
            checkpoint.files.push(file);
            checkpoint.headers.push(extent);
        }
        Ok(checkpoint)
    }

    /// The files of weights.
    pub fn files(&self) -> impl Iterator<Item = &BlockFile> {
        self.files.iter()
    }

    /// For each file its name and the bytes that are loaded for its header and for those of `ranges` that lie
    /// in it. `ranges` are numbers of files and bytes in them.
    pub fn downloads(&self, ranges: &[(usize, Range<u64>)]) -> Vec<(&str, u64)> {
        let files = (0..).zip(self.files.iter().zip(&self.headers));
        files
            .map(|(number, (file, header))| {
                let inside = ranges.iter().filter(|(file, _)| *file == number).map(|(_, range)| range);
                (file.name(), file.bytes_of_blocks(inside.chain([header]).cloned()))
            })
            .collect()
    }

    /// Says that `ranges`, numbers of files and bytes in them, will be read in this order, so that they may be
    /// fetched ahead.
    pub fn will_read(&self, ranges: &[(usize, Range<u64>)]) -> Result<()> {
        ranges.iter().try_for_each(|(file, range)| {
            self.file(*file)?.will_read([range.clone()]);
            Ok(())
        })
    }

    /// The file of this number.
    pub fn file(&self, number: usize) -> Result<&BlockFile> {
        self.files.get(number).ok_or_else(|| {
            Error::new(Code::Internal, format!("read the weights of {}", self.name))
                .got(format!("no file {number}"))
        })
    }

    /// All tensor names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The tensor of this name; without one, a `MissingTensor` error that offers the nearest names.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo> {
        self.find(name).ok_or_else(|| {
            Error::new(Code::MissingTensor, format!("find tensor {name} in {}", self.name))
                .got(format!("{} tensors; nearest: {}", self.tensors.len(), self.nearest(name).join(", ")))
                .remedy("Check that config.json belongs to these weights.")
        })
    }

    /// The bytes of rows `rows` of a tensor, elements in little-endian order of bytes.
    ///
    /// Fails with `MissingTensor`, with `InvalidArgument` if the rows are not all there, and with what
    /// reading fails with.
    pub async fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let tensor = self.tensor(name)?;
        if rows.start > rows.end || rows.end > tensor.rows() {
            return Err(Error::new(
                Code::InvalidArgument,
                format!("read rows {}..{} of tensor {name}", rows.start, rows.end),
            )
            .expected(format!("a range inside its {} rows", tensor.rows())));
        }
        let row_bytes = tensor.row_bytes()?;
        let start = tensor.bytes.start + rows.start as u64 * row_bytes;
        let end = tensor.bytes.start + rows.end as u64 * row_bytes;
        self.file(tensor.file)?.read(start..end).await
    }

    /// All bytes of a tensor that is known to be small, such as the weight of a norm.
    pub async fn read(&self, name: &str) -> Result<Vec<u8>> {
        self.read_rows(name, 0..self.tensor(name)?.rows()).await
    }

    fn nearest(&self, name: &str) -> Vec<&str> {
        let mut names: Vec<_> = self.names().collect();
        names.sort_by_key(|other| Reverse(likeness(name, other)));
        names.truncate(NAMES_OFFERED);
        names
    }
}

/// The header of a file, and where it lies.
async fn read_header(file: &BlockFile) -> Result<(Header, Range<u64>)> {
    let first_bytes = file.read(0..LENGTH_SIZE.min(file.size())).await?;
    let length = header::json_length(file.name(), &first_bytes, file.size())?;
    let end = LENGTH_SIZE + length;
    let json = file.read(LENGTH_SIZE..end).await?;
    Ok((parse_header(file.name(), &json, file.size())?, 0..end))
}

fn tensor_info(name: String, file: usize, entry: header::HeaderEntry) -> TensorInfo {
    TensorInfo { name, dtype: entry.dtype, shape: entry.shape, file, bytes: entry.bytes }
}

fn by_name(tensors: impl Iterator<Item = TensorInfo>) -> BTreeMap<String, TensorInfo> {
    tensors.map(|info| (info.name.clone(), info)).collect()
}

/// Bytes that two names share at their start and at their end: a wrong name mostly lacks a prefix.
fn likeness(a: &str, b: &str) -> usize {
    let prefix = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let suffix = a.bytes().rev().zip(b.bytes().rev()).take_while(|(a, b)| a == b).count();
    (prefix + suffix).min(a.len()).min(b.len())
}
