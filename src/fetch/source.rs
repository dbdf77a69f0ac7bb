//! One file somewhere, readable by range.

use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

use crate::error::{Code, Error, Result};

/// What a source knows of its file before any of it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes in the file.
    pub size: u64,
    /// Changes when the file changes (an ETag, or size and date). Without one, blocks are not stored,
    /// since nobody could tell an old block from a new one.
    pub validator: Option<String>,
}

/// A file that can be read by range. It neither caches nor retries.
pub trait ByteSource {
    /// The URL, path or name of the file: it is shown in errors and is a part of every block's key.
    fn name(&self) -> &str;

    /// Size and validator; `None` if there is no such file.
    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>>>;

    /// Exactly the bytes of `range`, which must lie inside the file; anything less is an error.
    fn read(&self, range: Range<u64>) -> LocalBoxFuture<'_, Result<Vec<u8>>>;
}

/// The part of `bytes` that `range` names, or the error that says it ends too early.
pub(super) fn slice<'a>(name: &str, bytes: &'a [u8], range: &Range<u64>) -> Result<&'a [u8]> {
    let bounds = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
    bounds.and_then(|(start, end)| bytes.get(start..end)).ok_or_else(|| {
        Error::new(Code::InvalidArgument, format!("read bytes {}..{} of {name}", range.start, range.end))
            .expected(format!("a range inside its {} bytes", bytes.len()))
    })
}

/// A file that lies in memory.
pub struct MemorySource {
    name: String,
    bytes: Rc<[u8]>,
}

impl MemorySource {
    /// A file `name` with the content `bytes`.
    pub fn new(name: impl Into<String>, bytes: impl Into<Rc<[u8]>>) -> Self {
        Self { name: name.into(), bytes: bytes.into() }
    }
}

impl ByteSource for MemorySource {
    fn name(&self) -> &str {
        &self.name
    }

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>>> {
        ready(Ok(Some(Metadata { size: self.bytes.len() as u64, validator: None }))).boxed_local()
    }

    fn read(&self, range: Range<u64>) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
        ready(slice(&self.name, &self.bytes, &range).map(<[u8]>::to_vec)).boxed_local()
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use file::FileSource;

#[cfg(not(target_arch = "wasm32"))]
mod file {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Seek, SeekFrom};
    use std::path::{Path, PathBuf};

    use super::*;

    /// A file on the disk. Its calls block; they serve native tools and tests.
    pub struct FileSource {
        name: String,
        path: PathBuf,
    }

    impl FileSource {
        /// The file at `path`, which need not exist.
        pub fn new(path: impl AsRef<Path>) -> Self {
            let path = path.as_ref().to_path_buf();
            Self { name: path.display().to_string(), path }
        }

        fn read_metadata(&self) -> Result<Option<Metadata>> {
            let metadata = match std::fs::metadata(&self.path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                answer => answer.map_err(|error| self.error("look up", error))?,
            };
            let modified = metadata.modified().map_err(|error| self.error("look up", error))?;
            let validator = format!("{}-{:?}", metadata.len(), modified);
            Ok(Some(Metadata { size: metadata.len(), validator: Some(validator) }))
        }

        fn read_range(&self, range: Range<u64>) -> Result<Vec<u8>> {
            let asked = format!("read bytes {}..{} of", range.start, range.end);
            let length = range.end.saturating_sub(range.start);
            let mut file = File::open(&self.path).map_err(|error| self.error(&asked, error))?;
            file.seek(SeekFrom::Start(range.start)).map_err(|error| self.error(&asked, error))?;
            let mut bytes = Vec::new();
            file.take(length).read_to_end(&mut bytes).map_err(|error| self.error(&asked, error))?;
            if bytes.len() as u64 != length {
                return Err(Error::new(Code::Checkpoint, format!("{asked} {}", self.name))
                    .expected(format!("{length} bytes"))
                    .got(format!("{}: the file ends there", bytes.len()))
                    .remedy("Fetch the file anew."));
            }
            Ok(bytes)
        }

        fn error(&self, asked: &str, source: std::io::Error) -> Error {
            Error::new(Code::Storage, format!("{asked} {}", self.name)).because(source)
        }
    }

    impl ByteSource for FileSource {
        fn name(&self) -> &str {
            &self.name
        }

        fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>>> {
            ready(self.read_metadata()).boxed_local()
        }

        fn read(&self, range: Range<u64>) -> LocalBoxFuture<'_, Result<Vec<u8>>> {
            ready(self.read_range(range)).boxed_local()
        }
    }
}
