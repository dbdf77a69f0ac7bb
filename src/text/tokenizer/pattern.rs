//! The patterns of normalizers and pre-tokenizers, and the ways to split at their matches.

use std::borrow::Cow;
use std::ops::Range;

use fancy_regex::{Regex, RegexBuilder};
use serde::Deserialize;

use crate::error::{Code, Error, Result};

/// Bytes of a regular expression: real ones stay below 1,000.
const MAX_REGEX: usize = 1 << 14;

/// A literal or a regular expression in Oniguruma's syntax.
#[derive(Deserialize)]
#[serde(try_from = "PatternJson")]
pub(super) enum Pattern {
    Literal(String),
    Regex(Box<Regex>),
}

#[derive(Deserialize)]
enum PatternJson {
    String(String),
    Regex(String),
}

impl TryFrom<PatternJson> for Pattern {
    type Error = String;

    fn try_from(json: PatternJson) -> Result<Self, String> {
        match json {
            PatternJson::String(literal) if literal.is_empty() => Err("a pattern that is empty".into()),
            PatternJson::String(literal) => Ok(Pattern::Literal(literal)),
            PatternJson::Regex(regex) => Ok(Pattern::Regex(Box::new(compile(&regex)?))),
        }
    }
}

pub(super) fn compile(regex: &str) -> Result<Regex, String> {
    if regex.len() > MAX_REGEX {
        return Err(format!("a regular expression of {} bytes, the limit is {MAX_REGEX}", regex.len()));
    }
    RegexBuilder::new(regex)
        .oniguruma_mode(true)
        .build()
        .map_err(|e| format!("the regular expression {regex:?}: {e}"))
}

/// A stretch of text, and whether the pattern matched it.
type Stretch = (Range<usize>, bool);

impl Pattern {
    /// Cuts `text` into stretches that match and stretches between them, in order, without gaps.
    fn stretches(&self, text: &str) -> Result<Vec<Stretch>> {
        match self {
            Pattern::Literal(literal) => {
                Ok(cover(text, text.match_indices(literal.as_str()).map(|(at, hit)| at..at + hit.len())))
            }
            Pattern::Regex(regex) => {
                let hits: Vec<Range<usize>> = regex
                    .find_iter(text)
                    .map(|hit| hit.map(|hit| hit.range()).map_err(|e| regex_error(regex, text, e)))
                    .collect::<Result<_>>()?;
                Ok(cover(text, hits.into_iter()))
            }
        }
    }

    /// `text` with every match replaced by `content`; fails when the result is longer than `limit` bytes.
    pub(super) fn replace<'a>(&self, text: &'a str, content: &str, limit: usize) -> Result<Cow<'a, str>> {
        let stretches = self.stretches(text)?;
        if stretches.iter().all(|(_, is_match)| !is_match) {
            return Ok(Cow::Borrowed(text));
        }
        let mut out = String::with_capacity(text.len());
        for (range, is_match) in stretches {
            out.push_str(if is_match { content } else { &text[range] });
            if out.len() > limit {
                return Err(Error::new(Code::Tokenizer, "normalize the text")
                    .expected(format!("at most {limit} bytes after a Replace"))
                    .got("more"));
            }
        }
        Ok(Cow::Owned(out))
    }

    /// Cuts `text` at the matches, or at what lies between them if `invert`.
    pub(super) fn split(&self, text: &str, behavior: Behavior, invert: bool) -> Result<Vec<Range<usize>>> {
        let mut stretches = self.stretches(text)?;
        if invert {
            stretches.iter_mut().for_each(|(_, is_match)| *is_match = !*is_match);
        }
        Ok(behavior.apply(stretches))
    }
}

fn regex_error(regex: &Regex, text: &str, error: fancy_regex::Error) -> Error {
    Error::new(Code::Tokenizer, format!("split {} bytes of text by {:?}", text.len(), regex.as_str()))
        .because(error)
        .remedy("Shorten the longest run of equal characters in the text.")
}

/// Completes ordered matches to a cover of `text`.
fn cover(text: &str, hits: impl Iterator<Item = Range<usize>>) -> Vec<Stretch> {
    let mut stretches = Vec::new();
    let mut end = 0;
    for hit in hits {
        if end < hit.start {
            stretches.push((end..hit.start, false));
        }
        end = hit.end;
        stretches.push((hit, true));
    }
    if end < text.len() {
        stretches.push((end..text.len(), false));
    }
    stretches
}

/// Cuts `text` at the characters that satisfy `is_match`.
pub(super) fn split_chars(
    text: &str,
    behavior: Behavior,
    is_match: impl Fn(char) -> bool,
) -> Vec<Range<usize>> {
    let hits = text.char_indices().filter(|&(_, c)| is_match(c)).map(|(at, c)| at..at + c.len_utf8());
    behavior.apply(cover(text, hits))
}

/// What becomes of a match when text is split at it.
#[derive(Clone, Copy, Deserialize)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

impl Behavior {
    fn apply(self, stretches: Vec<Stretch>) -> Vec<Range<usize>> {
        match self {
            Behavior::Removed => {
                stretches.into_iter().filter(|(_, is_match)| !is_match).map(|(range, _)| range).collect()
            }
            Behavior::Isolated => stretches.into_iter().map(|(range, _)| range).collect(),
            Behavior::Contiguous => join(stretches.into_iter(), |previous, is_match| previous == is_match),
            Behavior::MergedWithPrevious => {
                join(stretches.into_iter(), |previous, is_match| is_match && !previous)
            }
            Behavior::MergedWithNext => {
                let mut ranges =
                    join(stretches.into_iter().rev(), |previous, is_match| is_match && !previous);
                ranges.reverse();
                ranges
            }
        }
    }
}

/// Joins a stretch to its forerunner where `joins(forerunner is a match, stretch is a match)`.
fn join(stretches: impl Iterator<Item = Stretch>, joins: impl Fn(bool, bool) -> bool) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut previous = false;
    for (range, is_match) in stretches {
        match ranges.last_mut() {
            Some(last) if joins(previous, is_match) => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => ranges.push(range),
        }
        previous = is_match;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(behavior: Behavior, invert: bool) -> Vec<&'static str> {
        let text = "-the-final--countdown";
        let ranges = Pattern::Literal("-".into()).split(text, behavior, invert).unwrap();
        ranges.into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn each_behavior_places_the_delimiter() {
        assert_eq!(split(Behavior::Removed, false), ["the", "final", "countdown"]);
        assert_eq!(split(Behavior::Isolated, false), ["-", "the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(split(Behavior::MergedWithPrevious, false), ["-", "the-", "final-", "-", "countdown"]);
        assert_eq!(split(Behavior::MergedWithNext, false), ["-the", "-final", "-", "-countdown"]);
        assert_eq!(split(Behavior::Contiguous, false), ["-", "the", "-", "final", "--", "countdown"]);
        assert_eq!(split(Behavior::Removed, true), ["-", "-", "-", "-"]);
    }

    #[test]
    fn a_pattern_that_backtracks_without_end_is_an_error() {
        let pattern = Pattern::Regex(Box::new(compile(r"(a|aa)+(?!b)c").unwrap()));
        let text = format!("{}bc", "a".repeat(64));
        let error = pattern.split(&text, Behavior::Isolated, false).unwrap_err();
        assert_eq!(error.code(), Code::Tokenizer);
    }

    #[test]
    fn a_replacement_stops_at_its_limit() {
        let pattern = Pattern::Literal("a".into());
        assert_eq!(pattern.replace("banana", "oo", 64).unwrap(), "boonoonoo");
        assert!(pattern.replace("aaaa", &"x".repeat(40), 64).is_err());
    }
}
