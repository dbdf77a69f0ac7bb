//! Stop sequences: strings that end a generation, however the tokens cut them up.

use crate::error::{Code, Error, Result};

/// Watches a text that comes in pieces for the first stop sequence.
///
/// The text ends where the first sequence is complete: of several that are complete at the same character,
/// the longest counts. Text that may be the beginning of a sequence is held back.
pub struct StopSequences {
    stops: Vec<Stop>,
    /// The end of the text that has come, not yet passed on: as long as the longest beginning of a sequence.
    held: String,
    is_stopped: bool,
}

/// What a piece brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Text that belongs to no stop sequence.
    pub text: String,
    /// The index of the stop sequence that is complete now.
    pub stopped_by: Option<usize>,
}

/// One sequence as a Knuth-Morris-Pratt automaton over bytes.
struct Stop {
    bytes: Vec<u8>,
    /// For each length matched, the length of the longest proper beginning that is also its end.
    borders: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(sequence: String) -> Self {
        let bytes = sequence.into_bytes();
        let mut borders = vec![0; bytes.len()];
        for at in 1..bytes.len() {
            borders[at] = advance(&bytes, &borders, borders[at - 1], bytes[at]);
        }
        Self { bytes, borders, matched: 0 }
    }

    /// Takes one byte; whether the sequence is complete with it.
    fn push(&mut self, byte: u8) -> bool {
        self.matched = advance(&self.bytes, &self.borders, self.matched, byte);
        self.matched == self.bytes.len()
    }
}

/// The length matched after `byte`, when `matched` bytes (not all) were matched before.
fn advance(bytes: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    while bytes.get(matched) != Some(&byte) {
        match matched {
            0 => return 0,
            _ => matched = borders[matched - 1],
        }
    }
    matched + 1
}

impl StopSequences {
    /// Fails when a sequence is empty: the text would stop before it began.
    pub fn new(sequences: impl IntoIterator<Item = impl Into<String>>) -> Result<Self> {
        let sequences: Vec<String> = sequences.into_iter().map(Into::into).collect();
        if let Some(index) = sequences.iter().position(String::is_empty) {
            return Err(Error::new(Code::InvalidArgument, "use the stop sequences")
                .expected("sequences that are not empty")
                .got(format!("an empty one at index {index}")));
        }
        let stops = sequences.into_iter().map(Stop::new).collect();
        Ok(Self { stops, held: String::new(), is_stopped: false })
    }

    /// Takes the next piece. Once stopped, pieces are dropped.
    pub fn push(&mut self, piece: &str) -> Passed {
        if self.is_stopped {
            return Passed::default();
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (at, byte) in piece.bytes().enumerate() {
            if let Some(stopped_by) = self.push_byte(byte) {
                let end = before + at + 1;
                self.held.truncate(end - self.stops[stopped_by].bytes.len());
                self.is_stopped = true;
                return Passed { text: std::mem::take(&mut self.held), stopped_by: Some(stopped_by) };
            }
        }
        let begun = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        // A sequence begins with a whole character, so this cuts between characters.
        let rest = self.held.split_off(self.held.len() - begun);
        Passed { text: std::mem::replace(&mut self.held, rest), stopped_by: None }
    }

    /// Gives what was held back: the text goes on elsewhere, and no sequence reaches across.
    pub fn release(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        std::mem::take(&mut self.held)
    }

    /// Takes one byte; the longest of the sequences that are complete with it.
    fn push_byte(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for index in 0..self.stops.len() {
            let is_longer =
                complete.is_none_or(|best| self.stops[index].bytes.len() > self.stops[best].bytes.len());
            if self.stops[index].push(byte) && is_longer {
                complete = Some(index);
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The text before the stop sequence that is complete first, by trying every prefix.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (at, c) in text.char_indices() {
            let prefix = &text[..at + c.len_utf8()];
            let complete = (0..stops.len()).filter(|&index| prefix.ends_with(&stops[index]));
            let longest = complete.rev().max_by_key(|&index| stops[index].len());
            if let Some(index) = longest {
                return (prefix[..prefix.len() - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn holds_back_what_may_begin_a_stop_and_lets_it_go() {
        let mut stops = StopSequences::new(["</s>", "<end>"]).unwrap();
        let passed = |text: &str| Passed { text: text.into(), stopped_by: None };
        assert_eq!(stops.push("a <"), passed("a "));
        assert_eq!(stops.push("e"), passed(""));
        assert_eq!(stops.push("x<"), passed("<ex"));
        assert_eq!(stops.push("/s>tail"), Passed { text: String::new(), stopped_by: Some(0) });
        assert_eq!(stops.push("more"), Passed::default());
        assert_eq!(stops.release(), "");
    }

    #[test]
    fn no_sequence_reaches_across_a_release() {
        let mut stops = StopSequences::new(["abc"]).unwrap();
        assert_eq!(stops.push("xab"), Passed { text: "x".into(), stopped_by: None });
        assert_eq!(stops.release(), "ab");
        assert_eq!(stops.push("cab"), Passed { text: "c".into(), stopped_by: None });
        assert_eq!(stops.push("c").stopped_by, Some(0));
    }

    #[test]
    fn an_empty_stop_is_an_error() {
        assert_eq!(StopSequences::new([""]).err().unwrap().code(), Code::InvalidArgument);
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_search(
            stops in prop::collection::vec("[ab你é]{1,4}", 0..4),
            pieces in prop::collection::vec("[ab你é]{0,4}", 0..12),
        ) {
            let mut watched = StopSequences::new(stops.clone()).unwrap();
            let mut text = String::new();
            let mut stopped_by = None;
            for piece in &pieces {
                let passed = watched.push(piece);
                text.push_str(&passed.text);
                stopped_by = stopped_by.or(passed.stopped_by);
            }
            text.push_str(&watched.release());
            prop_assert_eq!((text, stopped_by), naive(&stops, &pieces.concat()));
        }
    }
}
