//! Generation, pulled piece by piece.

use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::Value as Json;
use web_time::Instant;

use super::load::Model;
use super::session::STEPS_IN_FLIGHT;
use crate::error::{Code, Error, Result};
use crate::gpu::Readback;
use crate::kernels::Step;
use crate::nn::Sampler;
use crate::text::chat::{LocalTime, RenderOptions, encode_rendered};
use crate::text::{StopSequences, StreamDecoder};

/// What to continue.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Text in which special tokens are found, as a caller writes it who renders the template himself.
    Text(String),
    /// Messages with `role` and `content`, for the model's chat template. The text of special tokens in them
    /// is text.
    Messages(Json),
}

/// How to continue it.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// New tokens at most; None: until the context is full.
    pub max_tokens: Option<u32>,
    /// 0 chooses the most likely token; above, draws are made at this temperature.
    pub temperature: f32,
    /// Draw among the k most likely tokens; 0: among all.
    pub top_k: u32,
    /// Draw among the smallest set of tokens with at least this probability; 1: among all.
    pub top_p: f32,
    /// Draw among tokens of at least this probability relative to the most likely one; 0: among all.
    pub min_p: f32,
    /// Seed of the draws.
    pub seed: u32,
    /// Strings that end the text, and are not part of it.
    pub stop: Vec<String>,
    /// The time that a chat template may print.
    pub now: Option<LocalTime>,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            stop: Vec::new(),
            now: None,
        }
    }
}

impl GenerateOptions {
    fn check(&self) -> Result<()> {
        let require = |holds: bool, option: &str, expected: &str, got: &dyn std::fmt::Display| {
            if holds {
                return Ok(());
            }
            Err(Error::new(Code::InvalidArgument, format!("use the option {option}"))
                .expected(expected)
                .got(got.to_string()))
        };
        let temperature = self.temperature;
        require((0.0..=100.0).contains(&temperature), "temperature", "0 to 100", &temperature)?;
        require(self.top_p > 0.0 && self.top_p <= 1.0, "topP", "a number above 0, up to 1", &self.top_p)?;
        require((0.0..=1.0).contains(&self.min_p), "minP", "0 to 1", &self.min_p)?;
        require(self.max_tokens != Some(0), "maxTokens", "at least 1", &0)
    }

    fn sampler(&self) -> Sampler {
        if self.temperature > 0.0 { Sampler::Sampled } else { Sampler::Greedy }
    }

    fn step(&self) -> Step {
        Step {
            seed: self.seed,
            top_k: self.top_k,
            temperature: self.temperature,
            top_p: self.top_p,
            min_p: self.min_p,
            ..Step::default()
        }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop sequence.
    Stop,
    /// The tokens asked for are made, or the context is full.
    Length,
    /// The caller cancelled.
    Cancelled,
}

/// What a generation did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens made, an end token included.
    pub new_tokens: u32,
    /// From the first pull to the first token.
    pub first_token_ms: Option<f64>,
    /// Tokens per second after the first.
    pub tokens_per_second: Option<f64>,
    /// None while it goes on.
    pub finish_reason: Option<FinishReason>,
}

/// The next piece of text and the tokens that brought it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// May be empty, while a character or a stop sequence is incomplete.
    pub text: String,
    /// The new ids.
    pub ids: Vec<u32>,
}

/// A running continuation of a prompt.
pub struct Generation {
    model: Rc<Model>,
    prompt: Vec<u32>,
    options: GenerateOptions,
    limit: u32,
    submitted: u32,
    in_flight: VecDeque<Readback>,
    /// None once the text has ended.
    text: Option<(StreamDecoder, StopSequences)>,
    new_tokens: u32,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    finish_reason: Option<FinishReason>,
}

impl Model {
    /// Prepares the continuation of `prompt`; nothing is computed before the first pull.
    ///
    /// Fails with [`Code::ContextFull`] for a prompt that leaves no room for a new token.
    pub fn generate(self: &Rc<Self>, prompt: &Prompt, options: GenerateOptions) -> Result<Generation> {
        options.check()?;
        let prompt = self.encode(prompt, options.now)?;
        let room = self.context().saturating_sub(prompt.len() as u32);
        if room == 0 {
            return Err(Error::new(Code::ContextFull, "generate from the prompt")
                .expected(format!("at most {} tokens, one less than the context", self.context() - 1))
                .got(format!("{} tokens", prompt.len()))
                .remedy("Shorten the prompt or the history, or load the model with a larger context."));
        }
        let decoder = StreamDecoder::new(self.tokenizer.clone(), true);
        let stop = StopSequences::new(options.stop.iter().cloned())?;
        Ok(Generation {
            model: self.clone(),
            prompt,
            limit: options.max_tokens.map_or(room, |wished| wished.min(room)),
            options,
            submitted: 0,
            in_flight: VecDeque::new(),
            text: Some((decoder, stop)),
            new_tokens: 0,
            started: None,
            first_token: None,
            last_token: None,
            finish_reason: None,
        })
    }

    fn encode(&self, prompt: &Prompt, now: Option<LocalTime>) -> Result<Vec<u32>> {
        let ids = match prompt {
            Prompt::Text(text) => encode_rendered(&self.tokenizer, text)?,
            Prompt::Messages(messages) => {
                let template = self.template.as_ref().ok_or_else(|| {
                    Error::new(Code::Template, "turn messages into a prompt")
                        .expected("a chat template in tokenizer_config.json or chat_template.jinja")
                        .got("none")
                        .remedy("Give a string as prompt: this model has not been trained to chat.")
                })?;
                let options = RenderOptions { add_generation_prompt: true, now, ..RenderOptions::default() };
                template.encode(&self.tokenizer, messages, &options)?
            }
        };
        if ids.is_empty() {
            return Err(Error::new(Code::InvalidArgument, "generate from the prompt")
                .expected("at least one token")
                .got("an empty prompt"));
        }
        match ids.iter().find(|&&id| id >= self.vocab_size()) {
            None => Ok(ids),
            Some(id) => Err(Error::new(Code::Tokenizer, "generate from the prompt")
                .expected(format!("token ids below the vocabulary's size {}", self.vocab_size()))
                .got(id.to_string())
                .remedy("See that tokenizer.json and the weights are of the same model.")),
        }
    }
}

impl Generation {
    /// The next piece, or None when the text has ended. After an error the generation has ended too.
    pub async fn next(&mut self) -> Result<Option<Piece>> {
        let next = self.advance().await;
        if next.is_err() {
            self.text = None;
        }
        next
    }

    async fn advance(&mut self) -> Result<Option<Piece>> {
        if self.text.is_none() {
            return Ok(None);
        }
        self.submit()?;
        let Some(readback) = self.in_flight.pop_front() else { return Ok(None) };
        let bytes = readback.bytes(&self.model.gpu).await?;
        self.model.session.borrow_mut().recycle(readback);
        let id: u32 = bytemuck::pod_read_unaligned(&bytes);
        if id >= self.model.vocab_size() {
            return Err(Error::new(Code::Internal, "choose the next token")
                .expected("finite logits")
                .got("numbers that overflowed")
                .remedy("Load the model with dtype \"f32\", and please report the model's name."));
        }
        self.count_token();
        Ok(Some(self.piece(id)))
    }

    /// Keeps steps on their way, as far as the limit allows.
    fn submit(&mut self) -> Result<()> {
        let model = &self.model;
        let mut session = model.session.borrow_mut();
        let (sampler, step) = (self.options.sampler(), self.options.step());
        if self.submitted == 0 {
            self.started = Some(Instant::now());
            session.reset();
            self.in_flight.push_back(session.prefill(model.text.as_ref(), &self.prompt, sampler, step)?);
            self.submitted = 1;
        }
        while self.in_flight.len() < STEPS_IN_FLIGHT && self.submitted < self.limit {
            self.in_flight.push_back(session.decode(model.text.as_ref(), sampler, step)?);
            self.submitted += 1;
        }
        Ok(())
    }

    fn count_token(&mut self) {
        let now = Instant::now();
        self.new_tokens += 1;
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
    }

    fn piece(&mut self, id: u32) -> Piece {
        let ids = vec![id];
        let Some((decoder, stop)) = &mut self.text else { return Piece { ids, ..Piece::default() } };
        if self.model.stop_ids.contains(&id) {
            return Piece { text: self.end(FinishReason::Stop), ids };
        }
        let passed = stop.push(&decoder.push(id));
        let mut text = passed.text;
        if passed.stopped_by.is_some() {
            text.push_str(&self.end(FinishReason::Stop));
        } else if self.new_tokens == self.limit {
            text.push_str(&self.end(FinishReason::Length));
        }
        Piece { text, ids }
    }

    /// Ends the text and gives what was held back of it.
    fn end(&mut self, reason: FinishReason) -> String {
        self.finish_reason.get_or_insert(reason);
        let Some((decoder, mut stop)) = self.text.take() else { return String::new() };
        let passed = stop.push(&decoder.finish());
        passed.text + &stop.finish()
    }

    /// Ends the generation; what is on its way is dropped.
    pub fn cancel(&mut self) {
        self.end(FinishReason::Cancelled);
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
        let span = self.first_token.zip(self.last_token).map(|(first, last)| seconds(first, last));
        let started = self.started.zip(self.first_token);
        Stats {
            prompt_tokens: self.prompt.len() as u32,
            new_tokens: self.new_tokens,
            first_token_ms: started.map(|(started, first)| seconds(started, first) * 1e3),
            tokens_per_second: span
                .filter(|&span| span > 0.0)
                .map(|span| f64::from(self.new_tokens - 1) / span),
            finish_reason: self.finish_reason,
        }
    }
}
