//! RMSNorm over rows, with the residual update in front of it.

use super::{Binding, Input, Kernel, Prelude};

/// `y = rms_norm(x [+ update])` row by row. Binds the input's reads, the step (`last_row`), `y`, and the
/// updated residual (`keep_residual`), all `[m, columns]` but the weights `[columns]`.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormKernel {
    /// The norm and the residual update before it.
    pub input: Input,
    /// Rows of `y`.
    pub m: u32,
    /// Whether the one row of `y` is made of the step's last real row. Not with `keep_residual`.
    pub last_row: bool,
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
        self.input.prelude(&mut prelude);
        prelude
            .subgroups(self.subgroup_min)
            .alias("Acc", "vec4<f32>")
            .flag("LAST_ROW", self.last_row)
            .u32("WORKGROUP", 128)
            .u32("K", self.columns);
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = self.input.bindings();
        bindings.extend(self.last_row.then_some(Binding::Uniform));
        bindings.push(Binding::Write);
        bindings.extend(self.input.kept());
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.m, 1, 1]
    }
}
