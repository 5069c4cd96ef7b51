//! Qwen3: grouped attention with normed queries and keys, then a dense network or experts.
//!
//! In: what a file says of its model. Out: its sizes.
//! The dense and the sparse models differ in nothing but the second half of a block.
//! Read next: `deepseek.rs`, which caches latents instead of keys and values.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Grouped, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::families::qwen2::WINDOW_FROM;
use crate::families::rotation::rope;
use crate::families::sizes::{self, backbone, experts as experts_of, window};
use crate::naming::keys::RENORM;

/// The sizes of the model in a file.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub(crate) fn read(facts: Facts<'_>) -> Result<Config, Error> {
    // Those with experts look back through it in all blocks.
    let from = (facts.architecture() != "qwen3_moe").then_some(WINDOW_FROM);
    let window = window(facts, false, from)?;
    let heads = Grouped { window, ..sizes::grouped(facts, true)? };
    let rope = rope(facts, Pairing::Halves, heads.turned)?;
    // GGUF does not say that weights add up to one: they always do.
    let renorm = facts.flag(RENORM)?.unwrap_or(matches!(facts.kind(), Kind::Gguf { .. }));
    let (experts, dense) = experts_of(facts, Gate::Softmax, renorm)?.unzip();
    let backbone = backbone(facts, Attention::Grouped(heads), rope)?;
    Ok(Config { experts, dense: dense.unwrap_or_default(), ..backbone })
}

/// Qwen3-0.6B.
pub(crate) fn qwen3_0_6b() -> Config {
    Config {
        attention: Attention::Grouped(Grouped { qk_norm: true, ..Grouped::new(16, 8, 128) }),
        hidden: 1024,
        n_layers: 28,
        vocab: 151_936,
        context: 4096,
        eps: 1e-6,
        rope: Rope { theta: 1e6, pairing: Pairing::Halves, scaling: Scaling::None },
        ff: 3072,
        experts: None,
        dense: BTreeSet::new(),
        tied: true,
        biased: BTreeSet::new(),
        formats: Formats::Uniform(Format::Q8_0),
        cache: Format::F32,
    }
}

/// Qwen3-8B.
pub(crate) fn qwen3_8b() -> Config {
    Config {
        attention: Attention::Grouped(Grouped { qk_norm: true, ..Grouped::new(32, 8, 128) }),
        hidden: 4096,
        n_layers: 36,
        ff: 12_288,
        tied: false,
        ..qwen3_0_6b()
    }
}

/// Qwen3-30B-A3B: every block has experts.
pub(crate) fn qwen3_30b_a3b() -> Config {
    Config {
        attention: Attention::Grouped(Grouped { qk_norm: true, ..Grouped::new(32, 4, 128) }),
        hidden: 2048,
        n_layers: 48,
        ff: 6144,
        experts: Some(Experts {
            n: 128,
            n_used: 8,
            n_shared: 0,
            ff: 768,
            gate: Gate::Softmax,
            is_biased: false,
            renorm: true,
            scale: 1.0,
            groups: None,
            is_joint: false,
        }),
        tied: false,
        ..qwen3_0_6b()
    }
}
