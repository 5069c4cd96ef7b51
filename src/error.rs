//! What went wrong, for programs.
//!
//! In: errors of the crates below. Out: one sentence that says what, where and what would be accepted.

use std::fmt;

use fusebox_runtime::error::Error as RuntimeError;

/// What went wrong, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    sentence: String,
    full: Option<(usize, usize)>,
}

impl Error {
    /// The pages of the KV cache that a step needed and those that were free, where it failed for want of them. Nothing
    /// has changed then: release or truncate a sequence, and try again.
    pub fn full(&self) -> Option<(usize, usize)> {
        self.full
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

impl From<String> for Error {
    fn from(sentence: String) -> Self {
        Self { sentence, full: None }
    }
}

impl From<&str> for Error {
    fn from(sentence: &str) -> Self {
        Self::from(sentence.to_owned())
    }
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Self {
        let full = match error {
            RuntimeError::Full { needed, free } => Some((needed, free)),
            _ => None,
        };
        Self { sentence: error.to_string(), full }
    }
}

impl From<fusebox_models::error::Error> for Error {
    fn from(error: fusebox_models::error::Error) -> Self {
        match error {
            fusebox_models::error::Error::File(error) => error.into(),
            other => other.to_string().into(),
        }
    }
}

impl From<fusebox_compiler::error::Error> for Error {
    fn from(error: fusebox_compiler::error::Error) -> Self {
        error.to_string().into()
    }
}
