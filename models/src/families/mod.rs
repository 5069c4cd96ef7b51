//! Model families: each file reads the configs of one family, and holds those of well-known members.
//!
//! In: the hyper-parameters of a file. Out: a [`Config`], from which `layers/block.rs` builds every block.
//! To add a family: add a file here and its architectures to [`ARCHITECTURES`]; the names of well-known members go to
//! `blocks.rs`.

use fusebox_runtime::error::Error;

use crate::config::Config;
use crate::hparams::Hparams;

mod config_parts;
pub(crate) mod deepseek;
pub(crate) mod llama;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod rope;

/// Reads a config from the hyper-parameters of a file.
type Reader = fn(Hparams<'_>) -> Result<Config, Error>;

/// The supported architectures: the name in GGUF or in `config.json` (`model_type`), the name in GGUF, and the reader.
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

/// All names, for error messages.
pub(crate) fn architectures() -> String {
    ARCHITECTURES.map(|(name, ..)| name).join(", ")
}

/// The name of an architecture in GGUF; `None` for an unknown one.
pub(crate) fn gguf_architecture(architecture: &str) -> Option<&'static str> {
    ARCHITECTURES.iter().find(|(name, ..)| *name == architecture).map(|(_, gguf, _)| *gguf)
}

/// Reads the config of a file of this architecture; `None` for an unknown one.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(architecture: &str, hparams: Hparams<'_>) -> Result<Option<Config>, Error> {
    let known = ARCHITECTURES.iter().find(|(name, ..)| *name == architecture);
    known.map(|(.., read)| read(hparams)).transpose()
}
