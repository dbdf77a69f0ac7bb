//! Text from tokens as they come.

use std::sync::Arc;

use super::tokenizer::{DecodeState, Tokenizer};

/// Decodes one token at a time.
///
/// No piece ends within a character, and all pieces together are exactly [`Tokenizer::decode`] of all ids.
/// What a later token can still change is held back: the bytes of an unfinished character; a whole run of
/// byte tokens such as `<0xE4>`, since one bad byte turns all of them into U+FFFD; and with decoders that
/// rewrite the joined text, everything. Each token costs time in proportion to its own length.
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    state: DecodeState,
}

impl StreamDecoder {
    /// Begins a text; special tokens are left out of it if `skip_special`.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let state = tokenizer.start_decoding();
        Self { tokenizer, skip_special, state }
    }

    /// Takes the next token and gives the text that is certain by now, often none.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.tokenizer.decode_next(&mut self.state, id, self.skip_special, &mut text);
        text
    }

    /// Ends the text and gives what was held back.
    pub fn finish(self) -> String {
        let mut text = String::new();
        self.tokenizer.finish_decoding(self.state, &mut text);
        text
    }
}
