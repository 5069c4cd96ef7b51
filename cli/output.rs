//! Where words go: answers to standard output, everything else to standard error.
//!
//! In: text. Out: nothing, or the news that nobody reads on. Whoever closes a pipe has read enough: that is no fault.
//! An answer that cannot be written otherwise is one, and ends the command.

use std::io::{ErrorKind, Write};
use std::ops::ControlFlow;
use std::process::exit;

/// The widest column of a table; a wider cell stands out of it.
const WIDEST: usize = 200;

/// Prints a piece of an answer at once.
pub(crate) fn say(text: &str) -> ControlFlow<()> {
    let mut to = std::io::stdout().lock();
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
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
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Prints the sentence that says what is wrong.
pub(crate) fn complain(sentence: &str) {
    // A complaint may have several lines where a graph has several faults; a sentence of ours has one. Names come from
    // outside, so what would move a cursor is spelled out.
    let mut shown = String::new();
    for c in sentence.chars() {
        if c.is_control() && c != '\n' { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    note(&format!("fusebox: {shown}"));
}

/// Rows as columns as wide as their widest cell; where `sides` has an `r`, cells stand on the right.
pub(crate) fn table(sides: &str, between: &str, rows: &[impl AsRef<[String]>]) -> String {
    let widest = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max();
    let width = |column: usize| widest(column).unwrap_or(0).min(WIDEST);
    let widths: Vec<usize> = (0..sides.len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.as_ref().iter().zip(&widths).zip(sides.chars());
        let cells = cells.map(
            |((cell, width), side)| {
                if side == 'r' { format!("{cell:>width$}") } else { format!("{cell:width$}") }
            },
        );
        text += cells.collect::<Vec<_>>().join(between).trim_end();
        text.push('\n');
    }
    text
}

/// An amount of bytes as people read it.
pub(crate) fn bytes(n: f64) -> String {
    amount(n, &["B", "KiB", "MiB", "GiB", "TiB"], 1024.0)
}

/// An amount of operations as people read it.
pub(crate) fn count(n: f64) -> String {
    amount(n, &["", "k", "M", "G", "T"], 1000.0)
}

fn amount(mut n: f64, units: &[&str], step: f64) -> String {
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for larger in units {
        if n < step {
            break;
        }
        n /= step;
        unit = larger;
    }
    let digits = usize::from(n.fract() != 0.0 && n < 100.0);
    format!("{n:.digits$} {unit}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_well() {
        assert_eq!([bytes(512.0), bytes(1536.0), bytes(3e9)], ["512 B", "1.5 KiB", "2.8 GiB"]);
        assert_eq!([count(12.0), count(2_500_000.0), count(123_456.0)], ["12", "2.5 M", "123 k"]);
    }

    #[test]
    fn columns_stand_where_they_are_asked_to() {
        let rows = [vec!["a".to_owned(), "1".to_owned()], vec!["bcd".to_owned(), "23".to_owned()]];
        assert_eq!(table("lr", "  ", &rows), "a     1\nbcd  23\n");
    }
}
