//! The models: each file holds the sizes of one family's members and how its block is built.
//!
//! In: a scope and the residual stream `[t, d]`. Out: the residual stream behind one block, or logits `[v]` behind all.
//! A block is everything between two points of the residual stream, so any two of a model could be swapped.
//! To add a family: a file here, a case of [`Family`], and its names in `blocks.rs`.

use fusebox_compiler::graph::build::Tensor;

use crate::config::Family;
use crate::layers::embed::{embed, head};
use crate::layers::scope::Scope;

pub mod deepseek;
pub mod llama;
pub mod qwen3;

/// One block, with its weights and states named `blk.N.*`.
pub fn block(m: &Scope, layer: usize, x: &Tensor) -> Tensor {
    m.g.block(&format!("blk.{layer}"), |_| match &m.config.family {
        Family::Llama(heads) => llama::block(m, heads, x),
        Family::Qwen3(heads) => qwen3::block(m, heads, layer, x),
        Family::DeepSeek(sizes) => deepseek::block(m, sizes, layer, x),
    })
}

/// The whole step: tokens `[t]` become the scores `[v]` of the token after the last.
pub fn step(m: &Scope, n_layers: usize, tokens: &Tensor) -> Tensor {
    let x = (0..n_layers).fold(embed(m, tokens), |x, layer| block(m, layer, &x));
    head(m, &x)
}
