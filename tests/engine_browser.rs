//! A model in a browser whose server is slow with the rows of its table, which `tools/faults.py` plays.
#![cfg(target_arch = "wasm32")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::rc::Rc;

use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt, Stats};
use jird::fetch::{HttpOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;
use js_sys::{Function, Promise};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::JsFuture;
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

/// Where `./run test` serves faults.
const ORIGIN: Option<&str> = option_env!("JIRD_TEST_ORIGIN");
const DELAY_MS: f64 = 300.0;
const NEW_TOKENS: u32 = 8;

/// The tiny E2B on the server of faults.
struct Server {
    session: String,
}

impl Server {
    fn new() -> Self {
        Self { session: format!("{}", (js_sys::Math::random() * 1e15) as u64) }
    }

    fn url(&self, rest: &str) -> String {
        let origin = ORIGIN.expect("JIRD_TEST_ORIGIN, the server of faults, when the tests are compiled");
        format!("{origin}/faults/{}/{rest}", self.session)
    }

    /// Without a store, so that every row that is not in memory comes from the server.
    fn repo(&self, behaviours: &str) -> Repo {
        // The tokenizer of another fixture has as many entries.
        let code = "return fetch(url.replace(/gemma4.e2b.tokenizer/, 'llama/tied/tokenizer'), init)";
        let opener = HttpOpener::new(&self.url(&format!("{behaviours}/gemma4/e2b/"))).expect("a location");
        Repo::new(opener.with_fetch(Some(Function::new_with_args("url, init", code))))
    }

    /// The requests for the weights so far.
    async fn requests(&self) -> usize {
        let code = "return fetch(url).then((response) => response.text())";
        let log = Function::new_with_args("url", code).call1(&JsValue::NULL, &self.url("log").into());
        let log: Promise = log.expect("a request").unchecked_into();
        let log = JsFuture::from(log).await.expect("the log").as_string().expect("a text");
        let log: Vec<serde_json::Value> = serde_json::from_str(&log).expect("json");
        log.iter().filter(|entry| entry["file"] == "gemma4/e2b/model.safetensors").count()
    }
}

/// What a generation did, and the requests that it made.
struct Outcome {
    ids: Vec<u32>,
    stats: Stats,
    /// Until the first new token was there.
    for_prompt: usize,
    afterwards: usize,
}

/// Generates with a model that is loaded by way of `behaviours`.
async fn generate(gpu: &Rc<Gpu>, behaviours: &str) -> Outcome {
    let server = Server::new();
    let options = LoadOptions { dtype: WeightDtype::F32, ..LoadOptions::default() };
    let model = Model::load(gpu, server.repo(behaviours), options, Rc::new(())).await.expect("the model");
    let of_load = server.requests().await;
    let prompt = Prompt::Text("the quick brown fox jumps over the lazy dog and runs away".to_owned());
    let options = GenerateOptions { max_tokens: Some(NEW_TOKENS), ..GenerateOptions::default() };
    let mut generation = model.generate(&prompt, options).expect("a generation");
    let mut ids = generation.next().await.expect("a piece").expect("a first piece").ids;
    let for_prompt = server.requests().await - of_load;
    while let Some(piece) = generation.next().await.expect("a piece") {
        ids.extend(piece.ids);
    }
    let afterwards = server.requests().await - of_load - for_prompt;
    Outcome { ids, stats: generation.stats(), for_prompt, afterwards }
}

#[wasm_bindgen_test]
async fn rows_that_come_late_cost_time_and_nothing_else() {
    let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
    let fast = generate(&gpu, "plain").await;
    let slow = generate(&gpu, &format!("slow={DELAY_MS}")).await;
    assert_eq!(slow.ids, fast.ids);
    assert_eq!((slow.for_prompt, slow.afterwards), (fast.for_prompt, fast.afterwards));
    // The prompt's rows are fetched together, and each new token's unless it has occurred.
    let tokens = slow.stats.prompt_tokens as usize;
    assert!(tokens > 20 && slow.for_prompt * 5 < tokens, "{} requests for {tokens} tokens", slow.for_prompt);
    assert!(slow.afterwards < NEW_TOKENS as usize, "{} requests", slow.afterwards);

    let [fast, slow] = [&fast, &slow].map(|outcome| (outcome.stats.rows.expect("a table"), outcome));
    assert_eq!((slow.0.hits, slow.0.misses, slow.0.bytes), (fast.0.hits, fast.0.misses, fast.0.bytes));
    let waits = f64::from(slow.1.afterwards as u32 + 1);
    assert!(
        slow.0.stall_ms >= waits * DELAY_MS && slow.0.stall_ms > fast.0.stall_ms,
        "{:?} {:?}",
        slow.0,
        fast.0
    );
}
