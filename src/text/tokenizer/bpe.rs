//! Byte-pair encoding of one word: its characters, merged pair by pair in the order of rank.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::merges::Merges;
use super::vocab::Vocab;

/// The model: vocabulary, merges and how to treat what they lack.
pub(super) struct Bpe {
    pub(super) vocab: Vocab,
    pub(super) merges: Merges,
    /// The token of a character that the vocabulary lacks; without one such characters vanish.
    pub(super) unk: Option<u32>,
    /// Whether neighbouring unknown characters become one unknown token.
    pub(super) fuse_unk: bool,
    /// The ids of `<0x00>` to `<0xFF>`, where characters that the vocabulary lacks are spelt in bytes.
    pub(super) byte_fallback: Option<Box<[Option<u32>; 256]>>,
    /// Whether a word that is a token needs no merging.
    pub(super) ignore_merges: bool,
}

/// No symbol: past either end of the word.
const NONE: u32 = u32::MAX;
/// The id of a symbol that was merged into its left neighbour.
const GONE: u32 = u32::MAX;

struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

/// Working space that words of one text share.
#[derive(Default)]
pub(super) struct Scratch {
    symbols: Vec<Symbol>,
    /// (rank, position of the left symbol): the leftmost pair of lowest rank comes out first.
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Scratch {
    fn push(&mut self, id: u32) {
        let at = self.symbols.len() as u32;
        if let Some(last) = self.symbols.last_mut() {
            last.next = at;
        }
        self.symbols.push(Symbol { id, previous: at.checked_sub(1).unwrap_or(NONE), next: NONE });
    }
}

impl Bpe {
    /// Appends the ids of `word` to `out`. `O(n log n)` in the length of the word.
    pub(super) fn encode(&self, word: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        self.spell(word, scratch);
        self.merge(scratch);
        out.extend(scratch.symbols.iter().map(|symbol| symbol.id).filter(|&id| id != GONE));
    }

    /// The word as symbols of one character each.
    fn spell(&self, word: &str, scratch: &mut Scratch) {
        scratch.symbols.clear();
        let mut pending_unk = None;
        for (at, c) in word.char_indices() {
            let character = &word[at..at + c.len_utf8()];
            if let Some(id) = self.vocab.id_of(character) {
                pending_unk.take().into_iter().for_each(|unk| scratch.push(unk));
                scratch.push(id);
            } else if let Some(ids) = self.byte_ids(character) {
                // An unknown that is still pending lands behind these bytes, as in the reference.
                ids.for_each(|id| scratch.push(id));
            } else if let Some(unk) = self.unk {
                if !self.fuse_unk {
                    pending_unk.take().into_iter().for_each(|unk| scratch.push(unk));
                }
                pending_unk = Some(unk);
            }
        }
        pending_unk.into_iter().for_each(|unk| scratch.push(unk));
    }

    /// The byte tokens of a character, if the vocabulary has all of them.
    fn byte_ids(&self, character: &str) -> Option<impl Iterator<Item = u32>> {
        let ids = self.byte_fallback.as_deref()?;
        let mut found = [None; 4];
        for (slot, byte) in found.iter_mut().zip(character.bytes()) {
            *slot = Some(ids[usize::from(byte)]?);
        }
        Some(found.into_iter().flatten())
    }

    fn merge(&self, Scratch { symbols, queue }: &mut Scratch) {
        let rank_at = |symbols: &[Symbol], at: u32| {
            let left = symbols.get(at as usize)?;
            let right = symbols.get(left.next as usize)?;
            self.merges.rank(left.id, right.id)
        };
        queue.clear();
        queue.extend((0..symbols.len() as u32).filter_map(|at| Some(Reverse((rank_at(symbols, at)?, at)))));
        while let Some(Reverse((rank, at))) = queue.pop() {
            let merged = self.merges.merged(rank);
            // The pair may have changed since it was queued. Like the reference, merge it all the same if
            // the new pair makes the same token.
            if rank_at(symbols, at).is_none_or(|now| self.merges.merged(now) != merged) {
                continue;
            }
            let right = symbols[at as usize].next;
            let next = symbols[right as usize].next;
            symbols[right as usize] = Symbol { id: GONE, previous: NONE, next: NONE };
            symbols[at as usize].id = merged;
            symbols[at as usize].next = next;
            if let Some(next) = symbols.get_mut(next as usize) {
                next.previous = at;
            }
            for at in [symbols[at as usize].previous, at] {
                queue.extend(rank_at(symbols, at).map(|rank| Reverse((rank, at))));
            }
        }
    }
}
