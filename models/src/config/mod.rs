//! The hyper-parameters of a model, as plain data: a list of block kinds, and what is around them.
//!
//! In: the numbers a model was published with; `families/` holds those of well-known ones. Out: a [`Config`], which
//! every layer reads and none changes.
//! A block is a [`Mixer`], which moves data between tokens, and a [`Network`], which works on each token alone.
//! Nothing is checked here: a graph built from sizes that do not fit reports them itself.

use std::collections::{BTreeMap, BTreeSet};

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::session::engine::WindowPages;

use crate::config::attention::{Grouped, Latent};
use crate::config::network::{Dense, Experts};
use crate::config::recurrent::{Beside, Delta, ShortConv, StateSpace};
use crate::config::rope::{Rope, Scaling};

pub mod attention;
pub mod network;
pub mod recurrent;
pub mod rope;
mod shrunk;
mod windows;

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

impl Default for Ends {
    fn default() -> Self {
        Self { has_norm: true, projections: Vec::new(), ranking: None }
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
