//! What a file says of its model, asked for and judged one fact at a time.
//!
//! In: a checkpoint. Out: counts, numbers and flags that make sense, or one sentence that names the file and the key.
//! Nothing is believed: a count is positive and not absurd, a number is finite. What counts have to do with each other
//! is judged by the family that needs them.

use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::value::{List, Value};
use fusebox_runtime::weights::{Checkpoint, Kind};

use crate::naming::{Key, VOCAB, tensor};

/// The largest count that any model could have.
const MOST: u64 = 1 << 24;

/// A checkpoint that is asked for facts.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    checkpoint: &'a Checkpoint,
}

impl<'a> Facts<'a> {
    /// The facts of a checkpoint.
    pub fn of(checkpoint: &'a Checkpoint) -> Self {
        Self { checkpoint }
    }

    /// A count that must be there.
    pub fn count(self, key: Key) -> Result<usize, Error> {
        self.count_if(key)?
            .ok_or_else(|| self.refused(key, format!("expected a number from 1 to {MOST}, found none")))
    }

    /// A count, where the file has it.
    pub fn count_if(self, key: Key) -> Result<Option<usize>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = value.to_u64().filter(|count| (1..=MOST).contains(count));
        let count = count
            .ok_or_else(|| self.refused(key, format!("expected a number from 1 to {MOST}, found {value}")));
        count.map(|count| Some(count as usize))
    }

    /// A positive number, where the file has it.
    pub fn number_if(self, key: Key) -> Result<Option<f64>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.to_f64().filter(|number| number.is_finite() && *number > 0.0);
        number
            .map(Some)
            .ok_or_else(|| self.refused(key, format!("expected a positive number, found {value}")))
    }

    /// A word, where the file has one.
    pub fn word(self, key: Key) -> Option<&'a str> {
        self.value(key)?.as_text()
    }

    /// A truth, where the file has one.
    pub fn flag(self, key: Key) -> Option<bool> {
        match self.value(key)? {
            Value::Bool(flag) => Some(*flag),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => None,
        }
    }

    /// How many different tokens: as the file says, or as its list of them has.
    pub fn vocab(self) -> Result<usize, Error> {
        if let Some(count) = self.count_if(VOCAB)? {
            return Ok(count);
        }
        let tokens = self.checkpoint.metadata().get("tokenizer.ggml.tokens").and_then(Value::as_list);
        match tokens.map(List::len) {
            Some(n_tokens) if (1..=MOST).contains(&(n_tokens as u64)) => Ok(n_tokens),
            Some(_) | None => self.count(VOCAB),
        }
    }

    /// Whether there is a tensor, by the name it has in graphs.
    pub fn has(self, name: &str) -> bool {
        self.checkpoint.tensors().contains_key(&tensor(self.checkpoint.kind(), name))
    }

    /// The error that a fact makes no sense.
    pub fn refused(self, key: Key, what: String) -> Error {
        let names = key.names(self.checkpoint.kind(), self.architecture());
        let place = names.into_iter().next().map_or(Place::Whole, Place::Key);
        Error::input(self.path(), place, what)
    }

    /// The kind of the checkpoint.
    pub fn kind(self) -> Kind {
        self.checkpoint.kind()
    }

    fn architecture(self) -> &'a str {
        self.checkpoint.architecture().unwrap_or_default()
    }

    fn path(self) -> &'a Path {
        self.checkpoint.files().next().map_or(Path::new(""), |(path, _)| path)
    }

    fn value(self, key: Key) -> Option<&'a Value> {
        let names = key.names(self.checkpoint.kind(), self.architecture());
        names.iter().find_map(|name| self.checkpoint.metadata().get(name))
    }
}
