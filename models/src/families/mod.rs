//! The models: each file holds the sizes of one family's members and how its block is built.
//!
//! In: a scope and the residual stream `[t, d]`. Out: the residual stream behind one block, or logits `[v]` behind all.
//! A block is everything between two points of the residual stream, so any two of a model could be swapped.
//! To add a family: a file here, a case of [`Family`], and its names in `blocks.rs`.

use fusebox_compiler::graph::build::Tensor;
use fusebox_runtime::error::Error;

use crate::config::{Config, Family};
use crate::facts::Facts;
use crate::layers::embed::{Scored, embed, head};
use crate::layers::scope::Scope;

pub mod deepseek;
pub mod llama;
pub mod qwen3;

/// The architectures whose files are read.
pub const ARCHITECTURES: [&str; 1] = ["qwen3"];

/// The sizes of the model in a file of this architecture; nothing for one that is not known.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub fn read(architecture: &str, facts: &Facts) -> Result<Option<Config>, Error> {
    match architecture {
        "qwen3" => qwen3::read(facts).map(Some),
        _ => Ok(None),
    }
}

/// One block, with its weights and states named `blk.N.*`.
pub fn block(m: &Scope, layer: usize, x: &Tensor) -> Tensor {
    m.g.block(&format!("blk.{layer}"), |_| match &m.config.family {
        Family::Llama(heads) => llama::block(m, heads, x),
        Family::Qwen3(heads) => qwen3::block(m, heads, layer, x),
        Family::DeepSeek(sizes) => deepseek::block(m, sizes, layer, x),
    })
}

/// The whole step: tokens `[t]` become scores, `[v]` of the token after the last or `[t, v]` after each.
pub fn step(m: &Scope, n_layers: usize, tokens: &Tensor, scored: Scored) -> Tensor {
    let x = (0..n_layers).fold(embed(m, tokens), |x, layer| block(m, layer, &x));
    head(m, &x, scored)
}
