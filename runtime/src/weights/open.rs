//! Opens a checkpoint of any kind; the kind follows from the content, not from the name.
//!
//! In: a path. Out: a [`Checkpoint`] over the file, over all parts of a split one, or over the folder around it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, Place};
use crate::weights::gguf::parts;
use crate::weights::mapping::Mapping;
use crate::weights::safetensors::folder;
use crate::weights::{Checkpoint, Contents, Kind, ajc1, gguf, qorus, safetensors};

impl Checkpoint {
    /// Opens and checks a checkpoint.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read, [`Error::Input`] where it is not as its kind wants it, and
    /// [`Error::Unsupported`] for a version or a size that nothing here reads.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let checkpoint = opened(path)?;
        checkpoint.check()?;
        Ok(checkpoint)
    }
}

fn opened(path: &Path) -> Result<Checkpoint, Error> {
    if path.is_dir() {
        return folder::open(path);
    }
    let mapping = Mapping::open(path)?;
    let contents = contents(path, mapping.bytes());
    let contents = contents.or_else(|fault| mapping.check().and(Err(fault)))?;
    if contents.kind == Kind::Safetensors
        && let Some(folder) = folder::around(path)?
    {
        return folder::open(folder);
    }
    if matches!(contents.kind, Kind::Gguf { .. }) {
        let count = parts::count(path, &contents.metadata)?;
        if count > 1 {
            return parts::open(path, (mapping, contents), count);
        }
    }
    let mut checkpoint = Checkpoint::new(contents.kind, contents.metadata, BTreeSet::new());
    checkpoint.add(path.to_owned(), mapping, contents.tensors)?;
    Ok(checkpoint)
}

fn contents(path: &Path, bytes: &[u8]) -> Result<Contents, Error> {
    if bytes.starts_with(&gguf::MAGIC) {
        gguf::read(path, bytes)
    } else if bytes.starts_with(&ajc1::MAGIC) {
        ajc1::read(path, bytes)
    } else if bytes.starts_with(&qorus::MAGIC) {
        qorus::read(path, bytes)
    } else if bytes.get(8) == Some(&b'{') {
        safetensors::read(path, bytes)
    } else {
        let found = opening(bytes);
        let what = format!("expected GGUF, safetensors, a qwen3.c checkpoint or a Qorus file, found {found}");
        Err(Error::input(path, Place::Byte(0), what))
    }
}

/// The first bytes as a sentence may show them.
fn opening(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "an empty file".to_owned();
    }
    let shown: Vec<String> = bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("the bytes {}", shown.join(" "))
}
