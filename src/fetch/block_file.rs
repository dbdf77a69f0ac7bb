//! A file read as blocks: source, store and progress in one.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use futures_util::future::{FutureExt, poll_fn};
use futures_util::stream::{StreamExt, TryStreamExt, iter};

use super::context::FetchEvent;
use super::fetcher::{Fetcher, reserve};
use super::manifest::as_ranges;
use super::scattered::{Parts, Piece, pieces_by_block, spans};
use super::source::slice;
use super::window::{BlockFuture, READ_AHEAD, WINDOW_BLOCKS, Window};
use crate::error::{Code, Error, Result};

/// Bytes in a block; the last one of a file is shorter. It bounds what is lost when the network breaks
/// off and what lies in memory at once.
pub const BLOCK_SIZE: u64 = 8 << 20;

/// Bytes of blocks that a load holds in memory.
pub const HELD_BYTES: u64 = WINDOW_BLOCKS as u64 * BLOCK_SIZE;

/// Stored blocks that scattered reads cut at a time, and requests that they make at a time: browsers open
/// six connections to a server.
const SCATTERED_AT_ONCE: usize = 6;

/// An existing file of a repository, read by range and fetched by block.
///
/// Each block is fetched at most once when there is a store; without one, also, as long as reads run in
/// file order.
pub struct BlockFile {
    fetcher: Rc<Fetcher>,
    window: Rc<Window>,
    /// The blocks that will be read, and so may be fetched ahead.
    wanted: RefCell<BTreeSet<u64>>,
}

impl BlockFile {
    pub(super) fn new(fetcher: Rc<Fetcher>, window: Rc<Window>) -> Self {
        Self { fetcher, window, wanted: RefCell::default() }
    }

    /// The file's name in its repository.
    pub fn name(&self) -> &str {
        &self.fetcher.name
    }

    /// The URL, path or name of the source.
    pub fn source_name(&self) -> &str {
        self.fetcher.source.name()
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        self.fetcher.metadata.size
    }

    /// Says that `ranges` will be read, in ascending order, so that their blocks may be fetched ahead.
    /// Blocks that nobody has named here are fetched when they are read.
    pub fn will_read(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let blocks: BTreeSet<u64> = if self.fetcher.is_checked() {
            (0..self.fetcher.block_count()).collect()
        } else {
            ranges.into_iter().flat_map(|range| self.fetcher.blocks(&range)).collect()
        };
        let stored = blocks.iter().filter_map(|block| {
            let extent = self.fetcher.extent(*block);
            Some((self.fetcher.place(*block)?.1, extent.end - extent.start))
        });
        self.fetcher.context.state.wanted.borrow_mut().extend(stored);
        self.wanted.borrow_mut().extend(blocks);
    }

    /// Exactly the bytes of `range`.
    ///
    /// Fails with `InvalidArgument` if the range is not inside the file, with `OutOfMemory` if it does not
    /// fit into memory, and with what the source fails with.
    pub async fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        self.check(&range)?;
        let _reading = self.fetcher.context.state.foreground.enter();
        let mut bytes = Vec::new();
        reserve(&mut bytes, range.end - range.start)?;
        for number in self.fetcher.blocks(&range) {
            let extent = self.fetcher.extent(number);
            let block = self.block(number).await?;
            let within =
                range.start.max(extent.start) - extent.start..range.end.min(extent.end) - extent.start;
            bytes.extend_from_slice(slice(self.name(), &block, &within)?);
        }
        Ok(bytes)
    }

    /// The bytes of each of `ranges`: rows of a table that is read here and there.
    ///
    /// What lies in stored blocks is cut out of them in the store. The rest is fetched by requests for
    /// these bytes and what lies between near ones, and is not stored; [`keep`](Self::keep) stores.
    ///
    /// Fails as [`read`](Self::read) does.
    pub async fn read_scattered(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        ranges.iter().try_for_each(|range| self.check(range))?;
        let _reading = self.fetcher.context.state.foreground.enter();
        let mut parts = Parts::new(ranges)?;
        let missing = self.cut_stored(&mut parts).await;
        self.fetch_missing(missing, &mut parts).await?;
        Ok(parts.into_bytes())
    }

    /// Fills in what lies in stored blocks; the pieces that do not.
    async fn cut_stored(&self, parts: &mut Parts<'_>) -> Vec<Piece> {
        let blocks = pieces_by_block(parts.ranges(), self.fetcher.context.block_size);
        let cuts = iter(blocks).map(|(block, pieces)| self.cut(block, pieces));
        let mut cuts = cuts.buffer_unordered(SCATTERED_AT_ONCE);
        let mut missing = Vec::new();
        while let Some((pieces, cut)) = cuts.next().await {
            match cut {
                None => missing.extend(pieces),
                Some(cut) => pieces.iter().zip(&cut).for_each(|(piece, bytes)| parts.place(piece, bytes)),
            }
        }
        missing
    }

    async fn fetch_missing(&self, missing: Vec<Piece>, parts: &mut Parts<'_>) -> Result<()> {
        let fetches = iter(spans(missing)).map(|span| async move {
            let bytes = self.fetcher.fetch(span.bytes.clone()).await?;
            Ok::<_, Error>((span, bytes))
        });
        let at_once = if self.fetcher.source.is_sequential() { 1 } else { SCATTERED_AT_ONCE };
        let mut fetches = fetches.buffer_unordered(at_once);
        while let Some((span, bytes)) = fetches.try_next().await? {
            for piece in &span.pieces {
                let within = piece.bytes.start - span.bytes.start..piece.bytes.end - span.bytes.start;
                parts.place(piece, slice(self.name(), &bytes, &within)?);
            }
        }
        Ok(())
    }

    /// The bytes of `pieces`, which lie in `block`, if that is stored in its whole length.
    async fn cut(&self, block: u64, pieces: Vec<Piece>) -> (Vec<Piece>, Option<Vec<Vec<u8>>>) {
        let Some((store, key)) = self.fetcher.place(block) else { return (pieces, None) };
        let extent = self.fetcher.extent(block);
        let within: Vec<_> = pieces
            .iter()
            .map(|piece| piece.bytes.start - extent.start..piece.bytes.end - extent.start)
            .collect();
        let cut = store.slices(&key, &within).await.unwrap_or_else(|error| {
            let event = FetchEvent::StoreFailed { file: self.name(), error: &error };
            self.fetcher.context.tell(event);
            None
        });
        let is_whole = |cut: &Vec<Vec<u8>>| {
            cut.len() == within.len()
                && cut.iter().zip(&within).all(|(bytes, range)| bytes.len() as u64 == range.end - range.start)
        };
        (pieces, cut.filter(is_whole))
    }

    /// Says that [`keep`](Self::keep) is to store `range`, which the load does not read: the model does not
    /// count as cached before.
    pub fn will_keep(&self, range: Range<u64>) {
        self.fetcher.will_keep(self.fetcher.blocks(&range));
    }

    /// Downloads the blocks of `range` that are not stored yet, one at a time, and gives way to reads before
    /// each. Does nothing where blocks cannot be stored. Dropping the future ends the download; the blocks
    /// that have arrived stay.
    ///
    /// Fails with `Storage` if the store fails, as when it is full, and as [`read`](Self::read) does.
    pub async fn keep(&self, range: Range<u64>) -> Result<()> {
        self.check(&range)?;
        let (context, blocks) = (&self.fetcher.context, self.fetcher.blocks(&range));
        let Some(store) = context.store.as_deref().filter(|_| self.fetcher.place(0).is_some()) else {
            return Ok(());
        };
        self.will_keep(range);
        let mut is_lacking = false;
        for number in blocks {
            context.state.foreground.idle().await;
            if !is_lacking && !self.fetcher.has(number).await? {
                is_lacking = true;
                context.update_manifest(&|manifest| manifest.complete = false).await;
            }
            self.fetcher.keep(number).await?;
        }
        let stored = store.list().await?.into_iter().collect();
        context
            .update_manifest(&|manifest| {
                if let Some(Some(record)) = manifest.files.get_mut(self.name()) {
                    record.blocks = as_ranges(&self.fetcher.needed_blocks());
                }
                manifest.complete = context.state.is_finished.get() && manifest.is_in(&stored);
            })
            .await;
        Ok(())
    }

    /// The whole file, which may have at most `limit` bytes.
    pub async fn read_all(&self, limit: u64) -> Result<Vec<u8>> {
        if self.size() > limit {
            return Err(Error::new(Code::Unsupported, format!("read {}", self.source_name()))
                .expected(format!("at most {limit} bytes"))
                .got(self.size().to_string()));
        }
        self.will_read(std::iter::once(0..self.size()));
        self.read(0..self.size()).await
    }

    /// Bytes of the blocks that hold `ranges`: what is loaded when these are read. A file whose hash is checked is
    /// loaded as a whole.
    pub fn bytes_of_blocks(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> u64 {
        if self.fetcher.is_checked() {
            return self.size();
        }
        let blocks: BTreeSet<u64> =
            ranges.into_iter().flat_map(|range| self.fetcher.blocks(&range)).collect();
        let extents = blocks.into_iter().map(|block| self.fetcher.extent(block));
        extents.map(|extent| extent.end - extent.start).sum()
    }

    fn check(&self, range: &Range<u64>) -> Result<()> {
        if range.start <= range.end && range.end <= self.size() {
            return Ok(());
        }
        Err(Error::new(Code::InvalidArgument, self.fetcher.asked(range))
            .expected(format!("a range inside its {} bytes", self.size())))
    }

    /// Brings what the check of the file's integrity still lacks.
    pub(super) async fn verify(&self) -> Result<()> {
        self.fetcher.check_again_if_fetched();
        if self.fetcher.is_checked() {
            self.will_read([]);
        }
        while let Some(number) = self.fetcher.unchecked_before(self.fetcher.block_count()) {
            self.bring(number).await?;
        }
        self.fetcher.conclude().await
    }

    /// One block, and before it those that the check of the file's integrity needs first.
    async fn block(&self, number: u64) -> Result<Rc<Vec<u8>>> {
        while let Some(skipped) = self.fetcher.unchecked_before(number) {
            self.bring(skipped).await?;
        }
        self.bring(number).await
    }

    /// One block. While it is awaited, those ahead of it come in too: a transfer flows only while it is
    /// polled.
    async fn bring(&self, number: u64) -> Result<Rc<Vec<u8>>> {
        let mut block = self.window.block(&self.fetcher, number);
        let mut ahead = self.ahead_of(number);
        let result = poll_fn(|context| {
            let polled = block.poll_unpin(context);
            ahead.retain_mut(|next| next.poll_unpin(context).is_pending());
            polled
        })
        .await;
        self.window.settle(&self.fetcher, number, result.is_err());
        let bytes = result?;
        self.fetcher.check(number, &bytes).await?;
        Ok(bytes)
    }

    fn ahead_of(&self, number: u64) -> Vec<BlockFuture> {
        if self.fetcher.source.is_sequential() {
            return Vec::new();
        }
        let wanted = self.wanted.borrow();
        let next = wanted.range(number + 1..).take(READ_AHEAD);
        next.map_while(|next| self.window.block_ahead(&self.fetcher, *next)).collect()
    }
}
