//! The look of the text: guides, line lengths, stray characters, file names.
//!
//! In: sources and documents as text. Out: an offence for each line or file out of order.
//! The words that are refused are put together here from pieces, so that this file does not offend itself.

use tree::{File, Offence, assert_none, files, offence};

use crate::source::{Source, find_word, line_at, sources};

/// The longest line of code, in characters.
const MAX_COLUMNS: usize = 120;

/// The longest file, in lines without its tests. It stops growth that nobody looks at, and no more: a file is split
/// where it holds two ideas, and one idea is not cut in two to fit a number.
const MAX_LINES: usize = 1500;

/// The list of what is known to be missing; a note in the code names a row of it.
const GAPS: &str = "docs/known-gaps.md";

/// The text between the word for such a note and the name of the row.
const NAMES_GAP: &str = "(known-gaps: ";

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = ["base", "common", "helper", "helpers", "misc", "shared", "util", "utils"];

/// Folders of one machine.
const MACHINE_PATHS: [&str; 5] = [
    concat!("/wo", "rk/"),
    concat!("/t", "mp/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/Us", "ers/"),
];

fn guide_offence(source: &Source) -> Option<Offence> {
    let n_lines = source.text.lines().take_while(|l| l.starts_with("//!")).count();
    // A binary or an example may say it all in one line; a library file may not.
    let is_production = source.path.contains("src/") && !source.path.ends_with("/tests.rs");
    let wanted = if is_production { 2 } else { 1 };
    let what = format!("opens with {n_lines} lines of `//!`, at least {wanted} are wanted");
    (n_lines < wanted).then(|| offence(&source.path, 1, what))
}

fn space_offences(file: &File) -> Vec<Offence> {
    let mut offences = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        if text.contains('\t') {
            offences.push(offence(&file.path, line, "a tab"));
        }
        if text.ends_with(char::is_whitespace) {
            offences.push(offence(&file.path, line, "a space at the end of the line"));
        }
    }
    offences
}

fn length_offences(source: &Source) -> Vec<Offence> {
    let columns = source.text.lines().map(|l| l.chars().count());
    let long = (1..).zip(columns).filter(|(_, n)| *n > MAX_COLUMNS);
    let what = |n| format!("{n} columns, at most {MAX_COLUMNS} are read at a glance");
    let mut offences: Vec<Offence> = long.map(|(line, n)| offence(&source.path, line, what(n))).collect();
    let n_lines = source.n_production_lines();
    if n_lines > MAX_LINES {
        offences.push(offence(
            &source.path,
            n_lines,
            format!("more than {MAX_LINES} lines: it holds several ideas"),
        ));
    }
    offences
}

fn path_offences(file: &File) -> Vec<Offence> {
    let finds = MACHINE_PATHS.iter().flat_map(|path| file.text.match_indices(path));
    // A folder of that name further down a relative path belongs to no machine.
    let is_absolute =
        |at: &usize| !file.text[..*at].ends_with(|c: char| c.is_alphanumeric() || "_-.}".contains(c));
    let lines = finds.map(|(at, _)| at).filter(is_absolute).map(|at| line_at(&file.text, at));
    lines.map(|line| offence(&file.path, line, "the path of one machine")).collect()
}

fn stub_offences(source: &Source, gaps: &[String]) -> Vec<Offence> {
    let note = concat!("TO", "DO");
    let names_gap = |at: &usize| {
        let name =
            source.text[at + note.len()..].strip_prefix(NAMES_GAP).and_then(|rest| rest.split_once(')'));
        name.is_some_and(|(name, _)| gaps.iter().any(|gap| gap == name))
    };
    let in_text = find_word(&source.text, note).into_iter().filter(|at| !names_gap(at));
    let what = format!("a note without a row: {note}{NAMES_GAP}NAME), with a NAME of {GAPS}");
    let in_text = in_text.map(|at| (line_at(&source.text, at), what.clone()));
    let stubs = [concat!("to", "do!"), concat!("unimpl", "emented!")];
    let in_code = stubs.iter().flat_map(|stub| source.code.match_indices(stub));
    let in_code = in_code.map(|(at, _)| (line_at(&source.code, at), "a stub".to_owned()));
    let ignored = source.code.match_indices(concat!("#[ig", "nore"));
    let ignored = ignored.map(|(at, _)| (line_at(&source.code, at), "a test that never runs".to_owned()));
    in_text.chain(in_code).chain(ignored).map(|(line, what)| offence(&source.path, line, what)).collect()
}

/// The names of the rows of the list: the first cell of each, in backticks.
fn gaps(document: &str) -> Vec<String> {
    let names = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    names.map(|(name, _)| name.to_owned()).collect()
}

fn name_offence(path: &str) -> Option<Offence> {
    let empty = path.trim_end_matches(".rs").split('/').find(|part| EMPTY_NAMES.contains(part))?;
    Some(offence(path, 1, format!("the name `{empty}` does not say what is inside")))
}

#[test]
fn every_source_file_opens_with_a_guide() {
    assert_none(&sources().iter().filter_map(guide_offence).collect::<Vec<_>>());
}

#[test]
fn texts_have_no_tabs_and_no_trailing_spaces() {
    assert_none(&files(&["rs", "md"]).iter().flat_map(space_offences).collect::<Vec<_>>());
}

#[test]
fn lines_and_files_are_short() {
    assert_none(&sources().iter().flat_map(length_offences).collect::<Vec<_>>());
}

#[test]
fn no_text_names_a_folder_of_one_machine() {
    assert_none(&files(&["rs", "md", "toml", "graph"]).iter().flat_map(path_offences).collect::<Vec<_>>());
}

#[test]
fn what_is_left_for_later_is_a_known_gap() {
    let document = files(&["md"]).into_iter().find(|file| file.path == GAPS).expect("the list is there");
    let gaps = gaps(&document.text);
    let twice = gaps.iter().enumerate().filter(|(n, gap)| gaps[..*n].contains(gap));
    let twice = twice.map(|(_, gap)| offence(GAPS, 1, format!("`{gap}` stands twice")));
    let notes = sources();
    let notes = notes.iter().flat_map(|source| stub_offences(source, &gaps));
    assert_none(&twice.chain(notes).collect::<Vec<_>>());
}

#[test]
fn file_names_say_what_is_inside() {
    assert_none(&sources().iter().filter_map(|s| name_offence(&s.path)).collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn source(path: &str, text: &str) -> Source {
        Source::new(file(path, text))
    }

    fn lines(offences: &[Offence]) -> Vec<usize> {
        offences.iter().map(|o| o.line).collect()
    }

    #[test]
    fn a_guide_is_wanted_at_the_top() {
        assert!(guide_offence(&source("compiler/src/a.rs", "//! One.\n//!\nfn f() {}")).is_none());
        assert!(guide_offence(&source("compiler/src/a.rs", "//! One.\nfn f() {}")).is_some());
        assert!(guide_offence(&source("cli/main.rs", "//! One.\nfn f() {}")).is_none());
        assert!(guide_offence(&source("tests/a.rs", "\n//! One.")).is_some());
    }

    #[test]
    fn tabs_and_trailing_spaces_are_found() {
        assert_eq!(lines(&space_offences(&file("a.md", "a\n\tb\nc \n"))), [2, 3]);
    }

    #[test]
    fn long_lines_and_long_files_are_found() {
        let wide = format!("//! {}\nfn f() {{}}", "é".repeat(MAX_COLUMNS));
        assert_eq!(lines(&length_offences(&source("compiler/src/a.rs", &wide))), [1]);
        let tall = "fn f() {}\n".repeat(MAX_LINES + 1);
        assert_eq!(lines(&length_offences(&source("compiler/src/a.rs", &tall))), [MAX_LINES + 1]);
        let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{tall}}}\n");
        assert_eq!(length_offences(&source("compiler/src/a.rs", &tests)), []);
    }

    #[test]
    fn absolute_paths_are_found_and_relative_ones_are_not() {
        let [first, ..] = MACHINE_PATHS;
        let text = format!("see {first}x\nand ..{first}x\nand a{first}x\n(`{first}x`)");
        assert_eq!(lines(&path_offences(&file("a.md", &text))), [1, 4]);
    }

    #[test]
    fn stubs_are_found() {
        let [note, stub, ignored] = [concat!("TO", "DO"), concat!("to", "do!"), concat!("ig", "nore")];
        let text = format!("// {note}: more\nfn f() {{ {stub}() }}\n#[{ignored}]");
        assert_eq!(lines(&stub_offences(&source("a.rs", &text), &[])), [1, 2, 3]);
    }

    #[test]
    fn a_note_names_a_row_of_the_known_gaps() {
        let gaps = gaps("| name | gap |\n|---|---|\n| `slow-tail` | rows |\n");
        assert_eq!(gaps, ["slow-tail"]);
        let note = concat!("TO", "DO");
        let text =
            format!("// {note}(known-gaps: slow-tail): narrow vectors\n// {note}(known-gaps: other): x");
        assert_eq!(lines(&stub_offences(&source("a.rs", &text), &gaps)), [2]);
    }

    #[test]
    fn empty_names_are_found_in_files_and_folders() {
        assert!(name_offence("compiler/src/graph/utils.rs").is_some());
        assert!(name_offence("compiler/src/common/graph.rs").is_some());
        assert!(name_offence("compiler/src/graph/database.rs").is_none());
    }
}
