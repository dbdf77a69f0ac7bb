//! How text is cut into words, which the BPE then handles one by one.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;

use super::byte_level::to_alphabet;
use super::pattern::{Behavior, Pattern, compile, split_chars};
use crate::error::Result;

/// GPT-2's pattern, which `ByteLevel` splits by unless told otherwise.
const GPT2_PATTERN: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// `Whitespace`: words, and runs of what is neither word nor space.
const WHITESPACE_PATTERN: &str = r"\w+|[^\w\s]+";

/// A part of the text on its way to becoming words.
pub(super) struct Piece<'a> {
    pub(super) text: Cow<'a, str>,
    /// Whether it begins where the whole text does: Metaspace's `first` asks.
    pub(super) is_first: bool,
}

/// The `pre_tokenizer` of `tokenizer.json`.
#[derive(Deserialize)]
#[serde(tag = "type", try_from = "PreTokenizerJson")]
pub(super) enum PreTokenizer {
    ByteLevel { add_prefix_space: bool, pattern: Option<Pattern> },
    Digits { individual_digits: bool },
    Split { pattern: Pattern, behavior: Behavior, invert: bool },
    Metaspace { replacement: char, prepend_scheme: PrependScheme, split: bool },
    WhitespaceSplit,
    Sequence(Vec<PreTokenizer>),
}

/// When Metaspace puts its character before a piece that does not begin with it.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub(super) enum PrependScheme {
    First,
    Never,
    #[default]
    Always,
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum PreTokenizerJson {
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Digits {
        individual_digits: bool,
    },
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    Metaspace(MetaspaceJson),
    Whitespace,
    WhitespaceSplit,
    Sequence {
        pretokenizers: Vec<PreTokenizer>,
    },
}

/// `Metaspace` as pre-tokenizer and as decoder.
#[derive(Deserialize)]
pub(super) struct MetaspaceJson {
    pub(super) replacement: char,
    /// The older spelling of `prepend_scheme`.
    add_prefix_space: Option<bool>,
    #[serde(default)]
    prepend_scheme: PrependScheme,
    #[serde(default = "yes")]
    split: bool,
}

impl MetaspaceJson {
    pub(super) fn prepend_scheme(&self) -> PrependScheme {
        match self.add_prefix_space {
            Some(false) => PrependScheme::Never,
            _ => self.prepend_scheme,
        }
    }
}

fn yes() -> bool {
    true
}

impl TryFrom<PreTokenizerJson> for PreTokenizer {
    type Error = String;

    fn try_from(json: PreTokenizerJson) -> Result<Self, String> {
        let regex = |regex| compile(regex).map(|regex| Pattern::Regex(Box::new(regex)));
        Ok(match json {
            PreTokenizerJson::ByteLevel { add_prefix_space, use_regex } => {
                let pattern = use_regex.then(|| regex(GPT2_PATTERN)).transpose()?;
                PreTokenizer::ByteLevel { add_prefix_space, pattern }
            }
            PreTokenizerJson::Digits { individual_digits } => PreTokenizer::Digits { individual_digits },
            PreTokenizerJson::Split { pattern, behavior, invert } => {
                PreTokenizer::Split { pattern, behavior, invert }
            }
            PreTokenizerJson::Metaspace(metaspace) => PreTokenizer::Metaspace {
                replacement: metaspace.replacement,
                prepend_scheme: metaspace.prepend_scheme(),
                split: metaspace.split,
            },
            PreTokenizerJson::Whitespace => PreTokenizer::Split {
                pattern: regex(WHITESPACE_PATTERN)?,
                behavior: Behavior::Removed,
                invert: true,
            },
            PreTokenizerJson::WhitespaceSplit => PreTokenizer::WhitespaceSplit,
            PreTokenizerJson::Sequence { pretokenizers } => PreTokenizer::Sequence(pretokenizers),
        })
    }
}

impl PreTokenizer {
    /// Cuts each piece into smaller ones, none of them empty.
    pub(super) fn split<'a>(&self, pieces: Vec<Piece<'a>>) -> Result<Vec<Piece<'a>>> {
        if let PreTokenizer::Sequence(steps) = self {
            return steps.iter().try_fold(pieces, |pieces, step| step.split(pieces));
        }
        let mut out = Vec::with_capacity(pieces.len());
        for piece in pieces {
            self.split_one(piece, &mut out)?;
        }
        Ok(out)
    }

    fn split_one<'a>(&self, piece: Piece<'a>, out: &mut Vec<Piece<'a>>) -> Result<()> {
        match self {
            PreTokenizer::ByteLevel { add_prefix_space, pattern } => {
                let piece = if *add_prefix_space { prepend(piece, ' ') } else { piece };
                let ranges = match pattern {
                    Some(pattern) => pattern.split(&piece.text, Behavior::Isolated, false)?,
                    None => whole(&piece.text),
                };
                out.extend(ranges.into_iter().map(|range| Piece {
                    is_first: piece.is_first && range.start == 0,
                    text: Cow::Owned(to_alphabet(&piece.text[range])),
                }));
            }
            PreTokenizer::Digits { individual_digits } => {
                let behavior = if *individual_digits { Behavior::Isolated } else { Behavior::Contiguous };
                let ranges = split_chars(&piece.text, behavior, char::is_numeric);
                cut(piece, ranges, out);
            }
            PreTokenizer::Split { pattern, behavior, invert } => {
                let ranges = pattern.split(&piece.text, *behavior, *invert)?;
                cut(piece, ranges, out);
            }
            PreTokenizer::WhitespaceSplit => {
                let ranges = split_chars(&piece.text, Behavior::Removed, char::is_whitespace);
                cut(piece, ranges, out);
            }
            PreTokenizer::Metaspace { replacement, prepend_scheme, split } => {
                let piece = metaspace(piece, *replacement, *prepend_scheme);
                let ranges = match split {
                    true => split_chars(&piece.text, Behavior::MergedWithNext, |c| c == *replacement),
                    false => whole(&piece.text),
                };
                cut(piece, ranges, out);
            }
            PreTokenizer::Sequence(_) => out.extend(self.split(vec![piece])?),
        }
        Ok(())
    }
}

fn whole(text: &str) -> Vec<Range<usize>> {
    std::iter::once(0..text.len()).collect()
}

fn prepend(piece: Piece<'_>, c: char) -> Piece<'_> {
    if piece.text.starts_with(c) {
        piece
    } else {
        Piece { text: Cow::Owned(format!("{c}{}", piece.text)), ..piece }
    }
}

fn metaspace(piece: Piece<'_>, replacement: char, scheme: PrependScheme) -> Piece<'_> {
    let mut utf8 = [0; 4];
    let text = piece.text.replace(' ', replacement.encode_utf8(&mut utf8));
    let piece = Piece { text: Cow::Owned(text), ..piece };
    let prepends = match scheme {
        PrependScheme::Always => true,
        PrependScheme::First => piece.is_first,
        PrependScheme::Never => false,
    };
    if prepends { prepend(piece, replacement) } else { piece }
}

/// Appends the given ranges of `piece` that are not empty.
fn cut<'a>(piece: Piece<'a>, ranges: Vec<Range<usize>>, out: &mut Vec<Piece<'a>>) {
    if let [range] = ranges.as_slice()
        && *range == (0..piece.text.len())
        && !range.is_empty()
    {
        out.push(piece);
        return;
    }
    out.extend(ranges.into_iter().filter(|range| !range.is_empty()).map(|range| Piece {
        is_first: piece.is_first && range.start == 0,
        text: match &piece.text {
            Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
            Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
        },
    }));
}
