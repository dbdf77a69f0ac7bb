//! One conversation's state on the GPU and the plans that advance it.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::Result;
use crate::gpu::{Gpu, Readback};
use crate::kernels::Step;
use crate::models::{Rows, State, TextModel};
use crate::nn::Sampler;
use crate::plan::{Plan, PlanBuilder};

/// Rows of the prefill plans: a chunk of the prompt takes the smallest that holds it.
const BUCKETS: [u32; 3] = [16, 64, 256];

/// The most rows of a plan.
pub(super) const MAX_ROWS: u32 = BUCKETS[BUCKETS.len() - 1];

/// Which plan: for how many rows, and how it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct PlanKey {
    rows: u32,
    /// None for the chunks of a prompt before the last.
    sampler: Option<Sampler>,
}

/// State, plans, and the position that they have reached.
pub(super) struct Session {
    gpu: Rc<Gpu>,
    state: State,
    plans: HashMap<PlanKey, Rc<Plan>>,
    readbacks: Vec<Readback>,
    position: u32,
}

impl Session {
    /// A session of up to `context` positions.
    pub fn new(gpu: &Rc<Gpu>, model: &dyn TextModel, context: u32) -> Result<Self> {
        let state = State::new(gpu, model.dimensions(), context, MAX_ROWS)?;
        Ok(Self { gpu: gpu.clone(), state, plans: HashMap::new(), readbacks: Vec::new(), position: 0 })
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
        let mut builder = PlanBuilder::new(&self.gpu, key.rows, true);
        let wanted = if key.sampler.is_some() { Rows::Last } else { Rows::None };
        let mut residual = model.forward(&mut builder, &self.state, wanted);
        if let Some(sampler) = key.sampler {
            let logits = model.logits(&mut builder, &self.state, &mut residual);
            sampler.forward(&mut builder, &self.state.inputs, logits);
        }
        let plan = Rc::new(builder.compile()?);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Dispatches of one greedy decode step.
    pub fn decode_plan(&mut self, model: &dyn TextModel) -> Result<Rc<Plan>> {
        self.plan(model, PlanKey { rows: 1, sampler: Some(Sampler::Greedy) })
    }
}
