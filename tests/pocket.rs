//! The model of the repository, `models/pocket`, against transformers, on this machine's Vulkan device.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "only what loads a model and steps through it")]
#[path = "shared/models.rs"]
mod models;
#[path = "shared/pocket.rs"]
mod pocket;

use std::path::{Path, PathBuf};
use std::rc::Rc;

use jird::engine::{LoadOptions, Model};
use jird::fetch::{FolderOpener, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::models::Rows;
use jird::nn::WeightDtype;
use jird::text::Tokenizer;
use jird::text::chat::{ChatTemplate, RenderOptions};
use serde_json::{Map, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/pocket")
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).expect("a file of models/pocket")
}

fn repo() -> Repo {
    Repo::new(FolderOpener::new(folder()))
}

async fn gpu() -> Rc<Gpu> {
    Gpu::open(GpuOptions::default()).await.expect("a GPU device")
}

#[test]
fn answers_as_transformers_does() {
    pollster::block_on(async {
        let options = LoadOptions { context: Some(512), ..LoadOptions::default() };
        let model = Model::load(&gpu().await, repo(), options, Rc::new(())).await.expect("the model");
        for line in pocket::answers_as_transformers_does(&model).await {
            println!("{line}");
        }
    });
}

#[test]
fn prompts_have_the_ids_of_the_reference() {
    let tokenizer = Tokenizer::from_json(&file("tokenizer.json")).expect("a tokenizer");
    let source = String::from_utf8(file("chat_template.jinja")).expect("text");
    let template = ChatTemplate::from_jinja(&source, &file("tokenizer_config.json")).expect("a template");
    for asked in pocket::prompts() {
        let mut extra = Map::from_iter([("enable_thinking".to_owned(), json!(asked.thinking))]);
        extra.extend(asked.tools.map(|tools| ("tools".to_owned(), tools)));
        let options = RenderOptions { add_generation_prompt: true, extra, now: None };
        let ids = template.encode(&tokenizer, &asked.messages, &options).expect("ids");
        assert_eq!(ids, asked.prompt, "{}", asked.messages);
        assert_eq!(tokenizer.decode(&asked.ids, false), asked.text);
    }
}

#[test]
fn logits_after_the_prompt() {
    pollster::block_on(async {
        let longest = pocket::prompts().iter().map(|asked| asked.prompt.len()).max().expect("prompts") as u32;
        let config = file("config.json");
        let sizes = (longest, longest);
        let tiny = models::Tiny::open(&gpu().await, &repo(), &config, WeightDtype::F32, sizes).await;
        let prefill = tiny.plan(longest, true, Rows::Last);
        for asked in pocket::prompts() {
            let logits = tiny.step(&prefill, 0, &asked.prompt).await;
            for (&id, expected) in asked.first_logits.ids.iter().zip(asked.first_logits.values) {
                let got = logits[id as usize];
                assert!(
                    (got - expected).abs() < 1e-3,
                    "token {id}: {got}, not {expected}: {}",
                    asked.messages
                );
            }
        }
    });
}

/// What the repository and whoever clones it must bear.
#[test]
fn the_models_are_small() {
    for (name, most) in [("pocket", 12_000_000), ("pocket-embed", 4_000_000)] {
        let bytes = bytes_below(&folder().with_file_name(name));
        assert!(bytes > 1_000_000 && bytes <= most, "models/{name} has {bytes} bytes");
    }
}

fn bytes_below(path: &Path) -> u64 {
    let entries = path.read_dir().expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| match entry.metadata().expect("metadata") {
            data if data.is_dir() => bytes_below(&entry.path()),
            data => data.len(),
        })
        .sum()
}
