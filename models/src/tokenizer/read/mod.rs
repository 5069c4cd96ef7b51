//! Reads the tokenizers of checkpoints, each kind of file by a module of its own.
//!
//! In: a checkpoint with a vocabulary, in the model file or next to it. Out: a [`TokenizerSpec`]. Files are untrusted;
//! what they say is checked where the tokenizer is built.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::{Checkpoint, Kind};

use crate::tokenizer::spec::TokenizerSpec;

mod ajc1;
mod gguf;
pub(super) mod json;
pub(super) mod pre_tokenizer;
mod qorus;

/// Reads the tokenizer of a checkpoint.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<TokenizerSpec, Error> {
    match checkpoint.kind() {
        Kind::Gguf { .. } => gguf::read(checkpoint),
        Kind::Safetensors => json::read(checkpoint),
        Kind::Ajc1 => ajc1::read(checkpoint),
        Kind::Qorus => qorus::read(checkpoint),
    }
}
