//! Added tokens: literals that are cut out of the text before anything else, special ones among them.

use std::ops::Range;
use std::sync::LazyLock;

use fancy_regex::Regex;
use serde::Deserialize;

use super::literal_set::LiteralSet;

/// One entry of `added_tokens`.
#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

/// Which special tokens may be cut out of a text.
#[derive(Clone, Copy)]
pub(super) enum Specials<'a> {
    All,
    /// None: the text of a special token is text.
    None,
    /// All but those that begin at one of these byte offsets, in ascending order.
    Except(&'a [usize]),
}

impl Specials<'_> {
    fn allows(self, at: usize) -> bool {
        match self {
            Specials::All => true,
            Specials::None => false,
            Specials::Except(offsets) => offsets.binary_search(&at).is_err(),
        }
    }
}

/// What a text falls into.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Text(Range<usize>),
    /// The text of a special token that counts as text: no special token may be found in it later either.
    Plain(Range<usize>),
    Token(u32),
}

/// All added tokens of a tokenizer.
pub(super) struct AddedTokens {
    /// Ascending by id.
    tokens: Vec<AddedToken>,
    /// The text that stands for the token where it differs from `content`, by index into `tokens`.
    normalized_forms: Vec<(u32, String)>,
    /// Matched against the raw text.
    raw: LiteralSet,
    /// Matched against the normalized text.
    normalized: LiteralSet,
    /// The contents of the special tokens.
    specials: LiteralSet,
    has_normalized_special: bool,
}

impl AddedTokens {
    /// `tokens` ascend by id, no id twice; `normalize` is the tokenizer's normalizer.
    pub(super) fn new<E>(
        tokens: Vec<AddedToken>,
        normalize: impl Fn(&str) -> Result<String, E>,
    ) -> Result<Self, E> {
        let mut normalized_forms = Vec::new();
        for (index, token) in tokens.iter().enumerate().filter(|(_, token)| token.normalized) {
            let form = normalize(&token.content)?;
            if form != token.content {
                normalized_forms.push((index as u32, form));
            }
        }
        let contents = |has: fn(&AddedToken) -> bool| {
            let members = tokens.iter().zip(0..).filter(move |(token, _)| has(token));
            LiteralSet::new(members.map(|(token, index)| (token.content.as_str(), index)))
        };
        let forms = tokens.iter().zip(0..).filter(|(token, _)| token.normalized);
        Ok(Self {
            raw: contents(|token| !token.normalized),
            normalized: LiteralSet::new(
                forms.map(|(token, index)| (form(token, index, &normalized_forms), index)),
            ),
            specials: contents(|token| token.special),
            has_normalized_special: tokens.iter().any(|token| token.special && token.normalized),
            normalized_forms,
            tokens,
        })
    }

    fn index_of(&self, id: u32) -> Option<usize> {
        self.tokens.binary_search_by_key(&id, |token| token.id).ok()
    }

    pub(super) fn get(&self, id: u32) -> Option<&AddedToken> {
        self.index_of(id).map(|index| &self.tokens[index])
    }

    /// The text that the token decodes to.
    pub(super) fn decoded(&self, id: u32) -> Option<&str> {
        self.index_of(id).map(|index| form(&self.tokens[index], index as u32, &self.normalized_forms))
    }

    pub(super) fn id_of(&self, content: &str) -> Option<u32> {
        self.tokens.iter().find(|token| token.content == content).map(|token| token.id)
    }

    /// One more than the largest id.
    pub(super) fn end(&self) -> u32 {
        self.tokens.last().map_or(0, |token| token.id + 1)
    }

    /// The offsets in `text` where the text of a special token begins, or may begin if more text follows.
    pub(super) fn special_starts(&self, text: &str) -> Vec<usize> {
        let starts = text.char_indices().map(|(at, _)| at);
        starts.filter(|&at| self.specials.find_at(text, at).is_any()).collect()
    }

    /// Cuts the tokens that match raw text out of `text`.
    pub(super) fn split_raw(&self, text: &str, specials: Specials<'_>) -> Vec<Part> {
        let mut parts = self.split(text, &self.raw, specials);
        if self.has_normalized_special
            && let Specials::Except(offsets) = specials
        {
            parts = parts.into_iter().flat_map(|part| self.isolate(text, part, offsets)).collect();
        }
        parts
    }

    /// Cuts the tokens that match normalized text out of `text`.
    pub(super) fn split_normalized(&self, text: &str, are_specials_allowed: bool) -> Vec<Part> {
        let specials = if are_specials_allowed { Specials::All } else { Specials::None };
        self.split(text, &self.normalized, specials)
    }

    /// Normalizing moves offsets, so the special texts at `offsets` become parts of their own before it.
    fn isolate(&self, text: &str, part: Part, offsets: &[usize]) -> Vec<Part> {
        let Part::Text(range) = part else { return vec![part] };
        let mut parts = Vec::new();
        let mut end = range.start;
        let first = offsets.partition_point(|&at| at < range.start);
        for &at in offsets[first..].iter().take_while(|&&at| at < range.end) {
            if at < end {
                continue;
            }
            let Some((len, _)) = self.specials.find_at(&text[..range.end], at).longest else { continue };
            if end < at {
                parts.push(Part::Text(end..at));
            }
            end = at + len;
            parts.push(Part::Plain(at..end));
        }
        if end < range.end {
            parts.push(Part::Text(end..range.end));
        }
        parts
    }

    fn split(&self, text: &str, set: &LiteralSet, specials: Specials<'_>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut end = 0;
        let mut from = 0;
        while let Some((found, index)) = set.find(text, from) {
            from = found.end;
            let token = &self.tokens[index as usize];
            if token.special && !specials.allows(found.start) {
                continue;
            }
            if token.single_word && !is_single_word(text, &found) {
                continue;
            }
            let start = match token.lstrip {
                true => text[..found.start].trim_end().len().max(end),
                false => found.start,
            };
            if end < start {
                parts.push(Part::Text(end..start));
            }
            parts.push(Part::Token(token.id));
            let rest = &text[found.end..];
            end = found.end + if token.rstrip { rest.len() - rest.trim_start().len() } else { 0 };
        }
        if end < text.len() {
            parts.push(Part::Text(end..text.len()));
        }
        parts
    }
}

/// The text of the token as it is matched and decoded.
fn form<'a>(token: &'a AddedToken, index: u32, normalized_forms: &'a [(u32, String)]) -> &'a str {
    match normalized_forms.binary_search_by_key(&index, |(index, _)| *index) {
        Ok(at) => &normalized_forms[at].1,
        Err(_) => &token.content,
    }
}

fn is_single_word(text: &str, found: &Range<usize>) -> bool {
    let before = text[..found.start].chars().next_back();
    let after = text[found.end..].chars().next();
    !before.is_some_and(is_word) && !after.is_some_and(is_word)
}

/// Whether `\w` matches the character.
fn is_word(c: char) -> bool {
    static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\w").ok());
    let mut utf8 = [0; 4];
    let c: &str = c.encode_utf8(&mut utf8);
    WORD.as_ref().is_some_and(|word| word.is_match(c).unwrap_or(false))
}
