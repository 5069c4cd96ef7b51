//! Where words go: answers to standard output, everything else to standard error.
//!
//! In: text. Out: nothing, or the news that nobody reads on. Whoever closes a pipe has read enough: that is no fault.
//! An answer that cannot be written otherwise is one, and ends the command.

use std::io::{ErrorKind, Result, Write, stderr, stdout};
use std::ops::ControlFlow;
use std::process::exit;

/// Prints a piece of an answer at once.
pub(crate) fn say(text: &str) -> ControlFlow<()> {
    let mut to = stdout().lock();
    said(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// What it means that a piece of an answer was printed so.
pub(crate) fn said(result: Result<()>) -> ControlFlow<()> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ControlFlow::Break(()),
        Err(error) => {
            complain(&format!("standard output cannot be written to: {error}"));
            exit(2)
        }
    }
}

/// Prints an answer as a whole.
pub(crate) fn print(text: &str) {
    // Nothing follows that could be left out.
    let _ = say(text);
}

/// Prints a line about the answer.
pub(crate) fn note(line: &str) {
    // Whether anybody reads it changes nothing.
    let _ = writeln!(stderr().lock(), "{line}");
}

/// Prints the sentence that says what is wrong.
pub(crate) fn complain(sentence: &str) {
    // It is one line. Names come from outside, so what would move a cursor is spelled out.
    let mut shown = String::new();
    for c in sentence.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    note(&format!("fusebox: {shown}"));
}
