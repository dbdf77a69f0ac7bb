//! A set of literals that is searched for the longest one at a place.

use std::ops::Range;

/// Literals in byte order: the ones that go on matching are always a range of neighbours, which each byte of
/// the text narrows by two binary searches. No automaton: Gemma has 6,415 added tokens, and this keeps
/// nothing but their text.
pub(super) struct LiteralSet {
    /// Literal and the caller's number for it.
    literals: Box<[(Box<str>, u32)]>,
    /// Whether some literal begins with the byte.
    first_bytes: [bool; 256],
}

/// What begins at a place of the text.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// Bytes and number of the longest literal.
    pub(super) longest: Option<(usize, u32)>,
    /// Whether the text ended while a longer literal could still have matched.
    pub(super) is_open: bool,
}

impl Found {
    pub(super) fn is_any(&self) -> bool {
        self.longest.is_some() || self.is_open
    }
}

impl LiteralSet {
    /// Of equal literals the first one counts; empty ones are left out.
    pub(super) fn new<'a>(literals: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut literals: Vec<(Box<str>, u32)> = literals
            .filter(|(text, _)| !text.is_empty())
            .map(|(text, number)| (text.into(), number))
            .collect();
        literals.sort_by(|(a, _), (b, _)| a.cmp(b));
        literals.dedup_by(|(a, _), (b, _)| a == b);
        let mut first_bytes = [false; 256];
        for (text, _) in &literals {
            text.bytes().take(1).for_each(|byte| first_bytes[usize::from(byte)] = true);
        }
        Self { literals: literals.into(), first_bytes }
    }

    /// The literals that begin at byte `at`.
    pub(super) fn find_at(&self, text: &str, at: usize) -> Found {
        let mut longest = None;
        let mut candidates = &*self.literals;
        for (depth, &byte) in text.as_bytes()[at..].iter().enumerate() {
            if depth == 0 && !self.first_bytes[usize::from(byte)] {
                return Found { longest, is_open: false };
            }
            let byte_at = |literal: &(Box<str>, u32)| literal.0.as_bytes().get(depth).copied();
            let start = candidates.partition_point(|literal| byte_at(literal) < Some(byte));
            let end = candidates.partition_point(|literal| byte_at(literal) <= Some(byte));
            candidates = &candidates[start..end];
            match candidates {
                [] => return Found { longest, is_open: false },
                [first, ..] if first.0.len() == depth + 1 => longest = Some((depth + 1, first.1)),
                _ => {}
            }
        }
        let reached = text.len() - at;
        // The candidates share what was reached, so the last in order is one of those that go on.
        let is_open = reached > 0 && candidates.last().is_some_and(|(literal, _)| literal.len() > reached);
        Found { longest, is_open }
    }

    /// The leftmost literal from byte `from` on, and of those that begin there the longest.
    pub(super) fn find(&self, text: &str, from: usize) -> Option<(Range<usize>, u32)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).filter(|&at| self.first_bytes[usize::from(bytes[at])]).find_map(|at| {
            let (len, number) = self.find_at(text, at).longest?;
            Some((at..at + len, number))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> LiteralSet {
        LiteralSet::new([("<a>", 1), ("<a>b", 2), ("<", 3), ("", 4), ("é", 5), ("<a>", 6)].into_iter())
    }

    #[test]
    fn finds_the_longest_at_the_leftmost_place() {
        assert_eq!(set().find("x<a>b<", 0), Some((1..5, 2)));
        assert_eq!(set().find("x<a>b<", 2), Some((5..6, 3)));
        assert_eq!(set().find("<a>c", 0), Some((0..3, 1)));
        assert_eq!(set().find("caféb", 0), Some((3..5, 5)));
        assert_eq!(set().find("xyz", 0), None);
        assert_eq!(LiteralSet::new([].into_iter()).find("xyz", 0), None);
    }

    #[test]
    fn knows_when_more_text_could_match_more() {
        assert_eq!(set().find_at("<a", 0), Found { longest: Some((1, 3)), is_open: true });
        assert_eq!(set().find_at("<a>b", 0), Found { longest: Some((4, 2)), is_open: false });
        assert_eq!(set().find_at("a", 0), Found { longest: None, is_open: false });
    }
}
