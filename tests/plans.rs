//! The plans of every family as text: how fusion and memory are reviewed. They are compiled on this machine's
//! Vulkan device with subgroups off, so that the text is the same on every device.
//!
//! `JIRD_BLESS=1 cargo test --test plans` rewrites the files in tests/fixtures/plans.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "tests/models.rs runs the cases; here are only its models")]
#[path = "shared/models.rs"]
mod cases;

use std::fs;
use std::path::Path;

use cases::{FIXTURES, Tiny};
use jird::gpu::{Gpu, GpuOptions};
use jird::models::Rows;
use jird::nn::Sampler;
use jird::plan::{Plan, PlanBuilder};

async fn load(name: &str) -> Tiny {
    let gpu =
        Gpu::open(GpuOptions { subgroups: false, ..GpuOptions::default() }).await.expect("a GPU device");
    let fixture = FIXTURES.iter().find(|fixture| fixture.name == name).expect("a fixture");
    Tiny::load(&gpu, fixture).await
}

/// The plan of a greedy step, as a session makes it.
fn plan(tiny: &Tiny, rows: u32) -> Plan {
    let mut builder = PlanBuilder::new(&tiny.gpu, rows, true);
    let mut residual = tiny.model.forward(&mut builder, &tiny.state, Rows::Last);
    let logits = tiny.model.logits(&mut builder, &tiny.state, &mut residual);
    Sampler::Greedy.forward(&mut builder, &tiny.state.inputs, logits);
    builder.compile().expect("a plan")
}

fn assert_snapshot(name: &str, dump: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/plans/{name}.txt"));
    if std::env::var("JIRD_BLESS").is_ok_and(|value| value == "1") {
        fs::write(&path, dump).expect("a written snapshot");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let changed =
        (1..).zip(dump.lines()).zip(kept.lines().chain(std::iter::repeat(""))).find(|((_, a), b)| a != b);
    assert!(
        dump == kept,
        "{} is not the plan any more, first at {changed:?}. Run with JIRD_BLESS=1 and review the difference.",
        path.display()
    );
}

/// A family's plans, and how many dispatches a decode step has in its layers and around them.
fn check(family: &str, fixture: &str, [layers, in_layer, around]: [usize; 3]) {
    pollster::block_on(async {
        let tiny = load(fixture).await;
        let decode = plan(&tiny, 1);
        assert_eq!(decode.dispatches().len(), layers * in_layer + around);
        assert_snapshot(&format!("{family}.decode"), &on_any_device(decode.dump()));
        assert_snapshot(&format!("{family}.prefill"), &on_any_device(plan(&tiny, 16).dump()));
    });
}

/// In a layer: query, key and value product; attention; output product; gate and up product; down product.
/// Around: embedding; head; choice of the token.
#[test]
fn llama() {
    check("llama", "llama/tied/config.json", [3, 5, 3]);
}

#[test]
fn gemma3() {
    check("gemma3", "gemma3/pattern/config.json", [7, 5, 3]);
}

/// In a layer besides: gate and projection of the per-layer inputs. Around besides: what the embedding tells all
/// layers; and where a layer's part of it can't be bound by itself, as is so in this tiny model alone, its sum
/// with the token's rows.
#[test]
fn gemma4() {
    check("gemma4", "gemma4/e2b/config.json", [8, 7, 5]);
}

#[test]
fn gemma4_as_released() {
    check("gemma4_mlx", "gemma4/mlx/config.json", [6, 7, 4]);
}

/// Where the device has timestamps, a profile knows every dispatch.
#[test]
fn profile() {
    pollster::block_on(async {
        let tiny = load("llama/tied/config.json").await;
        let decode = plan(&tiny, 1);
        // Some drivers compile at the first run.
        tiny.gpu.submit(tiny.gpu.encode(decode.dispatches(), &[]));
        let profile = tiny.gpu.profile(decode.dispatches()).await.expect("a profile");
        if profile.is_empty() {
            println!("skipped: this device has no timestamps");
            return;
        }
        assert_eq!(profile.len(), decode.dispatches().len());
        assert_eq!((profile[0].0, profile[2].0), ("gather", "decode_attention"));
        assert!(profile.iter().all(|(_, seconds)| (0.0..60.0).contains(seconds)), "{profile:?}");
    });
}

/// The dump without what depends on the device.
fn on_any_device(dump: &str) -> String {
    dump.replace("busy_workgroups: 4,", "busy_workgroups: 256,")
}
