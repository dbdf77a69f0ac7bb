//! Affine quantisation of one group: the scale, the bias and the codes with a small squared error.
//!
//! The range from the least to the greatest value is only a start: clipping the outliers a little makes
//! every other step finer. So several ranges are tried, and from each the scale and the bias are fitted to
//! the codes by least squares and the codes chosen anew. Every trial is judged after the scale and the bias
//! are rounded to f16, as the kernels will read them.

use half::f16;

/// The largest group, in values.
const MAX_GROUP: usize = 128;

/// Lanes of the sums, so that the compiler can use SIMD without reordering them.
const LANES: usize = 8;

/// The parts of the range cut off below and above by each start of the search, for few bits.
const STARTS: [(f32, f32); 4] = [(0.0, 0.0), (0.04, 0.04), (0.0, 0.08), (0.08, 0.0)];

/// Passes of fitting and choosing codes from each start.
const PASSES: usize = 3;

/// Codes up to this many bits are searched for from all starts; above, clipping gains nothing.
const SEARCHED_BITS: u32 = 4;

/// Encodes the groups of a row.
pub(super) struct GroupEncoder {
    bits: u32,
    levels: f32,
    precision: f32,
    offsets: [f32; MAX_GROUP],
    codes: [u8; MAX_GROUP],
}

/// A scale and a bias that f16 holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Affine {
    scale: f32,
    bias: f32,
}

impl Affine {
    fn rounded(scale: f32, bias: f32) -> Self {
        Self { scale: f16::from_f32(scale).to_f32(), bias: f16::from_f32(bias).to_f32() }
    }
}
