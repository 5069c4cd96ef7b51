//! Qwen3: GQA with QK norm, and a dense FFN or experts.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! Dense and MoE models differ in the second half of a block only.
//! Read next: `deepseek.rs`, which caches latents instead of keys and values.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::{Attention, Config, Experts, Formats, Gate, Grouped, KvCache, Pairing, Rope, Scaling};
use crate::families::config_parts::{self, backbone, experts as experts_of, window};
use crate::families::qwen2::WINDOW_FROM;
use crate::families::rope::rope;
use crate::hparams::Hparams;
use crate::naming::hparams::RENORM;

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(hparams: Hparams<'_>) -> Result<Config, Error> {
    // MoE models use the window in all blocks.
    let from = (hparams.architecture() != "qwen3_moe").then_some(WINDOW_FROM);
    let window = window(hparams, false, from)?;
    let heads = Grouped { window, ..config_parts::grouped(hparams, true)? };
    let rope = rope(hparams, Pairing::Halves, heads.rotary_dim)?;
    // GGUF does not state that routing weights are normalised: for Qwen3 they always are.
    let renorm = hparams.flag(RENORM)?.unwrap_or(matches!(hparams.kind(), Kind::Gguf { .. }));
    let (experts, dense) = experts_of(hparams, Gate::Softmax, renorm)?.unzip();
    let backbone = backbone(hparams, Attention::Grouped(heads), rope)?;
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
        cache: KvCache::of_one(4096),
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
            n_routed: 128,
            top_k: 8,
            n_shared: 0,
            ff: 768,
            gate: Gate::Softmax,
            router_bias: false,
            renorm: true,
            scale: 1.0,
            groups: None,
            is_joint: false,
        }),
        tied: false,
        ..qwen3_0_6b()
    }
}
