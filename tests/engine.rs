//! The engine on a tiny model: what it makes, what it refuses, and that nothing is left behind.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used)]

use std::collections::BTreeMap;
use std::rc::Rc;

use jird::engine::{
    ContextFull, FinishReason, GenerateOptions, Generation, LoadEvent, LoadObserver, LoadOptions, Model,
    Prompt, SessionOptions,
};
use jird::error::{Code, Error, Result};
use jird::fetch::{FolderOpener, MemoryOpener, MemoryStore, Repo};
use jird::gpu::{Gpu, GpuOptions};
use jird::nn::WeightDtype;
use jird::text::{Part, ToolCall};
use serde_json::{Value, json};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama/tied/");

type Files = BTreeMap<String, Vec<u8>>;

fn files() -> Files {
    ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
        .into_iter()
        .map(|name| (name.to_owned(), std::fs::read(format!("{FOLDER}{name}")).expect("a fixture")))
        .collect()
}

async fn gpu() -> Rc<Gpu> {
    Gpu::open(GpuOptions::default()).await.expect("a GPU device")
}

async fn load_with(gpu: &Rc<Gpu>, files: Files, options: LoadOptions) -> Result<Rc<Model>> {
    Model::load(gpu, Repo::new(MemoryOpener::new(files)), options, Rc::new(())).await
}

async fn load(gpu: &Rc<Gpu>) -> Rc<Model> {
    load_with(gpu, files(), LoadOptions::default()).await.expect("the model")
}

async fn finish(generation: &mut Generation) -> (String, Vec<u32>) {
    let (mut text, mut ids) = (String::new(), Vec::new());
    while let Some(piece) = generation.next().await.expect("a piece") {
        text.push_str(&piece.text());
        ids.extend(piece.ids);
    }
    (text, ids)
}

fn some(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() }
}

fn text(prompt: &str) -> Prompt {
    Prompt::Text(prompt.to_owned())
}

#[test]
fn a_prompt_is_continued_and_counted() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let prompt_ids = model.tokenizer().encode(
            "the quick fox",
            jird::text::EncodeOptions { add_special_tokens: true, parse_special: true },
        );
        let mut generation = model.generate(&text("the quick fox"), some(20)).expect("a generation");
        let (first, ids) = finish(&mut generation).await;
        let stats = generation.stats();
        assert_eq!(stats.prompt_tokens as usize, prompt_ids.expect("ids").len());
        assert_eq!(stats.new_tokens as usize, ids.len());
        assert_eq!(first, model.tokenizer().decode(&ids, true));
        match stats.finish_reason {
            Some(FinishReason::Length) => assert_eq!(ids.len(), 20),
            reason => assert_eq!(reason, Some(FinishReason::Stop)),
        }
        assert!(stats.first_token_ms.is_some_and(|ms| ms > 0.0));

        // The same again, whatever ran in between.
        finish(&mut model.generate(&text("something else"), some(5)).expect("a generation")).await;
        let mut again = model.generate(&text("the quick fox"), some(20)).expect("a generation");
        assert_eq!(finish(&mut again).await.1, ids);
    });
}

#[test]
fn prompts_of_every_length_continue_as_if_they_were_decoded_token_by_token() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        // Around the buckets of prefill: 1, 16, 64, 256, and more than one chunk.
        let long = "a b ".repeat(200);
        for bytes in [1, 2, 31, 33, 127, 129, 520, 640] {
            let prompt = &long[..bytes];
            let mut whole = model.generate(&text(prompt), some(2)).expect("a generation");
            let (_, ids) = finish(&mut whole).await;
            let continued = format!("{prompt}{}", model.tokenizer().decode(&ids[..1], false));
            let mut next = model.generate(&text(&continued), some(1)).expect("a generation");
            // Where the longer text happens to be cut into the same tokens, its first new token is the second.
            let (_, next_ids) = finish(&mut next).await;
            if next.stats().prompt_tokens == whole.stats().prompt_tokens + 1 && ids.len() == 2 {
                assert_eq!(next_ids[0], ids[1], "after {bytes} bytes");
            }
        }
    });
}

#[test]
fn draws_repeat_with_their_seed_and_differ_without() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let mut drawn = Vec::new();
        for seed in [1, 1, 2] {
            let options = GenerateOptions { temperature: 1.5, seed, ..some(24) };
            drawn.push(finish(&mut model.generate(&text("a"), options).expect("a generation")).await.1);
        }
        assert_eq!(drawn[0], drawn[1]);
        assert_ne!(drawn[0], drawn[2]);
        // Of one candidate the draw is the greedy choice.
        let options = GenerateOptions { temperature: 1.5, top_k: 1, ..some(8) };
        let single = finish(&mut model.generate(&text("a"), options).expect("a generation")).await;
        assert_eq!(single, finish(&mut model.generate(&text("a"), some(8)).expect("a generation")).await);
    });
}

#[test]
fn a_stop_sequence_ends_the_text_before_itself() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let (whole, ids) = finish(&mut model.generate(&text("the"), some(24)).expect("a generation")).await;
        let middle: String = whole.chars().skip(whole.chars().count() / 2).take(3).collect();
        let options = GenerateOptions { stop: vec![middle.clone()], ..some(24) };
        let mut generation = model.generate(&text("the"), options).expect("a generation");
        let (stopped, stopped_ids) = finish(&mut generation).await;
        assert_eq!(stopped, whole[..whole.find(&middle).expect("the stop sequence")]);
        assert!(stopped_ids.len() <= ids.len());
        assert_eq!(generation.stats().finish_reason, Some(FinishReason::Stop));
    });
}

#[test]
fn cancelling_ends_it_and_leaves_the_model_usable() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load(&gpu).await;
        let reference = finish(&mut model.generate(&text("the"), some(6)).expect("a generation")).await;
        let before = gpu.ledger().total();
        for _ in 0..3 {
            let mut generation = model.generate(&text("the"), some(50)).expect("a generation");
            generation.next().await.expect("a piece");
            generation.cancel();
            assert_eq!(generation.next().await.expect("the end"), None);
            assert_eq!(generation.stats().finish_reason, Some(FinishReason::Cancelled));
        }
        assert_eq!(
            finish(&mut model.generate(&text("the"), some(6)).expect("a generation")).await,
            reference
        );
        assert_eq!(gpu.ledger().total(), before);
    });
}

#[test]
fn messages_go_through_the_chat_template() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let messages = Prompt::Messages(json!([{ "role": "user", "content": "hello" }]));
        let plain = model.generate(&text("hello"), some(1)).expect("a generation").stats().prompt_tokens;
        let mut chat = model.generate(&messages, some(3)).expect("a generation");
        assert!(chat.stats().prompt_tokens > plain);
        finish(&mut chat).await;
    });
}

#[test]
fn the_context_is_a_bound() {
    pollster::block_on(async {
        let options = LoadOptions { context: Some(12), ..LoadOptions::default() };
        let model = load_with(&gpu().await, files(), options).await.expect("the model");
        let error = model.generate(&text(&"a b ".repeat(20)), some(1)).err().expect("an error");
        assert_eq!(error.code(), Code::ContextFull);
        let mut generation = model.generate(&text("a b"), GenerateOptions::default()).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        let stats = generation.stats();
        let is_full = stats.prompt_tokens as usize + ids.len() == 12;
        let reason = if is_full { FinishReason::Context } else { FinishReason::Stop };
        assert_eq!(stats.finish_reason, Some(reason));
    });
}

fn chat(turns: &[(&str, &str)]) -> Prompt {
    let messages = turns.iter().map(|(role, content)| json!({ "role": role, "content": content }));
    Prompt::Messages(messages.collect())
}

/// The ids that a model which holds nothing makes of `prompt`.
async fn fresh(gpu: &Rc<Gpu>, prompt: &Prompt, options: GenerateOptions) -> Vec<u32> {
    let model = load(gpu).await;
    finish(&mut model.generate(prompt, options).expect("a generation")).await.1
}

#[test]
fn a_further_turn_computes_only_what_is_new_and_says_the_same() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load(&gpu).await;
        let first = chat(&[("system", "be brief"), ("user", "the quick fox")]);
        let mut generation = model.generate(&first, some(12)).expect("a generation");
        let (answer, _) = finish(&mut generation).await;
        assert_eq!(generation.stats().cached_tokens, 0);
        let first_tokens = generation.stats().prompt_tokens;

        let turns =
            [("system", "be brief"), ("user", "the quick fox"), ("assistant", &answer), ("user", "and then")];
        let mut generation = model.generate(&chat(&turns), some(12)).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        let stats = generation.stats();
        // The template writes "assistant\n" before the answer in both, so the first prompt is held whole.
        assert!(
            stats.cached_tokens >= first_tokens && stats.cached_tokens < stats.prompt_tokens,
            "{stats:?}"
        );
        assert_eq!(ids, fresh(&gpu, &chat(&turns), some(12)).await);

        // The same prompt again: all but the last token are held.
        let mut generation = model.generate(&chat(&turns), some(12)).expect("a generation");
        assert_eq!(finish(&mut generation).await.1, ids);
        assert_eq!(generation.stats().cached_tokens, stats.prompt_tokens - 1);

        // History that was edited: what stands before the edit is held.
        let edited = [("system", "be brief"), ("user", "the slow fox"), ("assistant", "no"), ("user", "why")];
        let mut generation = model.generate(&chat(&edited), some(12)).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        assert!((1..first_tokens).contains(&generation.stats().cached_tokens));
        assert_eq!(ids, fresh(&gpu, &chat(&edited), some(12)).await);
    });
}

#[test]
fn what_an_early_end_left_is_known_exactly() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load(&gpu).await;
        let whole = fresh(&gpu, &text("the quick"), some(24)).await;
        let tokenizer = model.tokenizer();
        let prompt_ids = tokenizer
            .encode("the quick", jird::text::EncodeOptions { add_special_tokens: true, parse_special: true });
        let prompt_length = prompt_ids.expect("ids").len() as u32;
        for pulls in 0..6 {
            for is_cancelled in [true, false] {
                // Dropped or cancelled after some pulls, with steps still on their way.
                let mut generation = model.generate(&text("the quick"), some(24)).expect("a generation");
                for _ in 0..pulls {
                    generation.next().await.expect("a piece");
                }
                if is_cancelled {
                    generation.cancel();
                }
                drop(generation);
                let mut again = model.generate(&text("the quick"), some(24)).expect("a generation");
                assert_eq!(finish(&mut again).await.1, whole, "after {pulls} pulls");
                if pulls > 0 {
                    assert_eq!(again.stats().cached_tokens, prompt_length - 1);
                }
                // A prompt that shares only its first token.
                let mut other = model.generate(&text("they"), some(2)).expect("a generation");
                finish(&mut other).await;
            }
        }
        let stop = tokenizer.decode(&whole[4..6], true);
        let options = GenerateOptions { stop: vec![stop], ..some(24) };
        finish(&mut model.generate(&text("the quick"), options).expect("a generation")).await;
        let mut again = model.generate(&text("the quick"), some(24)).expect("a generation");
        assert_eq!(finish(&mut again).await.1, whole);
        assert_eq!(again.stats().cached_tokens, prompt_length - 1);
    });
}

#[test]
fn long_prompts_are_taken_up_in_the_middle_of_a_chunk() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load(&gpu).await;
        let long = "a b ".repeat(150);
        for (held, bytes) in [(600, 520), (100, 600), (20, 40), (599, 600)] {
            finish(&mut model.generate(&text(&long[..held]), some(1)).expect("a generation")).await;
            let prompt = text(&format!("{}x", &long[..bytes]));
            let mut generation = model.generate(&prompt, some(6)).expect("a generation");
            let (_, ids) = finish(&mut generation).await;
            assert!(generation.stats().cached_tokens > 0);
            assert_eq!(ids, fresh(&gpu, &prompt, some(6)).await, "{held} then {bytes} bytes");
        }
    });
}

/// Gemma 3's sliding layers with the other fixture's tokenizer.
fn sliding_files() -> Files {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gemma3/pattern/");
    let mut files = files();
    for name in ["config.json", "model.safetensors"] {
        files.insert(name.to_owned(), std::fs::read(format!("{folder}{name}")).expect("a fixture"));
    }
    files
}

#[test]
fn going_back_further_than_a_window_is_exact_too() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let load = || load_with(&gpu, sliding_files(), LoadOptions::default());
        let model = load().await.expect("the model");
        let long = "a b c d ".repeat(30);
        for (held, bytes) in [(200, 190), (200, 20), (16, 200), (200, 2), (199, 200)] {
            finish(&mut model.generate(&text(&long[..held]), some(4)).expect("a generation")).await;
            let prompt = text(&format!("{}x", &long[..bytes]));
            let (_, ids) = finish(&mut model.generate(&prompt, some(8)).expect("a generation")).await;
            let fresh = load().await.expect("the model");
            let (_, reference) = finish(&mut fresh.generate(&prompt, some(8)).expect("a generation")).await;
            assert_eq!(ids, reference, "{held} then {bytes} bytes");
        }
    });
}

#[test]
fn sessions_keep_their_conversations_side_by_side() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load(&gpu).await;
        let one_cache = gpu.ledger().live(jird::gpu::Usage::KvCache);
        let before = gpu.ledger().total();
        let prompts = [text("the quick fox"), text("a slow and heavy bear")];
        let references = [fresh(&gpu, &prompts[0], some(16)).await, fresh(&gpu, &prompts[1], some(16)).await];

        let session = model.session(SessionOptions::default()).await.expect("a session");
        assert_eq!(gpu.ledger().live(jird::gpu::Usage::KvCache), 2 * one_cache);
        // Token by token in turn, the model's own session and the other.
        let mut generations = [
            model.generate(&prompts[0], some(16)).expect("a generation"),
            session.generate(&prompts[1], some(16)).expect("a generation"),
        ];
        let mut ids = [Vec::new(), Vec::new()];
        loop {
            let mut is_over = true;
            for (generation, ids) in generations.iter_mut().zip(&mut ids) {
                if let Some(piece) = generation.next().await.expect("a piece") {
                    ids.extend(piece.ids);
                    is_over = false;
                }
            }
            if is_over {
                break;
            }
        }
        assert_eq!(ids, references);
        // Each still holds its own.
        let mut again = session.generate(&prompts[1], some(16)).expect("a generation");
        assert_eq!(finish(&mut again).await.1, references[1]);
        assert_eq!(again.stats().cached_tokens, again.stats().prompt_tokens - 1);
        drop((generations, again, session));
        assert!(gpu.ledger().total() < before + one_cache);
        assert_eq!(gpu.ledger().live(jird::gpu::Usage::KvCache), one_cache);

        let small = model.session(SessionOptions { context: Some(32) }).await.expect("a session");
        assert_eq!(small.context(), 32);
        let too_large = SessionOptions { context: Some(513) };
        assert_eq!(code_of(model.session(too_large).await), Code::InvalidArgument);
        let long = text(&"a b ".repeat(40));
        assert_eq!(code_of(small.generate(&long, some(1))), Code::ContextFull);
    });
}

#[test]
fn a_generation_ends_when_the_next_one_of_its_session_begins() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let mut first = model.generate(&text("the"), some(8)).expect("a generation");
        first.next().await.expect("a piece");
        let mut second = model.generate(&text("a"), some(8)).expect("a generation");
        first.next().await.expect("the second has not begun");
        let expected = second.next().await.expect("a piece");
        assert_eq!(code_of(first.next().await), Code::InvalidArgument);
        assert_eq!(first.next().await.expect("the end"), None);
        assert!(expected.is_some());
        finish(&mut second).await;
    });
}

async fn load_small(gpu: &Rc<Gpu>, context: u32) -> Rc<Model> {
    let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
    load_with(gpu, files(), options).await.expect("the model")
}

fn slide(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { context_full: ContextFull::Slide, ..some(max_tokens) }
}

#[test]
fn sliding_drops_whole_turns_and_keeps_the_system_message() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load_small(&gpu, 128).await;
        let mut turns = vec![("system", "be brief")];
        let pairs = [("user", "the quick fox"), ("assistant", "jumps over")];
        (0..4).for_each(|_| turns.extend(pairs));
        turns.push(("user", "why"));
        // All of it does not fit.
        assert_eq!(code_of(model.generate(&chat(&turns), some(1))), Code::ContextFull);
        let mut generation = model.generate(&chat(&turns), slide(8)).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        let stats = generation.stats();
        assert!(stats.prompt_tokens <= 64, "{stats:?}");

        // It is the answer to the shortened conversation.
        let shortened = (0..=4).map(|dropped| {
            let kept = [&turns[..1], &turns[1 + 2 * dropped..]].concat();
            model.generate(&chat(&kept), some(8))
        });
        let mut same = shortened.flatten().find(|other| other.stats().prompt_tokens == stats.prompt_tokens);
        let same = same.as_mut().expect("a conversation without its first turns");
        assert_eq!(finish(same).await.1, ids);

        // The next turn begins alike, so that most of it is held.
        finish(&mut model.generate(&chat(&turns), slide(8)).expect("a generation")).await;
        turns.extend([("assistant", "so"), ("user", "and")]);
        let mut next = model.generate(&chat(&turns), slide(8)).expect("a generation");
        finish(&mut next).await;
        assert!(next.stats().cached_tokens >= stats.prompt_tokens / 2, "{:?}", next.stats());

        // The last turn alone is too long.
        let long = "a b ".repeat(100);
        assert_eq!(code_of(model.generate(&chat(&[("user", &long)]), slide(1))), Code::ContextFull);
    });
}

/// Loads without end tokens, so that only limits end a text.
async fn load_endless(gpu: &Rc<Gpu>, context: u32) -> Rc<Model> {
    let mut files = files();
    edit_json(&mut files, "config.json", |config| config["eos_token_id"] = json!(null));
    let options = LoadOptions { context: Some(context), ..LoadOptions::default() };
    load_with(gpu, files, options).await.expect("the model")
}

#[test]
fn a_text_goes_on_past_the_context_when_it_slides() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let model = load_endless(&gpu, 64).await;
        // A text: BOS and the newest tokens are kept.
        let mut generation = model.generate(&text("the quick fox"), slide(200)).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        assert_eq!((ids.len(), generation.stats().finish_reason), (200, Some(FinishReason::Length)));
        // Up to where the context was full, it is what a large context makes.
        let large = load_endless(&gpu, 512).await;
        let mut whole = large.generate(&text("the quick fox"), some(200)).expect("a generation");
        let (_, reference) = finish(&mut whole).await;
        let room = 64 - generation.stats().prompt_tokens as usize;
        assert_eq!(ids[..room], reference[..room]);

        // Messages: the first turn goes, and then there is none that could.
        let turns = [("user", "the quick fox"), ("assistant", "no"), ("user", "why")];
        let mut generation = model.generate(&chat(&turns), slide(200)).expect("a generation");
        let (_, ids) = finish(&mut generation).await;
        let stats = generation.stats();
        assert_eq!(stats.finish_reason, Some(FinishReason::Context));
        assert!(ids.len() as u32 + stats.prompt_tokens > 64, "{stats:?}");
        // The slide continues exactly as the shortened conversation with the answer so far would.
        let room = 64 - stats.prompt_tokens as usize;
        let mut short = large.generate(&chat(&turns[2..]), some(1)).expect("a generation");
        finish(&mut short).await;
        assert_eq!(ids.len(), 64 - short.stats().prompt_tokens as usize);
        assert!(room < ids.len());
    });
}

#[test]
fn tools_and_thinking_reach_the_template() {
    pollster::block_on(async {
        let mut files = files();
        let template = "{{ tools | tojson if tools }}{{ enable_thinking }}{% for m in messages %}{{ m.content }}{% endfor %}";
        edit_json(&mut files, "tokenizer_config.json", |config| config["chat_template"] = json!(template));
        let model = load_with(&gpu().await, files, LoadOptions::default()).await.expect("the model");
        let tokens = |options: GenerateOptions| {
            let prompt = chat(&[("user", "hi")]);
            model.generate(&prompt, options).expect("a generation").stats().prompt_tokens
        };
        let plain = tokens(some(1));
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        assert!(tokens(GenerateOptions { tools: Some(tools.clone()), ..some(1) }) > plain + 10);
        assert!(tokens(GenerateOptions { thinking: Some(true), ..some(1) }) > plain);
        let options = GenerateOptions { tools: Some(tools), ..some(1) };
        assert_eq!(code_of(model.generate(&text("hi"), options)), Code::InvalidArgument);
        let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
        assert_eq!(code_of(model.generate(&Prompt::Messages(image), some(1))), Code::Unsupported);
    });
}

/// Gives the special token `special` the id `id`, and the token that had it the other's.
fn swap_ids(tokenizer: &mut Value, special: u32, id: u32, content: &str) {
    let added = tokenizer["added_tokens"].as_array_mut().expect("added tokens");
    let token = added.iter_mut().find(|token| token["id"] == json!(special)).expect("a special token");
    let old = token["content"].as_str().expect("text").to_owned();
    token["id"] = json!(id);
    token["content"] = json!(content);
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    vocab.remove(&old);
    let other = vocab.values_mut().find(|value| **value == json!(id)).expect("a token");
    *other = json!(special);
    vocab.insert(content.to_owned(), json!(id));
}

#[test]
fn what_stands_between_markers_is_a_part_of_its_own() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let ids = fresh(&gpu, &text("the"), some(8)).await;
        // The first token that the model makes gets the spelling of a marker, and another one a third of its
        // own, so that the rest is between them.
        let mut files = files();
        let close = *ids[2..].iter().find(|&&id| id != ids[0] && id != ids[1]).expect("a third token");
        edit_json(&mut files, "tokenizer.json", |tokenizer| {
            swap_ids(tokenizer, 3, ids[0], "<think>");
            swap_ids(tokenizer, 0, close, "</think>");
        });
        let model = load_with(&gpu, files, LoadOptions::default()).await.expect("the model");
        let mut generation = model.generate(&text("the"), some(8)).expect("a generation");
        let (mut thoughts, mut answer, mut new_ids) = (String::new(), String::new(), Vec::new());
        while let Some(piece) = generation.next().await.expect("a piece") {
            answer += &piece.text();
            new_ids.extend(piece.ids);
            for part in piece.parts {
                if let Part::Thinking(thought) = part {
                    thoughts += &thought;
                }
            }
        }
        assert_eq!(new_ids, ids);
        let end = ids.iter().position(|&id| id == close).expect("the end of the thought");
        let decoded = |ids: &[u32]| model.tokenizer().decode(ids, true).trim_matches('\n').to_owned();
        assert_eq!(thoughts, decoded(&ids[1..end]));
        assert!(!thoughts.is_empty() && !answer.contains(&thoughts));
    });
}

/// The four tokens that the model makes first get the spellings of a whole call and of the end token.
#[test]
fn a_call_ends_the_generation_and_says_so() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let mut found = None;
        for prompt in ["the", "a", "b c", "fox", "quick", "jumps over", "x y z", "dog", "lazy", "1 2 3"] {
            let ids = fresh(&gpu, &text(prompt), some(4)).await;
            let is_distinct = (1..ids.len()).all(|at| !ids[..at].contains(&ids[at]));
            if ids.len() == 4 && is_distinct && ids.iter().all(|&id| id > 3) {
                found = Some((prompt, ids));
                break;
            }
        }
        let (prompt, ids) = found.expect("a prompt after which four different tokens come");
        let mut files = files();
        edit_json(&mut files, "config.json", |config| config["eos_token_id"] = json!(ids[3]));
        edit_json(&mut files, "tokenizer.json", |tokenizer| {
            swap_ids(tokenizer, 0, ids[0], "<tool_call>");
            swap_ids(tokenizer, 2, ids[1], r#"{"name": "f", "arguments": {"x": [1]}}"#);
            swap_ids(tokenizer, 3, ids[2], "</tool_call>");
        });
        let model = load_with(&gpu, files, LoadOptions::default()).await.expect("the model");
        let mut generation = model.generate(&text(prompt), some(8)).expect("a generation");
        let mut parts = Vec::new();
        while let Some(piece) = generation.next().await.expect("a piece") {
            parts.extend(piece.parts);
        }
        let arguments = json!({ "x": [1] });
        let call =
            ToolCall { name: "f".into(), arguments: arguments.as_object().expect("an object").clone() };
        assert_eq!(parts, [Part::ToolCall(call)]);
        assert_eq!(generation.stats().finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(generation.stats().new_tokens, 4);
    });
}

fn edit_json(files: &mut Files, name: &str, edit: impl Fn(&mut serde_json::Value)) {
    let mut value = serde_json::from_slice(&files[name]).expect("json");
    edit(&mut value);
    files.insert(name.to_owned(), serde_json::to_vec(&value).expect("json"));
}

/// The header's length and the header, replaced by what `edit` makes of them.
fn edit_header(files: &mut Files, edit: impl Fn(String) -> Vec<u8>) {
    let bytes = &files["model.safetensors"];
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).expect("text");
    let mut edited = edit(header);
    edited.extend(&bytes[8 + length..]);
    files.insert("model.safetensors".to_owned(), edited);
}

fn with_length(header: String) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

/// Every kind of bad input is a typed error, and the ledger is as it was.
#[test]
fn bad_models_are_refused_and_leave_nothing() {
    type Edit = Box<dyn Fn(&mut Files)>;
    let cases: Vec<(&str, Code, Edit)> = vec![
        ("no config.json", Code::Checkpoint, Box::new(|files| drop(files.remove("config.json")))),
        ("no tokenizer.json", Code::Checkpoint, Box::new(|files| drop(files.remove("tokenizer.json")))),
        ("no weights", Code::Checkpoint, Box::new(|files| drop(files.remove("model.safetensors")))),
        (
            "config.json is no JSON",
            Code::Config,
            Box::new(|files| drop(files.insert("config.json".into(), b"{".to_vec()))),
        ),
        (
            "unknown family",
            Code::Unsupported,
            Box::new(|files| edit_json(files, "config.json", |c| c["model_type"] = json!("mamba"))),
        ),
        (
            "no family",
            Code::Unsupported,
            Box::new(|files| edit_json(files, "config.json", |c| c["model_type"] = json!(null))),
        ),
        (
            "no heads",
            Code::Unsupported,
            Box::new(|files| edit_json(files, "config.json", |c| c["num_attention_heads"] = json!(0))),
        ),
        (
            "a hidden size of 2^31",
            Code::Unsupported,
            Box::new(|files| edit_json(files, "config.json", |c| c["hidden_size"] = json!(1u64 << 31))),
        ),
        (
            "a negative size",
            Code::Config,
            Box::new(|files| edit_json(files, "config.json", |c| c["hidden_size"] = json!(-64))),
        ),
        (
            "another model's sizes",
            Code::Checkpoint,
            Box::new(|files| edit_json(files, "config.json", |c| c["intermediate_size"] = json!(128))),
        ),
        (
            "more layers than weights",
            Code::MissingTensor,
            Box::new(|files| edit_json(files, "config.json", |c| c["num_hidden_layers"] = json!(4))),
        ),
        (
            "biases",
            Code::Unsupported,
            Box::new(|files| edit_json(files, "config.json", |c| c["attention_bias"] = json!(true))),
        ),
        (
            "a damaged tokenizer",
            Code::Tokenizer,
            Box::new(|files| drop(files.insert("tokenizer.json".into(), b"[]".to_vec()))),
        ),
        (
            "a truncated file",
            Code::Checkpoint,
            Box::new(|files| {
                files.get_mut("model.safetensors").expect("weights").truncate(5000);
            }),
        ),
        (
            "an empty file",
            Code::Checkpoint,
            Box::new(|files| {
                files.get_mut("model.safetensors").expect("weights").clear();
            }),
        ),
        (
            "a header of 2^63 bytes",
            Code::Checkpoint,
            Box::new(|files| {
                edit_header(files, |header| [&(1u64 << 63).to_le_bytes()[..], header.as_bytes()].concat())
            }),
        ),
        (
            "an unknown dtype",
            Code::Unsupported,
            Box::new(|files| edit_header(files, |header| with_length(header.replacen("BF16", "Q4_K", 1)))),
        ),
        (
            "integers for weights",
            Code::Unsupported,
            Box::new(|files| edit_header(files, |header| with_length(header.replace("BF16", "I16")))),
        ),
        (
            "a missing tensor",
            Code::MissingTensor,
            Box::new(|files| {
                edit_header(files, |header| {
                    with_length(header.replace("model.norm.weight", "model.morn.weight"))
                })
            }),
        ),
        (
            "overlapping offsets",
            Code::Checkpoint,
            Box::new(|files| {
                edit_header(files, |header| {
                    let at = header.rfind("\"data_offsets\":[").expect("offsets") + 16;
                    let end = at + header[at..].find(']').expect("the end");
                    let (from, to) = header[at..end].split_once(',').expect("two");
                    let [from, to] = [from, to].map(|n| n.trim().parse::<u64>().expect("a number") - 64);
                    with_length(format!("{}{from},{to}{}", &header[..at], &header[end..]))
                })
            }),
        ),
        (
            "a weight that is not a number",
            Code::Checkpoint,
            Box::new(|files| {
                let weights = files.get_mut("model.safetensors").expect("weights");
                let end = weights.len();
                weights[end - 2..].copy_from_slice(&[0xff, 0x7f]);
            }),
        ),
    ];
    pollster::block_on(async {
        let gpu = gpu().await;
        for (what, code, edit) in cases {
            let mut broken = files();
            edit(&mut broken);
            let error = load_with(&gpu, broken, LoadOptions::default())
                .await
                .err()
                .unwrap_or_else(|| panic!("{what}"));
            assert_eq!(error.code(), code, "{what}: {error}");
            assert!(error.to_string().len() > 30, "{what}: {error}");
            assert_eq!(gpu.ledger().total(), 0, "{what}");
        }
        let context = LoadOptions { context: Some(513), ..LoadOptions::default() };
        assert_eq!(code_of(load_with(&gpu, files(), context).await), Code::InvalidArgument);
        assert_eq!(code_of(WeightDtype::parse("int3")), Code::InvalidArgument);
    });
}

fn code_of<T>(result: Result<T>) -> Code {
    result.err().as_ref().map(Error::code).expect("an error")
}

#[test]
fn bad_options_and_prompts_are_refused() {
    pollster::block_on(async {
        let model = load(&gpu().await).await;
        let bad = [
            GenerateOptions { temperature: -1.0, ..some(1) },
            GenerateOptions { temperature: f32::NAN, ..some(1) },
            GenerateOptions { top_p: 0.0, ..some(1) },
            GenerateOptions { top_p: 1.5, ..some(1) },
            GenerateOptions { min_p: 2.0, ..some(1) },
            GenerateOptions { stop: vec![String::new()], ..some(1) },
            some(0),
        ];
        for options in bad {
            assert_eq!(
                code_of(model.generate(&text("a"), options.clone())),
                Code::InvalidArgument,
                "{options:?}"
            );
        }
        let nonsense = Prompt::Messages(json!({ "role": "user" }));
        assert!(matches!(
            code_of(model.generate(&nonsense, some(1))),
            Code::Template | Code::InvalidArgument
        ));
    });
}

/// Ends the load after a number of events.
struct Impatient(std::cell::Cell<u32>);

impl LoadObserver for Impatient {
    fn event(&self, _: LoadEvent<'_>) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    fn is_cancelled(&self) -> bool {
        self.0.get() == 0
    }
}

#[test]
fn weights_at_odd_addresses_are_the_same_weights() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let mut shifted = files();
        edit_header(&mut shifted, |header| {
            let header = header.trim_end();
            let padding = if header.len().is_multiple_of(2) { " " } else { "" };
            with_length(format!("{header}{padding}"))
        });
        let aligned = load(&gpu).await;
        let odd = load_with(&gpu, shifted, LoadOptions::default()).await.expect("the model");
        let mut ids = Vec::new();
        for model in [aligned, odd] {
            ids.push(finish(&mut model.generate(&text("the"), some(8)).expect("a generation")).await.1);
        }
        assert_eq!(ids[0], ids[1]);
    });
}

#[test]
fn an_aborted_load_leaves_nothing_and_a_dropped_model_too() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let repo = Repo::new(MemoryOpener::new(files()));
        let result = Model::load(&gpu, repo, LoadOptions::default(), Rc::new(Impatient(2.into()))).await;
        assert_eq!(code_of(result), Code::Aborted);
        assert_eq!(gpu.ledger().total(), 0);

        let model = load(&gpu).await;
        let mut generation = model.generate(&text("a"), some(4)).expect("a generation");
        finish(&mut generation).await;
        assert!(gpu.ledger().total() > 0);
        drop((generation, model));
        assert_eq!(gpu.ledger().total(), 0);
    });
}

/// Keeps (loaded, total, from cache) of the downloads, and the names of all events.
#[derive(Default)]
struct Recorder {
    downloads: std::cell::RefCell<Vec<(u64, u64, u64)>>,
    names: std::cell::RefCell<Vec<&'static str>>,
}

impl LoadObserver for Recorder {
    fn event(&self, event: LoadEvent<'_>) {
        let name = match event {
            LoadEvent::Open { .. } => "open",
            LoadEvent::Download { loaded, total, from_cache, .. } => {
                self.downloads.borrow_mut().push((loaded, total, from_cache));
                "download"
            }
            LoadEvent::Compile => "compile",
            LoadEvent::Uncached { .. } => "uncached",
            LoadEvent::Unused { .. } => "unused",
            LoadEvent::Retry { .. } => "retry",
            LoadEvent::Restart => "restart",
        };
        let mut names = self.names.borrow_mut();
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
}

#[test]
fn progress_begins_at_once_and_only_grows_and_ends_complete_and_tells_what_came_from_the_store() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let store = Rc::new(MemoryStore::new());
        let total = (files()["model.safetensors"].len() + files()["tokenizer.json"].len()) as u64;
        for cached in [0, total] {
            let recorder = Rc::new(Recorder::default());
            // Files in memory have no validator, without which nothing is stored.
            let repo = Repo::new(FolderOpener::new(FOLDER)).with_store(store.clone());
            Model::load(&gpu, repo, LoadOptions::default(), recorder.clone()).await.expect("the model");
            let downloads = recorder.downloads.borrow();
            assert!(downloads.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].2 <= pair[1].2));
            assert!(downloads.iter().all(|event| event.1 == total), "{downloads:?}");
            assert_eq!(downloads.last(), Some(&(total, total, cached)));
            assert_eq!(*recorder.names.borrow(), ["open", "download", "compile"]);
        }
        let recorder = Rc::new(Recorder::default());
        let nowhere = Repo::new(MemoryOpener::new(Files::new()));
        assert!(Model::load(&gpu, nowhere, LoadOptions::default(), recorder.clone()).await.is_err());
        assert_eq!(*recorder.names.borrow(), ["open"]);
    });
}

#[test]
fn every_dtype_loads_and_generates() {
    pollster::block_on(async {
        let gpu = gpu().await;
        let mut weights = Vec::new();
        for dtype in [WeightDtype::F32, WeightDtype::Auto, WeightDtype::F16, WeightDtype::Q8, WeightDtype::Q4]
        {
            let model = load_with(&gpu, files(), LoadOptions { dtype, ..LoadOptions::default() })
                .await
                .expect("the model");
            let (_, ids) = finish(&mut model.generate(&text("the"), some(4)).expect("a generation")).await;
            assert!(!ids.is_empty());
            weights.push(gpu.ledger().live(jird::gpu::Usage::Weights));
        }
        assert!(weights.windows(2).all(|pair| pair[0] >= pair[1]), "{weights:?}");
    });
}
