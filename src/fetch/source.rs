//! One file somewhere, readable by range.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

use crate::error::{Code, Error, Result};

/// One version of a file, as its source describes it before any of it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes in the file.
    pub size: u64,
    /// Changes when the file changes (an ETag, or size and date). Without one, blocks are not stored,
    /// since nobody could tell an old block from a new one.
    pub validator: Option<String>,
}

/// Why a source did not answer, and so what its reader may do.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The same request may succeed later: the connection broke off, or the server is overburdened.
    Passing {
        /// What went wrong.
        error: Error,
        /// How long the server wants to be left alone.
        retry_after: Option<Duration>,
    },
    /// The file is not of the version that was asked for any more.
    Changed(Error),
    /// Asking again would not help.
    Lasting(Error),
}

impl Fault {
    /// What went wrong.
    pub fn into_error(self) -> Error {
        match self {
            Self::Passing { error, .. } | Self::Changed(error) | Self::Lasting(error) => error,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Lasting(error)
    }
}

/// A file that can be read by range. It neither caches nor retries. A future that is dropped ends its
/// request.
pub trait ByteSource {
    /// The URL, path or name of the file: it is shown in errors and is a part of every block's key.
    fn name(&self) -> &str;

    /// Size and validator; `None` if there is no such file.
    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>>;

    /// Appends the bytes of `range`, which lies inside the file, to `bytes`. A source that fails leaves
    /// there what had come, so that the next request can go on behind it. What is appended is of `version`.
    fn read<'a>(
        &'a self,
        range: Range<u64>,
        version: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>>;

    /// Whether the file can only be read from its start to its end, so that each read must begin where the
    /// last one ended and two reads at once would cost a transfer each. Known with the metadata.
    fn is_sequential(&self) -> bool {
        false
    }
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

    fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
        ready(Ok(Some(Metadata { size: self.bytes.len() as u64, validator: None }))).boxed_local()
    }

    fn read<'a>(
        &'a self,
        range: Range<u64>,
        _: &'a Metadata,
        bytes: &'a mut Vec<u8>,
    ) -> LocalBoxFuture<'a, Result<(), Fault>> {
        let found = slice(&self.name, &self.bytes, &range).map(|found| bytes.extend_from_slice(found));
        ready(found.map_err(Fault::from)).boxed_local()
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

        fn read_range(&self, range: Range<u64>, bytes: &mut Vec<u8>) -> Result<()> {
            let asked = format!("read bytes {}..{} of", range.start, range.end);
            let length = range.end.saturating_sub(range.start);
            let mut file = File::open(&self.path).map_err(|error| self.error(&asked, error))?;
            file.seek(SeekFrom::Start(range.start)).map_err(|error| self.error(&asked, error))?;
            let read = file.take(length).read_to_end(bytes).map_err(|error| self.error(&asked, error))?;
            if read as u64 != length {
                return Err(Error::new(Code::Checkpoint, format!("{asked} {}", self.name))
                    .expected(format!("{length} bytes"))
                    .got(format!("{read}: the file ends there"))
                    .remedy("Fetch the file anew."));
            }
            Ok(())
        }

        fn error(&self, asked: &str, source: std::io::Error) -> Error {
            Error::new(Code::Storage, format!("{asked} {}", self.name)).because(source)
        }
    }

    impl ByteSource for FileSource {
        fn name(&self) -> &str {
            &self.name
        }

        fn metadata(&self) -> LocalBoxFuture<'_, Result<Option<Metadata>, Fault>> {
            ready(self.read_metadata().map_err(Fault::from)).boxed_local()
        }

        fn read<'a>(
            &'a self,
            range: Range<u64>,
            _: &'a Metadata,
            bytes: &'a mut Vec<u8>,
        ) -> LocalBoxFuture<'a, Result<(), Fault>> {
            ready(self.read_range(range, bytes).map_err(Fault::from)).boxed_local()
        }
    }
}
