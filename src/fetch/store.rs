//! Where blocks are kept over a reload.

use std::cell::RefCell;
use std::collections::HashMap;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

use crate::error::Result;

/// Names one block of one version of one file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    /// The name of the [`ByteSource`](super::ByteSource).
    pub url: String,
    /// Its validator.
    pub validator: String,
    /// The block's number: block `n` starts at byte `n *` [`BLOCK_SIZE`](super::BLOCK_SIZE).
    pub block: u64,
}

/// Keeps blocks. It may forget any of them, and may fail: a load goes on without it.
pub trait BlockStore {
    /// The block's bytes, if the store has them.
    fn get<'a>(&'a self, key: &'a BlockKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>>;

    /// Keeps the block's bytes, in place of older ones.
    fn put<'a>(&'a self, key: &'a BlockKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>>;
}

/// A store in memory, for tests and for small models where nothing else is at hand.
#[derive(Default)]
pub struct MemoryStore {
    blocks: RefCell<HashMap<BlockKey, Vec<u8>>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl BlockStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a BlockKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
        ready(Ok(self.blocks.borrow().get(key).cloned())).boxed_local()
    }

    fn put<'a>(&'a self, key: &'a BlockKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        self.blocks.borrow_mut().insert(key.clone(), bytes.to_vec());
        ready(Ok(())).boxed_local()
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use file::FileStore;

#[cfg(not(target_arch = "wasm32"))]
mod file {
    use std::fs;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::io::{self, ErrorKind, Write};
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::error::{Code, Error};

    /// A store in a folder: one file per block. Its calls block; it serves native tools and tests.
    pub struct FileStore {
        folder: PathBuf,
    }

    impl FileStore {
        /// A store in `folder`, which is made when the first block is put.
        pub fn new(folder: impl Into<PathBuf>) -> Self {
            Self { folder: folder.into() }
        }

        fn path(&self, key: &BlockKey) -> PathBuf {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            self.folder.join(format!("{:016x}.block", hasher.finish()))
        }

        /// The bytes before the block's own: they tell apart two keys of one hash.
        fn label(key: &BlockKey) -> Vec<u8> {
            format!("{}\n{}\n{}\n", key.url, key.validator, key.block).into_bytes()
        }

        fn read(&self, key: &BlockKey) -> io::Result<Option<Vec<u8>>> {
            let file = match fs::read(self.path(key)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                answer => answer?,
            };
            Ok(file.strip_prefix(Self::label(key).as_slice()).map(<[u8]>::to_vec))
        }

        /// Writes beside and renames, so that a crash leaves no half block under the key.
        fn write(&self, key: &BlockKey, bytes: &[u8]) -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            let path = self.path(key);
            let partial = path.with_extension("partial");
            let mut file = fs::File::create(&partial)?;
            file.write_all(&Self::label(key))?;
            file.write_all(bytes)?;
            fs::rename(partial, path)
        }

        fn error(asked: &str, key: &BlockKey, folder: &Path, source: io::Error) -> Error {
            let asked = format!("{asked} block {} of {} in {}", key.block, key.url, folder.display());
            Error::new(Code::Storage, asked).because(source)
        }
    }

    impl BlockStore for FileStore {
        fn get<'a>(&'a self, key: &'a BlockKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
            let block = self.read(key).map_err(|error| Self::error("read", key, &self.folder, error));
            ready(block).boxed_local()
        }

        fn put<'a>(&'a self, key: &'a BlockKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
            let done = self.write(key, bytes).map_err(|error| Self::error("store", key, &self.folder, error));
            ready(done).boxed_local()
        }
    }
}
