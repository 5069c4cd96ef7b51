//! Words of the field in documents and helps: no word of our own comes back where readers know another.
//!
//! In: the prose of the documents, the comments that the command's help is made from, and those of the compiler and the
//! benches. Out: an offence for each word of the list below.
//! Fenced blocks, code in backticks and blocks made from data are passed over: they are held where they are written.
//! `docs/glossary.md` has the words that are ours, and what the field calls them.

use tree::{File, Offence, assert_none, documents, files, offence};

use crate::docs::prose;

/// What came back before, and what to write. A `#` stands for a digit.
const RELAPSES: [(&str, &str); 22] = [
    ("behind #", "at depth 512, after 512 tokens"),
    ("gone on with", "decoded, continued"),
    ("goes on with", "decodes, continues"),
    ("go on with", "decode, continue"),
    ("asked for", "prefetched, requested, needed"),
    ("so many", "N, that many, the number of"),
    ("at hand", "current, available"),
    ("what lies", "the bytes, the data"),
    ("by turns", "alternating"),
    ("texts", "sequences, prompts, strings"),
    ("a text of", "a sequence of, a prompt of"),
    ("the text at", "the current sequence"),
    ("behind the last position", "after the last position"),
    ("is told", "is reported, is set"),
    ("multiprocessor", "SM"),
    ("matrix unit", "tensor core (MMA)"),
    ("numbers of 8 bits", "8-bit integers"),
    ("of few bits", "low-bit, quantised"),
    ("as many as", "the number of"),
    ("decoded behind", "decoded at depth"),
    ("a processor plays", "an emulated GPU"),
    ("bound by what is computed", "compute-bound"),
];

/// Whether `phrase` starts at a place of a line; a `#` in it stands for a digit.
fn is_at(line: &str, at: usize, phrase: &str) -> bool {
    let mut found = line[at..].chars();
    let is_start = !line[..at].ends_with(char::is_alphanumeric);
    is_start
        && phrase.chars().all(|wanted| match (wanted, found.next()) {
            ('#', Some(c)) => c.is_ascii_digit(),
            (wanted, found) => found == Some(wanted),
        })
}

/// A line without what stands in backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase()
}

/// The offences of one line.
fn relapses(path: &str, line: usize, text: &str) -> Vec<Offence> {
    let text = without_code(text);
    let found =
        RELAPSES.iter().filter(|(phrase, _)| text.char_indices().any(|(at, _)| is_at(&text, at, phrase)));
    found.map(|(phrase, instead)| offence(path, line, format!("`{phrase}`: write {instead}"))).collect()
}

fn offences(file: &File) -> Vec<Offence> {
    let (mut found, mut is_made) = (Vec::new(), false);
    for (line, text) in prose(&file.text) {
        is_made = (is_made || text.starts_with("<!-- made by ")) && text != "<!-- end -->";
        if !is_made {
            found.extend(relapses(&file.path, line, text));
        }
    }
    found
}

/// The offences of the comments that begin with `mark`: `///` for the helps of the command.
fn comment_offences(file: &File, mark: &str) -> Vec<Offence> {
    let lines = (1..).zip(file.text.lines());
    let comments = lines.filter_map(|(line, text)| Some((line, text.trim_start().strip_prefix(mark)?)));
    comments.flat_map(|(line, text)| relapses(&file.path, line, text)).collect()
}

fn assert_comments(folders: &[&str], mark: &str) {
    let is_own = |file: &File| folders.iter().any(|folder| file.path.starts_with(folder));
    let own = files(&["rs"]).into_iter().filter(is_own);
    assert_none(&own.flat_map(|file| comment_offences(&file, mark)).collect::<Vec<_>>());
}

#[test]
fn helps_use_the_words_of_the_field() {
    assert_comments(&["cli/"], "///");
}

#[test]
fn comments_of_the_compiler_use_the_words_of_the_field() {
    assert_comments(&["compiler/", "benches/"], "//");
}

#[test]
fn documents_use_the_words_of_the_field() {
    assert_none(&documents().iter().flat_map(offences).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let file = File { path: "docs/a.md".to_owned(), text: text.to_owned() };
        offences(&file).iter().map(|o| o.line).collect()
    }

    #[test]
    fn relapses_are_found_in_comments() {
        let text = "/// So many tokens.\nlet x = \"so many\"; // so many\n    /// Tokens.\n// So many.\n";
        let text = text.to_owned();
        let file = File { path: "cli/a.rs".to_owned(), text };
        let lines = |mark| comment_offences(&file, mark).iter().map(|o| o.line).collect::<Vec<_>>();
        assert_eq!((lines("///"), lines("//")), (vec![1], vec![1, 4]));
    }

    #[test]
    fn relapses_are_found_in_prose_only() {
        assert_eq!(lines("A token behind 512 is slow.\nBehind the barrier.\n"), [1]);
        assert_eq!(
            lines("Eight texts.\nIts contexts.\n`asked for`\n```text\nso many\n```\nSo many.\n"),
            [1, 7]
        );
        assert_eq!(lines("<!-- made by x -->\nso many\n<!-- end -->\nso many\n"), [4]);
    }
}
