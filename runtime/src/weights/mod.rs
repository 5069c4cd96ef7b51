//! Weight files: one neutral description, whatever their kind.
//!
//! In: the path of a GGUF file, a safetensors file or folder, a qwen3.c checkpoint or a Qorus file. Out: a
//! [`Checkpoint`] with the metadata as key and value, and each tensor's shape, format and bytes, which stay in the file
//! until they are touched.
//! A file is hostile until proven otherwise: a bad one is one sentence, and there is no checkpoint then. Each
//! range lies inside its file, and a tensor's bytes have exactly the length that its shape and format need.
//! Names are the file's own; what they mean to a model is not known here. Each kind is read by a module of its own,
//! `gguf/` (which also writes it), `safetensors/`, `ajc1.rs` and `qorus.rs`, through `reader.rs`; `open.rs` chooses it
//! by the content. `expand/` has the formats that become another one before kernels read them, `made/` the
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
use crate::weights::value::Value;

mod ajc1;
pub mod expand;
pub mod gguf;
mod json;
mod made;
mod mapping;
mod open;
mod qorus;
mod reader;
mod safetensors;
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

impl Checkpoint {
    /// One without files.
    fn new(kind: Kind, metadata: IndexMap<String, Value>, nulls: BTreeSet<String>) -> Self {
        let contents = Contents { kind, metadata, tensors: IndexMap::new() };
        Self { contents, nulls, files: Vec::new(), made: Vec::new() }
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
