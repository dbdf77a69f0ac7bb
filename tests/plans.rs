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

/// Query, key and value product; rotation and append; attention; output product; gate and up product; down
/// product.
const DISPATCHES_PER_LAYER: usize = 6;
/// Embedding; head; choice of the token in two.
const DISPATCHES_AROUND: usize = 4;

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

fn check(family: &str, fixture: &str) {
    pollster::block_on(async {
        let tiny = load(fixture).await;
        let decode = plan(&tiny, 1);
        let layers = tiny.model.dimensions().caches.len();
        assert_eq!(decode.dispatches().len(), layers * DISPATCHES_PER_LAYER + DISPATCHES_AROUND);
        assert_snapshot(&format!("{family}.decode"), &on_any_device(decode.dump()));
        assert_snapshot(&format!("{family}.prefill"), &on_any_device(plan(&tiny, 16).dump()));
    });
}

#[test]
fn llama() {
    check("llama", "llama/tied/config.json");
}

#[test]
fn gemma3() {
    check("gemma3", "gemma3/pattern/config.json");
}

/// The dump without what depends on the device.
fn on_any_device(dump: &str) -> String {
    dump.replace("busy_workgroups: 4,", "busy_workgroups: 256,")
}
