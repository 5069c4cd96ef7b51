//! Attention: queries, keys and values, and what a token sees of them.
//!
//! In: the numbers of a model. Out: grouped-query attention (GQA) or multi-head latent attention (MLA), as plain data.

use crate::config::rope::Rope;

/// Grouped-query attention (GQA).
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv: usize,
    /// Head dimension.
    pub head: usize,
    /// Rotary dimension: RoPE rotates the first `rotary_dim` elements of a head.
    pub rotary_dim: usize,
    /// Rotary position embedding; none for a block without positions (NoPE).
    pub rope: Option<Rope>,
    /// How queries and keys are normalised (QK norm), if they are.
    pub qk_norm: Option<QkNorm>,
    /// Whether a token sees only positions up to its own; else all of the text, which is one step.
    pub is_causal: bool,
    /// Which of these positions it sees, if not all.
    pub window: Option<Window>,
    /// Factor on scores, if not `1/√head`.
    pub scale: Option<f64>,
    /// Soft cap of scores.
    pub cap: Option<f32>,
    /// Bound of queries, keys and values, either way.
    pub clamp: Option<f32>,
    /// A bias that falls with the distance of a key (`ALiBi`): the slope of head `i` of `n` is 2 to the power of
    /// `-alibi · (i + 1) / n`.
    pub alibi: Option<f32>,
    /// Factor on queries that grows with the position.
    pub temperature: Option<Temperature>,
    /// Whether each head has a sink: a stored score that competes with those of positions and has no value.
    pub has_sinks: bool,
    /// What scales the output, if anything.
    pub gate: Option<OutputGate>,
    /// Whether there is a norm before the output projection (`BitNet`).
    pub has_norm: bool,
    /// What values are.
    pub values: Values,
    /// The block whose KV cache this one reads, if it has none of its own.
    pub shares: Option<usize>,
}

/// How queries and keys are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head before RoPE.
    Head,
    /// Each head after RoPE (Hunyuan).
    HeadAfterRope,
    /// Each head after RoPE, without weights (Llama 4).
    BareAfterRope,
    /// Each head before RoPE, with weights of its own (Command R+, `StableLM` 2).
    OwnHead,
    /// All heads together, before RoPE (OLMo 2, MiniMax M2).
    Whole,
}

/// What scales the output of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// A sigmoid for each element, stored after each query head (Qwen3-Next).
    BesideQuery,
    /// A sigmoid for each element, of a projection of its own (`AFMoE`).
    Element,
    /// A softplus for each element, of a projection of its own (Laguna).
    SoftplusElement,
    /// A sigmoid for each head (Step 3.5).
    Head,
    /// A softplus for each head (Laguna).
    SoftplusHead,
}

/// What values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A projection of their own.
    Projected,
    /// A projection of their own, normalised without weights.
    Normalised,
    /// The projection of the keys, normalised without weights.
    Keys,
}

/// Which positions a token sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// A number of positions, the token's own included.
    Sliding(usize),
    /// Those of its own chunk of a number of positions (Llama 4).
    Chunk(usize),
    /// Those at most this far away, on either side (`ModernBERT`).
    Around(usize),
}

/// A factor on queries: `1 + strength · ln(1 + ⌊(position + offset) / length⌋)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// After how many positions it grows.
    pub length: usize,
    /// How fast it grows.
    pub strength: f32,
    /// What is added to a position.
    pub offset: usize,
}

/// Multi-head latent attention (MLA): keys and values are up-projections of one small cached vector per position.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Attention heads.
    pub n_heads: usize,
    /// Rank of the query's low-rank projection, if it has one.
    pub q_lora: Option<usize>,
    /// Rank of the joint key and value projection: the width of the cached latent.
    pub kv_lora: usize,
    /// Key dimensions without RoPE.
    pub nope: usize,
    /// Key dimensions with RoPE, shared by all heads.
    pub rope: usize,
    /// Head dimension of values.
    pub value: usize,
    /// Whether the up-projections of keys and values are stored as one matrix, `kv_b`.
    pub is_joint: bool,
    /// Rotary position embedding.
    pub turn: Rope,
}

impl Grouped {
    /// No RoPE, no QK norm, no window.
    pub fn new(n_heads: usize, n_kv: usize, head: usize) -> Self {
        Self {
            n_heads,
            n_kv,
            head,
            rotary_dim: head,
            rope: None,
            qk_norm: None,
            is_causal: true,
            window: None,
            scale: None,
            cap: None,
            clamp: None,
            alibi: None,
            temperature: None,
            has_sinks: false,
            gate: None,
            has_norm: false,
            values: Values::Projected,
            shares: None,
        }
    }
}
