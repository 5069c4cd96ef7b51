//! What went wrong while a model was looked for or fetched.
//!
//! In: a sentence, or a path and its fault. Out: an error that prints as one sentence.

use std::fmt::{Display, Formatter, Result as Written};
use std::path::Path;

/// An error with its sentence.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    /// An error with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// An error of a file.
    pub(crate) fn at(path: &Path, error: impl Display) -> Self {
        Self(format!("{}: {error}", path.display()))
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
