//! Rotary position embedding (RoPE).
//!
//! In: the numbers of a model. Out: which elements are turned, how fast, and how a longer context changes that.

/// Rotary position embedding (RoPE).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// RoPE base: pair i rotates by `theta^(-2i/n)` radians per position.
    pub theta: f64,
    /// Which elements form a pair.
    pub pairing: Pairing,
    /// Context extension.
    pub scaling: Scaling,
}

/// Which elements of a head form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + n/2` (GPT-NeoX style, `rotate_half`).
    Halves,
    /// `2i` and `2i + 1` (GPT-J style).
    Interleaved,
}

/// Context extension: how rotation frequencies change for contexts longer than the original one.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No change.
    None,
    /// A divisor for each pair's frequency.
    Factors(Vec<f32>),
    /// Llama 3: low frequencies are divided by the factor, high ones kept, with a smooth transition.
    Llama3 {
        /// Context extension factor.
        factor: f64,
        /// Pairs with fewer rotations than this in the original context are low-frequency.
        low: f64,
        /// Pairs with more are high-frequency.
        high: f64,
        /// Original context length.
        original: f64,
    },
    /// A divisor for each pair's frequency, and a factor on the rotated queries and keys (longrope).
    Long {
        /// The divisors for contexts up to the original one.
        short: Vec<f32>,
        /// Those for longer contexts.
        long: Vec<f32>,
        /// Original context length.
        original: usize,
        /// Factor on cos and sin.
        attention_factor: f64,
    },
    /// YaRN: a linear ramp over the pairs between kept and divided frequencies, and rescaled attention scores.
    Yarn {
        /// Context extension factor.
        factor: f64,
        /// Pairs with more rotations than this in the original context keep their frequency.
        beta_fast: f64,
        /// Pairs with fewer have it divided by the factor.
        beta_slow: f64,
        /// Original context length.
        original: f64,
        /// Whether the ends of the ramp are rounded to whole pairs.
        is_rounded: bool,
        /// Factor on the rotated queries and keys (on cos and sin).
        attention_factor: f64,
        /// Factor on whole queries and keys: scores grow by its square (`mscale_all_dim` of MLA models).
        mscale: f64,
    },
}

impl Scaling {
    /// The factor of linear scaling, if all pairs have the same.
    pub fn linear(&self) -> Option<f64> {
        let Self::Factors(factors) = self else { return None };
        let (first, others) = factors.split_first()?;
        others.iter().all(|factor| factor == first).then_some(f64::from(*first))
    }
}
