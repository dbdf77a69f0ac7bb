//! Conversations: their state on the GPU, the plans that advance it, and the tokens that it holds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::generate::{GenerateOptions, Generation, Prompt};
use super::load::{Model, check_context};
use crate::error::{Code, Error, Result};
use crate::gpu::{Commands, Gpu, Readback};
use crate::kernels::Step;
use crate::models::{Rows, State, TextModel};
use crate::nn::Sampler;
use crate::plan::{Plan, PlanBuilder, Pool};

/// Rows of the prefill plans: a chunk of the prompt takes the smallest that holds it.
const BUCKETS: [u32; 3] = [16, 64, 256];

/// The most rows of a plan.
pub(super) const MAX_ROWS: u32 = BUCKETS[BUCKETS.len() - 1];

/// Steps on their way at once: the next is submitted before the last one's token is known, which it reads on
/// the GPU, so that the GPU does not wait for the CPU. Where a step reads a table's row for its token, one.
pub(super) const STEPS_IN_FLIGHT: usize = 2;

/// How to open a session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionOptions {
    /// Positions that its conversation may have; None: as many as the model's own.
    pub context: Option<u32>,
}

/// A conversation of its own, beside others of the same model: it keeps its own keys and values, so that
/// they need not be computed again when others were answered in between.
///
/// Its memory is in the ledger and is freed when session and generations are dropped.
pub struct Session {
    model: Rc<Model>,
    conversation: Rc<RefCell<Conversation>>,
}

impl Model {
    /// Opens a further session, whose memory is taken here.
    ///
    /// Fails with [`Code::OutOfMemory`] when the device cannot hold its cache.
    pub async fn session(self: &Rc<Self>, options: SessionOptions) -> Result<Session> {
        let largest = self.text.dimensions().max_position_embeddings;
        let context = check_context("open a session", options.context, self.context(), largest)?;
        let conversation = {
            let beside = self.conversation.borrow();
            Conversation::new(&self.gpu, self.text.as_ref(), context, Some(&beside))?
        };
        self.gpu.allocate().await?;
        Ok(Session { model: self.clone(), conversation: Rc::new(RefCell::new(conversation)) })
    }
}

impl Session {
    /// As [`Model::generate`], in this session.
    pub fn generate(&self, prompt: &Prompt, options: GenerateOptions) -> Result<Generation> {
        Generation::new(&self.model, &self.conversation, prompt, options)
    }

    /// Positions that its conversation may have.
    pub fn context(&self) -> u32 {
        self.conversation.borrow().context()
    }
}

/// Which plan: for how many rows, and how it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    rows: u32,
    /// None for the chunks of a prompt before the last.
    sampler: Option<Sampler>,
}

impl PlanKey {
    /// Every plan that a conversation may come to need.
    fn all() -> impl Iterator<Item = Self> {
        let ends = [Some(Sampler::Greedy), Some(Sampler::Sampled)];
        let rows = std::iter::once(1).chain(BUCKETS);
        rows.flat_map(move |rows| ends.map(|sampler| PlanKey { rows, sampler }))
            .chain([PlanKey { rows: MAX_ROWS, sampler: None }])
    }

    fn record(self, gpu: &Rc<Gpu>, model: &dyn TextModel, state: &State) -> PlanBuilder {
        let mut builder = PlanBuilder::new(gpu, self.rows, true);
        let wanted = if self.sampler.is_some() { Rows::Last } else { Rows::None };
        let mut residual = model.forward(&mut builder, state, wanted);
        if let Some(sampler) = self.sampler {
            let logits = model.logits(&mut builder, state, &mut residual);
            sampler.forward(&mut builder, &state.inputs, logits);
        }
        builder
    }
}

/// A plan that was encoded, to be submitted once.
struct EncodedStep {
    key: PlanKey,
    commands: Commands,
    readback: Readback,
}

/// State, plans, and what has been submitted.
pub(super) struct Conversation {
    gpu: Rc<Gpu>,
    state: State,
    /// Buffers of the plans, which run one after the other.
    pool: Pool,
    plans: HashMap<PlanKey, Rc<Plan>>,
    readbacks: Vec<Readback>,
    /// The next step of decode, encoded while the GPU computes the last one.
    ahead: Option<EncodedStep>,
    context: u32,
    /// Positions submitted.
    position: u32,
    /// The tokens at the first positions, as far as they are known: steps on their way, and steps whose
    /// results were dropped, have taken tokens that only the GPU has seen.
    ids: Vec<u32>,
    /// Counts the generations; only the last one may go on.
    generation: u64,
    /// Turns that the last generation left out to fit into the context.
    pub(super) dropped_turns: usize,
}

impl Conversation {
    /// A conversation of up to `context` positions. Everything that it will ever hold is reserved here.
    ///
    /// `beside` is another one of the same model: steps of the two never run at once, and so share a pool.
    pub fn new(
        gpu: &Rc<Gpu>,
        model: &dyn TextModel,
        context: u32,
        beside: Option<&Conversation>,
    ) -> Result<Self> {
        let state = State::new(gpu, model.dimensions(), context, MAX_ROWS)?;
        let readback = || Readback::new(gpu, state.inputs.tokens.clone(), 0..4);
        // One more for the step that is encoded ahead.
        let readbacks = (0..=STEPS_IN_FLIGHT).map(|_| readback()).collect::<Result<_>>()?;
        let pool = match beside {
            Some(other) => other.pool.clone(),
            None => Pool::reserve(gpu, PlanKey::all().map(|key| key.record(gpu, model, &state)))?,
        };
        Ok(Self {
            gpu: gpu.clone(),
            state,
            pool,
            plans: HashMap::new(),
            readbacks,
            ahead: None,
            context,
            position: 0,
            ids: Vec::new(),
            generation: 0,
            dropped_turns: 0,
        })
    }

    /// Positions that it may have.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Begins a generation, which ends the one before.
    pub fn begin(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Fails when `generation` is not the last that began.
    pub fn check_current(&self, generation: u64) -> Result<()> {
        if self.generation == generation {
            return Ok(());
        }
        Err(Error::new(Code::InvalidArgument, "go on generating")
            .expected("the session's latest generation")
            .got("one before it")
            .remedy("Finish a generation before the next, or open a session for each."))
    }

    /// Holds no token any more, unless another generation than `generation` has begun.
    pub fn forget(&mut self, generation: Option<u64>) {
        if generation == Some(self.generation) {
            self.ids.clear();
        }
    }

    /// How many of the first tokens of `ids` the caches hold; never all, since the last one's logits are
    /// wanted.
    fn cached(&self, ids: &[u32]) -> usize {
        let held = self.ids.iter().take(self.position as usize);
        let common = held.zip(ids).take_while(|(held, id)| held == id).count();
        let cached = common.min(ids.len().saturating_sub(1));
        if self.state.can_roll_back_to(cached as u32) { cached } else { 0 }
    }

    /// Makes `ids` the conversation. How many of them the caches hold comes back; the others are to be
    /// submitted by [`Conversation::prefill`].
    pub fn resume(&mut self, ids: &[u32]) -> usize {
        let cached = self.cached(ids);
        self.position = cached as u32;
        self.ids.truncate(cached);
        self.ids.extend(&ids[cached..]);
        cached
    }

    /// Submits the next `ids` of a prompt, at most [`MAX_ROWS`]. With `sampler`, for the last of them, the
    /// token that it chooses comes back. `table_rows` are the tokens' rows, where the model has a table.
    pub fn prefill(
        &mut self,
        model: &dyn TextModel,
        ids: &[u32],
        table_rows: &[f32],
        sampler: Option<Sampler>,
        sampling: Step,
    ) -> Result<Option<Readback>> {
        let count = ids.len() as u32;
        let rows = BUCKETS.into_iter().find(|&bucket| count <= bucket).unwrap_or(MAX_ROWS);
        let rows = if count == 1 { 1 } else { rows };
        self.state.write_tokens(&self.gpu, ids, rows);
        self.state.write_table_rows(&self.gpu, table_rows);
        let readback = self.submit(model, PlanKey { rows, sampler }, count, sampling)?;
        if sampler.is_none() {
            self.recycle(readback);
            return Ok(None);
        }
        Ok(Some(readback))
    }

    /// Submits one step for the token that the last step chose on the GPU; `table_rows` as for
    /// [`Conversation::prefill`].
    pub fn decode(
        &mut self,
        model: &dyn TextModel,
        table_rows: &[f32],
        sampler: Sampler,
        sampling: Step,
    ) -> Result<Readback> {
        self.state.write_table_rows(&self.gpu, table_rows);
        self.submit(model, PlanKey { rows: 1, sampler: Some(sampler) }, 1, sampling)
    }

    fn submit(
        &mut self,
        model: &dyn TextModel,
        key: PlanKey,
        count: u32,
        sampling: Step,
    ) -> Result<Readback> {
        let EncodedStep { commands, readback, .. } = self.encoded(model, key)?;
        let step = Step { position: self.position, rows: count, ..sampling };
        self.state.write_step(&self.gpu, &step, key.rows);
        self.gpu.submit(commands);
        self.position += count;
        if key.rows == 1 {
            self.ahead = Some(self.encoded(model, key)?);
        }
        Ok(readback)
    }

    /// The plan of `key` encoded: ahead, or now.
    fn encoded(&mut self, model: &dyn TextModel, key: PlanKey) -> Result<EncodedStep> {
        match self.ahead.take() {
            Some(step) if step.key == key => return Ok(step),
            Some(step) => self.recycle(step.readback),
            None => {}
        }
        let plan = self.plan(model, key)?;
        let readback = match self.readbacks.pop() {
            Some(readback) => readback,
            None => Readback::new(&self.gpu, self.state.inputs.tokens.clone(), 0..4)?,
        };
        let commands = self.gpu.encode(plan.dispatches(), &[&readback]);
        Ok(EncodedStep { key, commands, readback })
    }

    /// Takes the token that a step chose, in the order of the steps, and its readback for reuse.
    pub fn accept(&mut self, id: u32, readback: Readback) {
        self.ids.push(id);
        self.recycle(readback);
    }

    fn recycle(&mut self, readback: Readback) {
        self.readbacks.push(readback);
    }

    fn plan(&mut self, model: &dyn TextModel, key: PlanKey) -> Result<Rc<Plan>> {
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Rc::new(key.record(&self.gpu, model, &self.state).compile_in(&self.pool)?);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Dispatches of one greedy decode step.
    pub fn decode_plan(&mut self, model: &dyn TextModel) -> Result<Rc<Plan>> {
        self.plan(model, PlanKey { rows: 1, sampler: Some(Sampler::Greedy) })
    }
}
