//! Rotary position embedding (RoPE), with context extension by linear scaling, Llama 3 scaling, longrope or
//! YaRN.
//!
//! In: queries or keys of this step's tokens, and the axis to rotate. Out: the same axes, rotated.
//! Each pair of elements is rotated by `position · frequency`, so that the product of a query and a key depends on
//! their distance only. The result is always ordered by halves, however the input was stored: files of both orders sum
//! the products in the same order.
//! Frequencies are computed here in double precision and become a table in the graph; angles are computed when the step
//! runs.

use std::f64::consts::TAU;

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::rope::{Pairing, Rope, Scaling};
use crate::layers::scope::{Scope, static_size};

/// `x` with every pair `(a, b)` along `axis` rotated: `(a cos φ - b sin φ, b cos φ + a sin φ)`.
pub fn rotate(m: &Scope, rope: &Rope, x: &Tensor, axis: &Dim) -> Tensor {
    let n_dims = static_size(axis);
    let (side, pair) = (&m.g.dim("side", 2), &m.g.dim("pair", n_dims / 2));
    let stored = match rope.pairing {
        Pairing::Halves => [side, pair],
        Pairing::Interleaved => [pair, side],
    };

    let frequencies = inv_freq(rope, n_dims).into_iter().map(|frequency| frequency as f32);
    let frequencies: Vec<f32> = frequencies.collect();
    let angle = m.positions.cast(DType::F32) * m.g.table(pair, &frequencies); // [t, pair]
    let (cos, sin) = (&apply_attention_factor(rope, angle.cos()), &apply_attention_factor(rope, angle.sin()));

    let x = x.split(axis, &stored);
    // One element of each pair, `[…, side:1, pair]`.
    let part = |at| {
        let (part, one) = (x.slice(side, at, 1), &side.sized(1));
        match rope.pairing {
            Pairing::Halves => part,
            Pairing::Interleaved => part.merge(&[pair, one], axis).split(axis, &[one, pair]),
        }
    };
    let (a, b) = (&part(0), &part(1));
    m.g.concat(side, &[&(a * cos - b * sin), &(b * cos + a * sin)]).merge(&[side, pair], axis)
}

/// Applies the attention factor of YaRN or longrope to cos or sin.
fn apply_attention_factor(rope: &Rope, x: Tensor) -> Tensor {
    match rope.scaling {
        Scaling::Yarn { attention_factor, .. } | Scaling::Long { attention_factor, .. }
            if attention_factor != 1.0 =>
        {
            x * attention_factor as f32
        }
        Scaling::Yarn { .. }
        | Scaling::Long { .. }
        | Scaling::None
        | Scaling::Factors(_)
        | Scaling::Llama3 { .. } => x,
    }
}

/// The inverse frequency of each pair: radians per position.
pub(crate) fn inv_freq(rope: &Rope, n_dims: usize) -> Vec<f64> {
    let scaled = |pair: usize| {
        let frequency = rope.theta.powf(-2.0 * pair as f64 / n_dims as f64);
        match &rope.scaling {
            Scaling::None => frequency,
            Scaling::Factors(factors) | Scaling::Long { short: factors, .. } => {
                frequency / factors.get(pair).map_or(1.0, |factor| f64::from(*factor))
            }
            Scaling::Llama3 { .. } => frequency / f64::from(llama3_divisor(rope, pair, n_dims)),
            &Scaling::Yarn { factor, beta_fast, beta_slow, original, is_rounded, .. } => {
                let (first, last) = correction_range(rope.theta, n_dims, [beta_fast, beta_slow], original);
                let (first, last) = if is_rounded { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (first.max(0.0), last.min(n_dims as f64 - 1.0));
                blend(frequency, frequency / factor, (pair as f64 - first) / (last - first).max(0.001))
            }
        }
    };
    (0..n_dims / 2).map(scaled).collect()
}

/// The factor on queries and on keys that sharpens attention for longer contexts.
pub(crate) fn mscale(rope: &Rope) -> f64 {
    match rope.scaling {
        Scaling::Yarn { mscale, .. } => mscale,
        Scaling::None | Scaling::Factors(_) | Scaling::Long { .. } | Scaling::Llama3 { .. } => 1.0,
    }
}

/// The divisor of Llama 3 for a pair: in single precision, as in files that store the factors.
fn llama3_divisor(rope: &Rope, pair: usize, n_dims: usize) -> f32 {
    let Scaling::Llama3 { factor, low, high, original } = rope.scaling else { return 1.0 };
    let [factor, low, high, original] = [factor, low, high, original].map(|x| x as f32);
    let exponent = (2 * pair) as f32 / n_dims as f32;
    let length = TAU as f32 / (1.0 / rope.theta.powf(f64::from(exponent)) as f32);
    if length < original / high {
        1.0
    } else if length > original / low {
        factor
    } else {
        let kept = (original / length - low) / (high - low);
        1.0 / ((1.0 - kept) / factor + kept)
    }
}

/// YaRN's `mscale`: `1 + 0.1 · strength · ln factor`.
pub(crate) fn yarn_mscale(factor: f64, strength: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * strength * factor.ln() }
}

/// Linear interpolation from `fast` at 0 to `slow` at 1, clamped.
fn blend(fast: f64, slow: f64, at: f64) -> f64 {
    let at = at.clamp(0.0, 1.0);
    fast * (1.0 - at) + slow * at
}

/// YaRN's correction range: the pairs that make `turns` rotations within the original context.
fn correction_range(base: f64, n_dims: usize, turns: [f64; 2], original: f64) -> (f64, f64) {
    let n_dims = n_dims as f64;
    let [fast, slow] = turns.map(|turns| n_dims * (original / (turns * TAU)).ln() / (2.0 * base.ln()));
    (fast, slow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::named;

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected}");
    }

    #[test]
    fn plain_frequencies_fall_geometrically() {
        let rope = named("qwen3-0.6b").unwrap().rope().unwrap().clone();
        let frequencies = inv_freq(&rope, 128);
        assert_eq!((frequencies.len(), frequencies[0]), (64, 1.0));
        close(frequencies[1], 0.805_842);
        close(frequencies[32], 0.001);
    }

    #[test]
    fn llama3_keeps_high_frequencies_and_lowers_low_ones() {
        let frequencies = inv_freq(named("llama-3.2-1b").unwrap().rope().unwrap(), 64);
        close(frequencies[1], 0.663_601);
        close(frequencies[14], 0.003_211_44); // 4.19 rotations in 8192: the last that is kept
        close(frequencies[16], 4.295_568e-4);
        close(frequencies[31], 9.418_31e-8);
    }

    #[test]
    fn yarn_blends_from_pair_10_to_pair_23() {
        let rope = named("deepseek-v2-lite").unwrap().rope().unwrap().clone();
        let (first, last) = correction_range(rope.theta, 64, [32.0, 1.0], 4096.0);
        assert_eq!((first.floor(), last.ceil()), (10.0, 23.0));
        let frequencies = inv_freq(&rope, 64);
        close(frequencies[10], 0.056_234_1);
        close(frequencies[16], 0.005_5);
        close(frequencies[23], 1.333_52e-3 / 40.0);
        close(mscale(&rope), 1.260_80);
    }
}
