//! Rotary embedding: frequencies, and the table of turns that a step reads.

use std::rc::Rc;

use crate::error::Result;
use crate::gpu::{Buffer, Gpu, Usage};

/// The frequencies of one kind of rotary embedding, `head_dim / 2` of them, in radians per position.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// `f_i`
    pub frequencies: Vec<f32>,
}

impl Rope {
    /// `f_i = theta^(−2i/head_dim)`
    pub fn new(theta: f64, head_dim: u32) -> Self {
        let frequencies =
            (0..head_dim / 2).map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(head_dim)) as f32);
        Self { frequencies: frequencies.collect() }
    }

    /// `f_i = theta^(−2i/head_dim) / factor` for the first `partial_factor` of the pairs; the others do not turn.
    pub fn proportional(theta: f64, head_dim: u32, partial_factor: f64, factor: f32) -> Self {
        let mut rope = Self::new(theta, head_dim).scaled_linear(factor);
        let turning = (partial_factor * f64::from(head_dim) / 2.0) as usize;
        rope.frequencies.iter_mut().skip(turning).for_each(|frequency| *frequency = 0.0);
        rope
    }

    /// Every frequency divided by `factor`.
    pub fn scaled_linear(mut self, factor: f32) -> Self {
        self.frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
        self
    }

    /// Llama 3's scaling: wavelengths above `original / low_freq_factor` are stretched by `factor`, those
    /// below `original / high_freq_factor` kept, and those between blended.
    pub fn scaled_llama3(
        mut self,
        factor: f32,
        low_freq_factor: f32,
        high_freq_factor: f32,
        original: f32,
    ) -> Self {
        for frequency in &mut self.frequencies {
            let turns = original * *frequency / std::f32::consts::TAU;
            let blend = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
            *frequency = (1.0 - blend) * *frequency / factor + blend * *frequency;
        }
        self
    }

    /// (cos, sin) of `rows` positions from `position` on, `[rows, head_dim/2]`.
    ///
    /// The angle is rounded to f32 as the reference implementation rounds it; its cosine and sine are not
    /// left to the GPU, whose error grows with the angle.
    fn turns(&self, position: u32, rows: u32) -> Vec<[f32; 2]> {
        (position..position + rows)
            .flat_map(|position| {
                self.frequencies.iter().map(move |frequency| {
                    let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
                    [cos as f32, sin as f32]
                })
            })
            .collect()
    }
}

/// The turns of a step's rows on the GPU.
#[derive(Clone, Debug)]
pub struct RopeTable {
    rope: Rope,
    /// `[rows, head_dim/2]` of (cos, sin).
    pub buffer: Rc<Buffer>,
}

impl RopeTable {
    /// A table for steps of up to `rows` rows.
    pub fn new(gpu: &Gpu, rope: Rope, rows: u32) -> Result<Self> {
        let bytes = u64::from(rows) * rope.frequencies.len() as u64 * 8;
        Ok(Self { buffer: Rc::new(gpu.buffer("rope", bytes, Usage::Io)?), rope })
    }

    /// Writes the turns of `rows` positions from `position` on.
    pub fn write(&self, gpu: &Gpu, position: u32, rows: u32) {
        gpu.write(&self.buffer, 0, bytemuck::cast_slice(&self.rope.turns(position, rows)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_to_almost_one_over_theta() {
        let rope = Rope::new(10_000.0, 4);
        assert_eq!(rope.frequencies, [1.0, 0.01]);
        assert_eq!(rope.clone().scaled_linear(8.0).frequencies, [0.125, 0.00125]);
        let turns = rope.turns(3, 1);
        assert!((turns[0][0] - 3f32.cos()).abs() < 1e-6 && (turns[1][1] - 0.03f32.sin()).abs() < 1e-6);
    }

    #[test]
    fn proportional_turns_the_first_pairs_at_the_frequencies_of_the_whole_head() {
        let rope = Rope::proportional(1e6, 512, 0.25, 2.0);
        assert_eq!(rope.frequencies.len(), 256);
        assert_eq!(rope.frequencies[1], (1e6f64.powf(-2.0 / 512.0) as f32) / 2.0);
        assert!(rope.frequencies[63] > 0.0);
        assert!(rope.frequencies[64..].iter().all(|&frequency| frequency == 0.0));
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_stretches_long_ones() {
        let plain = Rope::new(500_000.0, 64);
        let scaled = plain.clone().scaled_llama3(8.0, 1.0, 4.0, 8192.0);
        assert_eq!(scaled.frequencies[0], plain.frequencies[0]);
        assert_eq!(scaled.frequencies[31], plain.frequencies[31] / 8.0);
        let between = scaled.frequencies.iter().zip(&plain.frequencies);
        assert!(between.clone().any(|(s, p)| *s < *p * 0.999 && *s > *p / 7.999));
        assert!(between.clone().all(|(s, p)| s <= p && *s >= *p / 8.001));
    }
}
