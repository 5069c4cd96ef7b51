//! The models: each file reads the sizes of one family's members, and holds those of well-known ones.
//!
//! In: what a file says of its model. Out: a [`Config`], from which `layers/block.rs` builds every block.
//! To add a family: a file here, with its architectures in [`ARCHITECTURES`]; the names of its well-known members
//! go to `blocks.rs`.

use fusebox_runtime::error::Error;

use crate::config::Config;
use crate::facts::Facts;

pub(crate) mod deepseek;
pub(crate) mod llama;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod rotation;
mod sizes;

/// From what a file says of its model to the sizes of it.
type Reader = fn(Facts<'_>) -> Result<Config, Error>;

/// The architectures whose files are read, as GGUF and as `config.json` call them, each with the name that GGUF has
/// for it.
const ARCHITECTURES: [(&str, &str, Reader); 13] = [
    ("llama", "llama", llama::read),
    ("mistral", "llama", llama::read),
    ("mixtral", "llama", llama::read),
    ("qwen2", "qwen2", qwen2::read),
    ("qwen3", "qwen3", qwen3::read),
    ("qwen3moe", "qwen3moe", qwen3::read),
    ("qwen3_moe", "qwen3moe", qwen3::read),
    ("deepseek2", "deepseek2", deepseek::read),
    ("deepseek_v2", "deepseek2", deepseek::read),
    ("deepseek_v3", "deepseek2", deepseek::read),
    ("glm4_moe_lite", "deepseek2", deepseek::read),
    ("youtu", "deepseek2", deepseek::read),
    ("youtu_llm", "deepseek2", deepseek::read),
];

/// Their names.
pub(crate) fn architectures() -> String {
    ARCHITECTURES.map(|(name, ..)| name).join(", ")
}

/// The name that GGUF has for an architecture; nothing for one that is not known.
pub(crate) fn in_gguf(architecture: &str) -> Option<&'static str> {
    ARCHITECTURES.iter().find(|(name, ..)| *name == architecture).map(|(_, gguf, _)| *gguf)
}

/// The sizes of the model in a file of this architecture; nothing for one that is not known.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub(crate) fn read(architecture: &str, facts: Facts<'_>) -> Result<Option<Config>, Error> {
    let known = ARCHITECTURES.iter().find(|(name, ..)| *name == architecture);
    known.map(|(.., read)| read(facts)).transpose()
}
