//! What distinguishes one model from another: sizes and switches, as plain data.
//!
//! In: the numbers a model was published with; `families/` holds those of well-known ones. Out: a [`Config`], which
//! every layer reads and none changes.
//! Nothing is checked here; a graph of sizes that do not fit reports them itself.

use std::collections::{BTreeMap, BTreeSet};

use fusebox_compiler::tensor::quant::Format;

/// Everything a graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How tokens look back at earlier ones.
    pub attention: Attention,
    /// The width of the residual stream.
    pub hidden: usize,
    /// How many blocks.
    pub n_layers: usize,
    /// How many different tokens.
    pub vocab: usize,
    /// How many positions the caches hold.
    pub context: usize,
    /// What keeps a norm from dividing by zero.
    pub eps: f32,
    /// How positions turn queries and keys.
    pub rope: Rope,
    /// The inner width of a dense block.
    pub ff: usize,
    /// The experts of all other blocks.
    pub experts: Option<Experts>,
    /// The blocks that are dense although there are experts.
    pub dense: BTreeSet<usize>,
    /// Whether the output head is the token table.
    pub tied: bool,
    /// The matrices that have a bias, by the names layers have for them.
    pub biased: BTreeSet<String>,
    /// How tensors are stored.
    pub formats: Formats,
    /// How cached keys and values are stored.
    pub cache: Format,
}

/// How tensors are stored.
#[derive(Clone, Debug, PartialEq)]
pub enum Formats {
    /// All matrices alike.
    Uniform(Format),
    /// Each matrix in its own, by the name it has in graphs.
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

/// How tokens look back at earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Attention {
    /// Llama, Mistral, Qwen2 and Qwen3.
    Grouped(Grouped),
    /// `DeepSeek` V2 and those after its pattern, such as GLM-4.7-Flash.
    Latent(Latent),
}

/// Attention whose query heads share key heads in groups.
#[derive(Clone, Debug, PartialEq)]
pub struct Grouped {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv: usize,
    /// The width of a head.
    pub head: usize,
    /// How many elements of a head are turned: the first ones.
    pub turned: usize,
    /// Whether each query and key is normed before it is turned.
    pub qk_norm: bool,
    /// How far back tokens see, if not to the start of the text.
    pub window: Option<Window>,
}

/// A limit to how far back tokens see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// How many positions, the token's own included.
    pub size: usize,
    /// The blocks that have no limit.
    pub full: BTreeSet<usize>,
}

/// Attention whose keys and values are read from one small vector per position.
#[derive(Clone, Debug, PartialEq)]
pub struct Latent {
    /// Heads.
    pub n_heads: usize,
    /// The width queries are squeezed through, if they are.
    pub q_lora: Option<usize>,
    /// The width keys and values are squeezed through.
    pub kv_lora: usize,
    /// The part of a key that does not know its position.
    pub nope: usize,
    /// The part of a key that does; all heads share it.
    pub rope: usize,
    /// The width of a value.
    pub value: usize,
    /// Whether what makes keys and what makes values of a latent is stored as one matrix.
    pub is_joint: bool,
}

/// Feed-forward networks of which each token uses a few.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub n: usize,
    /// How many a token uses.
    pub n_used: usize,
    /// How many more every token uses.
    pub n_shared: usize,
    /// The inner width of one.
    pub ff: usize,
    /// How a router's outputs become weights.
    pub gate: Gate,
    /// Whether a stored bias takes part in the selection.
    pub is_biased: bool,
    /// Whether the weights of the selected add up to one.
    pub renorm: bool,
    /// What the weights are multiplied by in the end.
    pub scale: f32,
    /// The groups they come in, if not all are compared.
    pub groups: Option<Groups>,
    /// Whether the two matrices that work on the same input are stored as one.
    pub is_joint: bool,
}

/// Groups of experts, of which a token uses a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub n: usize,
    /// How many a token uses.
    pub n_used: usize,
    /// A group is as good as so many of its best together.
    pub n_best: usize,
}

/// The ways to make weights of a router's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// All experts share one.
    Softmax,
    /// Each expert on its own.
    Sigmoid,
    /// The selected share one.
    SoftmaxOfSelected,
    /// Each expert on its own: `√(ln(1 + e^x))`.
    RootOfSoftplus,
}

/// How positions turn queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The slowest pair turns about this many times slower than the fastest.
    pub theta: f64,
    /// Which elements are turned together.
    pub pairing: Pairing,
    /// How the speeds are stretched to longer texts.
    pub scaling: Scaling,
}

/// Which elements are turned together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Element `i` of the first half with element `i` of the second.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// How turning speeds are stretched to texts longer than those first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Each pair is slowed down by a factor of its own.
    Factors(Vec<f32>),
    /// Llama 3: slow pairs are slowed down, fast ones kept, with a blend between.
    Llama3 {
        /// How much longer.
        factor: f64,
        /// Pairs with fewer turns than this in an original text are slow.
        low: f64,
        /// Pairs with more are fast.
        high: f64,
        /// The length first trained on.
        original: f64,
    },
    /// YaRN: the same idea with the blend along the pairs, and softer scores are sharpened again.
    Yarn {
        /// How much longer.
        factor: f64,
        /// Pairs with more turns than this in an original text are fast.
        beta_fast: f64,
        /// Pairs with fewer are slow.
        beta_slow: f64,
        /// The length first trained on.
        original: f64,
        /// What turned queries and keys are multiplied by.
        magnitude: f64,
        /// What queries and keys are multiplied by as a whole, so that scores are sharper.
        sharpening: f64,
    },
}

impl Scaling {
    /// The factor that slows all pairs alike, if one does.
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

    /// Elements of a row of what is cached.
    pub fn cached_row(&self) -> usize {
        match &self.attention {
            Attention::Grouped(grouped) => grouped.head,
            Attention::Latent(latent) => latent.kv_lora + latent.rope,
        }
    }

    /// The same structure, small enough for the slow evaluator.
    #[must_use]
    pub fn shrunk(&self) -> Self {
        Self {
            attention: self.attention.shrunk(),
            hidden: 64,
            n_layers: 2,
            vocab: 64,
            context: 32,
            ff: 96,
            experts: self.experts.clone().map(Experts::shrunk),
            ..self.clone()
        }
    }
}

impl Experts {
    fn shrunk(self) -> Self {
        let groups = self.groups.map(|groups| Groups { n: 4, n_used: 2, ..groups });
        Self { n: 8, n_used: 2, ff: 32, groups, ..self }
    }
}

impl Grouped {
    /// Heads that are turned whole and neither normed nor limited.
    pub fn new(n_heads: usize, n_kv: usize, head: usize) -> Self {
        Self { n_heads, n_kv, head, turned: head, qk_norm: false, window: None }
    }

    /// How many positions a token sees in a block, if not all.
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
                turned: own.turned * 32 / own.head,
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
