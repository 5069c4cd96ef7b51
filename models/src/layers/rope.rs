//! Rotary positions: pairs of elements are turned by an angle that grows with the position, each pair at its speed.
//!
//! In: queries or keys of this replay's tokens, and the axis whose elements are paired. Out: the same axes, turned.
//! The product of a turned query and a turned key depends on their distance only. Turned elements come and lie by
//! halves, however they were stored: so files that store them differently sum them in the same order.
//! Speeds are computed here in double precision and stored as a table; angles are computed when the step runs.

use std::f64::consts::TAU;

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::{Pairing, Rope, Scaling};
use crate::layers::scope::{Scope, fixed};

/// `x` with every pair `(a, b)` along `axis` turned: `(a cos φ - b sin φ, b cos φ + a sin φ)`.
pub(crate) fn rotate(m: &Scope, x: &Tensor, axis: &Dim) -> Tensor {
    let n_dims = fixed(axis);
    let (side, pair) = (&m.g.dim("side", 2), &m.g.dim("pair", n_dims / 2));
    let stored = match m.config.rope.pairing {
        Pairing::Halves => [side, pair],
        Pairing::Neighbours => [pair, side],
    };

    let speeds: Vec<f32> = speeds(&m.config.rope, n_dims).into_iter().map(|speed| speed as f32).collect();
    let angle = m.positions().cast(DType::F32) * m.g.table(pair, &speeds); // [t, pair]
    let (cos, sin) = (&magnified(m, angle.cos()), &magnified(m, angle.sin()));

    let x = x.split(axis, &stored);
    // One of each pair, `[…, side:1, pair]`.
    let part = |at| {
        let (part, one) = (x.slice(side, at, 1), &side.sized(1));
        match m.config.rope.pairing {
            Pairing::Halves => part,
            Pairing::Neighbours => part.merge(&[pair, one], axis).split(axis, &[one, pair]),
        }
    };
    let (a, b) = (&part(0), &part(1));
    m.g.concat(side, &[&(a * cos - b * sin), &(b * cos + a * sin)]).merge(&[side, pair], axis)
}

/// What was turned, multiplied as the scaling says.
fn magnified(m: &Scope, x: Tensor) -> Tensor {
    match m.config.rope.scaling {
        Scaling::Yarn { magnitude, .. } if magnitude != 1.0 => x * magnitude as f32,
        Scaling::Yarn { .. } | Scaling::None | Scaling::Factors(_) | Scaling::Llama3 { .. } => x,
    }
}

/// Radians each pair turns per position.
pub(crate) fn speeds(rope: &Rope, n_dims: usize) -> Vec<f64> {
    let stretched = |pair: usize| {
        let speed = rope.theta.powf(-2.0 * pair as f64 / n_dims as f64);
        match &rope.scaling {
            Scaling::None => speed,
            Scaling::Factors(factors) => speed / factors.get(pair).map_or(1.0, |factor| f64::from(*factor)),
            Scaling::Llama3 { .. } => speed / f64::from(slowness(rope, pair, n_dims)),
            &Scaling::Yarn { factor, beta_fast, beta_slow, original, .. } => {
                let (first, last) = ramp(rope.theta, n_dims, [beta_fast, beta_slow], original);
                blend(speed, speed / factor, (pair as f64 - first) / (last - first).max(0.001))
            }
        }
    };
    (0..n_dims / 2).map(stretched).collect()
}

/// What queries are multiplied by, and keys, to sharpen the scores of longer texts.
pub(crate) fn sharpening(rope: &Rope) -> f64 {
    match rope.scaling {
        Scaling::Yarn { sharpening, .. } => sharpening,
        Scaling::None | Scaling::Factors(_) | Scaling::Llama3 { .. } => 1.0,
    }
}

/// By how much Llama 3 slows a pair down: in single precision, as files that hold the factors have them.
fn slowness(rope: &Rope, pair: usize, n_dims: usize) -> f32 {
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

/// How much YaRN magnifies for texts so much longer, with this strength.
pub(crate) fn yarn_scale(factor: f64, strength: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * strength * factor.ln() }
}

/// From `fast` at 0 to `slow` at 1, and no further.
fn blend(fast: f64, slow: f64, at: f64) -> f64 {
    let at = at.clamp(0.0, 1.0);
    fast * (1.0 - at) + slow * at
}

/// The pairs between which YaRN goes over from fast to slow: those that turn so many times in an original text.
fn ramp(theta: f64, n_dims: usize, turns: [f64; 2], original: f64) -> (f64, f64) {
    let n_dims = n_dims as f64;
    let [fast, slow] = turns.map(|turns| n_dims * (original / (turns * TAU)).ln() / (2.0 * theta.ln()));
    (fast.floor().max(0.0), slow.ceil().min(n_dims - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::named;

    fn close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} instead of {expected}");
    }

    #[test]
    fn plain_speeds_fall_geometrically() {
        let rope = named("qwen3-0.6b").unwrap().rope;
        let speeds = speeds(&rope, 128);
        assert_eq!((speeds.len(), speeds[0]), (64, 1.0));
        close(speeds[1], 0.805_842);
        close(speeds[32], 0.001);
    }

    #[test]
    fn llama3_keeps_the_fast_and_slows_the_slow() {
        let speeds = speeds(&named("llama-3.2-1b").unwrap().rope, 64);
        close(speeds[1], 0.663_601);
        close(speeds[14], 0.003_211_44); // 4.19 turns in 8192: the last that is kept
        close(speeds[16], 4.295_568e-4);
        close(speeds[31], 9.418_31e-8);
    }

    #[test]
    fn yarn_blends_from_pair_10_to_pair_23() {
        let rope = named("deepseek-v2-lite").unwrap().rope;
        assert_eq!(ramp(rope.theta, 64, [32.0, 1.0], 4096.0), (10.0, 23.0));
        let speeds = speeds(&rope, 64);
        close(speeds[10], 0.056_234_1);
        close(speeds[16], 0.005_5);
        close(speeds[23], 1.333_52e-3 / 40.0);
        close(sharpening(&rope), 1.260_80);
    }
}
