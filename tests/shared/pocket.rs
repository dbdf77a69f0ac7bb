//! `models/pocket` against transformers on held-out prompts, through the whole engine: run natively and in browsers.

use std::rc::Rc;

use jird::engine::{GenerateOptions, Model, Prompt};
use serde_json::Value as Json;

/// A prompt, and what transformers makes of it from the stored weights, greedily.
#[derive(serde::Deserialize)]
pub struct Asked {
    pub messages: Json,
    pub tools: Option<Json>,
    pub thinking: bool,
    /// The ids of the rendered prompt.
    pub prompt: Vec<u32>,
    /// The answer, the stop token included.
    pub ids: Vec<u32>,
    /// By how much the logit of each of `ids` leads the next.
    gaps: Vec<f32>,
    pub text: String,
    pub first_logits: Logits,
}

/// The largest logits after the prompt.
#[derive(serde::Deserialize)]
pub struct Logits {
    pub ids: Vec<u32>,
    pub values: Vec<f32>,
}

pub fn prompts() -> Vec<Asked> {
    serde_json::from_str(include_str!("../fixtures/pocket/prompts.json"))
        .expect("tests/fixtures/pocket/prompts.json")
}

/// Logits of up to 30 that lie this close may change places by rounding, most of all of keys and values to halves.
const NEAR_TIE: f32 = 0.03;

/// Every greedy answer is that of transformers, token for token, up to the first near-tie. Gives a line for each that
/// parts there.
pub async fn answers_as_transformers_does(model: &Rc<Model>) -> Vec<String> {
    let mut parted = Vec::new();
    for asked in prompts() {
        let options = GenerateOptions {
            max_tokens: Some(asked.ids.len() as u32),
            tools: asked.tools.clone(),
            thinking: asked.thinking.then_some(true),
            ..GenerateOptions::default()
        };
        let prompt = Prompt::Messages(asked.messages.clone());
        let mut generation = model.generate(&prompt, options).expect("a generation");
        let mut ids = Vec::new();
        while let Some(piece) = generation.next().await.expect("a piece") {
            ids.extend(piece.ids);
        }
        let told = || format!("{:?}: {:?}", asked.text, model.tokenizer().decode(&ids, false));
        assert_eq!(generation.stats().prompt_tokens as usize, asked.prompt.len(), "{}", told());
        if let Some(at) = (0..asked.ids.len()).find(|&at| ids.get(at) != asked.ids.get(at)) {
            let gap = asked.gaps[at];
            assert!(gap < NEAR_TIE, "token {at}, where the best logit leads by {gap}, of {}", told());
            parted.push(format!("parts at token {at}, where the best logit leads by {gap}, from {}", told()));
        }
    }
    parted
}
