//! Weight files: one neutral description, whatever their kind.
//!
//! In: the path of a GGUF file, a safetensors file or folder, a qwen3.c checkpoint or a Qorus file. Out: a
//! [`Checkpoint`] with the metadata as key and value, and each tensor's shape, format and bytes, which stay in the file
//! until they are touched.
//! A file is hostile until proven otherwise: a bad one is one sentence, and there is no checkpoint then. Each
//! range lies inside its file, and a tensor's bytes have exactly the length that its shape and format need.
//! Names are the file's own; what they mean to a model is not known here. One file a kind: `gguf.rs`
//! with `parts.rs`, `safetensors.rs` with `folder.rs`, `ajc1.rs`, `qorus.rs`; all read through `reader.rs`. GGUF files
//! are written by `store.rs`. `expand.rs` has the formats that become another one before kernels read them, `made/` the
//! tensors of quantised folders, which are made of several others.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use fusebox_compiler::tensor::quant::Format;
use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::weights::made::unpacked::Made;
use crate::weights::mapping::Mapping;
use crate::weights::store::Entry;
use crate::weights::value::Value;

mod ajc1;
mod codebooks;
pub mod expand;
mod folder;
mod ggml;
mod gguf;
mod json;
mod lost_pages;
mod made;
mod mapping;
pub mod parts;
mod qorus;
mod reader;
mod safetensors;
pub mod store;
pub mod value;

/// The weights of a model as they lie on disk, checked.
#[derive(Debug)]
pub struct Checkpoint {
    contents: Contents,
    /// Keys of a configuration whose value is null.
    nulls: BTreeSet<String>,
    files: Vec<(PathBuf, Mapping)>,
    /// Tensors whose bytes are made of other tensors.
    made: Vec<Made>,
}

/// What a file says of itself.
#[derive(Debug)]
struct Contents {
    kind: Kind,
    metadata: IndexMap<String, Value>,
    tensors: IndexMap<String, TensorInfo>,
}

/// The kind of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A GGUF file of this version.
    Gguf {
        /// 2 or 3.
        version: u32,
    },
    /// One safetensors file, or a folder of them with its `config.json`.
    Safetensors,
    /// A checkpoint of qwen3.c.
    Ajc1,
    /// A file of Qorus.
    Qorus,
}

/// What is known of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The sizes, outermost first; none for a single number.
    pub shape: Vec<usize>,
    /// How the elements lie in the bytes.
    pub stored: Stored,
    /// Which of the checkpoint's files holds it.
    file_idx: usize,
    /// Or which of its tensors that are made of others it is.
    made: Option<usize>,
    range: Range<usize>,
}

/// How a file stores elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// In a format that kernels read.
    As(Format),
    /// In one that is known by name only.
    Other(&'static str),
}

/// Opens and checks a checkpoint of any kind; the kind follows from the content, not from the name.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read, [`Error::Input`] where it is not as its kind wants it, and
/// [`Error::Unsupported`] for a version or a size that nothing here reads.
pub fn open(path: &Path) -> Result<Checkpoint, Error> {
    let checkpoint = opened(path)?;
    checkpoint.check()?;
    Ok(checkpoint)
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
        let what = format!(
            "expected GGUF, safetensors, a qwen3.c checkpoint or a Qorus file, found {}",
            opening(bytes)
        );
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

impl Checkpoint {
    /// One without files.
    fn new(kind: Kind, metadata: IndexMap<String, Value>, nulls: BTreeSet<String>) -> Self {
        let contents = Contents { kind, metadata, tensors: IndexMap::new() };
        Self { contents, nulls, files: Vec::new(), made: Vec::new() }
    }

    /// A GGUF file that is not written yet: what it will say, with no bytes.
    pub fn planned(metadata: IndexMap<String, Value>, tensors: &[Entry]) -> Self {
        let mut planned = Self::new(store::WRITTEN, metadata, BTreeSet::new());
        let info = |entry: &Entry| TensorInfo {
            shape: entry.shape.clone(),
            stored: entry.stored,
            file_idx: 0,
            made: None,
            range: 0..0,
        };
        planned.contents.tensors = tensors.iter().map(|entry| (entry.name.clone(), info(entry))).collect();
        planned
    }

    /// Adds a file with the tensors that it holds, none of which another holds.
    fn add(
        &mut self,
        path: PathBuf,
        mapping: Mapping,
        tensors: IndexMap<String, TensorInfo>,
    ) -> Result<(), Error> {
        for (name, tensor) in tensors {
            if self.contents.tensors.contains_key(&name) {
                let what = "expected a tensor of no other file, found it twice";
                return Err(Error::input(&path, Place::Tensor(name), what));
            }
            self.contents.tensors.insert(name, TensorInfo { file_idx: self.files.len(), ..tensor });
        }
        self.files.push((path, mapping));
        Ok(())
    }

    /// What kind of checkpoint it is.
    pub fn kind(&self) -> Kind {
        self.contents.kind
    }

    /// What the file says of the model, in its own order and with its own keys.
    pub fn metadata(&self) -> &IndexMap<String, Value> {
        &self.contents.metadata
    }

    /// Whether the file gives a key the value null, as opposed to leaving it out.
    pub fn is_null(&self, key: &str) -> bool {
        self.nulls.contains(key)
    }

    /// Every tensor by its name, in the file's order.
    pub fn tensors(&self) -> &IndexMap<String, TensorInfo> {
        &self.contents.tensors
    }

    /// The name of the architecture, where the file has one.
    pub fn architecture(&self) -> Option<&str> {
        let key = match self.kind() {
            Kind::Gguf { .. } => "general.architecture",
            Kind::Safetensors => "model_type",
            Kind::Ajc1 => return Some("qwen3"),
            Kind::Qorus => return Some("llama"),
        };
        self.metadata().get(key)?.as_text()
    }

    /// The bytes of a tensor, as mapped, or made on first use; none if there is no tensor of this name.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let tensor = self.tensors().get(name)?;
        if let Some(idx) = tensor.made {
            return self.made.get(idx).map(|made| made.bytes(&self.files));
        }
        let (_, mapping) = self.files.get(tensor.file_idx)?;
        mapping.bytes().get(tensor.range.clone())
    }

    /// Every key with the bytes that a GGUF file has for it and its value; nothing for other kinds.
    ///
    /// # Errors
    /// None for a file that was opened and has not changed since.
    pub fn pairs(&self) -> Result<IndexMap<&str, &[u8]>, Error> {
        match (self.kind(), self.files.first()) {
            (Kind::Gguf { .. }, Some((path, mapping))) => gguf::pairs(path, mapping.bytes()),
            (Kind::Gguf { .. } | Kind::Safetensors | Kind::Ajc1 | Kind::Qorus, _) => Ok(IndexMap::new()),
        }
    }

    /// Refuses files that have become shorter since they were opened: what was read of them since may be zeros.
    ///
    /// # Errors
    /// [`Error::Input`] with the first such file.
    pub fn check(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|(_, mapping)| mapping.check())
    }

    /// The files with their sizes in bytes.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|(path, mapping)| (path.as_path(), mapping.bytes().len()))
    }
}

impl TensorInfo {
    /// How many elements there are.
    pub fn n_elements(&self) -> usize {
        // It was computed without overflow before the tensor was let in.
        self.shape.iter().product()
    }

    /// How many bytes they take.
    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf { version } => write!(f, "GGUF v{version}"),
            Self::Safetensors => f.write_str("safetensors"),
            Self::Ajc1 => f.write_str("qwen3.c checkpoint"),
            Self::Qorus => f.write_str("Qorus file"),
        }
    }
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::As(format) => format.fmt(f),
            Self::Other(name) => f.write_str(name),
        }
    }
}
