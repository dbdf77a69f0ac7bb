//! Real models continue a text as the reference implementation does. The models lie in the folder
//! JIRD_MODELS; Gemma 3 only with JIRD_FULL, since it is slow on a software device.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::rc::Rc;

use jird::engine::{GenerateOptions, LoadOptions, Model, Prompt};
use jird::fetch::{FolderOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;

fn check(folder: &str, reference: &str) {
    let Some(models) = std::env::var_os("JIRD_MODELS").map(PathBuf::from) else {
        println!("skipped: JIRD_MODELS names no folder of real models");
        return;
    };
    let expected: serde_json::Value = serde_json::from_str(reference).expect("the reference");
    let ids = pollster::block_on(async {
        let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
        let repo = Repo::new(FolderOpener::new(models.join(folder)));
        let options = LoadOptions { dtype: WeightDtype::F32, context: Some(64), ..LoadOptions::default() };
        let model = Model::load(&gpu, repo, options, Rc::new(())).await.expect("the model");
        let prompt = Prompt::Text(expected["prompt"].as_str().expect("a prompt").to_owned());
        let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::default() };
        let mut generation = model.generate(&prompt, options).expect("a generation");
        let mut ids = Vec::new();
        while let Some(piece) = generation.next().await.expect("a piece") {
            ids.extend(piece.ids);
        }
        ids
    });
    assert_eq!(serde_json::json!(ids), expected["ids"], "{folder}");
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
