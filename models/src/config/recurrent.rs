//! Mixers that carry a state from token to token.
//!
//! In: the numbers of a model. Out: delta rules, state spaces and short convolutions, as plain data.

use crate::config::attention::Grouped;

/// Grouped-query attention and a state space side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// The attention.
    pub heads: Grouped,
    /// The state space.
    pub space: StateSpace,
    /// Factors on what attention and the state space read.
    pub inputs: [f32; 2],
}

/// A gated delta rule: each head carries a matrix from token to token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Key heads.
    pub n_key: usize,
    /// Value heads, a multiple of the key heads.
    pub n_value: usize,
    /// Head dimension of keys.
    pub key: usize,
    /// Head dimension of values.
    pub value: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// Whether the value heads of one key head are apart by the number of key heads; else they are adjacent.
    pub is_tiled: bool,
    /// Whether the projections of the decay and of the strength are stored as one matrix, alternating by key head.
    pub is_joint: bool,
}

/// A state space (Mamba-2): each head carries a matrix that decays by one factor per token.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpace {
    /// Heads.
    pub n_heads: usize,
    /// Head dimension.
    pub head: usize,
    /// Groups of heads that share the input and output vectors of the state.
    pub n_groups: usize,
    /// State dimension.
    pub state: usize,
    /// Tokens that the convolution sees.
    pub kernel: usize,
    /// The least step of time of a token; 0 where any is taken.
    pub least_step: f32,
    /// The norm of the output.
    pub norm: SpaceNorm,
    /// Factors on the projections: gate, input, the vectors `B` and `C`, steps of time (Falcon-H1).
    pub factors: [f32; 5],
}

/// Where the output of a state space is normalised, in each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceNorm {
    /// After the gate.
    AfterGate,
    /// Before the gate.
    BeforeGate,
    /// Nowhere.
    None,
}

/// A gated short convolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Tokens that the convolution sees.
    pub kernel: usize,
}
