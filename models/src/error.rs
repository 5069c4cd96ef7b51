//! Errors of the text side, sorted by who must act.
//!
//! In: a file, a chat template, a setting or logits, and what is wrong with it. Out: an `Error` that prints as one
//! sentence on one line.

use fusebox_runtime::error::Error as FileError;
use thiserror::Error;

/// An error of tokenising, templating or sampling.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is invalid, or not supported.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tokenizer fails on this text.
    #[error("text: {what}")]
    Text {
        /// The tokenizer's message.
        what: String,
    },
    /// The chat template does not render these messages.
    #[error("chat template: {what}")]
    Template {
        /// What is wrong, and with what.
        what: String,
    },
    /// A setting is out of range.
    #[error("{setting}: expected {expected}, found {found}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The model returned logits that cannot be sampled from.
    #[error("logits: expected {expected}, found {found}")]
    Logits {
        /// What would be accepted.
        expected: String,
        /// What was given.
        found: String,
    },
}
