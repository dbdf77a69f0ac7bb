//! One conversation's state on the GPU and the plans that advance it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::Result;
use crate::gpu::{Gpu, Readback};
use crate::kernels::Step;
use crate::models::{State, TextModel};
use crate::nn::Sampler;
use crate::plan::{Plan, PlanBuilder, Pool};

/// Rows of the prefill plans: a chunk of the prompt takes the smallest that holds it.
const BUCKETS: [u32; 3] = [16, 64, 256];

/// The most rows of a plan.
pub(super) const MAX_ROWS: u32 = BUCKETS[BUCKETS.len() - 1];

/// Steps on their way at once: the next is submitted before the last one's token is known, which it reads on
/// the GPU, so that the GPU does not wait for the CPU.
pub(super) const STEPS_IN_FLIGHT: usize = 2;

/// Which plan: for how many rows, and how it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    rows: u32,
    /// None for the chunks of a prompt before the last.
    sampler: Option<Sampler>,
}

impl PlanKey {
    /// Every plan that a session may come to need.
    fn all() -> impl Iterator<Item = Self> {
        let ends = [Some(Sampler::Greedy), Some(Sampler::Sampled)];
        let rows = std::iter::once(1).chain(BUCKETS);
        rows.flat_map(move |rows| ends.map(|sampler| PlanKey { rows, sampler }))
            .chain([PlanKey { rows: MAX_ROWS, sampler: None }])
    }
}

fn record(gpu: &Rc<Gpu>, model: &dyn TextModel, state: &State, key: PlanKey) -> PlanBuilder {
    let mut builder = PlanBuilder::new(gpu, key.rows, true);
    let mut residual = model.forward(&mut builder, state);
    if let Some(sampler) = key.sampler {
        let logits = model.logits(&mut builder, state, &mut residual);
        sampler.forward(&mut builder, &state.inputs, logits);
    }
    builder
}

/// State, plans, and the position that they have reached.
pub(super) struct Session {
    gpu: Rc<Gpu>,
    state: State,
    /// Buffers of the plans, which run one after the other.
    pool: Pool,
    plans: HashMap<PlanKey, Rc<Plan>>,
    readbacks: Vec<Readback>,
    position: u32,
}

impl Session {
    /// A session of up to `context` positions. Everything that it will ever hold is reserved here.
    pub fn new(gpu: &Rc<Gpu>, model: &dyn TextModel, context: u32) -> Result<Self> {
        let state = State::new(gpu, model.dimensions(), context, MAX_ROWS)?;
        let readback = || Readback::new(gpu, state.inputs.tokens.clone(), 0..4);
        let readbacks = (0..STEPS_IN_FLIGHT).map(|_| readback()).collect::<Result<_>>()?;
        let pool = Pool::reserve(gpu, PlanKey::all().map(|key| record(gpu, model, &state, key)))?;
        Ok(Self { gpu: gpu.clone(), state, pool, plans: HashMap::new(), readbacks, position: 0 })
    }

    /// Forgets every position.
    pub fn reset(&mut self) {
        self.position = 0;
    }

    /// Submits `ids` after what the session holds; the token that `sampler` chooses comes back.
    pub fn prefill(
        &mut self,
        model: &dyn TextModel,
        ids: &[u32],
        sampler: Sampler,
        sampling: Step,
    ) -> Result<Readback> {
        let mut rest = ids;
        while rest.len() > MAX_ROWS as usize {
            let (chunk, tail) = rest.split_at(MAX_ROWS as usize);
            self.chunk(model, chunk, None, sampling)?;
            rest = tail;
        }
        self.chunk(model, rest, Some(sampler), sampling)
    }

    fn chunk(
        &mut self,
        model: &dyn TextModel,
        ids: &[u32],
        sampler: Option<Sampler>,
        sampling: Step,
    ) -> Result<Readback> {
        let count = ids.len() as u32;
        let rows = BUCKETS.into_iter().find(|&bucket| count <= bucket).unwrap_or(MAX_ROWS);
        let rows = if count == 1 { 1 } else { rows };
        self.state.write_tokens(&self.gpu, ids, rows);
        self.submit(model, PlanKey { rows, sampler }, count, sampling)
    }

    /// Submits one step for the token that the last step chose on the GPU.
    pub fn decode(&mut self, model: &dyn TextModel, sampler: Sampler, sampling: Step) -> Result<Readback> {
        self.submit(model, PlanKey { rows: 1, sampler: Some(sampler) }, 1, sampling)
    }

    fn submit(
        &mut self,
        model: &dyn TextModel,
        key: PlanKey,
        count: u32,
        sampling: Step,
    ) -> Result<Readback> {
        let plan = self.plan(model, key)?;
        let readback = match self.readbacks.pop() {
            Some(readback) => readback,
            None => Readback::new(&self.gpu, self.state.inputs.tokens.clone(), 0..4)?,
        };
        let step = Step { position: self.position, rows: count, ..sampling };
        self.state.write_step(&self.gpu, &step, key.rows);
        self.gpu.submit(plan.dispatches(), &[&readback]);
        self.position += count;
        Ok(readback)
    }

    /// Takes a readback for reuse, once it has been read or given up.
    pub fn recycle(&mut self, readback: Readback) {
        self.readbacks.push(readback);
    }

    fn plan(&mut self, model: &dyn TextModel, key: PlanKey) -> Result<Rc<Plan>> {
        if let Some(plan) = self.plans.get(&key) {
            return Ok(plan.clone());
        }
        let plan = Rc::new(record(&self.gpu, model, &self.state, key).compile_in(&self.pool)?);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Dispatches of one greedy decode step.
    pub fn decode_plan(&mut self, model: &dyn TextModel) -> Result<Rc<Plan>> {
        self.plan(model, PlanKey { rows: 1, sampler: Some(Sampler::Greedy) })
    }
}
