//! Every kernel variant against its CPU twin, on this machine's Vulkan device, with and without subgroups.
#![cfg(not(target_arch = "wasm32"))]

#[path = "shared/kernels.rs"]
mod cases;

use cases::Rig;

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

kernels!(
    gemv,
    matmul,
    gather,
    rms_norm,
    gated_act,
    rope_append,
    attention,
    argmax,
    sampling,
    sampling_distribution
);
