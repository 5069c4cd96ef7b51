//! Words of the field in documents and helps: no word of our own comes back where readers know another.
//!
//! In: the prose of the documents, and the comments that the command's help is made from. Out: an offence for each word
//! of the list below.
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

/// What a file of the command says of its flags.
fn help_offences(file: &File) -> Vec<Offence> {
    let lines = (1..).zip(file.text.lines());
    let helps = lines.filter_map(|(line, text)| Some((line, text.trim_start().strip_prefix("///")?)));
    helps.flat_map(|(line, text)| relapses(&file.path, line, text)).collect()
}

#[test]
fn helps_use_the_words_of_the_field() {
    let own = files(&["rs"]).into_iter().filter(|file| file.path.starts_with("cli/"));
    assert_none(&own.flat_map(|file| help_offences(&file)).collect::<Vec<_>>());
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
    fn relapses_are_found_in_helps() {
        let text = "/// So many tokens.\nlet x = \"so many\"; // so many\n    /// Tokens.\n".to_owned();
        let file = File { path: "cli/a.rs".to_owned(), text };
        assert_eq!(help_offences(&file).iter().map(|o| o.line).collect::<Vec<_>>(), [1]);
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
