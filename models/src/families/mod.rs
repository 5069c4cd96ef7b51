//! Model families: a table of what each has otherwise than Llama, the readers of their hyper-parameters, and the sizes
//! of well-known members.
//!
//! In: the hyper-parameters of a file. Out: a [`Config`], from which `layers/block.rs` builds every block.
//! To add a family of known parts: add a row to `table.rs`. The names of well-known members go to `blocks.rs`.

use fusebox_runtime::error::Error;
use fusebox_runtime::weights::Checkpoint;

use crate::config::Config;
use crate::hparams::Hparams;

mod apertus;
mod config_parts;
mod decoder;
pub(crate) mod deepseek;
mod encoder;
pub(crate) mod family;
mod gemma4;
mod hybrid;
pub(crate) mod published;
pub(crate) mod rope;
mod scaled;
mod table;

use family::Family;
use table::{FAMILIES, MISSING};

/// The family of an architecture, as GGUF or `config.json` (`model_type`) names it.
fn family(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.gguf == architecture || family.folder.contains(&architecture))
}

/// The hyper-parameters of a checkpoint, with the names of its family.
pub(crate) fn hparams(checkpoint: &Checkpoint) -> Hparams<'_> {
    let known = Hparams::architecture_of(checkpoint).and_then(family);
    Hparams::new(checkpoint, known.map_or(&[], |family| family.names))
}

/// Why an architecture is not supported, as an end of a sentence.
pub(crate) fn unsupported(architecture: &str) -> String {
    match MISSING.iter().find(|(names, _)| names.contains(&architecture)) {
        Some((_, part)) => format!("is not supported, it needs: {part}"),
        None => format!("is not supported, expected one of {}", architectures()),
    }
}

/// All names, for error messages.
fn architectures() -> String {
    let names = FAMILIES.iter().flat_map(|family| [&[family.gguf], family.folder].concat());
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all.join(", ")
}

/// The name of an architecture in GGUF; `None` for an unknown one.
pub(crate) fn gguf_architecture(architecture: &str) -> Option<&'static str> {
    family(architecture).map(|family| family.gguf)
}

/// The family as which GGUF has an architecture; `None` for an unknown one.
pub(crate) fn gguf_family(architecture: &str) -> Option<&'static Family> {
    family(architecture).and_then(|own| family(own.gguf))
}

/// Whether GGUF has rows of queries and keys in another order than a folder.
pub(crate) fn is_reordered(architecture: &str) -> bool {
    family(architecture).is_some_and(|family| family.pairs == family::Pairs::Reordered)
}

/// Reads the config of a file of this architecture; `None` for an unknown one.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(crate) fn read(architecture: &str, hparams: Hparams<'_>) -> Result<Option<Config>, Error> {
    let Some(family) = family(architecture) else { return Ok(None) };
    let config = (family.read)(hparams, family)?;
    Ok(Some(Config { ends: encoder::ends(hparams, &config.ends)?, ..config }))
}
