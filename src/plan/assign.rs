//! Which values share which buffers.

/// A value's size and the operations between which it lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub bytes: u64,
    /// Index of the operation that writes it first.
    pub first: usize,
    /// Index of the last operation that touches it.
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A slot for every value, and every slot's size: largest values first, each into the smallest slot that
/// is free while the value lives.
pub(super) fn assign(values: &[Lifetime]) -> (Vec<usize>, Vec<u64>) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&value| (std::cmp::Reverse(values[value].bytes), values[value].first));
    let mut slots: Vec<(u64, Vec<usize>)> = Vec::new();
    let mut assigned = vec![0; values.len()];
    for value in order {
        let is_free = |tenants: &[usize]| !tenants.iter().any(|&tenant| values[tenant].meets(&values[value]));
        let free = slots.iter().enumerate().filter(|(_, (_, tenants))| is_free(tenants));
        let slot = match free.min_by_key(|(_, (bytes, _))| *bytes).map(|(slot, _)| slot) {
            Some(slot) => slot,
            None => {
                slots.push((values[value].bytes, Vec::new()));
                slots.len() - 1
            }
        };
        slots[slot].1.push(value);
        assigned[value] = slot;
    }
    (assigned, slots.into_iter().map(|(bytes, _)| bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_chain_needs_two_buffers() {
        let chain: Vec<Lifetime> = (0..6).map(|i| Lifetime { bytes: 64, first: i, last: i + 1 }).collect();
        let (assigned, slots) = assign(&chain);
        assert_eq!(slots, [64, 64]);
        assert!(assigned.windows(2).all(|pair| pair[0] != pair[1]));
    }

    proptest! {
        #[test]
        fn values_that_live_at_once_never_share(
            lives in prop::collection::vec((1u64..100, 0usize..30, 0usize..10), 1..40)
        ) {
            let values: Vec<Lifetime> = lives
                .into_iter()
                .map(|(bytes, first, length)| Lifetime { bytes, first, last: first + length })
                .collect();
            let (assigned, slots) = assign(&values);
            for (a, value) in values.iter().enumerate() {
                prop_assert!(slots[assigned[a]] >= value.bytes);
                for b in 0..a {
                    prop_assert!(assigned[a] != assigned[b] || !value.meets(&values[b]));
                }
            }
        }
    }
}
