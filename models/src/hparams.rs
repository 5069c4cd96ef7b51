//! The hyper-parameters of a file, read and checked one at a time.
//!
//! In: a checkpoint. Out: valid counts, numbers and flags, or one sentence that names the file and the key.
//! Nothing is trusted: a count is positive and bounded, a number is finite. Consistency between hyper-parameters is
//! checked by the family that needs them.

use std::path::PathBuf;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo};

use crate::naming::files;
use crate::naming::hparams::{Key, VOCAB, default};
use crate::naming::tensors::{fused, names};
use crate::naming::tokenizer::TOKENS;
use crate::sidecar;

/// The largest count that any model could have.
const MAX_COUNT: u64 = 1 << 24;

/// A checkpoint's metadata, read by hyper-parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hparams<'a> {
    checkpoint: &'a Checkpoint,
}

impl<'a> Hparams<'a> {
    /// The hyper-parameters of a checkpoint.
    pub(crate) fn of(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint }
    }

    /// A required positive count.
    pub(crate) fn count(self, key: Key) -> Result<usize, Error> {
        self.count_if(key)?
            .ok_or_else(|| self.refused(key, format!("expected a number from 1 to {MAX_COUNT}, found none")))
    }

    /// A positive count, if present.
    pub(crate) fn count_if(self, key: Key) -> Result<Option<usize>, Error> {
        let count = self.size_if(key)?;
        if count == Some(0) {
            return Err(self.refused(key, format!("expected a number from 1 to {MAX_COUNT}, found 0")));
        }
        Ok(count)
    }

    /// A count that may be 0, if present; a list of equal counts, one per block, is one count.
    pub(crate) fn size_if(self, key: Key) -> Result<Option<usize>, Error> {
        self.converted(key, &format!("a number from 1 to {MAX_COUNT}"), |value| {
            let size = value.to_u64().or_else(|| value.as_list().and_then(common_value));
            size.filter(|size| *size <= MAX_COUNT).map(|size| size as usize)
        })
    }

    /// A count for which 0 means absent.
    pub(crate) fn count_or_none(self, key: Key) -> Result<Option<usize>, Error> {
        Ok(self.size_if(key)?.filter(|size| *size > 0))
    }

    /// A required positive number.
    pub(crate) fn number(self, key: Key) -> Result<f64, Error> {
        let number = self.number_if(key)?;
        number.ok_or_else(|| self.refused(key, "expected a positive number, found none".to_owned()))
    }

    /// A positive number, if present.
    pub(crate) fn number_if(self, key: Key) -> Result<Option<f64>, Error> {
        self.converted(key, "a positive number", |value| {
            value.to_f64().filter(|number| number.is_finite() && *number > 0.0)
        })
    }

    /// A positive number, for which 0 means absent.
    pub(crate) fn number_or_none(self, key: Key) -> Result<Option<f64>, Error> {
        if self.value(key).and_then(Value::to_f64) == Some(0.0) { Ok(None) } else { self.number_if(key) }
    }

    /// Refuses an object whose values are objects themselves.
    pub(crate) fn refuse_nested(self, key: Key) -> Result<(), Error> {
        self.converted(key, "an object", |_| None::<()>)?;
        let mut keys = self.checkpoint.metadata().keys().filter_map(|key| key.rsplit_once('.'));
        let names = key.names(self.kind(), self.architecture());
        let is_below = |object: &str| names.iter().any(|name| object.starts_with(&format!("{name}.")));
        match keys.find(|(object, _)| is_below(object)) {
            Some((object, _)) => {
                let what = "expected one value for all blocks, found an object";
                Err(Error::input(&self.path(), Place::Key(object.to_owned()), what))
            }
            None => Ok(()),
        }
    }

    /// Refuses two objects of this key that disagree about any of `keys`; a key outside both counts for both.
    pub(crate) fn refuse_disagreement(self, objects: Key, keys: &[Key]) -> Result<(), Error> {
        let metadata = self.checkpoint.metadata();
        let names = |key: Key| key.names(self.kind(), self.architecture());
        let is_in = |name: &str, object: &str| name.starts_with(&format!("{object}."));
        let is_there = |object: &String| metadata.keys().any(|key| is_in(key, object));
        let objects: Vec<String> = names(objects).into_iter().filter(is_there).collect();
        let [first, second] = &objects[..] else { return Ok(()) };
        let differs = |key: &&Key| {
            let names = names(**key);
            let without = |other: &str| {
                let mut names = names.iter().filter(|name| !is_in(name, other));
                names.find_map(|name| metadata.get(name))
            };
            let (a, b) = (without(second), without(first));
            a.is_some() != b.is_some() || a.zip(b).is_some_and(|(a, b)| !is_equal(a, b))
        };
        let Some(key) = keys.iter().find(differs) else { return Ok(()) };
        let names = names(*key);
        let word = names.first().and_then(|name| name.rsplit('.').next()).unwrap_or_default();
        let what = format!("expected the same as in `{second}`, found another `{word}`");
        Err(Error::input(&self.path(), Place::Key(first.clone()), what))
    }

    /// Refuses two names of one hyper-parameter with different values.
    pub(crate) fn refuse_conflict(self, key: Key) -> Result<(), Error> {
        let names = key.names(self.kind(), self.architecture());
        let mut said = names.iter().filter_map(|name| self.checkpoint.metadata().get_key_value(name));
        let Some((first, expected)) = said.next() else { return Ok(()) };
        let Some((name, found)) = said.find(|(_, value)| !is_equal(value, expected)) else { return Ok(()) };
        let what = format!("expected {expected} as under `{first}`, found {found}");
        Err(Error::input(&self.path(), Place::Key(name.clone()), what))
    }

    /// A string, if present.
    pub(crate) fn string(self, key: Key) -> Result<Option<&'a str>, Error> {
        self.converted(key, "a string", Value::as_text)
    }

    /// A boolean, if present.
    pub(crate) fn flag(self, key: Key) -> Result<Option<bool>, Error> {
        self.converted(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => None,
        })
    }

    /// A list of booleans, if present; a whole number other than 0 is true.
    pub(crate) fn flags(self, key: Key) -> Result<Option<Vec<bool>>, Error> {
        let Some(list) = self.value(key).and_then(Value::as_list) else { return Ok(None) };
        self.converted(key, "a list of true and false", |_| match list {
            List::Bools(flags) => Some(flags.clone()),
            List::Unsigned(numbers) => Some(numbers.iter().map(|n| *n != 0).collect()),
            List::Signed(numbers) => Some(numbers.iter().map(|n| *n != 0).collect()),
            List::Floats(_) | List::Texts(_) | List::Lists(_) => None,
        })
    }

    /// A list of strings, if present.
    pub(crate) fn strings(self, key: Key) -> Result<Option<&'a [String]>, Error> {
        self.converted(key, "a list of strings", |value| match value.as_list()? {
            List::Texts(strings) => Some(strings.as_slice()),
            List::Bools(_) | List::Unsigned(_) | List::Signed(_) | List::Floats(_) | List::Lists(_) => None,
        })
    }

    /// The numbers of a small F32 tensor, if present.
    pub(crate) fn numbers(self, name: &str) -> Option<Vec<f32>> {
        let (own, info) = self.stored(name)?;
        let bytes = self.checkpoint.bytes(own)?;
        let is_plain = info.stored == Stored::As(Format::F32);
        is_plain.then(|| bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }

    /// The vocabulary size: as stated, or the length of the token list.
    pub(crate) fn vocab(self) -> Result<usize, Error> {
        if let Some(count) = self.count_if(VOCAB)? {
            return Ok(count);
        }
        let tokens = self.checkpoint.metadata().get(TOKENS).and_then(Value::as_list);
        match tokens.map(List::len) {
            Some(n_tokens) if (1..=MAX_COUNT).contains(&(n_tokens as u64)) => Ok(n_tokens),
            Some(_) | None => self.count(VOCAB),
        }
    }

    /// Whether there is a tensor, by its name in graphs, on its own or as a part of a fused one.
    pub(crate) fn has(self, name: &str) -> bool {
        let is_there = |name: &str| self.stored(name).is_some();
        is_there(name) || fused(name).is_some_and(|(whole, _)| is_there(&whole))
    }

    /// Whether two tensors are equal, byte for byte.
    pub(crate) fn are_equal(self, names: [&str; 2]) -> bool {
        let [a, b] = names.map(|name| {
            self.stored(name).map(|(own, info)| (info.stored, &info.shape, self.checkpoint.bytes(own)))
        });
        a == b
    }

    /// Whether there is a tensor of this name in a block-quantised format.
    pub(crate) fn is_block_quantised(self, name: &str) -> bool {
        self.stored(name)
            .is_some_and(|(_, info)| matches!(info.stored, Stored::As(format) if format.block_len() > 1))
    }

    /// The error of an invalid hyper-parameter.
    pub(crate) fn refused(self, key: Key, what: String) -> Error {
        let names = key.names(self.checkpoint.kind(), self.architecture());
        let found = names.iter().find(|name| self.checkpoint.metadata().contains_key(*name));
        let place = found.or(names.first()).map_or(Place::Whole, |name| Place::Key(name.clone()));
        Error::input(&self.path(), place, what)
    }

    /// The kind of the checkpoint.
    pub(crate) fn kind(self) -> Kind {
        self.checkpoint.kind()
    }

    /// The error of an invalid tensor.
    pub(crate) fn refused_tensor(self, name: &str, what: String) -> Error {
        let own = names(self.kind(), name).into_iter().next().unwrap_or_default();
        Error::input(sidecar::weights_path(self.checkpoint), Place::Tensor(own), what)
    }

    /// The architecture, as the file names it.
    pub(crate) fn architecture(self) -> &'a str {
        self.checkpoint.architecture().unwrap_or_default()
    }

    /// The file that has the metadata.
    fn path(self) -> PathBuf {
        let config = sidecar::in_folder(self.checkpoint, files::MODEL);
        let has_config = self.kind() == Kind::Safetensors && config.is_file();
        if has_config { config } else { sidecar::weights_path(self.checkpoint).to_owned() }
    }

    /// Converts a value, if present; refuses one of another type.
    fn converted<T>(
        self,
        key: Key,
        expected: &str,
        as_one: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let refused = || self.refused(key, format!("expected {expected}, found {value}"));
        as_one(value).map(Some).ok_or_else(refused)
    }

    /// The tensor under one of the names that it may have.
    pub(crate) fn stored(self, name: &str) -> Option<(&'a String, &'a TensorInfo)> {
        names(self.kind(), name).iter().find_map(|own| self.checkpoint.tensors().get_key_value(own))
    }

    fn value(self, key: Key) -> Option<&'a Value> {
        let names = key.names(self.checkpoint.kind(), self.architecture());
        let found = names.iter().find_map(|name| self.checkpoint.metadata().get(name));
        let is_absent = || !names.iter().any(|name| self.checkpoint.is_null(name));
        let is_folder = self.kind() == Kind::Safetensors;
        found.or_else(|| default(self.architecture(), &names).filter(|_| is_folder && is_absent()))
    }
}

/// Whether values are equal, with numbers of any width.
fn is_equal(a: &Value, b: &Value) -> bool {
    a == b || a.to_f64().zip(b.to_f64()).is_some_and(|(a, b)| a == b)
}

/// The number that all elements of a list are.
fn common_value(list: &List) -> Option<u64> {
    let all: Vec<u64> = match list {
        List::Unsigned(all) => all.clone(),
        List::Signed(all) => all.iter().map(|n| u64::try_from(*n).ok()).collect::<Option<_>>()?,
        List::Bools(_) | List::Floats(_) | List::Texts(_) | List::Lists(_) => return None,
    };
    let first = *all.first()?;
    all.iter().all(|n| *n == first).then_some(first)
}
