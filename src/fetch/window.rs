//! The blocks of a load that lie in memory or are on their way there.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::future::{FutureExt, LocalBoxFuture, Shared};

use super::fetcher::Fetcher;
use crate::error::Result;

/// Blocks that are fetched ahead of the one that is read: enough that the next request is on its way
/// while a block is stored and packed.
pub(super) const READ_AHEAD: usize = 3;

/// Blocks in memory over all files of a load, in flight or there: 32 MiB. The block that is read and those
/// ahead of it fill it; what remains is for tensors that border on each other inside a block.
pub(super) const WINDOW_BLOCKS: usize = READ_AHEAD + 1;

/// A block on its way. All who wait for it drive it.
pub(super) type BlockFuture = Shared<LocalBoxFuture<'static, Result<Rc<Vec<u8>>>>>;

/// Dropping the window ends what is in flight.
#[derive(Default)]
pub(super) struct Window {
    entries: RefCell<Vec<Entry>>,
}

struct Entry {
    source: String,
    block: u64,
    future: BlockFuture,
    is_read: bool,
}

impl Entry {
    fn is_of(&self, fetcher: &Fetcher, block: u64) -> bool {
        self.block == block && self.source == fetcher.source.name()
    }

    fn is_there(&self) -> bool {
        self.future.peek().is_some()
    }
}

impl Window {
    /// A block that somebody waits for: it gets its place, even if the window must grow for it.
    pub(super) fn block(&self, fetcher: &Rc<Fetcher>, block: u64) -> BlockFuture {
        self.find(fetcher, block).unwrap_or_else(|| {
            if !self.has_room() {
                self.evict(|_| true);
            }
            self.insert(fetcher, block)
        })
    }

    /// A block that will be read; `None` if there is no place for it yet.
    pub(super) fn block_ahead(&self, fetcher: &Rc<Fetcher>, block: u64) -> Option<BlockFuture> {
        self.find(fetcher, block).or_else(|| {
            (self.has_room() || self.evict(|entry| entry.is_read)).then(|| self.insert(fetcher, block))
        })
    }

    /// A block has been read. It stays for the next reader, unless it has failed.
    pub(super) fn settle(&self, fetcher: &Fetcher, block: u64, has_failed: bool) {
        let mut entries = self.entries.borrow_mut();
        if has_failed {
            entries.retain(|entry| !entry.is_of(fetcher, block));
        }
        entries.iter_mut().filter(|entry| entry.is_of(fetcher, block)).for_each(|entry| entry.is_read = true);
    }

    /// Drops all blocks and what is in flight.
    pub(super) fn clear(&self) {
        self.entries.take();
    }

    fn find(&self, fetcher: &Fetcher, block: u64) -> Option<BlockFuture> {
        let entries = self.entries.borrow();
        entries.iter().find(|entry| entry.is_of(fetcher, block)).map(|entry| entry.future.clone())
    }

    fn has_room(&self) -> bool {
        self.entries.borrow().len() < WINDOW_BLOCKS
    }

    /// Drops the oldest block that is there and may go.
    fn evict(&self, may_go: impl Fn(&Entry) -> bool) -> bool {
        let mut entries = self.entries.borrow_mut();
        let read_first = entries.iter().position(|entry| entry.is_there() && entry.is_read);
        let oldest =
            read_first.or_else(|| entries.iter().position(|entry| entry.is_there() && may_go(entry)));
        oldest.map(|index| entries.remove(index)).is_some()
    }

    fn insert(&self, fetcher: &Rc<Fetcher>, block: u64) -> BlockFuture {
        let future = fetcher.clone().block(block).boxed_local().shared();
        let source = fetcher.source.name().to_owned();
        let entry = Entry { source, block, future: future.clone(), is_read: false };
        self.entries.borrow_mut().push(entry);
        future
    }
}
