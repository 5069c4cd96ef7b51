//! What a file says of its model, asked for and judged one fact at a time.
//!
//! In: a checkpoint. Out: counts, numbers and flags that make sense, or one sentence that names the file and the key.
//! Nothing is believed: a count is positive and not absurd, a number is finite. What counts have to do with each other
//! is judged by the family that needs them.

use std::path::PathBuf;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind, Stored, TensorInfo};

use crate::beside;
use crate::naming::files;
use crate::naming::keys::{Key, VOCAB, default};
use crate::naming::tensors::{joined, names};
use crate::naming::tokenizer::TOKENS;

/// The largest count that any model could have.
const MOST: u64 = 1 << 24;

/// A checkpoint that is asked for facts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    checkpoint: &'a Checkpoint,
}

impl<'a> Facts<'a> {
    /// The facts of a checkpoint.
    pub(crate) fn of(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint }
    }

    /// A count that must be there.
    pub(crate) fn count(self, key: Key) -> Result<usize, Error> {
        self.count_if(key)?
            .ok_or_else(|| self.refused(key, format!("expected a number from 1 to {MOST}, found none")))
    }

    /// A count, where the file has it.
    pub(crate) fn count_if(self, key: Key) -> Result<Option<usize>, Error> {
        let count = self.size_if(key)?;
        if count == Some(0) {
            return Err(self.refused(key, format!("expected a number from 1 to {MOST}, found 0")));
        }
        Ok(count)
    }

    /// A count that may be 0, where the file has it; a list of equal counts, one for each block, is one.
    pub(crate) fn size_if(self, key: Key) -> Result<Option<usize>, Error> {
        self.like(key, &format!("a number from 1 to {MOST}"), |value| {
            let size = value.to_u64().or_else(|| value.as_list().and_then(same));
            size.filter(|size| *size <= MOST).map(|size| size as usize)
        })
    }

    /// A count of something that need not be there: 0 is none of it.
    pub(crate) fn count_or_none(self, key: Key) -> Result<Option<usize>, Error> {
        Ok(self.size_if(key)?.filter(|size| *size > 0))
    }

    /// A positive number that must be there.
    pub(crate) fn number(self, key: Key) -> Result<f64, Error> {
        let number = self.number_if(key)?;
        number.ok_or_else(|| self.refused(key, "expected a positive number, found none".to_owned()))
    }

    /// A positive number, where the file has it.
    pub(crate) fn number_if(self, key: Key) -> Result<Option<f64>, Error> {
        self.like(key, "a positive number", |value| {
            value.to_f64().filter(|number| number.is_finite() && *number > 0.0)
        })
    }

    /// A number that is positive or nothing at all: 0 is none.
    pub(crate) fn number_or_none(self, key: Key) -> Result<Option<f64>, Error> {
        if self.value(key).and_then(Value::to_f64) == Some(0.0) { Ok(None) } else { self.number_if(key) }
    }

    /// Refuses what is no object of plain values.
    pub(crate) fn object_of_values(self, key: Key) -> Result<(), Error> {
        self.like(key, "an object", |_| None::<()>)?;
        let mut keys = self.checkpoint.metadata().keys().filter_map(|key| key.rsplit_once('.'));
        let names = key.names(self.kind(), self.architecture());
        let is_below = |object: &str| names.iter().any(|name| object.starts_with(&format!("{name}.")));
        match keys.find(|(object, _)| is_below(object)) {
            Some((object, _)) => {
                let what = "expected a value that all blocks have, found an object";
                Err(Error::input(&self.path(), Place::Key(object.to_owned()), what))
            }
            None => Ok(()),
        }
    }

    /// Refuses two such objects that disagree about any of these facts; a key outside both counts for both.
    pub(crate) fn agree(self, objects: Key, keys: &[Key]) -> Result<(), Error> {
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
            a.is_some() != b.is_some() || a.zip(b).is_some_and(|(a, b)| !is_same(a, b))
        };
        let Some(key) = keys.iter().find(differs) else { return Ok(()) };
        let names = names(*key);
        let word = names.first().and_then(|name| name.rsplit('.').next()).unwrap_or_default();
        let what = format!("expected the same as in `{second}`, found another `{word}`");
        Err(Error::input(&self.path(), Place::Key(first.clone()), what))
    }

    /// Refuses a fact of which two names say different things.
    pub(crate) fn once(self, key: Key) -> Result<(), Error> {
        let names = key.names(self.kind(), self.architecture());
        let mut said = names.iter().filter_map(|name| self.checkpoint.metadata().get_key_value(name));
        let Some((first, expected)) = said.next() else { return Ok(()) };
        let Some((name, found)) = said.find(|(_, value)| !is_same(value, expected)) else { return Ok(()) };
        let what = format!("expected {expected} as under `{first}`, found {found}");
        Err(Error::input(&self.path(), Place::Key(name.clone()), what))
    }

    /// A word, where the file has one.
    pub(crate) fn word(self, key: Key) -> Result<Option<&'a str>, Error> {
        self.like(key, "a word", Value::as_text)
    }

    /// A truth, where the file has one.
    pub(crate) fn flag(self, key: Key) -> Result<Option<bool>, Error> {
        self.like(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => None,
        })
    }

    /// A list of truths, where the file has one; a whole number other than 0 is true.
    pub(crate) fn flags(self, key: Key) -> Result<Option<Vec<bool>>, Error> {
        let Some(list) = self.value(key).and_then(Value::as_list) else { return Ok(None) };
        self.like(key, "a list of true and false", |_| match list {
            List::Bools(flags) => Some(flags.clone()),
            List::Unsigned(numbers) => Some(numbers.iter().map(|n| *n != 0).collect()),
            List::Signed(numbers) => Some(numbers.iter().map(|n| *n != 0).collect()),
            List::Floats(_) | List::Texts(_) | List::Lists(_) => None,
        })
    }

    /// A list of words, where the file has one.
    pub(crate) fn words(self, key: Key) -> Result<Option<&'a [String]>, Error> {
        self.like(key, "a list of words", |value| match value.as_list()? {
            List::Texts(words) => Some(words.as_slice()),
            List::Bools(_) | List::Unsigned(_) | List::Signed(_) | List::Floats(_) | List::Lists(_) => None,
        })
    }

    /// The numbers of a small tensor in single precision, where the file has it.
    pub(crate) fn numbers(self, name: &str) -> Option<Vec<f32>> {
        let (own, info) = self.stored(name)?;
        let bytes = self.checkpoint.bytes(own)?;
        let is_plain = info.stored == Stored::As(Format::F32);
        is_plain.then(|| bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }

    /// How many different tokens: as the file says, or as its list of them has.
    pub(crate) fn vocab(self) -> Result<usize, Error> {
        if let Some(count) = self.count_if(VOCAB)? {
            return Ok(count);
        }
        let tokens = self.checkpoint.metadata().get(TOKENS).and_then(Value::as_list);
        match tokens.map(List::len) {
            Some(n_tokens) if (1..=MOST).contains(&(n_tokens as u64)) => Ok(n_tokens),
            Some(_) | None => self.count(VOCAB),
        }
    }

    /// Whether there is a tensor, by the name it has in graphs, on its own or as a part of another.
    pub(crate) fn has(self, name: &str) -> bool {
        let is_there = |name: &str| self.stored(name).is_some();
        is_there(name) || joined(name).is_some_and(|(whole, _)| is_there(&whole))
    }

    /// Whether two tensors are the same, byte for byte.
    pub(crate) fn are_same(self, names: [&str; 2]) -> bool {
        let [a, b] = names.map(|name| {
            self.stored(name).map(|(own, info)| (info.stored, &info.shape, self.checkpoint.bytes(own)))
        });
        a == b
    }

    /// Whether there is a tensor of this name whose elements are stored in blocks.
    pub(crate) fn has_blocks(self, name: &str) -> bool {
        self.stored(name)
            .is_some_and(|(_, info)| matches!(info.stored, Stored::As(format) if format.block_len() > 1))
    }

    /// The error that a fact makes no sense.
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

    /// The error that a tensor is not as it should be.
    pub(crate) fn refused_tensor(self, name: &str, what: String) -> Error {
        let own = names(self.kind(), name).into_iter().next().unwrap_or_default();
        Error::input(beside::weights(self.checkpoint), Place::Tensor(own), what)
    }

    /// The architecture, as the file calls it.
    pub(crate) fn architecture(self) -> &'a str {
        self.checkpoint.architecture().unwrap_or_default()
    }

    /// The file that facts stand in.
    fn path(self) -> PathBuf {
        let config = beside::in_folder(self.checkpoint, files::MODEL);
        let is_beside = self.kind() == Kind::Safetensors && config.is_file();
        if is_beside { config } else { beside::weights(self.checkpoint).to_owned() }
    }

    /// What a value is as something, where the file has it.
    fn like<T>(
        self,
        key: Key,
        expected: &str,
        as_one: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let refused = || self.refused(key, format!("expected {expected}, found {value}"));
        as_one(value).map(Some).ok_or_else(refused)
    }

    /// The tensor of one of the names that it may have.
    pub(crate) fn stored(self, name: &str) -> Option<(&'a String, &'a TensorInfo)> {
        names(self.kind(), name).iter().find_map(|own| self.checkpoint.tensors().get_key_value(own))
    }

    fn value(self, key: Key) -> Option<&'a Value> {
        let names = key.names(self.checkpoint.kind(), self.architecture());
        let found = names.iter().find_map(|name| self.checkpoint.metadata().get(name));
        let is_unsaid = || !names.iter().any(|name| self.checkpoint.is_null(name));
        let is_folder = self.kind() == Kind::Safetensors;
        found.or_else(|| default(self.architecture(), &names).filter(|_| is_folder && is_unsaid()))
    }
}

/// Whether values are the same, numbers whatever their width.
fn is_same(a: &Value, b: &Value) -> bool {
    a == b || a.to_f64().zip(b.to_f64()).is_some_and(|(a, b)| a == b)
}

/// The number that all of a list are.
fn same(list: &List) -> Option<u64> {
    let all: Vec<u64> = match list {
        List::Unsigned(all) => all.clone(),
        List::Signed(all) => all.iter().map(|n| u64::try_from(*n).ok()).collect::<Option<_>>()?,
        List::Bools(_) | List::Floats(_) | List::Texts(_) | List::Lists(_) => return None,
    };
    let first = *all.first()?;
    all.iter().all(|n| *n == first).then_some(first)
}
