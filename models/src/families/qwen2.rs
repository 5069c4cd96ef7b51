//! Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! The later blocks of some members could use a sliding window; no published model does.
//! Read next: `llama.rs`.

use fusebox_runtime::error::Error;

use crate::config::{Attention, Config, Grouped, Pairing, Rope, Scaling};
use crate::families::config_parts::{self, backbone, window};
use crate::families::llama::llama_3_2_1b;
use crate::families::rope::rope;
use crate::hparams::Hparams;

/// The first block with a window, where the file does not state it.
pub(super) const WINDOW_FROM: usize = 28;

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(hparams: Hparams<'_>) -> Result<Config, Error> {
    let window = window(hparams, false, Some(WINDOW_FROM))?;
    let heads = Grouped { window, ..config_parts::grouped(hparams, false)? };
    let rope = rope(hparams, Pairing::Halves, heads.rotary_dim)?;
    backbone(hparams, Attention::Grouped(heads), rope)
}

/// Qwen2.5-0.5B.
pub(crate) fn qwen2_5_0_5b() -> Config {
    Config {
        attention: Attention::Grouped(Grouped::new(14, 2, 64)),
        hidden: 896,
        n_layers: 24,
        vocab: 151_936,
        eps: 1e-6,
        rope: Rope { theta: 1e6, pairing: Pairing::Halves, scaling: Scaling::None },
        ff: 4864,
        tied: true,
        biased: ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into(),
        ..llama_3_2_1b()
    }
}
