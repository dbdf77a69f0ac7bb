//! Brings the blocks of one file, from the store or from the source.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use super::context::{FetchEvent, LoadContext, Progress};
use super::integrity::{Check, Integrity};
use super::manifest::delete_file;
use super::retry::Retries;
use super::{BlockKey, BlockStore, ByteSource, Metadata, StoreKey};
use crate::error::{Code, Error, Result};

/// A request that brings less than this before it fails has failed for nothing.
const SOME_BYTES: usize = 64 << 10;

pub(super) struct Fetcher {
    pub(super) name: String,
    pub(super) source: Rc<dyn ByteSource>,
    pub(super) metadata: Metadata,
    pub(super) context: LoadContext,
    pub(super) integrity: Option<Integrity>,
    /// The integrity of the blocks that have come so far. None where there is nothing to check, or where
    /// what is stored was checked when it came.
    check: RefCell<Option<Check>>,
    /// The whole file has been checked in this load.
    pub(super) is_verified: Cell<bool>,
    /// Something has come from the source.
    is_fetched: Cell<bool>,
    tally: RefCell<Tally>,
    kept: RefCell<BTreeSet<u64>>,
}

/// Which blocks have been counted as loaded, and their bytes.
#[derive(Default)]
struct Tally {
    blocks: BTreeSet<u64>,
    loaded: u64,
    from_cache: u64,
}

impl Fetcher {
    pub(super) fn new(
        name: &str,
        source: Rc<dyn ByteSource>,
        metadata: Metadata,
        context: LoadContext,
    ) -> Self {
        Self {
            name: name.to_owned(),
            source,
            metadata,
            context,
            integrity: None,
            check: RefCell::default(),
            is_verified: Cell::default(),
            is_fetched: Cell::default(),
            tally: RefCell::default(),
            kept: RefCell::default(),
        }
    }

    /// Demands that the file have this integrity. `is_trusted` says that what is stored was seen to have it.
    pub(super) fn with_integrity(mut self, integrity: Option<Integrity>, is_trusted: bool) -> Self {
        self.check = RefCell::new((integrity.is_some() && !is_trusted).then(Check::new));
        self.integrity = integrity;
        self
    }

    /// The number of blocks of the file.
    pub(super) fn block_count(&self) -> u64 {
        self.metadata.size.div_ceil(self.context.block_size)
    }

    /// Blocks that are to be stored though the load does not read them.
    pub(super) fn will_keep(&self, blocks: Range<u64>) {
        self.kept.borrow_mut().extend(blocks);
    }

    /// The blocks without which the model does not work.
    pub(super) fn needed_blocks(&self) -> BTreeSet<u64> {
        self.tally.borrow().blocks.union(&self.kept.borrow()).copied().collect()
    }

    /// The block that must be checked before block `number`, if there is one.
    pub(super) fn unchecked_before(&self, number: u64) -> Option<u64> {
        self.check.borrow().as_ref().map(|check| check.next).filter(|next| *next < number)
    }

    /// A check of the stored blocks was spared, but now some have come anew.
    pub(super) fn check_again_if_fetched(&self) {
        if self.integrity.is_some() && self.is_fetched.get() && !self.is_verified.get() {
            self.check.borrow_mut().get_or_insert_with(Check::new);
        }
    }

    /// Adds a block to the check if it is its turn. The last one ends the check; a file that fails it is
    /// deleted from the store.
    pub(super) async fn check(&self, number: u64, bytes: &[u8]) -> Result<()> {
        if let Some(check) = self.check.borrow_mut().as_mut().filter(|check| check.next == number) {
            check.update(bytes);
        }
        self.conclude().await
    }

    /// Compares when all blocks have been checked.
    pub(super) async fn conclude(&self) -> Result<()> {
        let is_whole = |check: &mut Check| check.next == self.block_count();
        let Some(check) = self.check.borrow_mut().take_if(is_whole) else { return Ok(()) };
        let Some(integrity) = &self.integrity else { return Ok(()) };
        let result = check.finish(&self.name, integrity);
        self.is_verified.set(result.is_ok());
        if result.is_err()
            && let Some(store) = self.context.store.as_deref()
            && let Err(error) = delete_file(store, self.source.name(), |_| true).await
        {
            self.context.tell(FetchEvent::StoreFailed { file: &self.name, error: &error });
        }
        result
    }

    /// Whether the file is being checked as it comes, so that all of it must come.
    pub(super) fn is_checked(&self) -> bool {
        self.check.borrow().is_some()
    }

    /// The numbers of the blocks that hold `range`.
    pub(super) fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        range.start / self.context.block_size..range.end.div_ceil(self.context.block_size)
    }

    /// The bytes of the file that block `number` holds.
    pub(super) fn extent(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(self.context.block_size).min(self.metadata.size);
        start..start.saturating_add(self.context.block_size).min(self.metadata.size)
    }

    pub(super) fn asked(&self, range: &Range<u64>) -> String {
        format!("read bytes {}..{} of {}", range.start, range.end, self.source.name())
    }

    /// The store and the key of a block in it, where blocks of this file can be stored.
    pub(super) fn place(&self, block: u64) -> Option<(&dyn BlockStore, StoreKey)> {
        let store = self.context.store.as_deref()?;
        let validator = self.metadata.validator.clone()?;
        Some((store, BlockKey { url: self.source.name().to_owned(), validator, block }.into()))
    }

    /// One block: from the store, else from the source and into the store.
    pub(super) async fn block(self: Rc<Self>, number: u64) -> Result<Rc<Vec<u8>>> {
        let (bytes, is_stored) = match self.place(number) {
            None => (self.fetch(self.extent(number)).await?, false),
            Some((store, key)) => self.block_by_store(store, &key, number).await?,
        };
        self.count(number, bytes.len() as u64, is_stored);
        Ok(Rc::new(bytes))
    }

    /// The block and whether the store had it. Who fetches it has its lock, so that two tabs which load the
    /// same model fetch each block once between them.
    async fn block_by_store(
        &self,
        store: &dyn BlockStore,
        key: &StoreKey,
        number: u64,
    ) -> Result<(Vec<u8>, bool)> {
        if let Some(bytes) = self.stored(store, key, number).await {
            return Ok((bytes, true));
        }
        let lock = self.context.host.lock(&key.to_string()).await;
        if lock.is_some()
            && let Some(bytes) = self.stored(store, key, number).await
        {
            return Ok((bytes, true));
        }
        self.context.see_to_room(store, &self.name).await;
        let bytes = self.fetch(self.extent(number)).await?;
        if !self.context.state.store_is_full.get()
            && let Err(error) = store.put(key, &bytes).await
        {
            self.context.store_failed(&self.name, &error);
        }
        Ok((bytes, false))
    }

    /// The stored block, unless it is missing, unreadable or of the wrong length.
    async fn stored(&self, store: &dyn BlockStore, key: &StoreKey, number: u64) -> Option<Vec<u8>> {
        let bytes = match store.get(key).await {
            Ok(bytes) => bytes?,
            Err(error) => {
                self.context.tell(FetchEvent::StoreFailed { file: &self.name, error: &error });
                return None;
            }
        };
        let extent = self.extent(number);
        (bytes.len() as u64 == extent.end - extent.start).then_some(bytes)
    }

    /// Whether the store has a block.
    pub(super) async fn has(&self, number: u64) -> Result<bool> {
        match self.place(number) {
            Some((store, key)) => store.has(&key).await,
            None => Ok(false),
        }
    }

    /// Sees to it that the store has a block, where it can have it, and has found it: the first slice of it need
    /// not wait for that.
    pub(super) async fn keep(&self, number: u64) -> Result<()> {
        let Some((store, key)) = self.place(number) else { return Ok(()) };
        if store.slices(&key, &[]).await?.is_some() {
            return Ok(());
        }
        let lock = self.context.host.lock(&key.to_string()).await;
        if lock.is_some() && store.slices(&key, &[]).await?.is_some() {
            return Ok(());
        }
        let bytes = self.fetch(self.extent(number)).await?;
        store.put_for_slices(&key, &bytes).await?;
        store.slices(&key, &[]).await.map(drop)
    }

    /// Exactly the bytes of `range` from the source, with as many requests as it takes.
    pub(super) async fn fetch(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let expected = range.end - range.start;
        let mut bytes = Vec::new();
        reserve(&mut bytes, expected)
            .map_err(|error| error.remedy(format!("It was to {}.", self.asked(&range))))?;
        let mut retries = Retries::new(&self.context, &self.name);
        loop {
            let before = bytes.len();
            let rest = range.start + before as u64..range.end;
            let result = self.source.read(rest, &self.metadata, &mut bytes).await;
            self.is_fetched.set(true);
            self.context.state.reached.set(self.context.state.reached.get() || bytes.len() > before);
            let Err(fault) = result else { break };
            if bytes.len() - before >= SOME_BYTES {
                retries.reset();
            }
            retries.after(fault).await?;
        }
        if bytes.len() as u64 == expected {
            return Ok(bytes);
        }
        Err(Error::new(Code::Network, self.asked(&range))
            .expected(format!("{expected} bytes"))
            .got(bytes.len().to_string()))
    }

    fn count(&self, number: u64, bytes: u64, is_stored: bool) {
        let mut tally = self.tally.borrow_mut();
        if !tally.blocks.insert(number) {
            return;
        }
        tally.loaded += bytes;
        tally.from_cache += if is_stored { bytes } else { 0 };
        let progress = Progress {
            file: &self.name,
            loaded: tally.loaded,
            total: self.metadata.size,
            from_cache: tally.from_cache,
        };
        drop(tally);
        self.context.tell(FetchEvent::Progress(progress));
    }
}

/// Makes room for `count` bytes, however many a file or a caller claims.
pub(super) fn reserve(bytes: &mut Vec<u8>, count: u64) -> Result<()> {
    let reserved = usize::try_from(count).ok().and_then(|count| bytes.try_reserve_exact(count).ok());
    reserved.ok_or_else(|| {
        Error::new(Code::OutOfMemory, "read a part of a file")
            .expected(format!("{count} bytes of free memory"))
    })
}
