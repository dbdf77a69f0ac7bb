//! The memory ledger: how many bytes of the GPU are held, and for what.

use std::cell::Cell;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Weights of the model.
    Weights,
    /// Keys and values of past positions.
    KvCache,
    /// Intermediate results of a plan.
    Activations,
    /// Tokens, step parameters, logits and staging for readback.
    Io,
}

impl Usage {
    /// Every usage, in the order of [`Ledger::entries`].
    pub const ALL: [Usage; 4] = [Usage::Weights, Usage::KvCache, Usage::Activations, Usage::Io];

    /// The name under which pages see the entry.
    pub fn name(self) -> &'static str {
        match self {
            Usage::Weights => "weights",
            Usage::KvCache => "kvCache",
            Usage::Activations => "activations",
            Usage::Io => "other",
        }
    }
}

/// Live GPU bytes by usage, and the highest total so far.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    live: [Cell<u64>; Usage::ALL.len()],
    peak: Cell<u64>,
    limit: Cell<Option<u64>>,
}

impl Ledger {
    /// From now on no buffer is reserved that would bring the total above `bytes`; None: whatever the device can
    /// hold.
    pub fn set_limit(&self, bytes: Option<u64>) {
        self.limit.set(bytes);
    }

    /// The total that buffers are kept to, if any.
    pub fn limit(&self) -> Option<u64> {
        self.limit.get()
    }

    pub(super) fn enter(&self, usage: Usage, bytes: u64) {
        let entry = &self.live[usage as usize];
        entry.set(entry.get() + bytes);
        self.peak.set(self.peak.get().max(self.total()));
    }

    pub(super) fn strike(&self, usage: Usage, bytes: u64) {
        let entry = &self.live[usage as usize];
        entry.set(entry.get() - bytes);
    }

    /// Live bytes of one usage.
    pub fn live(&self, usage: Usage) -> u64 {
        self.live[usage as usize].get()
    }

    /// Live bytes of all usages.
    pub fn total(&self) -> u64 {
        self.live.iter().map(Cell::get).sum()
    }

    /// The highest total since the device was opened, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    /// Every usage's name and its live bytes.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Usage::ALL.into_iter().map(|usage| (usage.name(), self.live(usage)))
    }
}
