//! Matrix times many vectors: the kernel of prefill.

use super::{Binding, Kernel, Prelude, weight};
use crate::checkpoint::WeightFormat;

/// `y[m, n] = Σ_k W[n, k] · x[m, k]`. Binds the weight, `x [m, columns]`, `y [m, y_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    /// Format of the weight.
    pub format: WeightFormat,
    /// Rows of `x` and `y`.
    pub m: u32,
    /// Rows of the weight.
    pub rows: u32,
    /// Columns of the weight, a multiple of [`super::Gemv::column_multiple`].
    pub columns: u32,
    /// Elements from one row of `y` to the next.
    pub y_stride: u32,
}

const TILE_N: u32 = 64;

impl Matmul {
    fn tile_m(&self) -> u32 {
        if self.m > 16 { 64 } else { 16 }
    }

    /// The CPU twin. `dense` is the weight as f32, row-major.
    pub fn cpu(&self, dense: &[f32], x: &[f32]) -> Vec<f32> {
        let (columns, stride) = (self.columns as usize, self.y_stride as usize);
        let mut y = vec![0.0; self.m as usize * stride];
        for (x, y) in x.chunks(columns).zip(y.chunks_mut(stride)) {
            for (w, y) in dense.chunks(columns).zip(y) {
                *y = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum::<f64>() as f32;
            }
        }
        y
    }
}

impl Kernel for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn template(&self) -> &'static str {
        include_str!("../../shaders/matmul.wgsl")
    }

    fn prelude(&self) -> Prelude {
        let mut prelude = Prelude::default();
        weight::prelude(&mut prelude, self.format);
        prelude
            .u32("M", self.m)
            .u32("N", self.rows)
            .u32("K", self.columns)
            .u32("Y_STRIDE", self.y_stride)
            .u32("TILE_M", self.tile_m());
        prelude
    }

    fn bindings(&self) -> Vec<Binding> {
        let mut bindings = weight::bindings(self.format);
        bindings.extend([Binding::Read, Binding::Write]);
        bindings
    }

    fn workgroups(&self) -> [u32; 3] {
        [self.rows.div_ceil(TILE_N), self.m.div_ceil(self.tile_m()), 1]
    }
}
