//! Generation, pulled piece by piece.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::Value as Json;
use web_time::Instant;

use super::fit::{ContextFull, Fit};
use super::load::Model;
use super::session::{Conversation, MAX_ROWS, STEPS_IN_FLIGHT};
use crate::error::{Code, Error, Result};
use crate::gpu::Readback;
use crate::kernels::Step;
use crate::models::Rows;
use crate::nn::{RowStats, Sampler};
use crate::text::chat::LocalTime;
use crate::text::{OutputParser, Part, StopSequences};

/// What to continue.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Text in which special tokens are found, as a caller writes it who renders the template himself.
    Text(String),
    /// Messages with `role` and `content`, for the model's chat template, as
    /// [`crate::text::ChatTemplate::encode`] takes them. The text of special tokens in them is text.
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
    /// Strings that end the answer's text, and are not part of it.
    pub stop: Vec<String>,
    /// What to do when the context is full.
    pub context_full: ContextFull,
    /// Functions that the model may ask to be called: an array of
    /// `{ "type": "function", "function": { "name", "description", "parameters" } }`. For messages only.
    pub tools: Option<Json>,
    /// Whether the model is to think before it answers, for templates that know `enable_thinking`; None: what
    /// the template does by itself. For messages only.
    pub thinking: Option<bool>,
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
            context_full: ContextFull::default(),
            tools: None,
            thinking: None,
            now: None,
        }
    }
}

impl GenerateOptions {
    fn check(&self, prompt: &Prompt) -> Result<()> {
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
        require(self.max_tokens != Some(0), "maxTokens", "at least 1", &0)?;
        let is_text = matches!(prompt, Prompt::Text(_));
        for (option, is_given) in [("tools", self.tools.is_some()), ("thinking", self.thinking.is_some())] {
            require(!(is_text && is_given), option, "messages to use it with", &"a text as prompt")?;
        }
        Ok(())
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
    /// An end token after tool calls: their results are awaited.
    ToolCalls,
    /// The tokens asked for are made.
    Length,
    /// The context is full.
    Context,
    /// The caller cancelled.
    Cancelled,
}

/// What a generation did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt, without what was left out of it.
    pub prompt_tokens: u32,
    /// Those of them that the session held and did not compute again.
    pub cached_tokens: u32,
    /// Tokens made, an end token included.
    pub new_tokens: u32,
    /// From the first pull to the first token.
    pub first_token_ms: Option<f64>,
    /// Tokens per second after the first.
    pub tokens_per_second: Option<f64>,
    /// What reading the rows of the model's table took, where it has one.
    pub rows: Option<RowStats>,
    /// None while it goes on.
    pub finish_reason: Option<FinishReason>,
}

/// The next parts of the output and the tokens that brought them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// May be empty, while a character, a marker or a stop sequence is incomplete.
    pub parts: Vec<Part>,
    /// The new ids.
    pub ids: Vec<u32>,
}

impl Piece {
    /// What it adds to the answer's text.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

/// A running continuation of a prompt.
pub struct Generation {
    model: Rc<Model>,
    conversation: Rc<RefCell<Conversation>>,
    /// Which of the conversation's generations, once it has begun.
    number: Option<u64>,
    prompt: Prompt,
    options: GenerateOptions,
    /// What is to be submitted before the next step: the prompt, or the shortened one with the answer so far.
    unread: Option<Vec<u32>>,
    dropped_turns: usize,
    /// New tokens after which the context is full.
    full_at: u32,
    submitted: u32,
    in_flight: VecDeque<Readback>,
    /// None once the output has ended.
    output: Option<Output>,
    /// The new ids.
    ids: Vec<u32>,
    prompt_tokens: u32,
    cached_tokens: Option<u32>,
    /// What the model's table had read before.
    rows_before: Option<RowStats>,
    started: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    finish_reason: Option<FinishReason>,
}

/// The output that is still going on.
struct Output {
    parser: OutputParser,
    watch: Watch,
}

/// Looks at the parts that pass: for stop sequences, and for calls.
struct Watch {
    stop: StopSequences,
    has_calls: bool,
}

impl Model {
    /// Prepares the continuation of `prompt`; nothing is computed before the first pull.
    ///
    /// What the conversation of the calls before holds of the prompt's beginning is not computed again. The
    /// first pull ends the generation before, if that has not ended.
    ///
    /// Fails with [`Code::ContextFull`] for a prompt that leaves no room for a new token.
    pub fn generate(self: &Rc<Self>, prompt: &Prompt, options: GenerateOptions) -> Result<Generation> {
        Generation::new(self, &self.conversation, prompt, options)
    }
}

impl Watch {
    /// What passes of `parts`; true with it when a stop sequence has ended the text.
    fn pass(&mut self, parts: Vec<Part>) -> (Vec<Part>, bool) {
        let mut passed = Vec::new();
        for part in parts {
            match part {
                Part::Text(text) => {
                    let text = self.stop.push(&text);
                    push_text(&mut passed, text.text);
                    if text.stopped_by.is_some() {
                        return (passed, true);
                    }
                }
                part => {
                    push_text(&mut passed, self.stop.release());
                    self.has_calls |= matches!(part, Part::ToolCall(_));
                    passed.push(part);
                }
            }
        }
        (passed, false)
    }
}

fn push_text(parts: &mut Vec<Part>, text: String) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

impl Generation {
    pub(super) fn new(
        model: &Rc<Model>,
        conversation: &Rc<RefCell<Conversation>>,
        prompt: &Prompt,
        options: GenerateOptions,
    ) -> Result<Self> {
        options.check(prompt)?;
        let stop = StopSequences::new(options.stop.iter().cloned())?;
        let (context, dropped_turns) = {
            let conversation = conversation.borrow();
            (conversation.context(), conversation.dropped_turns)
        };
        let fit = Fit { model, prompt, options: &options, context, answer: &[], dropped_turns };
        let fitted = fit.ids()?;
        let parser = OutputParser::new(model.tokenizer.clone(), model.output.clone(), &fitted.ids);
        let prompt_tokens = fitted.ids.len() as u32;
        Ok(Self {
            model: model.clone(),
            conversation: conversation.clone(),
            number: None,
            prompt: prompt.clone(),
            options,
            unread: Some(fitted.ids),
            dropped_turns: fitted.dropped_turns,
            full_at: context - prompt_tokens,
            submitted: 0,
            in_flight: VecDeque::new(),
            output: Some(Output { parser, watch: Watch { stop, has_calls: false } }),
            ids: Vec::new(),
            prompt_tokens,
            cached_tokens: None,
            rows_before: None,
            started: None,
            first_token: None,
            last_token: None,
            finish_reason: None,
        })
    }

    /// The next piece, or None when the output has ended. After an error the generation has ended too, and
    /// after a pull that was dropped before it was done.
    pub async fn next(&mut self) -> Result<Option<Piece>> {
        let Some(output) = self.output.take() else { return Ok(None) };
        let piece = self.advance(output).await;
        if piece.is_err() {
            // What the caches hold now is not sure.
            self.conversation.borrow_mut().forget(self.number);
        }
        piece
    }

    async fn advance(&mut self, output: Output) -> Result<Option<Piece>> {
        self.submit().await?;
        let Some(readback) = self.in_flight.pop_front() else { return Ok(None) };
        let bytes = readback.bytes(&self.model.gpu).await?;
        let id: u32 = bytemuck::pod_read_unaligned(&bytes);
        if id >= self.model.vocab_size() {
            return Err(Error::new(Code::Internal, "choose the next token")
                .expected("finite logits")
                .got("numbers that overflowed")
                .remedy("Load the model with dtype \"f32\", and please report the model's name."));
        }
        self.accept(id, readback)?;
        Ok(Some(Piece { parts: self.take(output, id)?, ids: vec![id] }))
    }

    /// Keeps steps on their way, as far as the limit allows.
    async fn submit(&mut self) -> Result<()> {
        if let Some(ids) = self.unread.take() {
            self.prefill(&ids).await?;
        }
        let steps = if self.model.row_table.is_some() { 1 } else { STEPS_IN_FLIGHT };
        let limit = self.full_at.min(self.options.max_tokens.unwrap_or(u32::MAX));
        while self.in_flight.len() < steps && self.submitted < limit {
            let last = self.ids.last().copied();
            let rows = self.table_rows(last.as_slice(), Rows::Last).await?;
            let (sampler, step) = (self.options.sampler(), self.options.step());
            let mut conversation = self.current()?;
            let readback = conversation.decode(self.model.text.as_ref(), &rows, sampler, step)?;
            drop(conversation);
            self.in_flight.push_back(readback);
            self.submitted += 1;
        }
        Ok(())
    }

    /// Submits what the caches do not hold of `ids`.
    async fn prefill(&mut self, ids: &[u32]) -> Result<()> {
        self.started.get_or_insert_with(Instant::now);
        let cached = {
            let mut conversation = self.conversation.borrow_mut();
            let number = *self.number.get_or_insert_with(|| conversation.begin());
            conversation.check_current(number)?;
            conversation.dropped_turns = self.dropped_turns;
            conversation.resume(ids)
        };
        self.cached_tokens.get_or_insert(cached as u32);
        if let Some(table) = &self.model.row_table {
            self.rows_before.get_or_insert_with(|| table.stats());
            table.prefetch(&ids[cached..]).await?;
        }
        let mut chunks = ids[cached..].chunks(MAX_ROWS as usize).peekable();
        while let Some(chunk) = chunks.next() {
            let sampler = chunks.peek().is_none().then(|| self.options.sampler());
            let wanted = if sampler.is_some() { Rows::Last } else { Rows::None };
            let rows = self.table_rows(chunk, wanted).await?;
            let mut conversation = self.current()?;
            let model = self.model.text.as_ref();
            let readback = conversation.prefill(model, chunk, &rows, sampler, self.options.step())?;
            drop(conversation);
            self.in_flight.extend(readback);
        }
        self.submitted += 1;
        Ok(())
    }

    /// What the model's table has for `ids`, as far as a step reads it; nothing where it has no table.
    async fn table_rows(&self, ids: &[u32], wanted: Rows) -> Result<Vec<f32>> {
        match &self.model.row_table {
            Some(table) => table.rows(ids, self.model.text.table_columns(wanted)).await,
            None => Ok(Vec::new()),
        }
    }

    /// The conversation, as long as no other generation of it has begun.
    fn current(&self) -> Result<RefMut<'_, Conversation>> {
        let conversation = self.conversation.borrow_mut();
        conversation.check_current(self.number.unwrap_or_default())?;
        Ok(conversation)
    }

    fn accept(&mut self, id: u32, readback: Readback) -> Result<()> {
        self.current()?.accept(id, readback);
        let now = Instant::now();
        self.ids.push(id);
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        Ok(())
    }

    /// The parts that `id` brings to `output`, which goes on or ends with it.
    fn take(&mut self, mut output: Output, id: u32) -> Result<Vec<Part>> {
        if self.model.stop_ids.contains(&id) {
            return Ok(self.end(output, FinishReason::Stop));
        }
        let parts = output.parser.push(id);
        let (mut parts, is_stopped) = output.watch.pass(parts);
        let new_tokens = self.ids.len() as u32;
        if is_stopped {
            self.finish_reason = Some(FinishReason::Stop);
        } else if self.options.max_tokens == Some(new_tokens) {
            parts.extend(self.end(output, FinishReason::Length));
        } else if new_tokens == self.full_at && !self.slide()? {
            parts.extend(self.end(output, FinishReason::Context));
        } else {
            self.output = Some(output);
        }
        Ok(parts)
    }

    /// Shortens the prompt, so that the answer can go on after it; whether that was possible.
    fn slide(&mut self) -> Result<bool> {
        if self.options.context_full == ContextFull::Error {
            return Ok(false);
        }
        let context = self.conversation.borrow().context();
        let fit = Fit {
            model: &self.model,
            prompt: &self.prompt,
            options: &self.options,
            context,
            answer: &self.ids,
            dropped_turns: self.dropped_turns,
        };
        let fitted = match fit.ids() {
            Err(error) if error.code() == Code::ContextFull => return Ok(false),
            fitted => fitted?,
        };
        self.full_at = self.ids.len() as u32 + context - fitted.ids.len() as u32;
        self.dropped_turns = fitted.dropped_turns;
        self.unread = Some(fitted.ids);
        Ok(true)
    }

    /// Ends `output` and gives what was held back of it.
    fn end(&mut self, output: Output, reason: FinishReason) -> Vec<Part> {
        let Output { parser, mut watch } = output;
        let (mut parts, is_stopped) = watch.pass(parser.finish());
        push_text(&mut parts, watch.stop.release());
        self.finish_reason = Some(match reason {
            _ if is_stopped => FinishReason::Stop,
            FinishReason::Stop if watch.has_calls => FinishReason::ToolCalls,
            reason => reason,
        });
        parts
    }

    /// Ends the generation; what is on its way is dropped.
    pub fn cancel(&mut self) {
        self.output = None;
        self.finish_reason.get_or_insert(FinishReason::Cancelled);
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        let seconds = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64();
        let span = self.first_token.zip(self.last_token).map(|(first, last)| seconds(first, last));
        let started = self.started.zip(self.first_token);
        Stats {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            new_tokens: self.ids.len() as u32,
            first_token_ms: started.map(|(started, first)| seconds(started, first) * 1e3),
            tokens_per_second: span.filter(|&span| span > 0.0).map(|span| (self.ids.len() - 1) as f64 / span),
            rows: self.model.row_table.as_ref().map(|table| {
                let now = table.stats();
                now.since(self.rows_before.unwrap_or(now))
            }),
            finish_reason: self.finish_reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(parts: Vec<Part>) -> (Vec<Part>, bool) {
        let mut watch = Watch { stop: StopSequences::new(["END"]).unwrap(), has_calls: false };
        let (mut passed, is_stopped) = watch.pass(parts);
        push_text(&mut passed, watch.stop.release());
        (passed, is_stopped)
    }

    #[test]
    fn stop_sequences_end_the_answer_and_not_the_thinking() {
        let (text, thinking) =
            (|text: &str| Part::Text(text.into()), |text: &str| Part::Thinking(text.into()));
        assert_eq!(
            pass(vec![thinking("END?"), text("a E"), text("ND b"), text("c")]),
            (vec![thinking("END?"), text("a ")], true)
        );
        // No sequence reaches over what is no text.
        let parts = vec![text("a E"), thinking("…"), text("ND")];
        assert_eq!(pass(parts), (vec![text("a "), text("E"), thinking("…"), text("ND")], false));
    }
}
