//! The errors of the runtime, sorted by who must act.
//!
//! In: a file, a place in it and what is wrong there. Out: an `Error` that prints as one line, one sentence.
//! Text that comes from a file is never printed as it is: `quoted` shortens and escapes it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::amount::{bytes, counted};
use thiserror::Error;

/// The most characters of a file's own text that a sentence shows.
const MAX_QUOTED: usize = 60;

/// An error of the runtime.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not what it should be.
    #[error("{}: {place}{what}", path.display())]
    Input {
        /// The file or folder.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What was expected there, and what was found.
        what: String,
    },
    /// The file may be right, but nothing here reads it.
    #[error("{}: {place}{what}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What is not supported, and what is.
        what: String,
    },
    /// A graph cannot be compiled, or a plan cannot be loaded or run.
    #[error(transparent)]
    Program(#[from] fusebox_compiler::error::Error),
    /// A device has too little memory for a request.
    #[error("{what} needs {} on {device}, {}", bytes(*needed as f64), free_of(*free))]
    Memory {
        /// The request.
        what: String,
        /// The device.
        device: String,
        /// Bytes that are needed.
        needed: usize,
        /// Bytes that are there, where that is known.
        free: Option<usize>,
    },
    /// There are too few free pages in the KV cache. Nothing has changed; it may work once sequences are released.
    #[error("the KV cache is full: {} needed, {free} free", counted(*needed, "page"))]
    Full {
        /// Pages that are needed.
        needed: usize,
        /// Pages that can be taken.
        free: usize,
    },
    /// The environment names a file that cannot be used.
    #[error("{variable}: {fault}")]
    Variable {
        /// The variable.
        variable: &'static str,
        /// What is wrong with the file.
        fault: Box<Error>,
    },
    /// The file cannot be read.
    #[error("{}: {}", path.display(), fault_of_io(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn free_of(free: Option<usize>) -> String {
    free.map_or_else(|| "which gives no more".to_owned(), |free| format!("{} is free", bytes(free as f64)))
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it.
    Whole,
    /// The byte at this offset from the start.
    Byte(u64),
    /// The metadata of this name.
    Key(String),
    /// The tensor of this name.
    Tensor(String),
}

impl Error {
    /// The error that a file is not what it should be.
    pub fn input(path: &Path, place: Place, what: impl Into<String>) -> Self {
        Self::Input { path: path.to_owned(), place, what: what.into() }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Byte(at) => write!(f, "byte {at}: "),
            Self::Key(key) => write!(f, "key {}: ", quoted(key)),
            Self::Tensor(name) => write!(f, "tensor {}: ", quoted(name)),
        }
    }
}

/// What the system says of a file, in the words of all other sentences.
pub fn fault_of_io(error: &io::Error) -> String {
    let what = match error.kind() {
        io::ErrorKind::NotFound => "no such file or folder",
        io::ErrorKind::IsADirectory => "a folder, where a file is wanted",
        io::ErrorKind::NotADirectory => "a file in the path, where a folder is wanted",
        io::ErrorKind::PermissionDenied => "no permission for this user",
        io::ErrorKind::StorageFull => "no space left on the disk",
        _ => {
            let text = error.to_string();
            return text.split(" (os error").next().unwrap_or_default().to_owned();
        }
    };
    what.to_owned()
}

/// A string of a file in backticks: on one line, without control characters, and not too long.
pub fn quoted(text: &str) -> String {
    format!("`{}`", printable(text, MAX_QUOTED))
}

/// At most `n_chars` characters of a string, escaped where they do not print.
pub fn printable(text: &str, n_chars: usize) -> String {
    let shown: String = text.chars().take(n_chars).flat_map(escaped).collect();
    if text.chars().nth(n_chars).is_some() { shown + "…" } else { shown }
}

/// A character as it may be printed: quotes stay, what would move the cursor does not.
fn escaped(c: char) -> Vec<char> {
    if "'\"".contains(c) { vec![c] } else { c.escape_debug().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_sentence_with_its_place() {
        let error = |place| Error::input(Path::new("a.gguf"), place, "expected 4, found 5").to_string();
        assert_eq!(error(Place::Byte(7)), "a.gguf: byte 7: expected 4, found 5");
        assert_eq!(error(Place::Key("k".to_owned())), "a.gguf: key `k`: expected 4, found 5");
        assert_eq!(error(Place::Tensor("t".to_owned())), "a.gguf: tensor `t`: expected 4, found 5");
        assert_eq!(error(Place::Whole), "a.gguf: expected 4, found 5");
    }

    #[test]
    fn memory_that_is_missing_is_told_in_numbers() {
        let error = |free| {
            let (what, device) = ("a program".to_owned(), "a GPU".to_owned());
            Error::Memory { what, device, needed: 3 << 20, free }.to_string()
        };
        assert_eq!(error(Some(1 << 19)), "a program needs 3 MiB on a GPU, 512 KiB is free");
        assert_eq!(error(None), "a program needs 3 MiB on a GPU, which gives no more");
    }

    #[test]
    fn what_the_system_says_has_no_number() {
        let said = |number| fault_of_io(&io::Error::from_raw_os_error(number));
        // ENOENT, and an error without a kind of its own.
        assert_eq!(said(2), "no such file or folder");
        assert!(!said(5).is_empty() && !said(5).contains("os error"), "{}", said(5));
        assert_eq!(fault_of_io(&io::Error::other("a reason")), "a reason");
    }

    #[test]
    fn text_of_a_file_cannot_break_the_line() {
        assert_eq!(quoted("a\n\u{1b}[2J\"b"), "`a\\n\\u{1b}[2J\"b`");
        assert_eq!(quoted(&"x".repeat(MAX_QUOTED + 1)), format!("`{}…`", "x".repeat(MAX_QUOTED)));
    }
}
