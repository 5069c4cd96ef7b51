//! Writes GGUF files, version 3.
//!
//! In: keys and values, descriptions of tensors, and a function that returns the bytes of one tensor after another.
//! Out: a file that `gguf/mod.rs` and other programs read.
//! The file is written under a temporary name and renamed when it is complete, so that an error or a power cut leaves
//! what was there before. Only the bytes of one call of the function are in memory at a time.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::files::{self, Unfinished};
use crate::weights::gguf::types;
use crate::weights::gguf::{self, ggml};
use crate::weights::value::{List, Value};
use crate::weights::{Checkpoint, Kind, Stored, TensorInfo};

const VERSION: u32 = 3;
/// The kind of the files that are written here.
pub const WRITTEN: Kind = Kind::Gguf { version: VERSION };

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The sizes, outermost first.
    pub shape: Vec<usize>,
    /// How its elements lie in the bytes.
    pub stored: Stored,
}

/// Takes the next bytes of a tensor.
pub type Put<'a> = dyn FnMut(&[u8]) -> Result<(), Error> + 'a;

impl Entry {
    /// How many bytes the tensor takes; nothing where rows are no whole blocks or no memory holds them.
    pub fn n_bytes(&self) -> Option<usize> {
        let row = ggml::of_stored(self.stored)?.1;
        gguf::n_bytes(&self.shape, row).ok()
    }
}

/// A file that is not written yet, as a checkpoint: what it will say, with no bytes.
pub fn planned(metadata: IndexMap<String, Value>, tensors: &[Entry]) -> Checkpoint {
    let mut planned = Checkpoint::new(WRITTEN, metadata, BTreeSet::new());
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

/// A key with its value as the file has it. Numbers take four bytes where these hold them.
pub fn pair(key: &str, value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_text(&mut bytes, key);
    let one = match value {
        Value::Bool(truth) => List::Bools(vec![*truth]),
        Value::Unsigned(n) => List::Unsigned(vec![*n]),
        Value::Signed(n) => List::Signed(vec![*n]),
        Value::Float(x) => List::Floats(vec![*x]),
        Value::Text(text) => List::Texts(vec![text.clone()]),
        Value::List(list) => {
            bytes.extend(types::LIST.to_le_bytes());
            put_values(&mut bytes, list, true);
            return bytes;
        }
    };
    put_values(&mut bytes, &one, false);
    bytes
}

/// Writes a file; `fill` hands over the bytes of the tensor of each index, in order.
///
/// # Errors
/// [`Error::Io`] where the system refuses, [`Error::Input`] where a tensor cannot be described, and what `fill` says.
pub fn write(
    path: &Path,
    pairs: &[Vec<u8>],
    tensors: &[Entry],
    mut fill: impl FnMut(usize, &mut Put) -> Result<(), Error>,
) -> Result<u64, Error> {
    let header = header(path, pairs, tensors)?;
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut file = Unfinished::create(path).map_err(io)?;
    file.put(&header).map_err(io)?;
    for (idx, tensor) in tensors.iter().enumerate() {
        align(&mut file).map_err(io)?;
        let end = file.n_written() + tensor.n_bytes().unwrap_or_default() as u64;
        fill(idx, &mut |bytes| file.put(bytes).map_err(io))?;
        if file.n_written() != end {
            let what = format!("expected its last byte at {end}, found it at {}", file.n_written());
            return Err(Error::input(path, Place::Tensor(tensor.name.clone()), what));
        }
    }
    align(&mut file).map_err(io)?;
    file.sync().and_then(|()| file.finish()).map_err(io)
}

/// How many bytes a file of these takes.
///
/// # Errors
/// [`Error::Input`] where a tensor cannot be described.
pub fn n_bytes(path: &Path, pairs: &[Vec<u8>], tensors: &[Entry]) -> Result<u64, Error> {
    let aligned = |n: usize| n.next_multiple_of(gguf::ALIGNMENT) as u64;
    let data = tensors.iter().map(|tensor| aligned(tensor.n_bytes().unwrap_or_default())).sum::<u64>();
    Ok(aligned(header(path, pairs, tensors)?.len()) + data)
}

/// Everything before the data, without the padding.
fn header(path: &Path, pairs: &[Vec<u8>], tensors: &[Entry]) -> Result<Vec<u8>, Error> {
    let mut bytes = gguf::MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    bytes.extend(pairs.concat());
    let mut start = 0usize;
    for tensor in tensors {
        let number = ggml::of_stored(tensor.stored).map(|(number, _)| number);
        let described = number.zip(tensor.n_bytes()).filter(|_| gguf::fits(&tensor.name, &tensor.shape));
        let (number, n_bytes) = described.ok_or_else(|| {
            let what = format!("{:?} of {} cannot be stored in GGUF", tensor.shape, tensor.stored);
            Error::input(path, Place::Tensor(tensor.name.clone()), what)
        })?;
        put_text(&mut bytes, &tensor.name);
        bytes.extend((tensor.shape.len() as u32).to_le_bytes());
        for size in tensor.shape.iter().rev() {
            bytes.extend((*size as u64).to_le_bytes());
        }
        bytes.extend(number.to_le_bytes());
        bytes.extend((start as u64).to_le_bytes());
        start = (start + n_bytes).next_multiple_of(gguf::ALIGNMENT);
    }
    Ok(bytes)
}

/// Whether a file is one that this module may have written, or empty.
///
/// # Errors
/// [`Error::Io`] where it cannot be read.
pub fn may_replace(path: &Path) -> Result<bool, Error> {
    Ok(path.is_file() && files::begins(path, &gguf::MAGIC)?)
}

/// Fills a file up with zeros to the next multiple of the alignment.
fn align(file: &mut Unfinished) -> io::Result<()> {
    let n_written = file.n_written();
    let n_bytes = n_written.next_multiple_of(gguf::ALIGNMENT as u64) - n_written;
    file.put(&[0; gguf::ALIGNMENT][..n_bytes as usize])
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// The type of some values, how many there are if that is to be told, then each of them.
fn put_values(bytes: &mut Vec<u8>, list: &List, is_counted: bool) {
    let (kind, n_bytes) = kind(list);
    bytes.extend(kind.to_le_bytes());
    if is_counted {
        bytes.extend((list.len() as u64).to_le_bytes());
    }
    match list {
        List::Bools(values) => bytes.extend(values.iter().map(|truth| u8::from(*truth))),
        List::Unsigned(values) => {
            bytes.extend(values.iter().flat_map(|n| n.to_le_bytes().into_iter().take(n_bytes)));
        }
        List::Signed(values) => {
            bytes.extend(values.iter().flat_map(|n| n.to_le_bytes().into_iter().take(n_bytes)));
        }
        List::Floats(values) if kind == types::F32 => {
            bytes.extend(values.iter().flat_map(|x| (*x as f32).to_le_bytes()));
        }
        List::Floats(values) => bytes.extend(values.iter().flat_map(|x| x.to_le_bytes())),
        List::Texts(values) => values.iter().for_each(|text| put_text(bytes, text)),
        List::Lists(values) => values.iter().for_each(|list| put_values(bytes, list, true)),
    }
}

/// The type that some values are written as, and how many bytes a number of it takes.
fn kind(list: &List) -> (u32, usize) {
    let is_single = |x: &f64| f64::from(*x as f32) == *x || !x.is_finite();
    match list {
        List::Bools(_) => (types::BOOL, 1),
        List::Unsigned(values) if values.iter().all(|n| u32::try_from(*n).is_ok()) => (types::U32, 4),
        List::Unsigned(_) => (types::U64, 8),
        List::Signed(values) if values.iter().all(|n| i32::try_from(*n).is_ok()) => (types::I32, 4),
        List::Signed(_) => (types::I64, 8),
        List::Floats(values) if values.iter().all(is_single) => (types::F32, 4),
        List::Floats(_) => (types::F64, 8),
        List::Texts(_) => (types::TEXT, 0),
        List::Lists(_) => (types::LIST, 0),
    }
}
