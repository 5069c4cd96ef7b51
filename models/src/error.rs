//! What can go wrong beside the graphs, sorted by who must act.
//!
//! In: a file, a template, a setting or logits, and what is wrong with it. Out: an `Error` that prints as one
//! line, one sentence.

use fusebox_runtime::error::Error as FileError;
use thiserror::Error;

/// Why a model's text cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not what it should be, or nothing here reads it.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tokenizer of the file does not take this text.
    #[error("text: {what}")]
    Text {
        /// What the tokenizer says.
        what: String,
    },
    /// The chat template does not render these messages.
    #[error("chat template: {what}")]
    Template {
        /// What is wrong, and with what.
        what: String,
    },
    /// A setting makes no sense.
    #[error("{setting}: expected {expected}, found {found}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The model answered with something that no token can be drawn from.
    #[error("logits: expected {expected}, found {found}")]
    Logits {
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
}
