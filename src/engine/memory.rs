//! What a model will take, known from its configuration and the headers alone.

use crate::error::{Code, Error, Result};
use crate::fetch::HELD_BYTES;
use crate::gpu::{Ledger, Usage};

/// What the heap holds in any case: the module's data, its stack, what plans and configurations take.
const BASE_BYTES: u64 = 4 << 20;

/// The memory that a model takes, in bytes. What is on the GPU is exact: it is what the ledger will show. What is
/// on the heap is an upper estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Packed weights on the GPU.
    pub weights: u64,
    /// Keys and values on the GPU.
    pub kv_cache: u64,
    /// Intermediate results on the GPU.
    pub activations: u64,
    /// Step inputs and readback on the GPU.
    pub other: u64,
    /// The tokenizer's tables, on the heap: at most what its file has, of Gemma's 33 MB they are 52%.
    pub tokenizer: u64,
    /// The cache of rows that are read where they are stored, on the heap.
    pub rows: u64,
    /// What the heap holds while weights stream through it.
    pub staging: u64,
    /// What is fetched, or read from the cache: the blocks of the weights, and the tokenizer's file.
    pub download_bytes: u64,
    /// What GPU and heap may take together.
    pub budget: Option<u64>,
}

impl MemoryPlan {
    /// The buffers that were entered in `ledger` since it was `before`.
    pub(super) fn of_gpu(ledger: &Ledger, before: &Ledger) -> Self {
        let taken = |usage| ledger.live(usage) - before.live(usage);
        Self {
            weights: taken(Usage::Weights),
            kv_cache: taken(Usage::KvCache),
            activations: taken(Usage::Activations),
            other: taken(Usage::Io),
            ..Self::default()
        }
    }

    /// Everything on the GPU.
    pub fn gpu_bytes(&self) -> u64 {
        self.weights + self.kv_cache + self.activations + self.other
    }

    /// The highest that the heap comes to; it never shrinks. The tokenizer's file is gone when weights are read, and
    /// these are through when rows are.
    pub fn heap_bytes(&self) -> u64 {
        let reading_tokenizer = HELD_BYTES + self.tokenizer;
        BASE_BYTES + self.tokenizer + reading_tokenizer.max(self.staging).max(self.rows)
    }

    /// GPU and heap together.
    pub fn total_bytes(&self) -> u64 {
        self.gpu_bytes() + self.heap_bytes()
    }

    /// Whether it fits into the budget; without one it does, as far as is known.
    pub fn fits(&self) -> bool {
        self.budget.is_none_or(|budget| self.total_bytes() <= budget)
    }

    /// What the budget leaves for the GPU.
    pub(super) fn gpu_limit(&self) -> Option<u64> {
        self.budget.map(|budget| budget.saturating_sub(self.heap_bytes()))
    }

    /// Fails with [`Code::OutOfMemory`] and the numbers unless it fits.
    pub fn check(&self) -> Result<()> {
        let Some(budget) = self.budget.filter(|_| !self.fits()) else { return Ok(()) };
        let Self { weights, kv_cache, activations, other, .. } = self;
        Err(Error::new(Code::OutOfMemory, "load the model")
            .expected(format!("at most {budget} bytes, the option memoryBudget"))
            .got(format!(
                "{} bytes: {weights} of weights, {kv_cache} of keys and values, {activations} of activations and \
                 {other} of other buffers on the GPU, {} on the heap",
                self.total_bytes(),
                self.heap_bytes()
            ))
            .remedy("Choose a smaller context, a smaller dtype such as \"q4\" or a smaller model."))
    }
}
