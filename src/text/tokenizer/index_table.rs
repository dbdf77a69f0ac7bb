//! The compact hash table under the vocabulary and the merges: open addressing over 4-byte indices into an
//! array that the caller owns, so that a key is never stored twice.

/// A slot holds an index in its lower bits and, above, bits of the key's hash, which spare most looks at
/// keys that are not the one.
const INDEX_BITS: u32 = 22;
const EMPTY: u32 = u32::MAX;

/// Indices lie below this: sixteen times the largest vocabulary in use, eight times its merges.
pub(super) const MAX_INDEX: u32 = (1 << INDEX_BITS) - 1;

/// Longest run of slots that an insertion may walk. Honest keys stay below a few hundred at our load; a
/// file whose keys were chosen to collide is refused instead of making every look-up slow.
const MAX_PROBES: usize = 4096;

/// A hash set of indices below [`MAX_INDEX`], at most three quarters full.
pub(super) struct IndexTable {
    slots: Vec<u32>,
}

/// What [`IndexTable::insert`] found.
#[derive(Debug, PartialEq)]
pub(super) enum Inserted {
    New,
    /// The key was there: the index it had.
    Known(u32),
    /// The keys collide as no honest ones do.
    Crowded,
}

impl IndexTable {
    pub(super) fn with_capacity(keys: usize) -> Self {
        Self { slots: vec![EMPTY; (keys + keys / 3 + 1).next_power_of_two()] }
    }

    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        (0..self.slots.len().min(MAX_PROBES)).map(move |step| (hash as usize).wrapping_add(step) & mask)
    }

    /// The index whose key has this hash and satisfies `is_key`.
    pub(super) fn find(&self, hash: u64, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        let tag = tag(hash);
        self.probe(hash)
            .map(|slot| self.slots[slot])
            .take_while(|&entry| entry != EMPTY)
            .find_map(|entry| index_in(entry, tag).filter(|&index| is_key(index)))
    }

    /// Enters `index` under `hash` unless `is_key` holds for an index that is there already.
    pub(super) fn insert(&mut self, hash: u64, index: u32, is_key: impl Fn(u32) -> bool) -> Inserted {
        let tag = tag(hash);
        for slot in self.probe(hash) {
            let entry = self.slots[slot];
            if entry == EMPTY {
                self.slots[slot] = tag | index;
                return Inserted::New;
            }
            if let Some(known) = index_in(entry, tag).filter(|&known| is_key(known)) {
                return Inserted::Known(known);
            }
        }
        Inserted::Crowded
    }
}

/// The hash's upper bits, in their place in a slot; its lower ones choose the slot.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32 & !MAX_INDEX
}

/// The index in `entry` if its key may be one with this tag.
fn index_in(entry: u32, tag: u32) -> Option<u32> {
    (entry & !MAX_INDEX == tag).then_some(entry & MAX_INDEX)
}

fn mix(word: u64) -> u64 {
    let product = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

pub(super) fn hash_bytes(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word))
    })
}

pub(super) fn hash_pair(left: u32, right: u32) -> u64 {
    mix(mix(u64::from(left) << 32 | u64::from(right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_inserted_and_nothing_else() {
        let keys: Vec<String> = (0..5000).map(|n| format!("key{n}")).collect();
        let mut table = IndexTable::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let inserted =
                table.insert(hash_bytes(key.as_bytes()), index as u32, |i| keys[i as usize] == *key);
            assert_eq!(inserted, Inserted::New);
        }
        for (index, key) in keys.iter().enumerate() {
            let found = table.find(hash_bytes(key.as_bytes()), |i| keys[i as usize] == *key);
            assert_eq!(found, Some(index as u32));
        }
        assert_eq!(table.find(hash_bytes(b"absent"), |i| keys[i as usize] == "absent"), None);
        let again = table.insert(hash_bytes(b"key7"), 9, |i| keys[i as usize] == "key7");
        assert_eq!(again, Inserted::Known(7));
    }

    #[test]
    fn refuses_keys_that_all_collide() {
        let mut table = IndexTable::with_capacity(3 * MAX_PROBES);
        let refused =
            (0..2 * MAX_PROBES as u32).find(|&n| table.insert(0, n, |i| i == n) == Inserted::Crowded);
        assert_eq!(refused, Some(MAX_PROBES as u32));
    }
}
