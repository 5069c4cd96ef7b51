//! What the documents say about the tree: the paths they name, and the example of the front page.
//!
//! In: the documents at the root and everything below `docs/`. Out: an offence for each path in backticks that leads
//! nowhere.
//! What stands in fenced blocks is read elsewhere: `tests/compile/forms.rs` parses the examples.

use std::fs::read_to_string;

use tree::marked::hold;
use tree::{File, Offence, assert_none, documents, exists, fences, offence, root};

/// The example that the front page shows, without its guide.
const EXAMPLE: &str = "examples/hello_fusion.rs";

/// The folders a path in a document may start from, besides the document's own.
const BASES: [&str; 6] = ["", "src/", "compiler/src/", "models/src/", "runtime/src/", "serve/src/"];

/// The endings that make a single word a path.
const ENDINGS: [&str; 4] = [".rs", ".toml", ".md", ".graph"];

/// The lines outside of fenced blocks, with their numbers.
pub(super) fn prose(text: &str) -> Vec<(usize, &str)> {
    let fences = fences(text);
    let is_fenced =
        |line: usize| fences.iter().any(|f| (f.line..f.line + f.body.lines().count()).contains(&line));
    (1..)
        .zip(text.lines())
        .filter(|(line, l)| !is_fenced(*line) && !l.trim_start().starts_with("```"))
        .collect()
}

/// What stands in backticks outside of fenced blocks, each with its line.
fn code_spans(text: &str) -> Vec<(usize, &str)> {
    let lines = prose(text).into_iter();
    lines.flat_map(|(line, l)| l.split('`').skip(1).step_by(2).map(move |span| (line, span))).collect()
}

/// The path that a code span names: up to its first wildcard, if it is a path at all.
fn named_path(span: &str) -> Option<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./*".contains(c);
    if span.starts_with(['/', '-']) || span.contains("//") || !span.chars().all(is_plain) {
        return None;
    }
    // `n/2` is a quotient and `Qwen/Qwen3-0.6B` a model; folders have lower-case names of several letters.
    let is_folder =
        |part: &str| part.is_empty() || part.contains('*') || (part.len() > 1 && part == part.to_lowercase());
    let folders = span.rsplit_once('/').map_or("", |(folders, _)| folders);
    let has_ending = ENDINGS.iter().any(|e| span.ends_with(e) && span.len() > e.len());
    let is_path = has_ending || (span.contains('/') && span.split('/').all(is_folder));
    let known = span.find('*').map_or(span, |at| if at == 0 { "" } else { folders_before(span, at) });
    (is_path && folders.split('/').all(is_folder) && !known.is_empty()).then_some(known)
}

fn folders_before(span: &str, at: usize) -> &str {
    span[..at].rsplit_once('/').map_or("", |(folders, _)| folders)
}

fn path_offences(file: &File, exists: impl Fn(&str) -> bool) -> Vec<Offence> {
    let own = file.path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let is_known =
        |path: &str| BASES.iter().chain([&own.as_str()]).any(|base| exists(&format!("{base}{path}")));
    let paths = code_spans(&file.text).into_iter().filter_map(|(line, span)| Some((line, named_path(span)?)));
    let lost = paths.filter(|(_, path)| !is_known(path));
    lost.map(|(line, path)| offence(&file.path, line, format!("`{path}` does not exist"))).collect()
}

#[test]
fn every_path_in_the_docs_exists() {
    assert_none(&documents().iter().flat_map(|d| path_offences(d, exists)).collect::<Vec<_>>());
}

#[test]
fn the_front_page_shows_a_real_example() {
    let text = read_to_string(root().join(EXAMPLE)).expect("the example is readable");
    let code = text.find("\nuse ").map(|at| text[at..].trim_start()).expect("the example imports something");
    let shown = hold("README.md", EXAMPLE, &format!("```rust\n{code}```"));
    assert!(shown.is_ok(), "{}", shown.unwrap_err());
}

#[cfg(test)]
mod tests {
    use tree::Fence;

    use super::*;

    #[test]
    fn fences_are_told_from_prose() {
        let text = "a `b`\n```graph\nc `d`\n```\n`e` and `f`\n";
        let fence = Fence { line: 3, language: "graph".to_owned(), body: "c `d`\n".to_owned() };
        assert_eq!(fences(text), [fence]);
        assert_eq!(code_spans(text), [(1, "b"), (5, "e"), (5, "f")]);
        assert_eq!(prose(text), [(1, "a `b`"), (5, "`e` and `f`")]);
    }

    #[test]
    fn paths_are_told_from_other_code() {
        for path in ["tests/cases", "graph/op.rs", "op.rs", "reference/", "docs/", "README.md"] {
            assert_eq!(named_path(path), Some(path));
        }
        for other in
            ["1/x", "n/2", "Qwen/Qwen3-0.6B", "https://a.b/c", "a / b", ".rs", "x.shape", "-/a", "/x", "*.rs"]
        {
            assert_eq!(named_path(other), None, "{other}");
        }
        assert_eq!(named_path("tests/cases/**/*.graph"), Some("tests/cases"));
    }

    #[test]
    fn lost_paths_are_found_from_every_base() {
        let text = "`graph/op.rs`\n`graph/gone.rs`\n`near.md`\n".to_owned();
        let file = File { path: "docs/a.md".to_owned(), text };
        let known = ["compiler/src/graph/op.rs", "docs/near.md"];
        let offences = path_offences(&file, |path| known.contains(&path));
        assert_eq!(offences.iter().map(|o| o.line).collect::<Vec<_>>(), [2]);
    }
}
