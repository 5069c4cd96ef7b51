//! The knobs in the documents are the knobs in the code.
//!
//! In: `KNOBS` and `docs/debugging.md`. Out: an offence for a knob without its row, and for a row without its knob.

use fusebox_compiler::options::KNOBS;
use tree::{Offence, assert_none, files, offence};

/// The document that lists them.
const DOCUMENT: &str = "docs/debugging.md";

/// What is wrong with a text that should list knobs, each a name and a sentence.
fn offences(text: &str, knobs: &[(&str, &str)]) -> Vec<Offence> {
    let row = |(variable, sentence): &(&str, &str)| format!("| `{variable}` | {sentence} |");
    let missing = knobs.iter().filter(|knob| !text.lines().any(|line| line == row(knob)));
    let missing = missing.map(|knob| offence(DOCUMENT, 1, format!("lacks the row `{}`", row(knob))));
    let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with("| `FUSEBOX_"));
    let unknown = rows.filter(|(_, line)| !knobs.iter().any(|knob| row(knob) == *line));
    missing.chain(unknown.map(|(n, line)| offence(DOCUMENT, n + 1, format!("no knob is `{line}`")))).collect()
}

#[test]
fn the_knobs_in_the_documents_are_the_knobs_in_the_code() {
    let text = files(&["md"]).into_iter().find(|file| file.path == DOCUMENT).map(|file| file.text);
    let knobs: Vec<(&str, &str)> = KNOBS.iter().map(|knob| (knob.variable, knob.sentence)).collect();
    assert_none(&offences(&text.expect("the document is there"), &knobs));
}

#[test]
fn a_missing_and_an_unknown_knob_are_told() {
    let text = "| `FUSEBOX_A` | one |\n| `FUSEBOX_B` | two |\n";
    assert_eq!(offences(text, &[("FUSEBOX_A", "one"), ("FUSEBOX_B", "two")]).len(), 0);
    assert_eq!(offences(text, &[("FUSEBOX_A", "one")]).len(), 1);
    assert_eq!(offences(text, &[("FUSEBOX_A", "one"), ("FUSEBOX_B", "2")]).len(), 2);
}
