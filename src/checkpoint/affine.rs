//! Affine quantisation of one group: the scale, the bias and the codes with a small squared error.
//!
//! The range from the least to the greatest value is only a start: clipping the outliers a little makes
//! every other step finer. So several ranges are tried, and from each the scale and the bias are fitted to
//! the codes by least squares and the codes chosen anew. Every trial is judged after the scale and the bias
//! are rounded to f16, as the kernels will read them.

use half::f16;

/// The least squared error found is worth this many starts: parts of the range that each start cuts off
/// below and above. Only for few bits; with many, clipping gains nothing.
const STARTS: [(f32, f32); 4] = [(0.0, 0.0), (0.04, 0.04), (0.0, 0.08), (0.08, 0.0)];

/// Codes of more bits are fitted from the first start only.
const SEARCHED_BITS: u32 = 4;

/// Passes from each start: each chooses codes, then fits scale and bias to them.
const PASSES: usize = 3;

/// Lanes of the sums, so that the compiler can use SIMD without reordering a sum.
const LANES: usize = 8;

/// A scale and a bias, as f32 values that f16 holds exactly once they are [`rounded`](Self::rounded).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Affine {
    scale: f32,
    bias: f32,
}

impl Affine {
    fn rounded(scale: f32, bias: f32) -> Self {
        Self { scale: f16::from_f32(scale).to_f32(), bias: f16::from_f32(bias).to_f32() }
    }

    /// What the value is multiplied with to get its code; no code but 0 is of use when the scale is 0.
    fn inverse_scale(self) -> f32 {
        if self.scale == 0.0 { 0.0 } else { 1.0 / self.scale }
    }
}

/// A group's values with what the search needs of them.
struct Group<'a> {
    values: &'a [f32],
    min: f32,
    max: f32,
    levels: f32,
    /// Sum of the values, each less `min`, which keeps the fit well conditioned far from zero.
    sum: f64,
}

/// How well a scale and a bias serve a group, and the sums from which better ones are fitted.
struct Trial {
    affine: Affine,
    squared_error: f32,
    sum_code: f64,
    sum_code_code: f64,
    sum_code_value: f64,
}

/// Appends the packed codes of a group to `codes` and its scale and bias to `scales`.
///
/// `values` are finite, of at most f16's greatest value, and fill whole bytes. `precision` is the relative
/// spacing of the type that they come from: groups that lie on a lattice up to that are recognised.
pub(super) fn encode(values: &[f32], bits: u32, precision: f32, codes: &mut Vec<u8>, scales: &mut Vec<u8>) {
    let group = Group::new(values, bits);
    let affine = if group.min == group.max {
        constant(group.min)
    } else if bits <= SEARCHED_BITS {
        group.lattice(precision).unwrap_or_else(|| group.search(&STARTS))
    } else {
        group.search(&STARTS[..1])
    };
    group.pack(affine, bits, codes);
    scales.extend(f16::from_f32(affine.scale).to_le_bytes());
    scales.extend(f16::from_f32(affine.bias).to_le_bytes());
}

/// The values of packed codes; the twin of what the kernels do.
pub(super) fn decode(bits: u32, group_size: usize, codes: &[u8], scales: &[u8]) -> Vec<f32> {
    let mask = (1u32 << bits) - 1;
    let code_bytes = group_size * bits as usize / 8;
    let groups = codes.chunks_exact(code_bytes).zip(scales.as_chunks::<4>().0);
    groups
        .flat_map(|(codes, [s0, s1, b0, b1])| {
            let scale = f16::from_le_bytes([*s0, *s1]).to_f32();
            let bias = f16::from_le_bytes([*b0, *b1]).to_f32();
            codes.iter().flat_map(move |byte| {
                (0..8 / bits).map(move |i| scale * ((u32::from(*byte) >> (i * bits)) & mask) as f32 + bias)
            })
        })
        .collect()
}

/// Scale and bias of a group of one value: the scale, with code 1, holds what f16 rounds off the bias.
fn constant(value: f32) -> Affine {
    let bias = f16::from_f32(value).to_f32();
    Affine::rounded(value - bias, bias)
}

/// `value`, not negative and below 2^22, to the nearest integer, ties to even. Without SSE 4.1 the standard
/// library's rounding is a function call, which would keep the loops from being vectorised.
fn round(value: f32) -> f32 {
    const ULP_IS_ONE: f32 = (1u32 << 23) as f32;
    (value + ULP_IS_ONE) - ULP_IS_ONE
}

impl<'a> Group<'a> {
    fn new(values: &'a [f32], bits: u32) -> Self {
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = values.iter().map(|value| f64::from(value - min)).sum();
        Self { values, min, max, levels: ((1u32 << bits) - 1) as f32, sum }
    }

    /// The best of all passes from all `starts`, and from a start that covers the whole range even when f16
    /// cannot place the bias finely, as in a group far from zero.
    fn search(&self, starts: &[(f32, f32)]) -> Affine {
        let range = self.max - self.min;
        let cut = starts.iter().map(|(below, above)| {
            Affine::rounded(range * (1.0 - below - above) / self.levels, self.min + range * below)
        });
        let mut best = self.trial(self.covering());
        for start in cut {
            let mut affine = start;
            for _ in 0..PASSES {
                let trial = self.trial(affine);
                let fitted = self.fit(&trial).map(|(scale, bias)| Affine::rounded(scale, bias));
                if trial.squared_error < best.squared_error {
                    best = trial;
                }
                match fitted {
                    Some(fitted) if fitted != affine => affine = fitted,
                    _ => break,
                }
            }
        }
        best.affine
    }

    /// Scale and bias rounded outwards, so that no value is clipped.
    fn covering(&self) -> Affine {
        let mut bias = f16::from_f32(self.min);
        if bias.to_f32() > self.min {
            bias = next_down(bias);
        }
        let exact = (self.max - bias.to_f32()) / self.levels;
        let mut scale = f16::from_f32(exact);
        if scale.to_f32() < exact {
            scale = f16::from_bits(scale.to_bits() + 1);
        }
        Affine { scale: scale.to_f32(), bias: bias.to_f32() }
    }

    /// Chooses the codes for a scale and a bias, and sums up.
    fn trial(&self, affine: Affine) -> Trial {
        let Affine { scale, bias } = affine;
        let inverse = affine.inverse_scale();
        let mut error = [0f32; LANES];
        let mut code = [0f32; LANES];
        let mut code_code = [0f32; LANES];
        let mut code_value = [0f32; LANES];
        for values in self.values.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                let value = values[lane];
                let c = round(((value - bias) * inverse).max(0.0).min(self.levels));
                let difference = scale * c + bias - value;
                error[lane] += difference * difference;
                code[lane] += c;
                code_code[lane] += c * c;
                code_value[lane] += c * (value - self.min);
            }
        }
        let sum = |lanes: [f32; LANES]| lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        Trial {
            affine,
            squared_error: error.iter().sum(),
            sum_code: sum(code),
            sum_code_code: sum(code_code),
            sum_code_value: sum(code_value),
        }
    }

    /// Scale (of f16) and bias (not rounded) of the least squared error for the codes of a trial; `None` if
    /// all codes are the same.
    fn fit(&self, trial: &Trial) -> Option<(f32, f32)> {
        let count = self.values.len() as f64;
        let determinant = count * trial.sum_code_code - trial.sum_code * trial.sum_code;
        if determinant <= 0.0 {
            return None;
        }
        let scale = (count * trial.sum_code_value - trial.sum_code * self.sum) / determinant;
        let scale = f16::from_f64(scale).to_f64();
        let bias = (self.sum - scale * trial.sum_code) / count + f64::from(self.min);
        Some((scale as f32, bias as f32))
    }

    /// Scale and bias of a group whose values are all `least + k * step`, as those of a checkpoint that was
    /// trained for quantisation or dequantised; `None` if they are not, up to the `precision` of their type.
    fn lattice(&self, precision: f32) -> Option<Affine> {
        let range = self.max - self.min;
        let tolerance = (precision + 4.0 * f32::EPSILON) * self.max.abs().max(self.min.abs());
        let mut best: Option<Trial> = None;
        for steps in 1..=self.levels as u32 {
            let step = range / steps as f32;
            if step < 4.0 * tolerance {
                break;
            }
            if !self.lies_on(step, tolerance) {
                continue;
            }
            let Some((scale, least)) = self.fit(&self.trial(Affine { scale: step, bias: self.min })) else {
                continue;
            };
            // The least value may have any code that leaves room for the steps above it; with the right
            // one f16 holds the bias exactly.
            for code in 0..=self.levels as u32 - steps {
                let trial = self.trial(Affine::rounded(scale, least - scale * code as f32));
                if best.as_ref().is_none_or(|best| trial.squared_error < best.squared_error) {
                    best = Some(trial);
                }
            }
            if best.as_ref().is_some_and(|best| best.squared_error == 0.0) {
                break;
            }
        }
        best.map(|best| best.affine)
    }

    fn lies_on(&self, step: f32, tolerance: f32) -> bool {
        self.values.iter().all(|value| {
            let position = (value - self.min) / step;
            (position - round(position)).abs() * step <= tolerance
        })
    }

    fn pack(&self, affine: Affine, bits: u32, codes: &mut Vec<u8>) {
        let inverse = affine.inverse_scale();
        let code = |value: &f32| round(((value - affine.bias) * inverse).max(0.0).min(self.levels)) as u8;
        let bytes = self.values.chunks(8 / bits as usize).map(|values| {
            values.iter().rev().fold(0u32, |byte, value| byte << bits | u32::from(code(value))) as u8
        });
        codes.extend(bytes);
    }
}

/// The f16 below a finite one.
fn next_down(value: f16) -> f16 {
    match value.to_bits() {
        0x0000 => f16::from_bits(0x8001),
        bits if bits & 0x8000 == 0 => f16::from_bits(bits - 1),
        bits => f16::from_bits(bits + 1),
    }
}
