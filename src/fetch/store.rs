//! Where blocks are kept over a reload.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use futures_util::future::{FutureExt, LocalBoxFuture, ready};

use super::source::slice;
use crate::error::Result;

/// Names one block of one version of one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey {
    /// The name of the [`ByteSource`](super::ByteSource).
    pub url: String,
    /// Its validator.
    pub validator: String,
    /// The block's number: block `n` starts at byte `n *` [`BLOCK_SIZE`](super::BLOCK_SIZE).
    pub block: u64,
}

/// Names an entry of a store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreKey {
    /// A piece of a file.
    Block(BlockKey),
    /// What is known of the model at the place of this name, as JSON.
    Manifest(String),
}

impl From<BlockKey> for StoreKey {
    fn from(key: BlockKey) -> Self {
        Self::Block(key)
    }
}

impl std::fmt::Display for StoreKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block(key) => write!(f, "block {} of {}", key.block, key.url),
            Self::Manifest(place) => write!(f, "the manifest of {place}"),
        }
    }
}

/// Keeps blocks, and manifests of what they belong to. It may forget any of them, and may fail: a load goes
/// on without it.
pub trait BlockStore {
    /// The entry's bytes, if the store has them.
    fn get<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>>;

    /// The bytes of each of `ranges` of an entry, if the store has it. Further slices of it may be faster.
    fn slices<'a>(
        &'a self,
        key: &'a StoreKey,
        ranges: &'a [Range<u64>],
    ) -> LocalBoxFuture<'a, Result<Option<Vec<Vec<u8>>>>> {
        async move {
            let Some(bytes) = self.get(key).await? else { return Ok(None) };
            let name = key.to_string();
            ranges
                .iter()
                .map(|range| slice(&name, &bytes, range).map(<[u8]>::to_vec))
                .collect::<Result<_>>()
                .map(Some)
        }
        .boxed_local()
    }

    /// Whether the store has the entry.
    fn has<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<bool>>;

    /// Keeps an entry, in place of an older one.
    fn put<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>>;

    /// Keeps an entry of which [`slices`](Self::slices) will be asked for often.
    fn put_for_slices<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        self.put(key, bytes)
    }

    /// Forgets an entry, if there is one.
    fn delete<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<()>>;

    /// The names of all entries.
    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<StoreKey>>>;

    /// Frees what interruptions have left behind beside the entries, which are `keys`.
    fn sweep<'a>(&'a self, _keys: &'a BTreeSet<StoreKey>) -> LocalBoxFuture<'a, ()> {
        ready(()).boxed_local()
    }
}

/// A store in memory, for tests and for small models where nothing else is at hand.
#[derive(Default)]
pub struct MemoryStore {
    entries: RefCell<HashMap<StoreKey, Vec<u8>>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

impl BlockStore for MemoryStore {
    fn get<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
        ready(Ok(self.entries.borrow().get(key).cloned())).boxed_local()
    }

    fn has<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<bool>> {
        ready(Ok(self.entries.borrow().contains_key(key))).boxed_local()
    }

    fn put<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
        self.entries.borrow_mut().insert(key.clone(), bytes.to_vec());
        ready(Ok(())).boxed_local()
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<()>> {
        self.entries.borrow_mut().remove(key);
        ready(Ok(())).boxed_local()
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<StoreKey>>> {
        ready(Ok(self.entries.borrow().keys().cloned().collect())).boxed_local()
    }
}

#[cfg(not(target_arch = "wasm32"))]
pub use file::FileStore;

#[cfg(not(target_arch = "wasm32"))]
mod file {
    use std::fs;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
    use std::path::PathBuf;

    use super::*;
    use crate::error::{Code, Error};

    /// The longest label that is read back.
    const MAX_LABEL_BYTES: u64 = 1 << 16;

    /// A store in a folder: one file per entry, whose first line is the key. Its calls block; it serves
    /// native tools and tests.
    pub struct FileStore {
        folder: PathBuf,
    }

    impl FileStore {
        /// A store in `folder`, which is made when the first entry is put.
        pub fn new(folder: impl Into<PathBuf>) -> Self {
            Self { folder: folder.into() }
        }

        fn path(&self, key: &StoreKey) -> PathBuf {
            let mut hasher = DefaultHasher::new();
            key.hash(&mut hasher);
            self.folder.join(format!("{:016x}.block", hasher.finish()))
        }

        /// The line before the entry's own bytes: it tells apart two keys of one hash.
        fn label(key: &StoreKey) -> Vec<u8> {
            let mut label = match key {
                StoreKey::Block(key) => serde_json::json!([key.url, key.validator, key.block]),
                StoreKey::Manifest(place) => serde_json::json!([place]),
            }
            .to_string()
            .into_bytes();
            label.push(b'\n');
            label
        }

        fn key(label: &[u8]) -> Option<StoreKey> {
            if let Ok((url, validator, block)) = serde_json::from_slice(label) {
                return Some(StoreKey::Block(BlockKey { url, validator, block }));
            }
            let (place,) = serde_json::from_slice(label).ok()?;
            Some(StoreKey::Manifest(place))
        }

        /// The entry's file, at the first of the entry's own bytes.
        fn open(&self, key: &StoreKey) -> io::Result<Option<fs::File>> {
            let file = match fs::File::open(self.path(key)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                answer => answer?,
            };
            let label = Self::label(key);
            let mut found = Vec::new();
            (&file).take(label.len() as u64).read_to_end(&mut found)?;
            Ok((found == label).then_some(file))
        }

        fn read(&self, key: &StoreKey) -> io::Result<Option<Vec<u8>>> {
            let Some(mut file) = self.open(key)? else { return Ok(None) };
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(Some(bytes))
        }

        fn read_slices(&self, key: &StoreKey, ranges: &[Range<u64>]) -> io::Result<Option<Vec<Vec<u8>>>> {
            let Some(mut file) = self.open(key)? else { return Ok(None) };
            let start = file.stream_position()?;
            let mut slices = Vec::with_capacity(ranges.len());
            for range in ranges {
                let mut bytes = Vec::new();
                file.seek(SeekFrom::Start(start + range.start))?;
                (&file).take(range.end - range.start).read_to_end(&mut bytes)?;
                slices.push(bytes);
            }
            Ok(Some(slices))
        }

        /// Writes beside and renames, so that a crash leaves no half entry under the key.
        fn write(&self, key: &StoreKey, bytes: &[u8]) -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            let path = self.path(key);
            let partial = path.with_extension("partial");
            let mut file = fs::File::create(&partial)?;
            file.write_all(&Self::label(key))?;
            file.write_all(bytes)?;
            fs::rename(partial, path)
        }

        fn remove(&self, key: &StoreKey) -> io::Result<()> {
            if self.open(key)?.is_some() { fs::remove_file(self.path(key)) } else { Ok(()) }
        }

        fn keys(&self) -> io::Result<Vec<StoreKey>> {
            let folder = match fs::read_dir(&self.folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                answer => answer?,
            };
            let mut keys = Vec::new();
            for entry in folder {
                let path = entry?.path();
                if path.extension().is_none_or(|extension| extension != "block") {
                    continue;
                }
                let mut label = Vec::new();
                BufReader::new(fs::File::open(path)?).take(MAX_LABEL_BYTES).read_until(b'\n', &mut label)?;
                keys.extend(Self::key(&label));
            }
            Ok(keys)
        }

        fn done<T>(&self, asked: &str, done: io::Result<T>) -> LocalBoxFuture<'static, Result<T>>
        where
            T: 'static,
        {
            let asked = || format!("{asked} in {}", self.folder.display());
            let done = done.map_err(|error| Error::new(Code::Storage, asked()).because(error));
            ready(done).boxed_local()
        }
    }

    impl BlockStore for FileStore {
        fn get<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>>> {
            self.done(&format!("read {key}"), self.read(key))
        }

        fn slices<'a>(
            &'a self,
            key: &'a StoreKey,
            ranges: &'a [Range<u64>],
        ) -> LocalBoxFuture<'a, Result<Option<Vec<Vec<u8>>>>> {
            self.done(&format!("read {key}"), self.read_slices(key, ranges))
        }

        fn has<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<bool>> {
            self.done(&format!("look up {key}"), self.open(key).map(|file| file.is_some()))
        }

        fn put<'a>(&'a self, key: &'a StoreKey, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<()>> {
            self.done(&format!("store {key}"), self.write(key, bytes))
        }

        fn delete<'a>(&'a self, key: &'a StoreKey) -> LocalBoxFuture<'a, Result<()>> {
            self.done(&format!("delete {key}"), self.remove(key))
        }

        fn list(&self) -> LocalBoxFuture<'_, Result<Vec<StoreKey>>> {
            self.done("list what is kept", self.keys())
        }
    }
}
