//! Llama: GQA with a dense FFN or experts.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! RoPE pairs elements by halves, as in the published weights; GGUF files hold the rows reordered for interleaved
//! pairs.
//! Mistral is Llama with a sliding window, Mixtral Llama with experts; both are `llama` in GGUF.
//! Read next: `qwen3.rs`, which adds QK norm.

use std::collections::BTreeSet;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Kind;

use crate::config::{
    Attention, Config, Experts, Formats, Gate, Grouped, KvCache, Pairing, Rope, Scaling, Window,
};
use crate::families::config_parts::{self, backbone, window};
use crate::families::rope::rope;
use crate::hparams::Hparams;
use crate::naming::hparams::EXPERT_FF;

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(hparams: Hparams<'_>) -> Result<Config, Error> {
    // A folder with `model_type` llama has no window, even if it has a window size.
    let has_none = hparams.kind() == Kind::Safetensors && hparams.architecture() == "llama";
    let window = if has_none { None } else { window(hparams, true, None)? };
    let heads = Grouped { window, ..config_parts::grouped(hparams, false)? };
    let pairing = match hparams.kind() {
        Kind::Gguf { .. } | Kind::Qorus => Pairing::Interleaved,
        Kind::Safetensors | Kind::Ajc1 => Pairing::Halves,
    };
    let rope = rope(hparams, pairing, heads.rotary_dim)?;
    let backbone = backbone(hparams, Attention::Grouped(heads), rope)?;
    // Routing weights are normalised, and an expert has the FFN width of a dense block.
    let Some((experts, dense)) = config_parts::experts(hparams, Gate::Softmax, true)? else {
        return Ok(backbone);
    };
    let ff = hparams.count_if(EXPERT_FF)?.unwrap_or(backbone.ff);
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
        cache: KvCache::of_one(4096),
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
        cache: KvCache::of_one(8192),
        rope: Rope { theta: 1e4, pairing: Pairing::Halves, scaling: Scaling::None },
        ff: 14_336,
        tied: false,
        ..llama_3_2_1b()
    }
}
