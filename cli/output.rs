//! Standard output and standard error: answers go to the first, everything else to the second.
//!
//! In: text. Out: nothing, or that the reader has closed the pipe, which is no error. Any other failure to write an
//! answer is one, and ends the command.

use std::io::{ErrorKind, Result, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::process::exit;

/// Prints a piece of an answer at once.
pub(crate) fn stream(text: &str) -> ControlFlow<()> {
    let mut to = stdout().lock();
    check_written(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// Handles the result of a write to standard output.
pub(crate) fn check_written(result: Result<()>) -> ControlFlow<()> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ControlFlow::Break(()),
        Err(error) => {
            print_error(&format!("standard output cannot be written to: {error}"));
            exit(2)
        }
    }
}

/// Prints a whole answer.
pub(crate) fn print(text: &str) {
    // Nothing follows that could be skipped.
    let _ = stream(text);
}

/// Prints a line to standard error.
pub(crate) fn note(line: &str) {
    // A failure to write it is ignored.
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Prints an error as one line.
pub(crate) fn print_error(sentence: &str) {
    // File names may hold control characters, which are escaped.
    let mut shown = String::new();
    for c in sentence.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    note(&format!("fusebox: {shown}"));
}
