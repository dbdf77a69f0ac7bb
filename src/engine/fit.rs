//! From a prompt to token ids that fit into the context.

use super::generate::{GenerateOptions, Prompt};
use super::load::Model;
use crate::error::{Code, Error, Result};
use crate::text::RenderOptions;
use crate::text::chat::{droppable_turns, encode_rendered, has_media, without_oldest_turns};

/// What to do when the context is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextFull {
    /// Refuse a prompt that leaves no room for a new token, and end a text that has filled the context.
    #[default]
    Error,
    /// Leave out what is oldest and go on.
    ///
    /// A prompt must leave room for `max_tokens`, but for no more than a quarter of the context. Of messages
    /// that do not, the oldest turns are left out, as few as bring the prompt down to half the context, and
    /// never the last one; what stands before the first user message (the system message) is kept. The
    /// session remembers how many it left out, so that the next prompts begin alike. Of a text, BOS and the
    /// newest tokens are kept; the rest goes in steps of a quarter of the context.
    ///
    /// A text that fills the context while it is made goes on in the same way after the shortened prompt.
    /// When there is no turn to leave out, it ends.
    Slide,
}

/// A prompt as it is submitted.
pub(super) struct Fitted {
    pub ids: Vec<u32>,
    /// Turns that were left out of it.
    pub dropped_turns: usize,
}

/// A prompt, the answer so far, and the context that they are to fit into.
pub(super) struct Fit<'a> {
    pub model: &'a Model,
    pub prompt: &'a Prompt,
    pub options: &'a GenerateOptions,
    pub context: u32,
    /// Tokens of the answer that there are already.
    pub answer: &'a [u32],
    /// Turns that were left out before.
    pub dropped_turns: usize,
}

impl Fit<'_> {
    /// The ids of prompt and answer, shortened where the policy asks for it and the prompt allows it.
    ///
    /// Fails with [`Code::ContextFull`] where they leave no room for a new token.
    pub fn ids(&self) -> Result<Fitted> {
        let whole = self.encode(0)?;
        let fitted = match self.options.context_full {
            ContextFull::Slide if whole.len() > self.most() => self.shortened(whole)?,
            _ => Fitted { ids: whole, dropped_turns: 0 },
        };
        if (fitted.ids.len() as u32) < self.context {
            return Ok(fitted);
        }
        Err(Error::new(Code::ContextFull, "generate from the prompt")
            .expected(format!("at most {} tokens, one less than the context", self.context - 1))
            .got(format!("{} tokens", fitted.ids.len()))
            .remedy("Shorten the prompt or the history, or load the model with a larger context."))
    }

    /// Tokens that leave enough room for the answer.
    fn most(&self) -> usize {
        let quarter = self.context / 4;
        let left = |tokens: u32| tokens.saturating_sub(self.answer.len() as u32).clamp(1, quarter.max(1));
        (self.context - self.options.max_tokens.map_or(quarter.max(1), left)) as usize
    }

    fn shortened(&self, whole: Vec<u32>) -> Result<Fitted> {
        match self.prompt {
            Prompt::Text(_) => Ok(Fitted { ids: self.newest(whole), dropped_turns: 0 }),
            Prompt::Messages(messages) => self.newest_turns(droppable_turns(messages)),
        }
    }

    /// BOS and the newest tokens.
    fn newest(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let (half, step) = (self.context as usize / 2, (self.context as usize / 4).max(1));
        let prefix = self.model.tokenizer.prefix().len().min(half);
        let excess = ids.len().saturating_sub(half).next_multiple_of(step);
        ids.drain(prefix..(prefix + excess).min(ids.len() - 1));
        ids
    }

    /// Without as many turns as before, if that suffices; else without the fewest that bring the prompt down
    /// to half the context, or without all that can go.
    fn newest_turns(&self, droppable: usize) -> Result<Fitted> {
        let before = self.dropped_turns.min(droppable);
        if before > 0 {
            let ids = self.encode(before)?;
            if ids.len() <= self.most() {
                return Ok(Fitted { ids, dropped_turns: before });
            }
        }
        let (mut least, mut most) = (before.max(1).min(droppable), droppable);
        while least < most {
            let middle = least.midpoint(most);
            match self.encode(middle)?.len() as u32 <= self.context / 2 {
                true => most = middle,
                false => least = middle + 1,
            }
        }
        Ok(Fitted { ids: self.encode(most)?, dropped_turns: most })
    }

    /// The ids of the prompt without its oldest turns, and of the answer.
    fn encode(&self, dropped_turns: usize) -> Result<Vec<u32>> {
        let mut ids = match self.prompt {
            Prompt::Text(text) => encode_rendered(&self.model.tokenizer, text)?,
            Prompt::Messages(messages) => {
                self.encode_messages(&without_oldest_turns(messages, dropped_turns))?
            }
        };
        if ids.is_empty() {
            return Err(Error::new(Code::InvalidArgument, "generate from the prompt")
                .expected("at least one token")
                .got("an empty prompt"));
        }
        let vocab_size = self.model.vocab_size();
        if let Some(id) = ids.iter().find(|&&id| id >= vocab_size) {
            return Err(Error::new(Code::Tokenizer, "generate from the prompt")
                .expected(format!("token ids below the vocabulary's size {vocab_size}"))
                .got(id.to_string())
                .remedy("See that tokenizer.json and the weights are of the same model."));
        }
        ids.extend(self.answer);
        Ok(ids)
    }

    fn encode_messages(&self, messages: &serde_json::Value) -> Result<Vec<u32>> {
        let template = self.model.template.as_ref().ok_or_else(|| {
            Error::new(Code::Template, "turn messages into a prompt")
                .expected("a chat template in tokenizer_config.json or chat_template.jinja")
                .got("none")
                .remedy("Give a string as prompt: this model has not been trained to chat.")
        })?;
        if has_media(messages) {
            return Err(Error::new(Code::Unsupported, "turn messages into a prompt")
                .expected("content parts of type \"text\"")
                .got("an image or a sound")
                .remedy("Leave it out: jird reads text only."));
        }
        let options = &self.options;
        let mut extra = serde_json::Map::new();
        if let Some(tools) = &options.tools {
            extra.insert("tools".into(), tools.clone());
        }
        if let Some(thinking) = options.thinking {
            extra.insert("enable_thinking".into(), thinking.into());
        }
        let render = RenderOptions { add_generation_prompt: true, extra, now: options.now };
        template.encode(&self.model.tokenizer, messages, &render)
    }
}
