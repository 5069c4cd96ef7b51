//! Qwen2 and Qwen2.5: as Llama, with biases on queries, keys and values.
//!
//! In: what a file says of its model. Out: its sizes.
//! Some members could look back through a window in their later blocks; none that was published uses it.
//! Read next: `llama.rs`.

use fusebox_runtime::error::Error;

use crate::config::{Attention, Config, Grouped, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::families::llama::llama_3_2_1b;
use crate::families::rotation::rope;
use crate::families::sizes::{self, backbone, window};

/// The first block with a window, where a file does not say it.
pub(super) const WINDOW_FROM: usize = 28;

/// The sizes of the model in a file.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub(crate) fn read(facts: Facts<'_>) -> Result<Config, Error> {
    let window = window(facts, false, Some(WINDOW_FROM))?;
    let heads = Grouped { window, ..sizes::grouped(facts, false)? };
    let rope = rope(facts, Pairing::Halves, heads.turned)?;
    backbone(facts, Attention::Grouped(heads), rope)
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
