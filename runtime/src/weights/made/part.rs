//! The tensors of a folder that others are made of.
//!
//! In: the folder's configuration, and its tensors as stored. Out: a tensor by its name and type, or what is wrong with
//! it in one sentence.

use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::error::{Error, Place};
use crate::weights::mapping::Mapping;
use crate::weights::value::{List, Value};

/// All files of a checkpoint.
pub(in crate::weights) type Files = [(PathBuf, Mapping)];

/// A tensor as a file has it.
#[derive(Clone, Debug)]
pub(in crate::weights) struct Part {
    pub(in crate::weights) shape: Vec<usize>,
    /// The name of its type.
    pub(in crate::weights) ty: String,
    pub(in crate::weights) file_idx: usize,
    pub(in crate::weights) range: Range<usize>,
}

/// A folder before tensors are made.
pub(in crate::weights) struct Folder<'a> {
    pub(in crate::weights) path: &'a Path,
    pub(in crate::weights) config: &'a IndexMap<String, Value>,
    pub(in crate::weights) parts: IndexMap<String, Part>,
    pub(in crate::weights) files: &'a Files,
}

impl Part {
    pub(super) fn bytes<'a>(&self, files: &'a Files) -> &'a [u8] {
        &files[self.file_idx].1.bytes()[self.range.clone()]
    }

    pub(super) fn n_elements(&self) -> usize {
        // It was computed without overflow before the tensor was let in.
        self.shape.iter().product()
    }

    /// The sizes of a matrix, with those before its last taken together.
    pub(super) fn matrix(&self) -> Option<[usize; 2]> {
        let (columns, outer) = self.shape.split_last()?;
        (!outer.is_empty()).then(|| [outer.iter().product(), *columns])
    }

    /// A whole number of 32 bits.
    pub(super) fn word(&self, files: &Files, idx: usize) -> u32 {
        let bytes = self.bytes(files);
        u32::from_le_bytes(std::array::from_fn(|i| bytes[idx * 4 + i]))
    }
}

impl Folder<'_> {
    /// What the configuration says under a key of its part about quantisation.
    pub(super) fn says(&self, key: &str) -> Option<&Value> {
        let of = |prefix: &str| self.config.get(&format!("{prefix}quantization_config.{key}"));
        of("").or_else(|| of("text_config."))
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.says(key).and_then(Value::as_text)
    }

    /// Keys that begin so, with their values and the rest of their names.
    pub(super) fn below<'b>(&'b self, prefix: &'b str) -> impl Iterator<Item = (&'b str, &'b Value)> + 'b {
        let rest = move |key: &'b String| {
            let key = key.strip_prefix("text_config.").unwrap_or(key);
            key.strip_prefix("quantization_config.")?.strip_prefix(prefix)
        };
        self.config.iter().filter_map(move |(key, value)| Some((rest(key)?, value)))
    }

    /// A tensor of one of these types; names of several are joined by `or`.
    pub(super) fn part(&self, name: &str, types: &[&str]) -> Result<Part, Error> {
        let part = self.parts.get(name);
        let part = part.ok_or_else(|| self.fault(name, "expected a tensor, found none".to_owned()))?;
        if types.contains(&part.ty.as_str()) {
            return Ok(part.clone());
        }
        Err(self.fault(name, format!("expected {}, found {} {:?}", types.join(" or "), part.ty, part.shape)))
    }

    /// The same, with its sizes as a matrix.
    pub(super) fn matrix(&self, name: &str, types: &[&str]) -> Result<(Part, [usize; 2]), Error> {
        let part = self.part(name, types)?;
        let fault = || self.fault(name, format!("expected a matrix, found {:?}", part.shape));
        let sizes = part.matrix().ok_or_else(fault)?;
        Ok((part, sizes))
    }

    /// The same, of a shape.
    pub(super) fn shaped(&self, name: &str, types: &[&str], shape: &[usize]) -> Result<Part, Error> {
        let part = self.part(name, types)?;
        if part.shape == shape {
            return Ok(part);
        }
        Err(self.fault(name, format!("expected the shape {shape:?}, found {:?}", part.shape)))
    }

    /// A tensor that may be missing.
    pub(super) fn optional(&self, name: &str, types: &[&str]) -> Result<Option<Part>, Error> {
        self.parts.contains_key(name).then(|| self.part(name, types)).transpose()
    }

    /// A tensor is not as it should be.
    pub(super) fn fault(&self, name: &str, what: String) -> Error {
        Error::input(self.path, Place::Tensor(name.to_owned()), what)
    }

    /// The configuration says what nothing here reads.
    pub(super) fn unsupported(&self, key: &str, what: String) -> Error {
        let place = Place::Key(format!("quantization_config.{key}"));
        Error::Unsupported { path: self.path.to_owned(), place, what }
    }
}

/// Two sizes above 0.
pub(super) fn two_sizes(value: &Value) -> Option<[usize; 2]> {
    let Value::List(List::Unsigned(sizes)) = value else { return None };
    let [rows, columns] = sizes[..] else { return None };
    Some([usize::try_from(rows).ok()?, usize::try_from(columns).ok()?]).filter(|sizes| !sizes.contains(&0))
}
