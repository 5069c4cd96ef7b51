//! What a person at a terminal sees, and the signals that it sends.
//!
//! In: answers, notes, progress. Out: text on standard output and standard error; a flag for Ctrl-C. `shell.rs` prints
//! completions and manual pages, `welcome.rs` what the command says without arguments.

pub(crate) mod output;
pub(crate) mod progress;
pub(crate) mod shell;
pub(crate) mod signals;
pub(crate) mod welcome;
