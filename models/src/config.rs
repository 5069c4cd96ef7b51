//! The hyper-parameters of a model, as plain data: a list of block kinds, and what is around them.
//!
//! In: the numbers a model was published with; `families/` holds those of well-known ones. Out: a [`Config`], which
//! every layer reads and none changes.
//! A block is a [`Mixer`], which moves data between tokens, and a [`Network`], which works on each token alone.
//! Nothing is checked here: a graph built from sizes that do not fit reports them itself.

use std::collections::{BTreeMap, BTreeSet};

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::session::engine::WindowPages;

/// The most tokens of a prefill step where a block carries a state.
const RECURRENT_STEP: usize = 64;

/// Everything a graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The blocks (layers), first to last.
    pub blocks: Vec<Block>,
    /// Hidden size: the width of the residual stream.
    pub hidden: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Context length: the most tokens of a sequence.
    pub context: usize,
    /// Epsilon of all norms.
    pub eps: f32,
    /// Whether norms subtract the mean first (LayerNorm); else they are RMSNorm.
    pub is_centred: bool,
    /// Factor on embeddings.
    pub embedding_scale: f32,
    /// Factor on logits.
    pub logit_scale: f32,
    /// Soft cap of logits: `cap · tanh(logit / cap)`.
    pub logit_cap: Option<f32>,
    /// Width of the per-layer embeddings that every block adds, if it does (Gemma 4 E).
    pub per_layer: Option<usize>,
    /// What is added to embeddings before the first block.
    pub added: Added,
    /// What follows the last block.
    pub ends: Ends,
    /// Whether the output head shares the embedding matrix (tied embeddings).
    pub tied: bool,
    /// Names of the weight matrices and norms that have a bias, as layers name them.
    pub biased: BTreeSet<String>,
    /// Factors on the results of weight matrices, by the names that layers have for them.
    pub factors: BTreeMap<String, f32>,
    /// Ranks of what adapters add to weight matrices (LoRA), by the names of these in graphs.
    pub ranks: BTreeMap<String, usize>,
    /// What adapters add that a sequence chooses from.
    pub choices: Choices,
    /// The blocks whose result a direction is added to (control vector).
    pub steered: BTreeSet<usize>,
    /// Whether norms have weights.
    pub has_norm_weights: bool,
    /// Storage formats of the weights.
    pub formats: Formats,
    /// The KV cache.
    pub cache: KvCache,
    /// The pages of blocks with a window, where these have pages of their own.
    pub windows: Option<WindowPages>,
}

/// The adapters that a sequence chooses from (LoRA): each projection has the ranks of all of them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Choices {
    /// The ranks of all adapters together.
    pub rank: usize,
    /// The weight matrices that one of them adds to, by the names of these in graphs.
    pub names: BTreeSet<String>,
}

/// What is added to the embeddings of tokens: of encoders (BERT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// A table with a row for each position, if there is one.
    pub positions: Option<Positions>,
    /// Rows of a table for the kinds of tokens, which say whose they are of texts that are joined; 0 where there is
    /// none.
    pub n_kinds: usize,
    /// Whether the sum is normalised.
    pub has_norm: bool,
}

/// A table of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Its rows.
    pub rows: usize,
    /// The row of the first position.
    pub first: usize,
}

/// What follows the last block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Whether there is a final norm.
    pub has_norm: bool,
    /// Widths of the projections that embedding models have behind it (`EmbeddingGemma`).
    pub projections: Vec<usize>,
    /// The head of a model that ranks texts, if it is one.
    pub ranking: Option<Ranking>,
}

/// A head that scores a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// Scores of a text.
    pub n_labels: usize,
    /// Whether the head reads the mean of the hidden states, not that of the token that stands for the text.
    pub reads_mean: bool,
    /// What the head has before the last matrix.
    pub pooler: Pooler,
}

/// What a head that scores a text makes of a hidden state first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooler {
    /// The same.
    None,
    /// `tanh` of a projection of it (BERT).
    Tanh,
    /// The norm of GELU of a projection of it (`ModernBERT`).
    GeluNormed,
}

/// The KV cache: pages of rows, of which every sequence takes as many as it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCache {
    /// Data type.
    pub format: Format,
    /// Rows of a page: the tokens that it holds.
    pub page_rows: usize,
    /// Pages of all sequences together.
    pub n_pages: usize,
    /// Sequences that may have tokens at a time, where blocks carry states.
    pub n_sequences: usize,
}

/// Rows of a page, unless a session says otherwise.
pub const PAGE_ROWS: usize = 64;

impl KvCache {
    /// A cache in single precision for one sequence of `context` tokens.
    pub fn of_one(context: usize) -> Self {
        Self {
            format: Format::F32,
            page_rows: PAGE_ROWS,
            n_pages: context.div_ceil(PAGE_ROWS),
            n_sequences: 1,
        }
    }

    /// The most pages of a sequence.
    pub fn pages_of(&self, context: usize) -> usize {
        context.div_ceil(self.page_rows)
    }
}

/// The kind of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// What moves data between tokens.
    pub mixer: Mixer,
    /// What works on each token alone.
    pub network: Network,
    /// Where the norms are.
    pub order: Order,
    /// Factor on what each half adds to the residual stream.
    pub residual_scale: f32,
    /// Whether the residual stream after the block is multiplied by a stored number.
    pub has_output_scale: bool,
}

/// Where the norms of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Before each half (pre-norm).
    Before,
    /// After each half (OLMo 2).
    After,
    /// Before and after each half (Gemma 2, GLM-4).
    Around,
    /// One norm before both halves, which read the same (Cohere, Phi-2).
    Parallel,
    /// A norm before each half, which read the same (GPT-NeoX).
    ParallelNorms,
    /// After the addition of each half to the stream (post-norm, BERT).
    Post,
    /// Before the second half only (the first block of `ModernBERT`).
    BeforeNetwork,
}

/// The kinds of mixers.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Grouped-query attention (GQA): Llama, Mistral, Qwen2 and Qwen3.
    Grouped(Grouped),
    /// Multi-head latent attention (MLA): `DeepSeek` V2 and its successors, such as GLM-4.7-Flash.
    Latent(Latent),
    /// A gated delta rule behind a short convolution: Qwen3-Next, Qwen3.5.
    Delta(Delta),
    /// A state space with one decay per head (Mamba-2): Granite 4 H, Nemotron-H.
    StateSpace(StateSpace),
    /// Grouped-query attention and a state space side by side, which read the same: Falcon-H1.
    Beside(Beside),
    /// A gated short convolution: LFM2.
    ShortConv(ShortConv),
    /// None: the block is a network alone.
    None,
}

/// The kinds of feed-forward networks (FFN).
#[derive(Clone, Debug, PartialEq)]
pub enum Network {
    /// One FFN for all tokens.
    Dense(Dense),
    /// A mixture of experts (MoE).
    Sparse(Experts),
    /// A dense FFN and a mixture of experts side by side, each with norms of its own (Gemma 4).
    Both(Dense, Experts),
    /// None: the block is a mixer alone.
    None,
}

/// A dense FFN.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// FFN width.
    pub ff: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    pub is_gated: bool,
    /// Whether there is a norm before the last projection (`BitNet`).
    pub has_norm: bool,
}

/// Activation functions of an FFN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU by its `tanh` approximation.
    GeluTanh,
    /// GELU.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    SquaredRelu,
    /// xIELU: `positive · x² + beta · x`, and below zero `negative · (e^x - 1 - x) + beta · x` (Apertus).
    Xielu {
        /// Factor on squares.
        positive: f32,
        /// Factor below zero.
        negative: f32,
        /// Slope at zero.
        beta: f32,
    },
    /// `x · sigmoid(alpha · x)` with `x` up to `limit`; the gated projection is clamped to `±limit`, then 1 is added.
    Clamped {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Largest value of either projection.
        limit: f32,
    },
}

/// Storage formats of the weights.
#[derive(Clone, Debug, PartialEq)]
pub enum Formats {
    /// One format for all matrices.
    Uniform(Format),
    /// A format for each matrix, by its name in graphs.
    Each(BTreeMap<String, Format>),
}

impl Formats {
    /// The format of a matrix.
    pub fn of_matrix(&self, name: &str) -> Format {
        match self {
            Self::Uniform(format) => *format,
            Self::Each(formats) => formats.get(name).copied().unwrap_or(Format::F32),
        }
    }
}

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
    /// Those up to so many away, on either side (`ModernBERT`).
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

/// A mixture of experts (MoE).
#[allow(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts.
    pub n_routed: usize,
    /// Routed experts per token.
    pub top_k: usize,
    /// FFN width of all shared experts together, which every token uses; 0 where there are none.
    pub shared_ff: usize,
    /// Whether a sigmoid of each token scales the output of the shared experts.
    pub has_shared_gate: bool,
    /// FFN width of one expert.
    pub ff: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    pub is_gated: bool,
    /// Whether experts and router have biases.
    pub has_biases: bool,
    /// Scoring function of the router.
    pub gate: Gate,
    /// Whether a stored bias is added to the scores for the selection of experts.
    pub router_bias: bool,
    /// Whether the routing weights of the selected experts are normalised to sum to 1.
    pub renorm: bool,
    /// Factor on the routing weights.
    pub scale: f32,
    /// Soft cap of the router's logits.
    pub cap: Option<f32>,
    /// Whether the routing weight scales an expert's input instead of its output (Llama 4).
    pub weighs_input: bool,
    /// Groups of experts, for group-limited routing.
    pub groups: Option<Groups>,
    /// Whether gate and up projections are stored as one matrix.
    pub is_joint: bool,
}

/// Group-limited routing: the top-k experts come from the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups.
    pub n_groups: usize,
    /// Groups per token.
    pub top_k: usize,
    /// A group's score is the sum of the scores of this many of its best experts.
    pub score_top_k: usize,
}

/// Scoring functions of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
    /// Softmax over the selected experts.
    SoftmaxAfterTopK,
    /// `√softplus`, that is `√(ln(1 + e^x))`, of each expert's logit.
    SqrtSoftplus,
}

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

impl Default for Ends {
    fn default() -> Self {
        Self { has_norm: true, projections: Vec::new(), ranking: None }
    }
}

impl Scaling {
    /// The factor of linear scaling, if all pairs have the same.
    pub fn linear(&self) -> Option<f64> {
        let Self::Factors(factors) = self else { return None };
        let (first, others) = factors.split_first()?;
        others.iter().all(|factor| factor == first).then_some(f64::from(*first))
    }
}

impl Block {
    /// A pre-norm block without further scales.
    pub fn new(mixer: Mixer, network: Network) -> Self {
        Self { mixer, network, order: Order::Before, residual_scale: 1.0, has_output_scale: false }
    }
}

impl Network {
    /// The dense FFN, if there is one.
    pub fn dense(&self) -> Option<&Dense> {
        match self {
            Self::Dense(dense) | Self::Both(dense, _) => Some(dense),
            Self::Sparse(_) | Self::None => None,
        }
    }

    /// The experts, if there are any.
    pub fn experts(&self) -> Option<&Experts> {
        match self {
            Self::Sparse(experts) | Self::Both(_, experts) => Some(experts),
            Self::Dense(_) | Self::None => None,
        }
    }
}

impl Dense {
    /// SwiGLU of this width.
    pub fn swiglu(ff: usize) -> Self {
        Self { ff, activation: Activation::Silu, is_gated: true, has_norm: false }
    }
}

impl Mixer {
    /// Its RoPE, if it has one.
    pub fn rope(&self) -> Option<&Rope> {
        match self {
            Self::Grouped(own) | Self::Beside(Beside { heads: own, .. }) => own.rope.as_ref(),
            Self::Latent(own) => Some(&own.turn),
            Self::Delta(_) | Self::StateSpace(_) | Self::ShortConv(_) | Self::None => None,
        }
    }

    /// Its attention, if that is over cached keys and values.
    pub fn heads(&self) -> Option<&Grouped> {
        match self {
            Self::Grouped(heads) | Self::Beside(Beside { heads, .. }) => Some(heads),
            Self::Latent(_) | Self::Delta(_) | Self::StateSpace(_) | Self::ShortConv(_) | Self::None => None,
        }
    }

    /// Whether it carries a state from token to token that no position indexes.
    pub fn is_recurrent(&self) -> bool {
        matches!(self, Self::Delta(_) | Self::StateSpace(_) | Self::Beside(_) | Self::ShortConv(_))
    }

    /// Elements of a row of its KV cache, if it has one.
    fn cached_row(&self) -> Option<usize> {
        match self {
            Self::Grouped(own) | Self::Beside(Beside { heads: own, .. }) => Some(own.head),
            Self::Latent(own) => Some(own.kv_lora + own.rope),
            Self::Delta(_) | Self::StateSpace(_) | Self::ShortConv(_) | Self::None => None,
        }
    }
}

impl Config {
    /// A model of these blocks with the usual ends: RMSNorms with an epsilon of 1e-6, an output head of its own.
    pub fn new(blocks: Vec<Block>, hidden: usize, vocab: usize, context: usize) -> Self {
        Self {
            blocks,
            hidden,
            vocab,
            context,
            eps: 1e-6,
            is_centred: false,
            embedding_scale: 1.0,
            logit_scale: 1.0,
            logit_cap: None,
            per_layer: None,
            added: Added::default(),
            ends: Ends::default(),
            tied: false,
            biased: BTreeSet::new(),
            factors: BTreeMap::new(),
            ranks: BTreeMap::new(),
            choices: Choices::default(),
            steered: BTreeSet::new(),
            has_norm_weights: true,
            formats: Formats::Uniform(Format::F32),
            cache: KvCache::of_one(context),
            windows: None,
        }
    }

    /// The number of blocks.
    pub fn n_layers(&self) -> usize {
        self.blocks.len()
    }

    /// The experts of the first block that has any.
    pub fn experts(&self) -> Option<&Experts> {
        self.blocks.iter().find_map(|block| block.network.experts())
    }

    /// The FFN width of the first dense block.
    pub fn ff(&self) -> Option<usize> {
        self.blocks.iter().find_map(|block| block.network.dense()).map(|dense| dense.ff)
    }

    /// The RoPE of the last block that has one: where blocks differ, those with full attention are last.
    pub fn rope(&self) -> Option<&Rope> {
        self.blocks.iter().rev().find_map(|block| block.mixer.rope())
    }

    /// Elements of the rows of the KV cache; rows of several widths where blocks differ.
    pub fn cached_rows(&self) -> BTreeSet<usize> {
        self.blocks.iter().filter_map(|block| block.mixer.cached_row()).collect()
    }

    /// Whether a block carries a state that no position indexes.
    pub fn is_recurrent(&self) -> bool {
        self.blocks.iter().any(|block| block.mixer.is_recurrent())
    }

    /// Whether every token sees only those up to its own. If not, a text is one step, and none can be generated.
    pub fn is_causal(&self) -> bool {
        self.blocks.iter().all(|block| !matches!(&block.mixer, Mixer::Grouped(own) if !own.is_causal))
    }

    /// Why rows of the KV cache cannot be kept by the attention that they get, each head its own; nothing where they
    /// can.
    pub(crate) fn fixes_rows(&self) -> Option<String> {
        let of_heads = |own: &Grouped| match own {
            own if own.window.is_some() => {
                Some("has a window, which counts rows, and rows that are chosen are not side by side")
            }
            own if own.alibi.is_some() => {
                Some("has ALiBi, which counts rows, and rows that are chosen are not side by side")
            }
            own if own.shares.is_some() => Some("reads the rows that another block chooses"),
            own if !own.is_causal => Some("sees tokens that follow"),
            _ => None,
        };
        let fault = |mixer: &Mixer| match mixer {
            Mixer::Grouped(own) => of_heads(own),
            Mixer::Latent(_) | Mixer::None => None,
            Mixer::Delta(_) | Mixer::StateSpace(_) | Mixer::Beside(_) | Mixer::ShortConv(_) => {
                Some("has a state of all tokens, of which none can be dropped")
            }
        };
        let mut faults = self.blocks.iter().map(|block| fault(&block.mixer)).enumerate();
        faults.find_map(|(layer, fault)| Some(format!("block {layer} {}", fault?)))
    }

    /// The most tokens that a step of a prefill should take: the closed form of a recurrent mixer grows with their
    /// cube.
    pub fn most_tokens(&self) -> usize {
        if self.is_recurrent() { RECURRENT_STEP } else { usize::MAX }
    }

    /// The same with another number of blocks; the last is repeated.
    #[must_use]
    pub fn with_layers(mut self, n_layers: usize) -> Self {
        if let Some(last) = self.blocks.last().cloned() {
            self.blocks.resize(n_layers, last);
        }
        self
    }

    /// The same with another mixer in every block.
    #[must_use]
    pub fn with_mixer(mut self, mixer: &Mixer) -> Self {
        self.blocks.iter_mut().for_each(|block| block.mixer = mixer.clone());
        self
    }

    /// The same with another network in every block that `is_changed` selects.
    #[must_use]
    pub fn with_network(mut self, network: &Network, is_changed: impl Fn(usize) -> bool) -> Self {
        let blocks = self.blocks.iter_mut().enumerate().filter(|(layer, _)| is_changed(*layer));
        blocks.for_each(|(_, block)| block.network = network.clone());
        self
    }

    /// The same with another RoPE in every block with attention.
    #[must_use]
    pub fn with_rope(mut self, rope: &Rope) -> Self {
        for block in &mut self.blocks {
            match &mut block.mixer {
                Mixer::Grouped(own) | Mixer::Beside(Beside { heads: own, .. }) => {
                    own.rope = Some(rope.clone());
                }
                Mixer::Latent(own) => own.turn = rope.clone(),
                Mixer::Delta(_) | Mixer::StateSpace(_) | Mixer::ShortConv(_) | Mixer::None => {}
            }
        }
        self
    }

    /// The same with another context length, and a KV cache that holds as much.
    #[must_use]
    pub fn with_context(self, context: usize) -> Self {
        Self { context, cache: KvCache { format: self.cache.format, ..KvCache::of_one(context) }, ..self }
    }

    /// The same with the RoPE of a context length. Only longrope needs it: as in llama.cpp, the context of a session
    /// decides, and not the length of its sequence.
    #[must_use]
    pub fn for_context(self, context: usize) -> Self {
        let Some(mut rope) = self.rope().cloned() else { return self };
        match &mut rope.scaling {
            Scaling::Long { short, long, original, .. } if context > *original => short.clone_from(long),
            _ => return self,
        }
        self.with_rope(&rope)
    }

    /// The same structure with small sizes, for the reference evaluator.
    #[must_use]
    pub fn shrunk(&self) -> Self {
        let blocks = self.blocks.iter().take(2).map(Block::shrunk).collect();
        let per_layer = self.per_layer.map(|_| 32);
        let cache = KvCache { page_rows: 8, n_pages: 4, ..self.cache };
        Self { blocks, hidden: 64, vocab: 64, context: 32, per_layer, cache, ..self.clone() }
    }
}

impl Block {
    fn shrunk(&self) -> Self {
        let network = match self.network.clone() {
            Network::Dense(own) => Network::Dense(Dense { ff: 96, ..own }),
            Network::Sparse(own) => Network::Sparse(own.shrunk()),
            Network::Both(dense, own) => Network::Both(Dense { ff: 96, ..dense }, own.shrunk()),
            Network::None => Network::None,
        };
        Self { mixer: self.mixer.shrunk(), network, ..self.clone() }
    }
}

impl Experts {
    fn shrunk(self) -> Self {
        let groups = self.groups.map(|groups| Groups { n_groups: 4, top_k: 2, ..groups });
        let shared_ff = 32 * self.shared_ff / self.ff;
        Self { n_routed: 8, top_k: 2, ff: 32, shared_ff, groups, ..self }
    }
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

impl Grouped {
    fn shrunk(&self) -> Self {
        Self {
            n_heads: 4,
            n_kv: 2,
            head: 32,
            rotary_dim: self.rotary_dim * 32 / self.head,
            window: self.window.map(|_| Window::Sliding(5)),
            shares: None,
            ..self.clone()
        }
    }
}

impl StateSpace {
    /// Any step of time, a norm after the gate, no factors.
    pub fn new(n_heads: usize, head: usize, n_groups: usize, state: usize, kernel: usize) -> Self {
        let (norm, factors) = (SpaceNorm::AfterGate, [1.0; 5]);
        Self { n_heads, head, n_groups, state, kernel, least_step: 0.0, norm, factors }
    }

    fn shrunk(&self) -> Self {
        Self { n_heads: 4, head: 32, n_groups: 1, state: 16, ..self.clone() }
    }
}

impl Mixer {
    fn shrunk(&self) -> Self {
        match self {
            Self::Grouped(own) => Self::Grouped(own.shrunk()),
            Self::Beside(own) => {
                Self::Beside(Beside { heads: own.heads.shrunk(), space: own.space.shrunk(), ..own.clone() })
            }
            Self::Latent(own) => Self::Latent(Latent {
                n_heads: 2,
                q_lora: own.q_lora.map(|_| 96),
                kv_lora: 32,
                nope: 32,
                rope: 8,
                value: 64,
                ..own.clone()
            }),
            Self::Delta(own) => {
                Self::Delta(Delta { n_key: 2, n_value: 4, key: 16, value: 32, ..own.clone() })
            }
            Self::StateSpace(own) => Self::StateSpace(own.shrunk()),
            Self::ShortConv(_) | Self::None => self.clone(),
        }
    }
}
