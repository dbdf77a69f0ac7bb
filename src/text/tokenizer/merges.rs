//! The merges of a BPE model: (left id, right id) → rank and merged id.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::index_table::{IndexTable, Inserted, MAX_INDEX, hash_pair};
use super::vocab::Vocab;

#[derive(Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    merged: u32,
}

/// All merges, indexed by rank: the lower the rank, the sooner the merge.
pub(super) struct Merges {
    by_rank: Vec<Merge>,
    ranks: IndexTable,
}

impl Merges {
    /// The rank of merging `left` with `right`, if there is such a merge.
    pub(super) fn rank(&self, left: u32, right: u32) -> Option<u32> {
        self.ranks.find(hash_pair(left, right), |rank| is_pair(&self.by_rank, rank, left, right))
    }

    /// The id that the merge of this rank makes.
    pub(super) fn merged(&self, rank: u32) -> u32 {
        self.by_rank[rank as usize].merged
    }

    fn new(mut by_rank: Vec<Merge>) -> Result<Self, String> {
        by_rank.shrink_to_fit();
        let mut ranks = IndexTable::with_capacity(by_rank.len());
        for (rank, &Merge { left, right, .. }) in by_rank.iter().enumerate() {
            let is_key = |other| is_pair(&by_rank, other, left, right);
            match ranks.insert(hash_pair(left, right), rank as u32, is_key) {
                Inserted::New => {}
                Inserted::Known(first) => {
                    return Err(format!("merges {first} and {rank} are of the same pair of tokens"));
                }
                Inserted::Crowded => return Err("merges made to collide in a hash table".into()),
            }
        }
        Ok(Self { by_rank, ranks })
    }
}

fn is_pair(by_rank: &[Merge], rank: u32, left: u32, right: u32) -> bool {
    by_rank.get(rank as usize).is_some_and(|merge| merge.left == left && merge.right == right)
}

/// Reads the `merges` array: `"left right"` or `["left", "right"]`.
pub(super) struct MergesSeed<'a>(pub(super) &'a Vocab);

impl<'de> DeserializeSeed<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Merges, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
        let mut by_rank = Vec::new();
        let mut joined = String::new();
        loop {
            joined.clear();
            match seq.next_element_seed(MergeSeed { vocab: self.0, joined: &mut joined })? {
                Some(_) if by_rank.len() as u32 == MAX_INDEX => {
                    return Err(A::Error::custom(format!("expected at most {MAX_INDEX} merges")));
                }
                Some(merge) => by_rank.push(merge),
                None => return Merges::new(by_rank).map_err(A::Error::custom),
            }
        }
    }
}

/// Reads one merge; `joined` gathers the text of the merged token.
struct MergeSeed<'a> {
    vocab: &'a Vocab,
    joined: &'a mut String,
}

impl MergeSeed<'_> {
    fn merge<E: serde::de::Error>(&self, left: u32, right: u32) -> Result<Merge, E> {
        let merged = id_of(self.vocab, self.joined)?;
        Ok(Merge { left, right, merged })
    }
}

fn id_of<E: serde::de::Error>(vocab: &Vocab, token: &str) -> Result<u32, E> {
    vocab.id_of(token).ok_or_else(|| E::custom(format!("a merge needs {token:?}, which the vocab lacks")))
}

impl<'de> DeserializeSeed<'de> for MergeSeed<'_> {
    type Value = Merge;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Merge, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeSeed<'_> {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge as \"left right\" or [\"left\", \"right\"]")
    }

    fn visit_str<E: serde::de::Error>(self, merge: &str) -> Result<Merge, E> {
        let parts = merge.split_once(' ').filter(|(_, right)| !right.contains(' '));
        let (left, right) =
            parts.ok_or_else(|| E::custom(format!("expected one space in the merge {merge:?}")))?;
        self.joined.push_str(left);
        self.joined.push_str(right);
        self.merge(id_of(self.vocab, left)?, id_of(self.vocab, right)?)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
        let mut part = |index| {
            seq.next_element_seed(PartSeed { vocab: self.vocab, joined: &mut *self.joined })?
                .ok_or_else(|| A::Error::invalid_length(index, &"two tokens"))
        };
        let (left, right) = (part(0)?, part(1)?);
        if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
            return Err(A::Error::invalid_length(3, &"two tokens"));
        }
        self.merge(left, right)
    }
}

struct PartSeed<'a> {
    vocab: &'a Vocab,
    joined: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for PartSeed<'_> {
    type Value = u32;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for PartSeed<'_> {
    type Value = u32;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token")
    }

    fn visit_str<E: serde::de::Error>(self, token: &str) -> Result<u32, E> {
        self.joined.push_str(token);
        id_of(self.vocab, token)
    }
}
