//! Every family against the reference implementation on tiny seeded checkpoints: run natively and in browsers.

use std::rc::Rc;

use jird::checkpoint::{Checkpoint, to_f32};
use jird::fetch::{MemoryOpener, Repo};
use jird::gpu::Gpu;
use jird::kernels::{CacheFormat, Step};
use jird::models::{Rows, State, TextModel, declare};
use jird::nn::{Loader, RowTable, WeightDtype};
use jird::plan::{Plan, PlanBuilder, Value};

/// A checkpoint of tests/fixtures with its golden values.
pub struct Fixture {
    pub name: &'static str,
    pub config: &'static [u8],
    pub weights: &'static [u8],
    pub golden: &'static [u8],
    /// How the weights are kept.
    pub dtype: WeightDtype,
    /// The largest error.
    pub tolerance: f32,
}

macro_rules! fixture {
    ($name:literal, $config:literal) => {
        fixture!($name, $config, WeightDtype::F32, 1e-4)
    };
    ($name:literal, $config:literal, $dtype:expr, $tolerance:expr) => {
        Fixture {
            dtype: $dtype,
            tolerance: $tolerance,
            name: concat!($name, "/", $config),
            config: include_bytes!(concat!("../fixtures/", $name, "/", $config)),
            weights: include_bytes!(concat!("../fixtures/", $name, "/model.safetensors")),
            golden: include_bytes!(concat!("../fixtures/", $name, "/golden.safetensors")),
        }
    };
}

/// Every checkpoint, with its configuration in the older and the newer form.
pub const FIXTURES: [Fixture; 20] = [
    fixture!("llama/tied", "config.json"),
    fixture!("llama/tied", "config.v5.json"),
    fixture!("llama/rope_llama3", "config.json"),
    fixture!("llama/rope_llama3", "config.v5.json"),
    fixture!("llama/mistral", "config.json"),
    fixture!("llama/mistral", "config.v5.json"),
    fixture!("gemma3/pattern", "config.json"),
    fixture!("gemma3/pattern", "config.v5.json"),
    fixture!("gemma3/scaled", "config.json"),
    fixture!("gemma3/scaled", "config.v5.json"),
    fixture!("gemma4/e2b", "config.json"),
    fixture!("gemma4/e2b", "config.v5.json"),
    fixture!("gemma4/e4b", "config.json"),
    fixture!("gemma4/e4b", "config.v5.json"),
    fixture!("gemma4/dense", "config.json"),
    fixture!("gemma4/dense", "config.v5.json"),
    fixture!("gemma4/moe", "config.json"),
    fixture!("gemma4/moe", "config.v5.json"),
    // Codes as they are stored, whose scales kernels read as f16.
    fixture!("gemma4/mlx", "config.json", WeightDtype::Auto, 1e-3),
    fixture!("gemma4/mlx", "config.v5.json", WeightDtype::Auto, 1e-3),
];

const CONTEXT: u32 = 64;
/// The most rows of a plan.
const ROWS: u32 = 32;

/// The golden values of a fixture.
struct Golden(Checkpoint);

impl Golden {
    async fn open(fixture: &Fixture) -> Self {
        Self(Checkpoint::open(&repo(fixture.golden)).await.expect("golden values"))
    }

    async fn floats(&self, name: &str) -> Vec<f32> {
        let info = self.0.tensor(name).expect("a golden tensor");
        to_f32(name, info.dtype, &self.0.read(name).await.expect("its bytes")).expect("floats")
    }

    async fn ids(&self, name: &str) -> Vec<u32> {
        bytemuck::pod_collect_to_vec(&self.0.read(name).await.expect("golden ids"))
    }
}

fn repo(weights: &[u8]) -> Repo {
    Repo::new(MemoryOpener::new([("model.safetensors".to_owned(), weights.to_vec())]))
}

/// A tiny model and a conversation with it.
pub struct Tiny {
    pub gpu: Rc<Gpu>,
    pub model: Box<dyn TextModel>,
    pub state: State,
    pub table: Option<RowTable>,
}

/// A plan whose logits can be read.
pub struct Readable {
    plan: Plan,
    wanted: Rows,
    logits: Value,
}

impl Tiny {
    pub async fn load(gpu: &Rc<Gpu>, fixture: &Fixture) -> Self {
        Self::open(gpu, &repo(fixture.weights), fixture.config, fixture.dtype, (CONTEXT, ROWS)).await
    }

    /// A model for conversations of so many positions, in plans of at most so many rows.
    pub async fn open(
        gpu: &Rc<Gpu>,
        weights: &Repo,
        config: &[u8],
        dtype: WeightDtype,
        (context, rows): (u32, u32),
    ) -> Self {
        let checkpoint = Rc::new(Checkpoint::open(weights).await.expect("a checkpoint"));
        let config = serde_json::from_slice(config).expect("a configuration");
        // Golden values are of exact keys and values; tests/quantised.rs measures halves.
        let mut loader = Loader::new(gpu, &checkpoint, dtype).with_cache_format(CacheFormat::F32);
        let model = declare(&config, &mut loader).expect("a model");
        loader.run(&|| Ok(())).await.expect("weights");
        let state = State::new(gpu, model.dimensions(), context, rows).expect("a state");
        let table = model.dimensions().row_table.clone();
        let table = table.map(|layout| RowTable::new(checkpoint.clone(), layout));
        Self { gpu: gpu.clone(), model, state, table }
    }

    pub fn plan(&self, rows: u32, fused: bool, wanted: Rows) -> Readable {
        let mut builder = PlanBuilder::new(&self.gpu, rows, fused).with_taps();
        let mut residual = self.model.forward(&mut builder, &self.state, wanted);
        let logits = self.model.logits(&mut builder, &self.state, &mut residual).value;
        builder.keep(logits);
        Readable { plan: builder.compile().expect("a plan"), wanted, logits }
    }

    /// A plan that only adds to the caches.
    fn cache_plan(&self, rows: u32) -> Plan {
        let mut builder = PlanBuilder::new(&self.gpu, rows, true);
        self.model.forward(&mut builder, &self.state, Rows::None);
        builder.compile().expect("a plan")
    }

    /// Logits of the last of `ids`, which stand at `position`.
    pub async fn step(&self, readable: &Readable, position: u32, ids: &[u32]) -> Vec<f32> {
        self.submit(&readable.plan, readable.wanted, position, ids).await;
        self.read(readable, readable.logits).await
    }

    async fn submit(&self, plan: &Plan, wanted: Rows, position: u32, ids: &[u32]) {
        let rows = plan.rows();
        let step = Step { position, rows: ids.len() as u32, ..Step::default() };
        if let Some(table) = &self.table {
            let rows = table.rows(ids, self.model.table_columns(wanted)).await.expect("rows");
            self.state.write_table_rows(&self.gpu, &rows);
        }
        self.state.write_tokens(&self.gpu, ids, rows);
        self.state.write_step(&self.gpu, &step, rows);
        self.gpu.submit(self.gpu.encode(plan.dispatches(), &[]));
    }

    async fn read(&self, readable: &Readable, value: Value) -> Vec<f32> {
        let bytes = u64::from(value.rows * value.columns) * 4;
        let buffer = readable.plan.buffer(value);
        bytemuck::pod_collect_to_vec(&self.gpu.read(buffer, 0..bytes).await.expect("a value"))
    }
}

impl Fixture {
    fn assert_close(&self, what: &str, got: &[f32], golden: &[f32]) {
        let Self { name, tolerance, .. } = self;
        assert_eq!(got.len(), golden.len(), "{name}: {what}");
        let worst = got.iter().zip(golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= *tolerance, "{name}: {what}: the largest error is {worst:e}");
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (0..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(index, _)| index).expect("logits")
}

/// Hidden states of every layer and logits of every position, by one prefill, by a padded prefill in two
/// chunks, and by decode alone, fused and not.
pub async fn golden(gpu: &Rc<Gpu>, fixture: &Fixture) {
    let golden = Golden::open(fixture).await;
    let tiny = Tiny::load(gpu, fixture).await;
    let ids = golden.ids("long.ids").await;
    let hidden = golden.floats("long.hidden").await;
    let logits = golden.floats("long.logits").await;
    let vocab = logits.len() / ids.len();
    let logits_at = |position: usize| &logits[position * vocab..(position + 1) * vocab];
    let last = ids.len() - 1;

    let prefill = tiny.plan(ids.len() as u32, true, Rows::All);
    let got = tiny.step(&prefill, 0, &ids).await;
    for (layer, &tap) in prefill.plan.taps().iter().enumerate() {
        let got = tiny.read(&prefill, tap).await;
        fixture.assert_close(
            &format!("input of layer {layer}"),
            &got,
            &hidden[layer * got.len()..][..got.len()],
        );
    }
    fixture.assert_close("prefill of all rows", &got, logits_at(last));
    let shortcut = tiny.plan(ids.len() as u32, true, Rows::Last);
    fixture.assert_close("prefill for the last row", &tiny.step(&shortcut, 0, &ids).await, logits_at(last));

    let padded = tiny.plan(16, true, Rows::Last);
    fixture.assert_close("first chunk", &tiny.step(&padded, 0, &ids[..16]).await, logits_at(15));
    fixture.assert_close("padded chunk", &tiny.step(&padded, 16, &ids[16..]).await, logits_at(last));

    for fused in [false, true] {
        let decode = tiny.plan(1, fused, Rows::Last);
        for (position, id) in ids.iter().enumerate() {
            let got = tiny.step(&decode, position as u32, &[*id]).await;
            fixture.assert_close(&format!("position {position}, fused {fused}"), &got, logits_at(position));
        }
    }

    let single = golden.ids("single.ids").await;
    let decode = tiny.plan(1, true, Rows::Last);
    let got = tiny.step(&decode, 0, &single).await;
    fixture.assert_close("single token", &got, &golden.floats("single.logits").await);
}

/// Greedy continuation after a prefill.
pub async fn greedy(gpu: &Rc<Gpu>, fixture: &Fixture) {
    let golden = Golden::open(fixture).await;
    let tiny = Tiny::load(gpu, fixture).await;
    let ids = golden.ids("long.ids").await;
    let expected = golden.ids("long.greedy_ids").await;
    let expected_logits = golden.floats("long.greedy_logits").await;
    let mut logits = tiny.step(&tiny.plan(ids.len() as u32, true, Rows::Last), 0, &ids).await;
    let decode = tiny.plan(1, true, Rows::Last);
    for (n, &id) in expected.iter().enumerate() {
        let golden = &expected_logits[n * logits.len()..][..logits.len()];
        fixture.assert_close(&format!("logits of new token {n}"), &logits, golden);
        assert_eq!(argmax(&logits), id, "{}: new token {n}", fixture.name);
        logits = tiny.step(&decode, (ids.len() + n) as u32, &[id]).await;
    }
}

/// A conversation goes back as far as the rings still hold what is seen there, and no further.
pub async fn roll_back(gpu: &Rc<Gpu>, fixture: &Fixture) {
    let name = fixture.name;
    let golden = Golden::open(fixture).await;
    let tiny = Tiny::load(gpu, fixture).await;
    let prompt = golden.ids("long.ids").await;
    let logits = golden.floats("long.logits").await;
    let vocab = logits.len() / prompt.len();
    let continued = golden.ids("long.greedy_ids").await;
    let decode = tiny.plan(1, true, Rows::Last);
    for (position, id) in prompt.iter().chain(&continued).enumerate() {
        tiny.step(&decode, position as u32, &[*id]).await;
    }
    let written = (prompt.len() + continued.len()) as u32;
    let reaches = |position: u32| tiny.state.can_roll_back_to(position);
    assert!(reaches(0) && (written - ROWS..written).all(reaches), "{name}");
    let earliest = (1..written).find(|&position| reaches(position)).expect("a position");
    let caches = &tiny.model.dimensions().caches;
    let wraps = caches.iter().filter_map(|cache| cache.window).any(|window| window + ROWS < written);
    let expected = if wraps { written - ROWS - 1 } else { 1 };
    assert_eq!(earliest, expected, "{name}: the earliest of {written} positions");

    // Back as far as it goes, or to the prompt's end.
    for position in earliest as usize..prompt.len() {
        let got = tiny.step(&decode, position as u32, &[prompt[position]]).await;
        let golden = &logits[position * vocab..(position + 1) * vocab];
        fixture.assert_close(&format!("position {position} after going back"), &got, golden);
    }
}

/// Wherever the prompt is cut, a prefill of both parts and decode after the first give what one prefill gives.
pub async fn splits(gpu: &Rc<Gpu>, fixture: &Fixture) {
    let golden = Golden::open(fixture).await;
    let tiny = Tiny::load(gpu, fixture).await;
    let ids = golden.ids("long.ids").await;
    let logits = golden.floats("long.logits").await;
    let vocab = logits.len() / ids.len();
    let logits_at = |position: usize| &logits[position * vocab..(position + 1) * vocab];
    let (caches, prefill) = (tiny.cache_plan(24), tiny.plan(24, true, Rows::Last));
    let decode = tiny.plan(1, true, Rows::Last);
    for split in 1..ids.len() {
        tiny.submit(&caches, Rows::None, 0, &ids[..split]).await;
        let got = tiny.step(&prefill, split as u32, &ids[split..]).await;
        fixture.assert_close(&format!("prefill in two at {split}"), &got, logits_at(ids.len() - 1));
        tiny.submit(&caches, Rows::None, 0, &ids[..split]).await;
        for position in split..ids.len() {
            let got = tiny.step(&decode, position as u32, &ids[position..position + 1]).await;
            fixture.assert_close(&format!("decode from {split}, at {position}"), &got, logits_at(position));
        }
    }
}
