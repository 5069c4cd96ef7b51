//! What families of decoders differ in, as data.
//!
//! In: nothing. Out: the type of a row of `table.rs`, and the row that the others start from.
//! `decoder.rs` reads the hyper-parameters of a file by such a row.

use fusebox_runtime::error::Error;

use crate::config::attention::{OutputGate, QkNorm};
use crate::config::network::{Activation, Gate};
use crate::config::{Config, Mixer, Order};
use crate::families::decoder;
use crate::hparams::Hparams;
use crate::naming::tensors::Renamed;

/// Reads a config from the hyper-parameters of a file.
pub(crate) type Reader = fn(Hparams<'_>, &Family) -> Result<Config, Error>;

/// What a family has otherwise than Llama.
#[allow(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
pub(crate) struct Family {
    /// Its architecture in GGUF.
    pub(crate) gguf: &'static str,
    /// Its names in `config.json` (`model_type`).
    pub(crate) folder: &'static [&'static str],
    /// Tensors that it names or stores otherwise.
    pub(crate) names: &'static [&'static [Renamed]],
    /// The reader.
    pub(crate) read: Reader,
    /// Which elements of a head RoPE rotates together.
    pub(crate) pairs: Pairs,
    /// Which blocks have no RoPE.
    pub(crate) nope: Nope,
    /// The RoPE of blocks with a window.
    pub(crate) local_rope: LocalRope,
    /// QK norm.
    pub(crate) qk_norm: Option<QkNorm>,
    /// Whether blocks without weights of that norm have none; else these weights are missing.
    pub(crate) is_qk_norm_optional: bool,
    /// Which blocks have a window.
    pub(crate) windows: Windows,
    /// Whether a token sees only those up to its own, unless the file says otherwise.
    pub(crate) is_causal: bool,
    /// Whether heads have sinks.
    pub(crate) has_sinks: bool,
    /// What scales the output of attention.
    pub(crate) output_gate: Option<OutputGate>,
    /// Whether attention scores may grow with the position.
    pub(crate) has_temperature: bool,
    /// What blocks without attention have.
    pub(crate) recurrent: Option<fn(Hparams<'_>) -> Result<Mixer, Error>>,
    /// Where norms are.
    pub(crate) order: Order,
    /// Whether they are LayerNorms.
    pub(crate) is_centred: bool,
    /// Whether they have weights.
    pub(crate) has_norm_weights: bool,
    /// Whether there is a norm inside of attention and of FFNs, before their last projection.
    pub(crate) has_inner_norms: bool,
    /// Whether scores fall with the distance instead of RoPE (`ALiBi`), unless the file says otherwise: by this.
    pub(crate) alibi: Option<f32>,
    /// Whether embeddings are multiplied by the root of the hidden size.
    pub(crate) scales_embedding: bool,
    /// Whether the scale of logits divides them.
    pub(crate) divides_logits: bool,
    /// The activation of FFNs.
    pub(crate) activation: Activation,
    /// Whether FFNs are gated.
    pub(crate) is_gated: bool,
    /// The router of experts, where the file does not say it.
    pub(crate) gate: Gate,
    /// Whether routing weights are normalised, where the file does not say it: in a folder, in GGUF.
    pub(crate) renorm: [bool; 2],
    /// Whether the FFN width of an expert may be under the key of a dense block's.
    pub(crate) is_expert_ff_shared: bool,
    /// Whether routing weights scale the inputs of experts.
    pub(crate) weighs_input: bool,
}

/// Which elements of a head RoPE rotates together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pairs {
    /// `i` and `i + n/2`.
    Halves,
    /// `2i` and `2i + 1`.
    Interleaved,
    /// As published by halves; GGUF has the rows reordered for interleaved pairs.
    Reordered,
}

/// Which blocks have no RoPE.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nope {
    /// None of them; all of them where the file says so.
    Stated,
    /// The last of every so many, unless the file lists them.
    LastOf(usize),
    /// Those with full attention, where others have a window.
    FullAttention,
}

/// The RoPE of blocks with a window.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LocalRope {
    /// That of all blocks.
    Same,
    /// The same base without context extension.
    Unscaled,
    /// Another base without context extension: this one, unless the file says another.
    Base(f64),
}

/// Which blocks have a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None in a folder; in GGUF all, if the file has a window.
    InGguf,
    /// All, if the file has a window.
    All,
    /// If the file says that the window is used: all from a block on, if it does not list them.
    From(usize),
    /// If the file has a window: all but the last of every so many, if it does not list them.
    AllButLastOf(usize),
    /// If the file has a window: all but the first of every so many, if it does not list them.
    AllButFirstOf(usize),
    /// Those that the file lists.
    Listed,
    /// Chunks, in all blocks with RoPE.
    Chunks,
}

/// Llama, which the rows of the table start from.
pub(crate) const LLAMA: Family = Family {
    gguf: "llama",
    folder: &["llama"],
    names: &[],
    read: decoder::read,
    pairs: Pairs::Halves,
    nope: Nope::Stated,
    local_rope: LocalRope::Same,
    qk_norm: None,
    is_qk_norm_optional: false,
    windows: Windows::InGguf,
    is_causal: true,
    has_sinks: false,
    output_gate: None,
    has_temperature: false,
    recurrent: None,
    order: Order::Before,
    is_centred: false,
    has_norm_weights: true,
    has_inner_norms: false,
    alibi: None,
    scales_embedding: false,
    divides_logits: false,
    activation: Activation::Silu,
    is_gated: true,
    gate: Gate::Softmax,
    renorm: [true, true],
    is_expert_ff_shared: false,
    weighs_input: false,
};
