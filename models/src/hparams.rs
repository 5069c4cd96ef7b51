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
use crate::naming::tensors::{How, Names, Renamed, fused};
use crate::naming::tokenizer::TOKENS;
use crate::sidecar;

/// The largest count that any model could have.
const MAX_COUNT: u64 = 1 << 24;

/// The part of a multimodal `config.json` with the hyper-parameters of its language model.
const TEXT: &str = "text_config";
/// The object with RoPE, which may have one for each kind of block.
const ROPE: &str = "rope_parameters";

/// A checkpoint's metadata, read by hyper-parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hparams<'a> {
    checkpoint: &'a Checkpoint,
    names: Names,
    /// The kind of block whose RoPE is read, where `config.json` tells them apart.
    kind_of_block: Option<&'static str>,
}

impl<'a> Hparams<'a> {
    /// The hyper-parameters of a checkpoint, whose family has these tensors otherwise.
    pub(crate) fn new(checkpoint: &'a Checkpoint, renamed: &'static [&'static [Renamed]]) -> Self {
        let names = Names { kind: checkpoint.kind(), renamed };
        Self { checkpoint, names, kind_of_block: None }
    }

    /// The architecture that a checkpoint names: of its language model, where it has other parts.
    pub(crate) fn architecture_of(checkpoint: &'a Checkpoint) -> Option<&'a str> {
        let whole = checkpoint.architecture();
        match checkpoint.kind() {
            Kind::Safetensors => {
                let text = checkpoint.metadata().get(&format!("{TEXT}.model_type")).and_then(Value::as_text);
                text.or(whole)
            }
            Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => whole,
        }
    }

    /// The same, with the RoPE of a kind of block.
    pub(crate) fn of_blocks(self, kind: &'static str) -> Self {
        Self { kind_of_block: Some(kind), ..self }
    }

    /// Whether `config.json` has a RoPE for this kind of block.
    pub(crate) fn has_rope_of(self, kind: &str) -> bool {
        let below = format!("{ROPE}.{kind}.");
        let is_below = |key: &String| key.trim_start_matches("text_config.").starts_with(&below);
        self.kind() == Kind::Safetensors && self.checkpoint.metadata().keys().any(is_below)
    }

    /// The names of tensors.
    pub(crate) fn names(self) -> Names {
        self.names
    }

    /// How the file stores a tensor.
    pub(crate) fn how(self, name: &str) -> How {
        self.names.how(name)
    }

    /// The names that a hyper-parameter may have, in order of preference.
    fn names_of(self, key: Key) -> Vec<String> {
        let names = key.names(self.kind(), self.architecture());
        if self.kind() != Kind::Safetensors {
            return names;
        }
        let with_kind = |name: String| {
            let own = self.kind_of_block.zip(name.strip_prefix(ROPE)?.strip_prefix('.'));
            own.map(|(kind, rest)| format!("{ROPE}.{kind}.{rest}"))
        };
        // What is said of a kind of block holds, and nothing else.
        let names: Vec<String> = match self.kind_of_block {
            Some(_) if names.iter().any(|name| name.starts_with(ROPE)) => {
                names.into_iter().filter_map(with_kind).collect()
            }
            Some(_) | None => names,
        };
        let nested = names.iter().map(|name| format!("{TEXT}.{name}"));
        let is_nested = self.checkpoint.metadata().keys().any(|key| key.starts_with("text_config."));
        if is_nested { nested.chain(names.iter().cloned()).collect() } else { names }
    }

    /// A count for each block, where the file has a list.
    pub(crate) fn sizes_if(self, key: Key) -> Result<Option<Vec<usize>>, Error> {
        let Some(value) = self.value(key).filter(|value| value.as_list().is_some()) else { return Ok(None) };
        let number = |n: u64| (n <= MAX_COUNT).then_some(n as usize);
        let all = match value.as_list() {
            Some(List::Unsigned(all)) => all.iter().map(|n| number(*n)).collect(),
            Some(List::Signed(all)) => all.iter().map(|n| u64::try_from(*n).ok().and_then(number)).collect(),
            Some(List::Bools(_) | List::Floats(_) | List::Texts(_) | List::Lists(_)) | None => None,
        };
        let what = || format!("expected numbers from 0 to {MAX_COUNT}, found {value}");
        all.map(Some).ok_or_else(|| self.refused(key, what()))
    }

    /// Positive numbers, where the file has a list.
    pub(crate) fn numbers_of(self, key: Key) -> Result<Option<Vec<f32>>, Error> {
        self.converted(key, "a list of positive numbers", |value| {
            let numbers: Vec<f32> = match value.as_list()? {
                List::Floats(all) => all.iter().map(|x| *x as f32).collect(),
                List::Unsigned(all) => all.iter().map(|n| *n as f32).collect(),
                List::Signed(all) => all.iter().map(|n| *n as f32).collect(),
                List::Bools(_) | List::Texts(_) | List::Lists(_) => return None,
            };
            numbers.iter().all(|x| x.is_finite() && *x > 0.0).then_some(numbers)
        })
    }

    /// A count of one block, where the file has it by the number of the block.
    pub(crate) fn count_of_block(self, layer: usize, name: &str) -> Option<usize> {
        let name = format!("per_layer_config.{layer}.{name}");
        let names = [format!("{TEXT}.{name}"), name];
        let value = names.iter().find_map(|name| self.checkpoint.metadata().get(name))?;
        value.to_u64().filter(|n| (1..=MAX_COUNT).contains(n)).map(|n| n as usize)
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
        if self.kind_of_block.is_some() {
            return Ok(());
        }
        self.converted(key, "an object", |_| None::<()>)?;
        let mut keys = self.checkpoint.metadata().keys().filter_map(|key| key.rsplit_once('.'));
        let names = self.names_of(key);
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
        let names = |key: Key| self.names_of(key);
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
        let names = self.names_of(key);
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

    /// A number that every block has: in a list under this key, or the only element of a tensor, by the end of its name
    /// in a folder.
    pub(crate) fn number_of_block(self, layer: usize, key: &str, tensor: &str) -> Option<f64> {
        if let Some(List::Floats(all)) = self.checkpoint.metadata().get(key).and_then(Value::as_list) {
            return all.get(layer).copied();
        }
        let end = format!("layers.{layer}.{tensor}");
        let is_it = |own: &str| {
            own.strip_suffix(&end).is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let (own, info) = self.checkpoint.tensors().iter().find(|(own, _)| is_it(own))?;
        match (info.stored, self.checkpoint.bytes(own)?) {
            (Stored::As(Format::F32), &[a, b, c, d]) => Some(f64::from(f32::from_le_bytes([a, b, c, d]))),
            (Stored::As(Format::BF16), &[a, b]) => Some(f64::from(f32::from_le_bytes([0, 0, a, b]))),
            _ => None,
        }
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
        let names = self.names_of(key);
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
        let own = self.names.of(name).into_iter().next().unwrap_or_default();
        Error::input(sidecar::weights_path(self.checkpoint), Place::Tensor(own), what)
    }

    /// The architecture, as the file names it.
    pub(crate) fn architecture(self) -> &'a str {
        Self::architecture_of(self.checkpoint).unwrap_or_default()
    }

    /// The file that has the metadata.
    pub(crate) fn path(self) -> PathBuf {
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
        self.names.of(name).iter().find_map(|own| self.checkpoint.tensors().get_key_value(own))
    }

    fn value(self, key: Key) -> Option<&'a Value> {
        let names = self.names_of(key);
        let found = names.iter().find_map(|name| self.checkpoint.metadata().get(name));
        let is_absent = || !names.iter().any(|name| self.checkpoint.is_null(name));
        let is_folder = self.kind() == Kind::Safetensors;
        let plain = || key.names(self.kind(), self.architecture());
        found.or_else(|| default(self.architecture(), &plain()).filter(|_| is_folder && is_absent()))
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
