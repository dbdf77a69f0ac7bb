//! Every kernel variant against its CPU twin, on this machine's Vulkan device, with and without subgroups.
#![cfg(not(target_arch = "wasm32"))]
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

#[macro_use]
#[path = "shared/kernels.rs"]
mod cases;

use cases::Rig;
use jird::kernels::{Argmax, Step, Threshold};

fn both(case: impl AsyncFn(&mut Rig)) {
    for subgroups in [false, true] {
        pollster::block_on(async {
            let mut rig = Rig::open(subgroups).await;
            case(&mut rig).await;
        });
    }
}

macro_rules! kernels {
    ($($case:ident),*) => {
        $(#[test]
        fn $case() {
            both(cases::$case);
        })*
    };
}

every_kernel!(kernels);

/// Draws follow the softmax of what is kept. The twins show it: `sampling` says that kernels draw as they do.
#[test]
fn sampling_distribution() {
    let logits = [1.0f32, 2.0, 0.0, 3.0, -1.0];
    let draws = 400;
    let mut counts = [0u32; 5];
    for position in 0..draws {
        let step =
            Step { position, rows: 1, seed: 3, top_k: 4, temperature: 2.0, top_p: 1.0, ..Step::default() };
        let threshold = Threshold { n: 5, subgroup_min: None };
        counts[Argmax::cpu_sampled(&step, threshold.cpu(&step, &logits), &logits) as usize] += 1;
    }
    let mass: Vec<f64> = logits[..4].iter().map(|&logit| f64::from(logit / 2.0).exp()).collect();
    let total: f64 = mass.iter().sum();
    assert_eq!(counts[4], 0, "the fifth token is outside of the top four");
    for (count, mass) in counts.iter().zip(mass) {
        let expected = mass / total * f64::from(draws);
        assert!((f64::from(*count) - expected).abs() < 4.0 * expected.sqrt(), "{counts:?}");
    }
}
