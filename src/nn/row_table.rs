//! A vocabulary's table that stays where it is stored, and of which single rows are read.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use web_time::Instant;

use crate::checkpoint::{Checkpoint, RowLayout};
use crate::error::Result;

/// Bytes of rows, as they are stored, that a table keeps in memory.
const CACHE_BYTES: usize = 32 << 20;

/// What reading rows took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowStats {
    /// Rows that were in memory when a step asked for them.
    pub hits: u64,
    /// Rows that had to be read.
    pub misses: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Time that was spent waiting for rows, in milliseconds.
    pub stall_ms: f64,
}

impl RowStats {
    /// What was added since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            hits: self.hits - earlier.hits,
            misses: self.misses - earlier.misses,
            bytes: self.bytes - earlier.bytes,
            stall_ms: self.stall_ms - earlier.stall_ms,
        }
    }
}

/// A table of the checkpoint, read row by row through a cache of bounded size.
pub struct RowTable {
    checkpoint: Rc<Checkpoint>,
    layout: RowLayout,
    cache: RefCell<RowCache>,
    stats: Cell<RowStats>,
}

impl RowTable {
    /// Bytes of rows that a table of this layout keeps in memory at most.
    pub fn cache_bytes(layout: &RowLayout) -> u64 {
        let row_bytes: u64 = layout.planes.iter().map(|plane| plane.row_bytes).sum();
        row_bytes.saturating_mul(layout.rows as u64).min(CACHE_BYTES as u64)
    }

    /// The table that lies in `checkpoint` as `layout` says.
    pub fn new(checkpoint: Rc<Checkpoint>, layout: RowLayout) -> Self {
        Self::with_cache(checkpoint, layout, CACHE_BYTES)
    }

    /// A table that keeps at most `bytes` bytes of rows.
    pub fn with_cache(checkpoint: Rc<Checkpoint>, layout: RowLayout, bytes: usize) -> Self {
        let cache = RefCell::new(RowCache { limit: bytes, ..RowCache::default() });
        Self { checkpoint, layout, cache, stats: Cell::default() }
    }

    /// Elements of a row.
    pub fn columns(&self) -> usize {
        self.layout.stored.columns
    }

    /// Bytes of rows in memory.
    pub fn cached_bytes(&self) -> usize {
        self.cache.borrow().bytes
    }

    /// What reading has taken so far.
    pub fn stats(&self) -> RowStats {
        self.stats.get()
    }

    /// Downloads the whole table to the block store, so that rows need not be fetched one by one any more. It
    /// gives way to rows that are asked for meanwhile. Dropping the future ends the download.
    ///
    /// Fails with `Storage` if the store fails, and with what reading fails with.
    pub async fn keep(&self) -> Result<()> {
        self.checkpoint.keep(&self.layout).await
    }

    /// Reads as many of the rows `ids` as the cache holds, in one go: those of a prompt before it is computed.
    pub async fn prefetch(&self, ids: &[u32]) -> Result<()> {
        let fitting = self.cache.borrow().limit / self.row_bytes().max(1);
        let mut wanted = BTreeSet::new();
        for &id in ids {
            if wanted.len() == fitting {
                break;
            }
            wanted.insert(id);
        }
        self.stored(&wanted, false).await.map(|_| ())
    }

    /// The first `columns` values of the rows `ids`, `[ids, columns]`, from memory or from where the table lies.
    ///
    /// Fails with `InvalidArgument` for a row that is not in the table, and with what reading fails with.
    pub async fn rows(&self, ids: &[u32], columns: usize) -> Result<Vec<f32>> {
        let stored = self.stored(&ids.iter().copied().collect(), true).await?;
        let first = self.layout.stored.first(columns);
        let planes: Vec<_> = self.layout.stored.row_bytes()?.into_iter().zip(first.row_bytes()?).collect();
        let mut values = Vec::with_capacity(ids.len() * columns + first.columns);
        for id in ids {
            let Some(mut rest) = stored.get(id).map(|row| &row[..]) else { continue };
            let mut parts = Vec::with_capacity(planes.len());
            for &(bytes, first_bytes) in &planes {
                let (part, tail) = rest.split_at_checked(bytes).unwrap_or((rest, &[]));
                parts.push(part.get(..first_bytes).unwrap_or(part));
                rest = tail;
            }
            let end = values.len() + columns;
            first.decode(&parts, &mut values)?;
            values.truncate(end);
        }
        Ok(values)
    }

    /// The stored bytes of `ids`; those that are not in memory are read by one call.
    async fn stored(&self, ids: &BTreeSet<u32>, counts_hits: bool) -> Result<HashMap<u32, Rc<[u8]>>> {
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        {
            let mut cache = self.cache.borrow_mut();
            for &id in ids {
                match cache.get(id) {
                    Some(row) => drop(found.insert(id, row)),
                    None => missing.push(id),
                }
            }
        }
        let mut stats = RowStats { misses: missing.len() as u64, ..RowStats::default() };
        if counts_hits {
            stats.hits = found.len() as u64;
        }
        if !missing.is_empty() {
            let started = Instant::now();
            let rows: Vec<usize> = missing.iter().map(|&id| id as usize).collect();
            let contents = self.checkpoint.read_scattered(&self.layout, &rows).await?;
            stats.stall_ms = started.elapsed().as_secs_f64() * 1e3;
            let mut cache = self.cache.borrow_mut();
            for (id, content) in missing.into_iter().zip(contents) {
                stats.bytes += content.len() as u64;
                let row: Rc<[u8]> = content.into();
                cache.insert(id, row.clone());
                found.insert(id, row);
            }
        }
        let sum = self.stats.get();
        self.stats.set(RowStats {
            hits: sum.hits + stats.hits,
            misses: sum.misses + stats.misses,
            bytes: sum.bytes + stats.bytes,
            stall_ms: sum.stall_ms + stats.stall_ms,
        });
        Ok(found)
    }

    fn row_bytes(&self) -> usize {
        self.layout.planes.iter().map(|plane| plane.row_bytes as usize).sum()
    }
}

/// The rows that were used last, up to a number of bytes.
#[derive(Default)]
struct RowCache {
    limit: usize,
    bytes: usize,
    /// Counts uses.
    clock: u64,
    rows: HashMap<u32, (u64, Rc<[u8]>)>,
    /// The ids by their last use.
    by_use: BTreeMap<u64, u32>,
}

impl RowCache {
    fn get(&mut self, id: u32) -> Option<Rc<[u8]>> {
        let (used, row) = self.rows.get_mut(&id)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, id);
        Some(row.clone())
    }

    fn insert(&mut self, id: u32, row: Rc<[u8]>) {
        self.clock += 1;
        self.bytes += row.len();
        if let Some((used, old)) = self.rows.insert(id, (self.clock, row)) {
            self.by_use.remove(&used);
            self.bytes -= old.len();
        }
        self.by_use.insert(self.clock, id);
        while self.bytes > self.limit {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            if let Some((_, row)) = self.rows.remove(&oldest) {
                self.bytes -= row.len();
            }
        }
    }
}
