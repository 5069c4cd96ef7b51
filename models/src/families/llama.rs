//! Llama: grouped attention, and a dense network or experts.
//!
//! In: what a file says of its model. Out: its sizes.
//! Heads are paired by halves, as in the published weights; GGUF files hold them reordered to neighbours.
//! Mistral is the same with a window, Mixtral with experts; both go by the name of Llama in GGUF.
//! Read next: `qwen3.rs`, which adds norms of heads.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Grouped, Pairing, Rope, Scaling, Window};
use crate::facts::Facts;
use crate::families::rotation::rope;
use crate::families::sizes::{self, backbone, window};
use crate::naming::keys::EXPERT_FF;

/// The sizes of the model in a file.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub(crate) fn read(facts: Facts<'_>) -> Result<Config, Error> {
    // A folder that says Llama has none, whatever stands beside.
    let has_none = facts.kind() == Kind::Safetensors && facts.architecture() == "llama";
    let window = if has_none { None } else { window(facts, true, None)? };
    let heads = Grouped { window, ..sizes::grouped(facts, false)? };
    let pairing = match facts.kind() {
        Kind::Gguf { .. } | Kind::Qorus => Pairing::Neighbours,
        Kind::Safetensors | Kind::Ajc1 => Pairing::Halves,
    };
    let rope = rope(facts, pairing, heads.turned)?;
    let backbone = backbone(facts, Attention::Grouped(heads), rope)?;
    // The weights of the selected add up to one, and an expert is as wide as a network that is dense.
    let Some((experts, dense)) = sizes::experts(facts, Gate::Softmax, true)? else { return Ok(backbone) };
    let ff = facts.count_if(EXPERT_FF)?.unwrap_or(backbone.ff);
    Ok(Config { experts: Some(Experts { ff, ..experts }), dense, ..backbone })
}

/// Llama-3.2-1B.
pub(crate) fn llama_3_2_1b() -> Config {
    Config {
        attention: Attention::Grouped(Grouped::new(32, 8, 64)),
        hidden: 2048,
        n_layers: 16,
        vocab: 128_256,
        context: 4096,
        eps: 1e-5,
        rope: Rope {
            theta: 5e5,
            pairing: Pairing::Halves,
            scaling: Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 },
        },
        ff: 8192,
        experts: None,
        dense: BTreeSet::new(),
        tied: true,
        biased: BTreeSet::new(),
        formats: Formats::Uniform(Format::Q8_0),
        cache: Format::F32,
    }
}

/// Mistral-7B-v0.1.
pub(crate) fn mistral_7b() -> Config {
    let window = Some(Window { size: 4096, full: BTreeSet::new() });
    Config {
        attention: Attention::Grouped(Grouped { window, ..Grouped::new(32, 8, 128) }),
        hidden: 4096,
        n_layers: 32,
        vocab: 32_000,
        context: 8192,
        rope: Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None },
        ff: 14_336,
        tied: false,
        ..llama_3_2_1b()
    }
}
