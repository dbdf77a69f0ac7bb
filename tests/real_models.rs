//! Real models continue a text as the reference implementation does. The models lie in the folder
//! JIRD_MODELS; Gemma 3 only with JIRD_FULL, since it is slow on a software device.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::rc::Rc;

use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt, Stats};
use jird::fetch::{FolderOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;
use serde_json::json;

/// The model in `folder`, if there are models.
async fn load(folder: &str, context: u32) -> Option<Rc<Model>> {
    let Some(models) = std::env::var_os("JIRD_MODELS").map(PathBuf::from) else {
        println!("skipped: JIRD_MODELS names no folder of real models");
        return None;
    };
    let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
    let repo = Repo::new(FolderOpener::new(models.join(folder)));
    let options = LoadOptions { dtype: WeightDtype::F32, context: Some(context), ..LoadOptions::default() };
    Some(Model::load(&gpu, repo, options, Rc::new(())).await.expect("the model"))
}

async fn finish(model: &Rc<Model>, prompt: Prompt, max_tokens: u32) -> (String, Vec<u32>, Stats) {
    let options = GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() };
    let mut generation = model.generate(&prompt, options).expect("a generation");
    let (mut text, mut ids) = (String::new(), Vec::new());
    while let Some(piece) = generation.next().await.expect("a piece") {
        text += &piece.text();
        ids.extend(piece.ids);
    }
    (text, ids, generation.stats())
}

fn check(folder: &str, reference: &str) {
    let expected: serde_json::Value = serde_json::from_str(reference).expect("the reference");
    pollster::block_on(async {
        let Some(model) = load(folder, 64).await else { return };
        let prompt = Prompt::Text(expected["prompt"].as_str().expect("a prompt").to_owned());
        let (_, ids, _) = finish(&model, prompt, 16).await;
        assert_eq!(serde_json::json!(ids), expected["ids"], "{folder}");
    });
}

#[test]
fn the_template_renders_an_answer_as_the_model_wrote_it_so_that_it_is_held() {
    pollster::block_on(async {
        let Some(model) = load("smollm2", 128).await else { return };
        let mut messages = vec![json!({"role": "user", "content": "Name one small rodent."})];
        let (answer, _, first) = finish(&model, Prompt::Messages(messages.clone().into()), 12).await;
        messages.push(json!({"role": "assistant", "content": answer}));
        messages.push(json!({"role": "user", "content": "And a large one?"}));
        let (_, _, second) = finish(&model, Prompt::Messages(messages.into()), 2).await;
        assert_eq!(first.cached_tokens, 0);
        // All but the answer's last token, which was chosen and not submitted.
        assert!(second.cached_tokens >= first.prompt_tokens + first.new_tokens - 2, "{first:?} {second:?}");
    });
}

#[test]
fn smollm2() {
    check("smollm2", include_str!("fixtures/smollm2.json"));
}

#[test]
fn gemma3() {
    if std::env::var_os("JIRD_FULL").is_none() {
        println!("skipped: Gemma 3 runs with JIRD_FULL, as by ./run test --full");
        return;
    }
    check("gemma3", include_str!("fixtures/gemma3.json"));
}
