//! A Rust file as the checks see it: the text, and the same text with comments and strings blanked.
//!
//! In: a file. Out: a [`Source`] whose `code` has a line for every line of the text, so that a word found in the code
//! is neither quoted nor commented on, and its line number holds for both.
//! This is a scanner, not a parser: it knows literals, comments, braces and test modules, and nothing else of Rust.

use std::ops::Range;

use tree::{File, files};

/// A Rust file.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) path: String,
    pub(super) text: String,
    /// The text with comments and the insides of literals blanked.
    pub(super) code: String,
    /// The code with test modules blanked too.
    pub(super) production: String,
}

impl Source {
    pub(super) fn new(file: File) -> Self {
        let code = mask(&file.text);
        let is_test = is_test_path(&file.path);
        let production = if is_test { blank(&code, 0..code.len()) } else { without_tests(&code) };
        Self { path: file.path, text: file.text, code, production }
    }

    /// How many lines come before the test modules that end the file.
    pub(super) fn n_production_lines(&self) -> usize {
        self.production.trim_end().lines().count()
    }
}

/// Every Rust file of the tree.
pub(super) fn sources() -> Vec<Source> {
    files(&["rs"]).into_iter().map(Source::new).collect()
}

/// The line of a byte offset, counted from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

/// Where `word` stands in `code` with nothing of a name directly before or after it.
pub(super) fn find_word(code: &str, word: &str) -> Vec<usize> {
    let is_apart = |at: &usize| {
        !code[..*at].ends_with(is_name_char) && !code[at + word.len()..].starts_with(is_name_char)
    };
    code.match_indices(word).map(|(at, _)| at).filter(is_apart).collect()
}

/// The name at the start of `code`; empty if there is none.
pub(super) fn leading_name(code: &str) -> &str {
    &code[..code.find(|c| !is_name_char(c)).unwrap_or(code.len())]
}

/// The inside of the braces that open at the start of `code`.
pub(super) fn braced(code: &str) -> Option<&str> {
    let mut depth = 0usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some(&code[1..at]),
            '}' => depth -= 1,
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The parts of `code` between the commas that stand outside of all brackets.
pub(super) fn split_commas(code: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0i32);
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&code[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&code[start..]);
    parts
}

pub(super) fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_test_path(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn without_tests(code: &str) -> String {
    let mut rest = code.to_owned();
    while let Some(range) = test_module(&rest) {
        rest = blank(&rest, range);
    }
    rest
}

/// The first `#[cfg(test)] mod … { … }`.
fn test_module(code: &str) -> Option<Range<usize>> {
    const MARK: &str = "#[cfg(test)]";
    for (start, _) in code.match_indices(MARK) {
        let item = code[start + MARK.len()..].trim_start();
        let is_module =
            ["mod ", "pub(super) mod ", "pub(crate) mod "].iter().any(|head| item.starts_with(head));
        let Some(open) = item.find(['{', ';']).filter(|_| is_module) else { continue };
        if let Some(inside) = braced(&item[open..]) {
            let end = code.len() - item.len() + open + inside.len() + 2;
            return Some(start..end);
        }
    }
    None
}

fn blank(text: &str, range: Range<usize>) -> String {
    let inside: String = text[range.clone()].chars().map(blanked).collect();
    [&text[..range.start], &inside, &text[range.end..]].concat()
}

fn blanked(c: char) -> char {
    if c == '\n' { '\n' } else { ' ' }
}

/// The text with comments and the insides of literals blanked.
fn mask(text: &str) -> String {
    let (mut code, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        let (kept, hidden) = literal(rest, code.chars().last());
        code.push_str(&rest[..kept]);
        code.extend(rest[kept..kept + hidden].chars().map(blanked));
        rest = &rest[kept + hidden..];
        if kept + hidden == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

/// How many bytes at the start of `rest` open a literal or a comment, and how many belong to its inside.
fn literal(rest: &str, before: Option<char>) -> (usize, usize) {
    if rest.starts_with("//") {
        return (0, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (0, block_comment_len(rest));
    }
    if let Some(inside) = rest.strip_prefix('"') {
        return (1, quoted_len(inside, '"'));
    }
    if let Some(inside) = rest.strip_prefix('\'') {
        let mut chars = inside.chars();
        let (first, second) = (chars.next(), chars.next());
        // Without a closing quote it is the name of a lifetime or of a loop.
        let is_char = first == Some('\\') || second == Some('\'');
        return if is_char { (1, quoted_len(inside, '\'')) } else { (0, 0) };
    }
    if !before.is_some_and(is_name_char) {
        let hashes = rest.trim_start_matches(['b', 'c']).strip_prefix('r').unwrap_or_default();
        let inside = hashes.trim_start_matches('#');
        if let Some(text) = inside.strip_prefix('"') {
            let close = format!("\"{}", &hashes[..hashes.len() - inside.len()]);
            let len = text.find(&close).map_or(text.len(), |at| at + close.len());
            return (rest.len() - text.len(), len);
        }
    }
    (0, 0)
}

fn quoted_len(inside: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in inside.char_indices() {
        if c == quote && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    inside.len()
}

fn block_comment_len(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(next) = rest[at..].find(['/', '*']) {
        at += next;
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        mask(text).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn comments_are_blanked_and_lines_stay() {
        assert_eq!(mask("a // b\nc /* d\n/* e */ f */ g").lines().count(), 3);
        assert_eq!(words("a // b\nc /* d\n/* e */ f */ g"), ["a", "c", "g"]);
    }

    #[test]
    fn the_insides_of_literals_are_blanked() {
        assert_eq!(words(r#"f("unsafe \" x") + 'y'"#), ["f(\"", ")", "+", "'"]);
        assert_eq!(words("r#\"a \" b\"# c \"d\" e"), ["r#\"", "c", "\"", "e"]);
        assert_eq!(words(r"'\'' x '\\' y"), ["'", "x", "'", "y"]);
    }

    #[test]
    fn lifetimes_are_no_characters() {
        assert_eq!(words("fn f<'a>(x: &'a str) { 'outer: loop {} }").len(), 9);
    }

    #[test]
    fn only_the_test_module_is_no_production_code() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\nfn c() {}\n".to_owned();
        let source = Source::new(File { path: "compiler/src/x.rs".to_owned(), text });
        let found = |name: &str| !find_word(&source.production, name).is_empty();
        assert_eq!([found("a"), found("b"), found("c")], [true, false, true]);
        assert!(!find_word(&source.code, "b").is_empty());
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_one() {
        assert_eq!(find_word("unsafe_code unsafe not_unsafe", "unsafe"), [12]);
    }

    #[test]
    fn braces_and_commas_nest() {
        assert_eq!(braced("{a::{b, c}, d} rest"), Some("a::{b, c}, d"));
        assert_eq!(braced("a {b}"), None);
        assert_eq!(split_commas("a::{b, c}, d"), ["a::{b, c}", " d"]);
    }
}
