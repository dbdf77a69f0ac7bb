//! Every family against golden values, on this machine's Vulkan device.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[path = "shared/models.rs"]
mod cases;

use jird::gpu::{Gpu, GpuOptions};

/// Every fixture, or those of the one family that `JIRD_FAMILY` names.
fn each(case: impl AsyncFn(&std::rc::Rc<Gpu>, &cases::Fixture)) {
    let family = std::env::var("JIRD_FAMILY").unwrap_or_default();
    pollster::block_on(async {
        let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
        let mut fixtures =
            cases::FIXTURES.iter().filter(|fixture| fixture.name.starts_with(&family)).peekable();
        assert!(fixtures.peek().is_some(), "no fixture of the family {family}");
        for fixture in fixtures {
            case(&gpu, fixture).await;
        }
    });
}

#[test]
fn golden() {
    each(cases::golden);
}

#[test]
fn greedy() {
    each(cases::greedy);
}

#[test]
fn roll_back() {
    each(cases::roll_back);
}

#[test]
fn splits() {
    each(cases::splits);
}

/// Weights that no single binding can hold are cut by rows: the vocabulary of 320 rows into three, gate and up
/// into two.
#[test]
fn sharded() {
    pollster::block_on(async {
        let options = GpuOptions { max_binding_bytes: Some(32 << 10), ..GpuOptions::default() };
        let gpu = Gpu::open(options).await.expect("a GPU device");
        let fixture = cases::FIXTURES.iter().find(|fixture| fixture.name == "gemma3/pattern/config.json");
        cases::golden(&gpu, fixture.expect("the fixture")).await;
        cases::greedy(&gpu, fixture.expect("the fixture")).await;
    });
}
