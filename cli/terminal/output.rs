//! Standard output and standard error: answers go to the first, everything else to the second.
//!
//! In: text. Out: nothing, or that the reader has closed the pipe, which is no error. Any other failure to write an
//! answer is one, and ends the command.

use std::io::{ErrorKind, Result as Written, Write, stderr, stdout};
use std::num::IntErrorKind;
use std::ops::ControlFlow;
use std::process::exit;

use console::Term;

use crate::terminal::progress;

/// Prints a piece of an answer at once.
pub(crate) fn stream(text: &str) -> ControlFlow<()> {
    let mut to = stdout().lock();
    check_written(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// Handles the result of a write to standard output.
pub(crate) fn check_written(result: Written<()>) -> ControlFlow<()> {
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
    progress::clear();
    // A failure to write it is ignored.
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Columns for an answer: one less than the terminal has, so that the cursor is never beyond the edge.
pub(crate) fn width() -> usize {
    let (_, columns) = Term::stdout().size();
    usize::from(columns).saturating_sub(1).max(1)
}

/// Parses a number of tokens, where a negative one is no limit.
pub(crate) fn count_or_all(text: &str) -> Result<usize, String> {
    match text.parse::<i64>() {
        Ok(number) => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err("the number is too large".to_owned()),
        Err(_) => Err("expected a whole number; -1 is no limit".to_owned()),
    }
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
