//! Models of the oldest families by a few sizes, for tests that make files of them.
//!
//! In: the sizes of one kind of attention and of one kind of network. Out: a config, with a list of blocks.
//! A config says all of this block by block; tests of one part say it once.

use std::collections::BTreeSet;

use fusebox_models::blocks;
use fusebox_models::config::attention::{Latent, QkNorm};
use fusebox_models::config::network::{Dense, Experts};
use fusebox_models::config::rope::Rope;
use fusebox_models::config::{self, Block, Config, Formats, Mixer, Network, Order};

/// A model whose blocks are alike, except for windows and dense networks.
#[derive(Clone, Debug, PartialEq)]
pub struct Plain {
    /// The attention of every block.
    pub attention: Attention,
    /// Hidden size.
    pub hidden: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Capacity of the KV cache.
    pub context: usize,
    /// Epsilon of norms.
    pub eps: f32,
    /// RoPE of every block.
    pub rope: Rope,
    /// FFN width of a dense block.
    pub ff: usize,
    /// Experts of every block that is not dense.
    pub experts: Option<Experts>,
    /// The dense blocks of a model with experts.
    pub dense: BTreeSet<usize>,
    /// Whether embeddings are tied.
    pub tied: bool,
    /// Weight matrices with a bias.
    pub biased: BTreeSet<String>,
    /// Storage formats.
    pub formats: Formats,
}

/// The kinds of attention.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// GQA.
    Grouped(Grouped),
    /// MLA; its RoPE is that of the model.
    Latent(Latent),
}

/// GQA.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv: usize,
    /// Head dimension.
    pub head: usize,
    /// Rotary dimension.
    pub rotary_dim: usize,
    /// Whether there is a QK norm.
    pub qk_norm: bool,
    /// Sliding window.
    pub window: Option<Window>,
}

/// A sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its size.
    pub size: usize,
    /// The blocks without it.
    pub full: BTreeSet<usize>,
}

impl Grouped {
    /// RoPE on whole heads, no QK norm, no window.
    pub fn new(n_heads: usize, n_kv: usize, head: usize) -> Self {
        Self { n_heads, n_kv, head, rotary_dim: head, qk_norm: false, window: None }
    }
}

impl Plain {
    /// Whether a block has experts.
    fn has_experts(&self, layer: usize) -> bool {
        self.experts.is_some() && !self.dense.contains(&layer)
    }

    fn mixer(&self, layer: usize) -> Mixer {
        match &self.attention {
            Attention::Latent(own) => Mixer::Latent(Latent { turn: self.rope.clone(), ..own.clone() }),
            Attention::Grouped(own) => {
                let window = own.window.as_ref().filter(|window| !window.full.contains(&layer));
                Mixer::Grouped(config::attention::Grouped {
                    rotary_dim: own.rotary_dim,
                    rope: Some(self.rope.clone()),
                    qk_norm: own.qk_norm.then_some(QkNorm::Head),
                    window: window.map(|window| config::attention::Window::Sliding(window.size)),
                    ..config::attention::Grouped::new(own.n_heads, own.n_kv, own.head)
                })
            }
        }
    }

    fn block(&self, layer: usize) -> Block {
        let network = match &self.experts {
            Some(experts) if self.has_experts(layer) => Network::Sparse(experts.clone()),
            _ => Network::Dense(Dense::swiglu(self.ff)),
        };
        Block::new(self.mixer(layer), network)
    }

    /// The config.
    pub fn config(&self) -> Config {
        let blocks = (0..self.n_layers).map(|layer| self.block(layer)).collect();
        Config {
            eps: self.eps,
            tied: self.tied,
            biased: self.biased.clone(),
            formats: self.formats.clone(),
            ..Config::new(blocks, self.hidden, self.vocab, self.context)
        }
    }
}

/// The named models whose every product has a micro-kernel: with attention in all blocks, without sinks, and with norms
/// before each half only.
pub fn with_micro_kernels() -> Vec<&'static str> {
    let is_plain = |block: &Block| {
        let has_sinks = matches!(&block.mixer, Mixer::Grouped(heads) if heads.has_sinks);
        let has_attention = matches!(&block.mixer, Mixer::Grouped(_) | Mixer::Latent(_));
        has_attention && !has_sinks && block.order == Order::Before
    };
    let all_are = |name: &&str| blocks::named(name).is_some_and(|config| config.blocks.iter().all(is_plain));
    blocks::NAMES.into_iter().filter(all_are).collect()
}

/// The window of a config read from a file, and the blocks without it.
pub fn window_of(config: &Config) -> Option<Window> {
    let size = |block: &Block| match &block.mixer {
        Mixer::Grouped(config::attention::Grouped {
            window: Some(config::attention::Window::Sliding(size)),
            ..
        }) => Some(*size),
        _ => None,
    };
    let sizes: Vec<Option<usize>> = config.blocks.iter().map(size).collect();
    let full = (0..sizes.len()).filter(|layer| sizes[*layer].is_none()).collect();
    sizes.iter().flatten().next().map(|size| Window { size: *size, full })
}
