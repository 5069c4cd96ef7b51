//! The models: each file holds the sizes of one family's members and how its block is built.
//!
//! In: a scope and the residual stream `[t, d]`. Out: the residual stream behind one block, or logits `[v]` behind all.
//! A block is everything between two points of the residual stream, so any two of a model could be swapped.
//! To add a family: a file here, a case of [`Family`], and its names in `blocks.rs`.

use fusebox_compiler::graph::build::Tensor;
use fusebox_runtime::error::Error;

use crate::config::{Config, Family};
use crate::facts::Facts;
use crate::layers::embed::{Entry, Scored, entry, head};
use crate::layers::scope::Scope;

pub mod deepseek;
pub mod llama;
pub mod qwen2;
pub mod qwen3;
pub(crate) mod rotation;
mod sizes;

/// From what a file says of its model to the sizes of it.
type Reader = fn(Facts<'_>) -> Result<Config, Error>;

/// The architectures whose files are read, as GGUF and as `config.json` call them.
const READERS: [(&str, Reader); 12] = [
    ("llama", llama::read),
    ("mistral", llama::read),
    ("qwen2", qwen2::read),
    ("qwen3", qwen3::read),
    ("qwen3moe", qwen3::read),
    ("qwen3_moe", qwen3::read),
    ("deepseek2", deepseek::read),
    ("deepseek_v2", deepseek::read),
    ("deepseek_v3", deepseek::read),
    ("glm4_moe_lite", deepseek::read),
    ("youtu", deepseek::read),
    ("youtu_llm", deepseek::read),
];

/// Their names.
pub fn architectures() -> String {
    READERS.map(|(name, _)| name).join(", ")
}

/// The sizes of the model in a file of this architecture; nothing for one that is not known.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub fn read(architecture: &str, facts: Facts<'_>) -> Result<Option<Config>, Error> {
    let reader = READERS.iter().find(|(name, _)| *name == architecture);
    reader.map(|(_, read)| read(facts)).transpose()
}

/// One block, with its weights and states named `blk.N.*`.
pub fn block(m: &Scope, layer: usize, x: &Tensor) -> Tensor {
    m.g.block(&format!("blk.{layer}"), |_| match &m.config.family {
        Family::Llama(heads) => llama::block(m, heads, layer, x),
        Family::Qwen3(heads) => qwen3::block(m, heads, layer, x),
        Family::DeepSeek(sizes) => deepseek::block(m, sizes, layer, x),
    })
}

/// The whole step, from what it starts from to what is asked for.
pub fn step(m: &Scope, n_layers: usize, from: Entry, scored: Scored) -> Vec<(&'static str, Tensor)> {
    let x = (0..n_layers).fold(entry(m, from), |x, layer| block(m, layer, &x));
    head(m, &x, scored)
}
