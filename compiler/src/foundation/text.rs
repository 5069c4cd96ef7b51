//! The scanner both text forms are read with, and the error a reader gets.
//!
//! In: text. Out: words, numbers and punctuation with their line and column.
//! It knows no grammar, and no input makes it panic. `graph/parse.rs` and `kernel/parse/` stand on it.

use std::fmt;

/// Where a text went wrong, and what would have been accepted there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// What stands there.
    pub found: String,
    /// What would be accepted.
    pub expected: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}, expected {}", self.line, self.column, self.found, self.expected)
    }
}

impl std::error::Error for SyntaxError {}

/// Reads one text from its start to its end.
#[derive(Clone, Debug)]
pub struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl<'a> Scanner<'a> {
    /// A scanner at the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1, column: 1 }
    }

    /// The line the scanner stands on.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Whether only blanks, ends of lines and comments remain.
    pub fn at_end(&mut self) -> bool {
        self.skip_lines();
        self.rest.is_empty()
    }

    /// Passes blanks and comments (`#` to the end of the line) within the line.
    pub fn skip_blanks(&mut self) {
        while let Some(c) = self.rest.chars().next() {
            match c {
                ' ' | '\t' | '\r' => self.advance(c),
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.column += self.rest[..end].chars().count();
                    self.rest = &self.rest[end..];
                }
                _ => break,
            }
        }
    }

    /// Passes blanks, comments and ends of lines.
    pub fn skip_lines(&mut self) {
        loop {
            self.skip_blanks();
            if !self.rest.starts_with('\n') {
                break;
            }
            self.advance('\n');
        }
    }

    /// Takes `token` if it comes next; a word must end where the token ends.
    pub fn take(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let Some(after) = self.rest.strip_prefix(token) else { return false };
        let is_word = token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_word && after.starts_with(is_word_char) {
            return false;
        }
        self.column += token.chars().count();
        self.rest = after;
        true
    }

    /// Whether `token` comes next, without taking it.
    pub fn peek(&mut self, token: &str) -> bool {
        self.clone().take(token)
    }

    /// Takes `token` or says that it was expected.
    pub fn expect(&mut self, token: &str) -> Result<(), SyntaxError> {
        if self.take(token) { Ok(()) } else { Err(self.error(format!("`{token}`"))) }
    }

    /// Takes a word: letters, digits, `_`, `.` and `-`, not starting with a digit or `-`.
    pub fn word(&mut self, what: &str) -> Result<&'a str, SyntaxError> {
        self.skip_blanks();
        let starts = self.rest.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
        if !starts {
            return Err(self.error(what));
        }
        Ok(self.take_while(is_word_char))
    }

    /// Takes an identifier: letters, digits and `_`, not starting with a digit. Unlike a word it ends before a minus.
    pub fn identifier(&mut self, what: &str) -> Result<&'a str, SyntaxError> {
        self.skip_blanks();
        let starts = self.rest.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
        if !starts {
            return Err(self.error(what));
        }
        Ok(self.take_while(|c| c.is_alphanumeric() || c == '_'))
    }

    /// Takes a whole number, perhaps negative.
    pub fn integer(&mut self, what: &str) -> Result<i64, SyntaxError> {
        let before = self.clone();
        self.skip_blanks();
        let negative = self.take("-");
        let digits = self.take_while(|c| c.is_ascii_digit());
        let value: Option<i64> = digits.parse().ok();
        if let Some(value) = value {
            return Ok(if negative { -value } else { value });
        }
        *self = before;
        Err(self.error(what))
    }

    /// Takes a floating-point number, `inf`, `-inf` or `nan`.
    pub fn float(&mut self, what: &str) -> Result<f32, SyntaxError> {
        let before = self.clone();
        self.skip_blanks();
        let text = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+'));
        if let Ok(value) = text.parse() {
            return Ok(value);
        }
        *self = before;
        Err(self.error(what))
    }

    /// Takes a text between quotes, written as Rust writes it: `\"`, `\\`, `\n` and `\u{7f}` stand for characters.
    pub fn quoted(&mut self, what: &str) -> Result<String, SyntaxError> {
        let mut ahead = self.clone();
        ahead.skip_blanks();
        match ahead.take_quoted() {
            Some(text) => {
                *self = ahead;
                Ok(text)
            }
            None => Err(self.error(what)),
        }
    }

    fn take_quoted(&mut self) -> Option<String> {
        let mut text = String::new();
        self.take_char().filter(|c| *c == '"')?;
        loop {
            match self.take_char()? {
                '"' => return Some(text),
                '\n' => return None,
                '\\' => text.push(self.take_escaped()?),
                c => text.push(c),
            }
        }
    }

    fn take_escaped(&mut self) -> Option<char> {
        match self.take_char()? {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            '0' => Some('\0'),
            'u' => {
                let digits = self.rest.strip_prefix('{')?.split('}').next()?;
                self.take_while(|c| c != '}');
                self.take_char()?;
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)
            }
            c @ ('"' | '\\' | '\'') => Some(c),
            _ => None,
        }
    }

    fn take_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.advance(c);
        Some(c)
    }

    /// Says that the line must end here, and passes its end.
    pub fn end_of_line(&mut self) -> Result<(), SyntaxError> {
        self.skip_blanks();
        if self.rest.is_empty() || self.rest.starts_with('\n') {
            self.skip_lines();
            return Ok(());
        }
        Err(self.error("the end of the line"))
    }

    /// An error at this place.
    pub fn error(&mut self, expected: impl Into<String>) -> SyntaxError {
        self.skip_blanks();
        SyntaxError { line: self.line, column: self.column, found: self.found(), expected: expected.into() }
    }

    fn found(&self) -> String {
        match self.rest.chars().next() {
            None => "the text ends".to_owned(),
            Some('\n') => "the line ends".to_owned(),
            Some(first) => {
                let len = if is_word_char(first) {
                    self.rest.find(|c| !is_word_char(c)).unwrap_or(self.rest.len())
                } else {
                    first.len_utf8()
                };
                let shown: String = self.rest[..len].chars().take(40).collect();
                format!("found `{shown}`")
            }
        }
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.column += taken.chars().count();
        self.rest = rest;
        taken
    }

    fn advance(&mut self, c: char) {
        self.rest = &self.rest[c.len_utf8()..];
        if c == '\n' {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
    }
}

fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_lines_are_told_apart() {
        let mut s = Scanner::new("mul %3 -12 # why\n  next 1.5e-3");
        assert_eq!(s.word("an operation").unwrap(), "mul");
        assert!(!s.take("%30") && s.take("%"));
        assert_eq!(s.integer("a number").unwrap(), 3);
        assert_eq!(s.integer("a number").unwrap(), -12);
        s.end_of_line().unwrap();
        assert_eq!(s.line(), 2);
        assert!(!s.take("nex") && s.take("next"));
        assert_eq!(Scanner::new("T-1").identifier("a symbol").unwrap(), "T");
        assert!((s.float("a number").unwrap() - 1.5e-3).abs() < 1e-9);
        assert!(s.at_end());
    }

    #[test]
    fn quoted_text_reads_as_rust_writes_it() {
        for text in ["", "a|b # c", "\"\\\n\t\u{7f}\0é'", "\u{200b}"] {
            let written = format!("  {text:?} next");
            let mut s = Scanner::new(&written);
            assert_eq!(s.quoted("a name").unwrap(), text);
            assert!(s.take("next"));
        }
        for broken in ["", "\"", "\"a\nb\"", "\"\\", "\"\\u{\"", "\"\\u{zz}\"", "\"\\q\""] {
            assert!(Scanner::new(broken).quoted("a name").is_err());
        }
    }

    #[test]
    fn an_error_names_the_place_and_what_would_be_accepted() {
        let mut s = Scanner::new("a\n  ?b");
        assert_eq!(s.word("a name").unwrap(), "a");
        s.end_of_line().unwrap();
        let error = s.word("a name").unwrap_err();
        assert_eq!(error.to_string(), "line 2, column 3: found `?`, expected a name");
    }
}
