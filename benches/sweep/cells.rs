//! What is measured: shapes, formats, prompts and depths.
//!
//! Out: [`cells`], sorted, so that those of one model follow each other. Each [`Kind`] varies the sizes that it is
//! about; all its other sizes stay. Numbers that say where a cell stands on an axis are its [`Cell::coordinates`].
//! Sizes are of published models where there are such: 576 and 960 of `SmolLM2`, 896 and 3584 of Qwen2.5, 2880 of
//! gpt-oss, heads of 80 and 96 of Phi, latents of 256 and 512 of `MiniCPM3` and DeepSeek.

use std::fmt;

use fusebox_models::blocks::named;
use fusebox_models::config::attention::{Grouped, Latent};
use fusebox_models::config::network::{Activation, Dense, Experts, Gate};
use fusebox_models::config::{Config, Mixer, Network};

/// How many tokens are taken at once.
const PROMPTS: [usize; 6] = [1, 2, 4, 16, 64, 512];
/// How many tokens the cache has before, where attention is looked at.
const DEPTHS: [usize; 3] = [0, 512, 4096];
/// Types as `fusebox quantize` has them, with about how many hundredths of a bit an element takes.
const FORMATS: [(&str, u64); 5] =
    [("Q4_0", 450), ("Q4_K_M", 490), ("Q4_1", 500), ("Q8_0", 850), ("BF16", 1600)];
/// The formats in which attention and experts are looked at.
const TWO_FORMATS: [&str; 2] = ["Q4_K_M", "Q8_0"];
const WIDTHS: [usize; 11] = [576, 640, 896, 960, 1152, 1536, 2048, 2560, 2880, 3584, 4096];
const HEADS: [usize; 5] = [64, 80, 96, 128, 256];
const EXPERTS: [usize; 5] = [8, 16, 32, 64, 128];
const LATENTS: [usize; 4] = [128, 256, 384, 512];
/// How many elements the matrices of all blocks but the last have together, at least: more than caches hold.
const N_WEIGHTS: usize = 128 << 20;

/// A model, and what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) shape: Shape,
    pub(crate) format: &'static str,
    pub(crate) depth: usize,
    pub(crate) prompt: usize,
}

/// The sizes of a model: what it is about, and the size that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) size: usize,
}

/// What a model is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Dense blocks of some width with heads of 64.
    Width,
    /// Dense blocks with heads of some width.
    Head,
    /// Blocks with some number of experts.
    Experts,
    /// Attention on latents of some width (MLA).
    Latent,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Width, Self::Head, Self::Experts, Self::Latent];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Width => "width",
            Self::Head => "head",
            Self::Experts => "experts",
            Self::Latent => "latent",
        }
    }

    fn sizes(self, is_quick: bool) -> Vec<usize> {
        let all: &[usize] = match self {
            Self::Width => &WIDTHS,
            Self::Head => &HEADS,
            Self::Experts => &EXPERTS,
            Self::Latent => &LATENTS,
        };
        let is_wanted = |place: &usize| !is_quick || place.is_multiple_of(2);
        (0..all.len()).filter(is_wanted).map(|place| all[place]).collect()
    }

    fn formats(self, is_quick: bool) -> Vec<&'static str> {
        match self {
            _ if is_quick => TWO_FORMATS[..1].to_vec(),
            Self::Width => FORMATS.map(|(name, _)| name).to_vec(),
            Self::Head | Self::Experts | Self::Latent => TWO_FORMATS.to_vec(),
        }
    }

    /// How many tokens the cache has before.
    pub(crate) fn depths(self) -> &'static [usize] {
        match self {
            Self::Width | Self::Experts => &DEPTHS[..1],
            Self::Head | Self::Latent => &DEPTHS,
        }
    }
}

/// All cells, or those of a quick look.
pub(crate) fn cells(is_quick: bool) -> Vec<Cell> {
    let prompts = if is_quick { &PROMPTS[..4] } else { &PROMPTS[..] };
    let mut cells = Vec::new();
    for kind in Kind::ALL {
        for size in kind.sizes(is_quick) {
            for format in kind.formats(is_quick) {
                for depth in kind.depths() {
                    let cell = |prompt: &usize| Cell {
                        shape: Shape { kind, size },
                        format,
                        depth: *depth,
                        prompt: *prompt,
                    };
                    cells.extend(prompts.iter().map(cell));
                }
            }
        }
    }
    cells
}

/// The format of this name, as all cells have it.
pub(crate) fn format(name: &str) -> Option<&'static str> {
    FORMATS.into_iter().map(|(own, _)| own).find(|own| *own == name)
}

impl Cell {
    /// The names of the axes.
    pub(crate) const AXES: [&'static str; 4] = ["size", "format", "depth", "prompt"];

    /// Where it stands on each axis; a depth of 0 has a logarithm too.
    pub(crate) fn coordinates(&self) -> [u64; 4] {
        let bits = FORMATS.into_iter().find(|(name, _)| *name == self.format).map_or(0, |(_, bits)| bits);
        [self.shape.size as u64, bits, self.depth as u64 + 1, self.prompt as u64]
    }

    /// Whether its label has a word.
    pub(crate) fn has(&self, word: &str) -> bool {
        let label = self.to_string().to_lowercase();
        label.split(' ').any(|own| own == word.to_lowercase())
    }

    /// The sizes of its model.
    pub(crate) fn config(&self) -> Config {
        let base = named("llama-3.2-1b").expect("a named block");
        let size = self.shape.size;
        let config = match self.shape.kind {
            Kind::Width => dense(&base, size, &grouped(size / 64, 64)),
            Kind::Head => dense(&base, 2048, &grouped(16, size)),
            Kind::Experts => {
                let experts = Experts {
                    n_routed: size,
                    top_k: 4,
                    shared_ff: 0,
                    has_shared_gate: false,
                    ff: 768,
                    activation: Activation::Silu,
                    is_gated: true,
                    has_biases: false,
                    weighs_input: false,
                    gate: Gate::Softmax,
                    router_bias: false,
                    renorm: true,
                    scale: 1.0,
                    cap: None,
                    groups: None,
                    is_joint: false,
                };
                dense(&base, 2048, &grouped(32, 64)).with_network(&Network::Sparse(experts), |_| true)
            }
            Kind::Latent => {
                let latent = Latent {
                    n_heads: 16,
                    q_lora: Some(768),
                    kv_lora: size,
                    nope: 128,
                    rope: 64,
                    value: 128,
                    is_joint: false,
                    turn: base.rope().expect("it has RoPE").clone(),
                };
                dense(&base, 2048, &Mixer::Latent(latent))
            }
        };
        let per_block = per_block(&config);
        // Of the last block most is computed for the last token only.
        config.with_layers(1 + N_WEIGHTS.div_ceil(per_block))
    }
}

/// `width 576 Q8_0 depth 0 prompt 16`
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape: Shape { kind, size }, format, depth, prompt } = self;
        f.pad(&format!("{} {size} {format} depth {depth} prompt {prompt}", kind.name()))
    }
}

/// A dense model. Rows of the down projection are three times as long as others: no rounder than the width is.
fn dense(base: &Config, hidden: usize, mixer: &Mixer) -> Config {
    let rope = base.rope().expect("it has RoPE");
    let network = Network::Dense(Dense::swiglu(3 * hidden));
    let config = Config { hidden, vocab: 1024, tied: false, ..base.clone() };
    config.with_mixer(mixer).with_rope(rope).with_network(&network, |_| true)
}

/// Heads that share keys in groups of three or more, where their number lets them.
fn grouped(n_heads: usize, head: usize) -> Mixer {
    let n_kv = (1..=n_heads / 3).rev().find(|n_kv| n_heads.is_multiple_of(*n_kv)).unwrap_or(1);
    Mixer::Grouped(Grouped::new(n_heads, n_kv, head))
}

/// About how many elements the matrices of a block have.
fn per_block(config: &Config) -> usize {
    let of_attention = match &config.blocks[0].mixer {
        Mixer::Grouped(own) => config.hidden * own.head * 2 * (own.n_heads + own.n_kv),
        Mixer::Latent(own) => config.hidden * own.n_heads * (own.nope + own.value),
        _ => 0,
    };
    let of_network = match config.experts() {
        Some(experts) => 3 * config.hidden * experts.ff * experts.n_routed,
        None => 3 * config.hidden * config.ff().unwrap_or(0),
    };
    of_attention + of_network
}
