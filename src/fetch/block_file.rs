//! A file read as blocks: source, store and progress in one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use futures_util::lock::Mutex;

use super::{BlockKey, BlockStore, ByteSource, Metadata};
use crate::error::{Code, Error, Result};

/// Bytes in a block; the last one of a file is shorter. It bounds what is lost when the network breaks
/// off and what lies in memory at once.
pub const BLOCK_SIZE: u64 = 8 << 20;

/// Blocks held in memory over all files of a load: tensors border on each other inside a block, and a
/// tensor that ends in one block is followed by one that begins there.
const RECENT_BLOCKS: usize = 2;

/// Bytes of blocks that a load may hold in memory.
pub const HELD_BYTES: u64 = RECENT_BLOCKS as u64 * BLOCK_SIZE;

/// How far one file has come, in bytes. A block counts once, when it is first loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file's name in its repository.
    pub file: &'a str,
    /// Bytes loaded so far.
    pub loaded: u64,
    /// Bytes in the file. `loaded` stays below it when only some tensors are read.
    pub total: u64,
    /// How many of `loaded` came from the block store.
    pub from_cache: u64,
}

/// What a load tells while it reads.
#[derive(Debug)]
pub enum FetchEvent<'a> {
    /// A block has been loaded.
    Progress(Progress<'a>),
    /// The block store failed, as it does when the origin's quota is used up. The load goes on; after a
    /// failed write nothing more is stored.
    StoreFailed {
        /// The file whose block could not be read or stored.
        file: &'a str,
        /// What went wrong.
        error: &'a Error,
    },
}

/// Receives the events of a load.
pub type Observer = Rc<dyn Fn(FetchEvent<'_>)>;

/// What the files of one load share.
#[derive(Clone, Default)]
pub(super) struct LoadContext {
    pub(super) store: Option<Rc<dyn BlockStore>>,
    pub(super) observer: Option<Observer>,
    recent: Rc<RefCell<VecDeque<RecentBlock>>>,
    store_is_full: Rc<Cell<bool>>,
}

struct RecentBlock {
    source: String,
    block: u64,
    bytes: Rc<Vec<u8>>,
}

impl LoadContext {
    fn tell(&self, event: FetchEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    fn recall(&self, source: &str, block: u64) -> Option<Rc<Vec<u8>>> {
        let recent = self.recent.borrow();
        let found = recent.iter().find(|kept| kept.block == block && kept.source == source);
        found.map(|kept| kept.bytes.clone())
    }

    /// Makes room before a block is loaded, so that no more than [`RECENT_BLOCKS`] ever lie in memory.
    fn make_room(&self) {
        let mut recent = self.recent.borrow_mut();
        while recent.len() >= RECENT_BLOCKS {
            recent.pop_front();
        }
    }

    fn remember(&self, source: &str, block: u64, bytes: Rc<Vec<u8>>) {
        self.make_room();
        self.recent.borrow_mut().push_back(RecentBlock { source: source.to_owned(), block, bytes });
    }
}

/// An existing file of a repository, read by range and fetched by block.
///
/// Each block is fetched at most once when there is a store; without one, also, as long as reads run in
/// file order. Concurrent reads of one file take turns.
pub struct BlockFile {
    name: String,
    source: Rc<dyn ByteSource>,
    metadata: Metadata,
    context: LoadContext,
    tally: Mutex<Tally>,
}

/// Which blocks have been counted as loaded, and their bytes.
#[derive(Default)]
struct Tally {
    blocks: BTreeSet<u64>,
    loaded: u64,
    from_cache: u64,
}

impl BlockFile {
    pub(super) fn new(
        name: &str,
        source: Rc<dyn ByteSource>,
        metadata: Metadata,
        context: LoadContext,
    ) -> Self {
        Self { name: name.to_owned(), source, metadata, context, tally: Mutex::default() }
    }

    /// The file's name in its repository.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL, path or name of the source.
    pub fn source_name(&self) -> &str {
        self.source.name()
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.metadata.size
    }

    /// Exactly the bytes of `range`.
    ///
    /// Fails with `InvalidArgument` if the range is not inside the file, with `OutOfMemory` if it does not
    /// fit into memory, and with what the source fails with.
    pub async fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        if range.start > range.end || range.end > self.size() {
            return Err(Error::new(Code::InvalidArgument, self.asked(&range))
                .expected(format!("a range inside its {} bytes", self.size())));
        }
        let length = range.end - range.start;
        let mut bytes = Vec::new();
        usize::try_from(length).ok().and_then(|length| bytes.try_reserve_exact(length).ok()).ok_or_else(
            || {
                Error::new(Code::OutOfMemory, self.asked(&range))
                    .expected(format!("{length} bytes of free memory"))
            },
        )?;
        let mut position = range.start;
        while position < range.end {
            let number = position / BLOCK_SIZE;
            let extent = self.extent(number);
            let end = range.end.min(extent.end);
            let block = self.block(number).await?;
            let within = position - extent.start..end - extent.start;
            bytes.extend_from_slice(super::source::slice(&self.name, &block, &within)?);
            position = end;
        }
        Ok(bytes)
    }

    /// The bytes of each of `ranges`: rows of a table that is read here and there.
    pub async fn read_scattered(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            parts.push(self.read(range.clone()).await?);
        }
        Ok(parts)
    }

    /// The whole file, which may have at most `limit` bytes.
    pub async fn read_all(&self, limit: u64) -> Result<Vec<u8>> {
        if self.size() > limit {
            return Err(Error::new(Code::Unsupported, format!("read {}", self.source_name()))
                .expected(format!("at most {limit} bytes"))
                .got(self.size().to_string()));
        }
        self.read(0..self.size()).await
    }

    /// Bytes of the blocks that hold `ranges`: what is loaded when these are read.
    pub fn bytes_of_blocks(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
        let is_empty = |range: &Range<u64>| range.start >= range.end;
        let ranges = ranges.into_iter().filter(|range| !is_empty(range));
        let blocks = ranges.flat_map(|range| range.start / BLOCK_SIZE..=(range.end - 1) / BLOCK_SIZE);
        let length = |extent: Range<u64>| extent.end - extent.start;
        blocks.collect::<BTreeSet<u64>>().into_iter().map(|block| length(self.extent(block))).sum()
    }

    fn asked(&self, range: &Range<u64>) -> String {
        format!("read bytes {}..{} of {}", range.start, range.end, self.source_name())
    }

    /// The bytes of the file that block `number` holds.
    fn extent(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(BLOCK_SIZE).min(self.size());
        start..start.saturating_add(BLOCK_SIZE).min(self.size())
    }

    /// One block, from memory, from the store or from the source. The lock on the tally is held over the
    /// fetch, so that two readers never fetch the same block.
    async fn block(&self, number: u64) -> Result<Rc<Vec<u8>>> {
        let mut tally = self.tally.lock().await;
        if let Some(bytes) = self.context.recall(self.source_name(), number) {
            return Ok(bytes);
        }
        self.context.make_room();
        let key = self.key(number);
        let stored = self.stored(key.as_ref(), number).await;
        let is_stored = stored.is_some();
        let bytes: Rc<Vec<u8>> = match stored {
            Some(bytes) => Rc::new(bytes),
            None => Rc::new(self.fetch(key.as_ref(), number).await?),
        };
        self.count(&mut tally, number, bytes.len() as u64, is_stored);
        self.context.remember(self.source_name(), number, bytes.clone());
        Ok(bytes)
    }

    fn key(&self, block: u64) -> Option<BlockKey> {
        let validator = self.metadata.validator.clone()?;
        Some(BlockKey { url: self.source_name().to_owned(), validator, block })
    }

    /// The stored block, unless it is missing, unreadable or of the wrong length.
    async fn stored(&self, key: Option<&BlockKey>, number: u64) -> Option<Vec<u8>> {
        let bytes = match self.context.store.as_ref()?.get(key?).await {
            Ok(bytes) => bytes?,
            Err(error) => {
                self.context.tell(FetchEvent::StoreFailed { file: &self.name, error: &error });
                return None;
            }
        };
        let extent = self.extent(number);
        (bytes.len() as u64 == extent.end - extent.start).then_some(bytes)
    }

    /// Fetches a block and stores it if that is possible.
    async fn fetch(&self, key: Option<&BlockKey>, number: u64) -> Result<Vec<u8>> {
        let extent = self.extent(number);
        let expected = extent.end - extent.start;
        let bytes = self.source.read(extent.clone()).await?;
        if bytes.len() as u64 != expected {
            return Err(Error::new(Code::Network, self.asked(&extent))
                .expected(format!("{expected} bytes"))
                .got(bytes.len().to_string()));
        }
        if let (Some(store), Some(key), false) = (&self.context.store, key, self.context.store_is_full.get())
            && let Err(error) = store.put(key, &bytes).await
        {
            self.context.store_is_full.set(true);
            self.context.tell(FetchEvent::StoreFailed { file: &self.name, error: &error });
        }
        Ok(bytes)
    }

    fn count(&self, tally: &mut Tally, number: u64, bytes: u64, is_stored: bool) {
        if !tally.blocks.insert(number) {
            return;
        }
        tally.loaded += bytes;
        tally.from_cache += if is_stored { bytes } else { 0 };
        self.context.tell(FetchEvent::Progress(Progress {
            file: &self.name,
            loaded: tally.loaded,
            total: self.size(),
            from_cache: tally.from_cache,
        }));
    }
}
