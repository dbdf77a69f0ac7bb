//! RMSNorm over rows, with the residual update in front of it.

use super::{Binding, Input, Kernel, NormInput, Prelude};

/// `y = rms_norm(x [+ update])` row by row. Binds the input's reads, `y`, and the updated residual
/// (`keep_residual`), all `[m, columns]` but the weights `[columns]`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormKernel {
    /// The norm and the residual update before it.
    pub input: NormInput,
    /// Rows.
    pub m: u32,
    /// Columns, a multiple of 4.
    pub columns: u32,
    /// The smallest subgroup, where kernels may use subgroups.
    pub subgroup_min: Option<u32>,
}

impl Kernel for RmsNormKernel {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/rms_norm.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        Input::Norm(self.input).prelude(&mut prelude);
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .u32("WORKGROUP", 128)
            .u32("K", self.columns);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let input = Input::Norm(self.input);
        let mut bindings = input.bindings();
        bindings.push(Binding::Write);
        bindings.extend(input.kept());
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.m, 1, 1]
    }
}
