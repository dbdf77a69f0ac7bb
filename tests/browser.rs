//! The kernels, the families and a real model inside a browser: run by wasm-bindgen-test in headless Chromium
//! (subgroups, no f16) and Firefox (no subgroups).
#![cfg(target_arch = "wasm32")]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[macro_use]
#[path = "shared/kernels.rs"]
mod kernels;
#[allow(dead_code, reason = "natively there are more cases")]
#[path = "shared/models.rs"]
mod models;
#[allow(dead_code, reason = "natively the first logits are compared too")]
#[path = "shared/pocket.rs"]
mod pocket;

use std::rc::Rc;

use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt};
use jird::fetch::{CacheStore, HttpOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;
use jird::text::{EncodeOptions, Tokenizer};
use wasm_bindgen_test::*;

wasm_bindgen_test_configure!(run_in_browser);

macro_rules! kernels {
    ($($case:ident),*) => {
        $(#[wasm_bindgen_test]
        async fn $case() {
            // With subgroups where the browser has them; natively both variants run.
            kernels::$case(&mut kernels::Rig::open(true).await).await;
        })*
    };
}

every_kernel!(kernels);

async fn gpu() -> Rc<Gpu> {
    Gpu::open(GpuOptions::default()).await.expect("a GPU device")
}

/// Checkpoints that are some way apart in the list, from `first` on: natively all of them run, and here as many as
/// there is time to compile shaders for.
fn some_fixtures(first: usize) -> impl Iterator<Item = &'static models::Fixture> {
    let step = if kernels::thorough() { 1 } else { 6 };
    models::FIXTURES.iter().skip(first).step_by(step)
}

#[wasm_bindgen_test]
async fn golden() {
    let gpu = gpu().await;
    for fixture in some_fixtures(4) {
        models::golden(&gpu, fixture).await;
    }
}

#[wasm_bindgen_test]
async fn greedy() {
    let gpu = gpu().await;
    for fixture in some_fixtures(0) {
        models::greedy(&gpu, fixture).await;
    }
}

/// Where `./run test` serves the real models.
const ORIGIN: Option<&str> = option_env!("JIRD_TEST_ORIGIN");

/// A model by way of the cache.
async fn load(name: &str, options: LoadOptions) -> Rc<Model> {
    let origin = ORIGIN.expect("JIRD_TEST_ORIGIN, the server of the models, when the tests are compiled");
    let store = CacheStore::open("jird-test").await.expect("a cache");
    let opener = HttpOpener::new(&format!("{origin}/models/{name}/")).expect("a location");
    let repo = Repo::new(opener).with_store(Rc::new(store));
    Model::load(&gpu().await, repo, options, Rc::new(())).await.expect("the model")
}

/// Not in Chromium, whose device in software takes minutes for it, unless there is time for everything.
#[wasm_bindgen_test]
async fn smollm2_continues_as_the_reference_does() {
    let browser =
        web_sys::window().and_then(|window| window.navigator().user_agent().ok()).unwrap_or_default();
    if browser.contains("Chrome") && !kernels::thorough() {
        return;
    }
    let expected: serde_json::Value =
        serde_json::from_str(include_str!("fixtures/smollm2.json")).expect("the reference");
    let options = LoadOptions { dtype: WeightDtype::F32, context: Some(64), ..LoadOptions::default() };
    let model = load("smollm2", options).await;
    let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::default() };
    let prompt = Prompt::Text(expected["prompt"].as_str().expect("a prompt").to_owned());
    let mut generation = model.generate(&prompt, options).expect("a generation");
    let mut ids = Vec::new();
    while let Some(piece) = generation.next().await.expect("a piece") {
        ids.extend(piece.ids);
    }
    assert_eq!(serde_json::json!(ids), expected["ids"]);
}

#[wasm_bindgen_test]
async fn pocket_answers_as_the_reference_does() {
    let model = load("pocket", LoadOptions { context: Some(512), ..LoadOptions::default() }).await;
    // A kind of conversation each; natively, and with JIRD_FULL, all of them.
    let nth = if option_env!("JIRD_FULL").is_some() { 1 } else { 3 };
    for line in pocket::answers_as_transformers_does(&model, nth).await {
        console_log!("{line}");
    }
}

/// Unicode's normal forms come from the browser.
#[wasm_bindgen_test]
fn normal_forms() {
    let plain = EncodeOptions { add_special_tokens: false, parse_special: false };
    for (form, text, characters) in [
        ("NFC", "e\u{301}", "é"),
        ("NFD", "é", "e\u{301}"),
        ("NFKC", "ﬁ", "fi"),
        ("NFKD", "ﬁé", "fie\u{301}"),
    ] {
        let vocab: serde_json::Map<_, _> =
            characters.chars().zip(0..).map(|(character, id)| (character.to_string(), id.into())).collect();
        let json = serde_json::json!({
            "normalizer": { "type": form },
            "model": { "type": "BPE", "vocab": vocab, "merges": [] },
        });
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).expect("a tokenizer");
        let ids: Vec<u32> = (0..characters.chars().count() as u32).collect();
        assert_eq!(tokenizer.encode(text, plain).expect("ids"), ids, "{form}");
    }
}
