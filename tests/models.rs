//! Every family against golden values, on this machine's Vulkan device.
#![cfg(not(target_arch = "wasm32"))]

#[path = "shared/models.rs"]
mod cases;

use jird::gpu::{Gpu, GpuOptions};

fn each(case: impl AsyncFn(&std::rc::Rc<Gpu>, &cases::Fixture)) {
    pollster::block_on(async {
        let gpu = Gpu::open(GpuOptions::default()).await.expect("a GPU device");
        for fixture in &cases::FIXTURES {
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
