//! A compact reader of Hugging Face's `tokenizer.json` for byte-pair encodings, byte-level (GPT-2, Llama 3,
//! Qwen, SmolLM) and in SentencePiece's manner (Gemma, Llama 2, Mistral).
//!
//! The `tokenizers` crate keeps 287 MB for Gemma's vocabulary of 262,144 tokens; a phone's tab has not that
//! much to give. So the file is read as a stream into one arena of text, spans and two tables of 4-byte
//! slots, which come to a sixteenth of it. The tests compare every step with the `tokenizers` crate.
//!
//! Differences from it, on purpose: `truncation` and `padding` are left to the caller; a file that
//! contradicts itself is refused.

mod added;
mod bpe;
mod byte_level;
mod decoder;
mod file;
mod index_table;
mod literal_set;
mod merges;
mod normalizer;
mod pattern;
mod post_processor;
mod pre_tokenizer;
mod vocab;

use std::borrow::Cow;
use std::ops::Range;

use crate::error::{Code, Error, Result};
use added::{AddedTokens, Part, Specials};
use bpe::{Bpe, Scratch};
pub(super) use decoder::DecodeState;
use decoder::Decoder;
use normalizer::Normalizer;
use post_processor::Frame;
use pre_tokenizer::{Piece, PreTokenizer};

/// Bytes of text that one call encodes at most.
const MAX_TEXT: usize = 1 << 26;

/// How [`Tokenizer::encode`] treats special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the tokens of the post-processor (BOS, EOS) around the text.
    pub add_special_tokens: bool,
    /// Find special tokens in the text. If not, `<|im_end|>` in the text is nine characters like others, so
    /// that no text can pass for a control token. Added tokens that are not special are found in any case.
    pub parse_special: bool,
}

/// Text → token ids → text.
pub struct Tokenizer {
    bpe: Bpe,
    added: AddedTokens,
    normalizer: Option<Normalizer>,
    pre_tokenizer: Option<PreTokenizer>,
    frame: Frame,
    decoder: Decoder,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// Fails with [`Code::Unsupported`] when it names a component that is not known here, and with
    /// [`Code::Tokenizer`] when it is damaged or contradicts itself.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        file::read(bytes)
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>> {
        let specials = if options.parse_special { Specials::All } else { Specials::None };
        let mut ids = Vec::new();
        if options.add_special_tokens {
            ids.extend(&self.frame.prefix);
        }
        self.encode_into(text, specials, &mut ids)?;
        if options.add_special_tokens {
            ids.extend(&self.frame.suffix);
        }
        Ok(ids)
    }

    /// The ids of `text` without BOS and EOS; special tokens are found except those that begin at one of the
    /// byte offsets `plain` (ascending).
    pub(super) fn encode_except(&self, text: &str, plain: &[usize]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.encode_into(text, Specials::Except(plain), &mut ids)?;
        Ok(ids)
    }

    fn encode_into(&self, text: &str, specials: Specials<'_>, ids: &mut Vec<u32>) -> Result<()> {
        if text.len() > MAX_TEXT {
            return Err(Error::new(Code::Tokenizer, "encode the text")
                .expected(format!("at most {MAX_TEXT} bytes"))
                .got(text.len().to_string()));
        }
        let mut scratch = Scratch::default();
        for part in self.added.split_raw(text, specials) {
            let are_specials_allowed =
                !matches!((&part, specials), (Part::Plain(_), _) | (_, Specials::None));
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) | Part::Plain(range) => {
                    self.encode_part(text, range, are_specials_allowed, &mut scratch, ids)?;
                }
            }
        }
        Ok(())
    }

    fn encode_part(
        &self,
        text: &str,
        range: Range<usize>,
        are_specials_allowed: bool,
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        // As in the reference, a text whose first characters were cut off no longer begins at its beginning.
        let is_cut = text[range.clone()].starts_with(char::is_whitespace)
            && self.normalizer.as_ref().is_some_and(Normalizer::strips_left);
        let begins_text = range.start == 0 && !is_cut;
        let normalized = match &self.normalizer {
            Some(normalizer) => normalizer.normalize(&text[range])?,
            None => Cow::Borrowed(&text[range]),
        };
        for part in self.added.split_normalized(&normalized, are_specials_allowed) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(range) | Part::Plain(range) => {
                    let is_first = begins_text && range.start == 0;
                    let piece = Piece { text: Cow::Borrowed(&normalized[range]), is_first };
                    for word in self.words(piece)? {
                        self.encode_word(&word.text, scratch, ids);
                    }
                }
            }
        }
        Ok(())
    }

    fn words<'a>(&self, piece: Piece<'a>) -> Result<Vec<Piece<'a>>> {
        match &self.pre_tokenizer {
            Some(pre_tokenizer) => pre_tokenizer.split(vec![piece]),
            None => Ok(vec![piece]),
        }
    }

    fn encode_word(&self, word: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        // Special tokens were cut out before: a word that spells one is meant as text.
        if self.bpe.ignore_merges
            && let Some(id) = self.bpe.vocab.id_of(word)
            && !self.is_special(id)
        {
            ids.push(id);
            return;
        }
        self.bpe.encode(word, scratch, ids);
    }

    /// The text of `ids`. Ids that the tokenizer lacks are left out, and special tokens if `skip_special`.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut state = self.start_decoding();
        let mut text = String::new();
        ids.iter().for_each(|&id| self.decode_next(&mut state, id, skip_special, &mut text));
        self.finish_decoding(state, &mut text);
        text
    }

    pub(super) fn start_decoding(&self) -> DecodeState {
        self.decoder.start()
    }

    /// Appends the text that is certain once `id` has come.
    pub(super) fn decode_next(&self, state: &mut DecodeState, id: u32, skip_special: bool, out: &mut String) {
        if skip_special && self.is_special(id) {
            return;
        }
        if let Some(token) = self.added.decoded(id).or_else(|| self.bpe.vocab.token(id)) {
            self.decoder.push(state, token, out);
        }
    }

    pub(super) fn finish_decoding(&self, state: DecodeState, out: &mut String) {
        self.decoder.finish(state, out);
    }

    /// The id of a token by its text as the file spells it, `Ġhello` or `<|im_end|>`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.added.id_of(token).or_else(|| self.bpe.vocab.id_of(token))
    }

    /// The text of a token as the file spells it.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.added.get(id).map(|token| token.content.as_str()).or_else(|| self.bpe.vocab.token(id))
    }

    /// One more than the largest id. A model's embedding may have more rows than that.
    pub fn vocab_size(&self) -> u32 {
        self.bpe.vocab.end().max(self.added.end())
    }

    /// Whether the file calls the token special: control tokens, which are not text.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.get(id).is_some_and(|token| token.special)
    }

    /// The ids that the post-processor puts before a text: BOS, or nothing.
    pub fn prefix(&self) -> &[u32] {
        &self.frame.prefix
    }

    /// The ids that the post-processor puts after a text: EOS, or nothing.
    pub fn suffix(&self) -> &[u32] {
        &self.frame.suffix
    }

    /// The byte offsets in `text` where the text of a special token begins, or might begin if `text` went on.
    pub(super) fn special_starts(&self, text: &str) -> Vec<usize> {
        self.added.special_starts(text)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}
