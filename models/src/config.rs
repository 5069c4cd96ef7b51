//! The hyper-parameters of a model, as plain data.
//!
//! In: the numbers a model was published with; `families/` holds those of well-known ones. Out: a [`Config`], which
//! every layer reads and none changes.
//! Nothing is checked here: a graph built from sizes that do not fit reports them itself.

use std::collections::{BTreeMap, BTreeSet};

use fusebox_compiler::tensor::quant::Format;

/// Everything a graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The attention of every block.
    pub attention: Attention,
    /// Hidden size: the width of the residual stream.
    pub hidden: usize,
    /// Number of blocks (layers).
    pub n_layers: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Context length: the most tokens of a sequence.
    pub context: usize,
    /// Epsilon of RMSNorm.
    pub eps: f32,
    /// Rotary position embedding.
    pub rope: Rope,
    /// FFN width of a dense block.
    pub ff: usize,
    /// Mixture of experts (MoE), in every block that is not dense.
    pub experts: Option<Experts>,
    /// The dense blocks of a model with experts.
    pub dense: BTreeSet<usize>,
    /// Whether the output head shares the embedding matrix (tied embeddings).
    pub tied: bool,
    /// Names of the weight matrices that have a bias, as layers name them.
    pub biased: BTreeSet<String>,
    /// Storage formats of the weights.
    pub formats: Formats,
    /// The KV cache.
    pub cache: KvCache,
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
}

/// Rows of a page, unless a session says otherwise.
pub const PAGE_ROWS: usize = 64;

impl KvCache {
    /// A cache in single precision for one sequence of so many tokens.
    pub fn of_one(context: usize) -> Self {
        Self { format: Format::F32, page_rows: PAGE_ROWS, n_pages: context.div_ceil(PAGE_ROWS) }
    }

    /// The most pages of a sequence.
    pub fn pages_of(&self, context: usize) -> usize {
        context.div_ceil(self.page_rows)
    }
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

/// The kinds of attention.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Grouped-query attention (GQA): Llama, Mistral, Qwen2 and Qwen3.
    Grouped(Grouped),
    /// Multi-head latent attention (MLA): `DeepSeek` V2 and its successors, such as GLM-4.7-Flash.
    Latent(Latent),
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
    /// Whether queries and keys are RMS-normalised before RoPE (QK norm).
    pub qk_norm: bool,
    /// Sliding window, if any.
    pub window: Option<Window>,
}

/// Sliding-window attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Window size in positions, the token's own included.
    pub size: usize,
    /// The blocks with full attention.
    pub full: BTreeSet<usize>,
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
}

/// A mixture of experts (MoE).
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts.
    pub n_routed: usize,
    /// Routed experts per token.
    pub top_k: usize,
    /// Shared experts, which every token uses.
    pub n_shared: usize,
    /// FFN width of one expert.
    pub ff: usize,
    /// Scoring function of the router.
    pub gate: Gate,
    /// Whether a stored bias is added to the scores for the selection of experts.
    pub router_bias: bool,
    /// Whether the routing weights of the selected experts are normalised to sum to 1.
    pub renorm: bool,
    /// Factor on the routing weights.
    pub scale: f32,
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

impl Config {
    /// The experts of a block, unless it is dense.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|_| !self.dense.contains(&layer))
    }

    /// Elements of a row of the KV cache.
    pub fn cached_row(&self) -> usize {
        match &self.attention {
            Attention::Grouped(grouped) => grouped.head,
            Attention::Latent(latent) => latent.kv_lora + latent.rope,
        }
    }

    /// The same structure with small sizes, for the reference evaluator.
    #[must_use]
    pub fn shrunk(&self) -> Self {
        Self {
            attention: self.attention.shrunk(),
            hidden: 64,
            n_layers: 2,
            vocab: 64,
            context: 32,
            cache: KvCache { page_rows: 8, n_pages: 4, ..self.cache },
            ff: 96,
            experts: self.experts.clone().map(Experts::shrunk),
            ..self.clone()
        }
    }
}

impl Experts {
    fn shrunk(self) -> Self {
        let groups = self.groups.map(|groups| Groups { n_groups: 4, top_k: 2, ..groups });
        Self { n_routed: 8, top_k: 2, ff: 32, groups, ..self }
    }
}

impl Grouped {
    /// Full rotary dimension, no QK norm, no window.
    pub fn new(n_heads: usize, n_kv: usize, head: usize) -> Self {
        Self { n_heads, n_kv, head, rotary_dim: head, qk_norm: false, window: None }
    }

    /// The window of a block; `None` for full attention.
    pub fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.as_ref().filter(|window| !window.full.contains(&layer)).map(|window| window.size)
    }
}

impl Attention {
    fn shrunk(&self) -> Self {
        match self {
            Self::Grouped(own) => Self::Grouped(Grouped {
                n_heads: 4,
                n_kv: 2,
                head: 32,
                rotary_dim: own.rotary_dim * 32 / own.head,
                window: own.window.clone().map(|window| Window { size: 5, ..window }),
                ..own.clone()
            }),
            Self::Latent(own) => Self::Latent(Latent {
                n_heads: 2,
                q_lora: own.q_lora.map(|_| 96),
                kv_lora: 32,
                nope: 32,
                rope: 8,
                value: 64,
                is_joint: own.is_joint,
            }),
        }
    }
}
