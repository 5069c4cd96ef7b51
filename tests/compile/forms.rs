//! Text forms in the docs: every example reads.
//!
//! In: the fenced blocks of the documents, by their language. Out: an offence for each that its parser refuses.

use std::fmt::Display;

use fusebox_compiler::{graph, kernel};
use tree::{File, Offence, assert_none, documents, fences, offence};

/// The blocks of one language that `parse` refuses.
fn refused<T, E: Display>(file: &File, language: &str, parse: impl Fn(&str) -> Result<T, E>) -> Vec<Offence> {
    let fences = fences(&file.text).into_iter().filter(|f| f.language == language);
    let errors = fences.filter_map(|f| Some((f.line, parse(&f.body).err()?)));
    errors
        .map(|(line, error)| offence(&file.path, line, format!("this {language} does not read: {error}")))
        .collect()
}

#[test]
fn every_graph_in_the_docs_parses() {
    assert_none(
        &documents().iter().flat_map(|d| refused(d, "graph", graph::parse::parse)).collect::<Vec<_>>(),
    );
}

#[test]
fn every_kernel_in_the_docs_parses() {
    assert_none(
        &documents().iter().flat_map(|d| refused(d, "kernel", kernel::parse::parse)).collect::<Vec<_>>(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_that_does_not_read_is_found() {
        let text = "```graph\ngood\n```\n\n```graph\nbad\n```\n\n```sh\nbad\n```\n".to_owned();
        let file = File { path: "docs/a.md".to_owned(), text };
        let parse = |text: &str| if text == "good\n" { Ok(()) } else { Err("no") };
        let lines: Vec<usize> = refused(&file, "graph", parse).iter().map(|o| o.line).collect();
        assert_eq!(lines, [6]);
    }
}
