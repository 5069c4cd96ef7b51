//! An answer on the screen: words that stay whole, and thinking that is set apart.
//!
//! In: pieces of an answer, and a width below that of the terminal. Out: the same text for a terminal: a word that
//! would cross the edge moves to the next line, what stands between `<think>` and `</think>` is dimmed, and control
//! characters are shown instead of obeyed.

use std::fmt::Write as _;

use fusebox::chat::THINK;
use unicode_width::UnicodeWidthChar;

/// What reasoning stands between.
pub(super) const MARKS: [&str; 2] = [THINK, "</think>"];
/// Starts and ends dimmed text.
pub(super) const DIM: [&str; 2] = ["\u{1b}[2m", "\u{1b}[0m"];
/// Columns between tabs.
const TAB: usize = 8;

/// The state of the line that is being written.
pub(super) struct Screen {
    column: usize,
    /// The word at the end of the line, which is written already, and its width.
    word: String,
    word_width: usize,
    is_thinking: bool,
    /// Text that may become a mark.
    held: String,
}

impl Screen {
    /// An empty line; the answer may start with thinking.
    pub(super) fn new(is_thinking: bool) -> Self {
        Self { column: 0, word: String::new(), word_width: 0, is_thinking, held: String::new() }
    }

    /// What starts the answer.
    pub(super) fn start(&self) -> &'static str {
        if self.is_thinking { DIM[0] } else { "" }
    }

    /// What to write for this piece.
    pub(super) fn push(&mut self, piece: &str, width: usize) -> String {
        self.held += piece;
        let mut out = String::new();
        loop {
            let mark = MARKS[usize::from(self.is_thinking)];
            if let Some(at) = self.held.find(mark) {
                let before: String = self.held.drain(..at).collect();
                self.write(&mut out, &before, width);
                self.held.drain(..mark.len());
                self.is_thinking = !self.is_thinking;
                self.word.clear();
                self.word_width = 0;
                out.push_str(DIM[usize::from(!self.is_thinking)]);
                continue;
            }
            let undecided = (1..mark.len()).rev().find(|n| self.held.ends_with(&mark[..*n])).unwrap_or(0);
            let certain: String = self.held.drain(..self.held.len() - undecided).collect();
            self.write(&mut out, &certain, width);
            return out;
        }
    }

    /// What to write at the end.
    pub(super) fn finish(&mut self, width: usize) -> String {
        let (held, mut out) = (std::mem::take(&mut self.held), String::new());
        self.write(&mut out, &held, width);
        if self.is_thinking {
            out.push_str(DIM[1]);
        }
        if self.column > 0 {
            out.push('\n');
        }
        out
    }

    fn write(&mut self, out: &mut String, text: &str, width: usize) {
        for c in text.chars() {
            self.put(out, c, width.max(1));
        }
    }

    fn put(&mut self, out: &mut String, c: char, width: usize) {
        match c {
            '\n' => {
                out.push('\n');
                self.begin_line();
            }
            '\t' => {
                let n = (TAB - self.column % TAB).min(width.saturating_sub(self.column));
                out.extend(std::iter::repeat_n(' ', n));
                self.column += n;
                self.end_word();
            }
            ' ' => {
                // A blank at the edge is the break itself.
                if self.column < width {
                    out.push(' ');
                    self.column += 1;
                }
                self.end_word();
            }
            c if c.is_control() => {
                for c in c.escape_default() {
                    self.put_visible(out, c, 1, width);
                }
            }
            c => self.put_visible(out, c, c.width().unwrap_or(0), width),
        }
    }

    fn put_visible(&mut self, out: &mut String, c: char, columns: usize, width: usize) {
        if self.column + columns > width {
            // A word that fills the line by itself is broken where the line ends.
            if self.word_width > 0 && self.word_width < self.column && self.word_width + columns <= width {
                let _ = write!(out, "\u{1b}[{}D\u{1b}[K\n{}", self.word_width, self.word);
                self.column = self.word_width;
            } else {
                out.push('\n');
                self.begin_line();
            }
        }
        out.push(c);
        self.column += columns;
        self.word.push(c);
        self.word_width += columns;
    }

    fn begin_line(&mut self) {
        self.column = 0;
        self.end_word();
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_width = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a terminal shows of these pieces.
    fn shown(pieces: &[&str], width: usize) -> Vec<String> {
        let mut screen = Screen::new(false);
        let mut out: String = pieces.iter().map(|piece| screen.push(piece, width)).collect();
        out += &screen.finish(width);
        let mut lines = vec![Vec::new()];
        let mut rest = out.as_str();
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            let line: &mut Vec<char> = lines.last_mut().unwrap();
            match c {
                '\n' => lines.push(Vec::new()),
                '\u{1b}' => {
                    let (sequence, after) = rest[1..].split_at(rest[1..].find(char::is_alphabetic).unwrap());
                    if let Some(after) = after.strip_prefix('D') {
                        line.truncate(line.len() - sequence.parse::<usize>().unwrap());
                        rest = after;
                    } else {
                        rest = &after[1..];
                    }
                }
                c => line.push(c),
            }
            assert!(lines.last().unwrap().len() <= width, "{out:?}");
        }
        lines.into_iter().map(String::from_iter).collect()
    }

    #[test]
    fn words_stay_whole_however_they_arrive() {
        let expected = ["the quick", "brown fox", "jumps", ""];
        assert_eq!(shown(&["the quick brown fox jumps"], 9), expected);
        assert_eq!(shown(&["the qu", "ick bro", "wn fo", "x j", "umps"], 9), expected);
        assert_eq!(shown(&["a\n\nb\n"], 9), ["a", "", "b", ""]);
    }

    #[test]
    fn a_word_longer_than_the_line_is_broken() {
        assert_eq!(shown(&["ab ", "cdefghijklm"], 4), ["ab ", "cdef", "ghij", "klm", ""]);
    }

    #[test]
    fn thinking_is_dimmed_without_its_marks() {
        let mut screen = Screen::new(false);
        let out: String =
            ["<th", "ink>so", "</think", ">yes <", "b"].map(|piece| screen.push(piece, 80)).concat();
        assert_eq!(out + &screen.finish(80), "\u{1b}[2mso\u{1b}[0myes <b\n");
        let mut screen = Screen::new(true);
        assert_eq!(screen.start().to_owned() + &screen.push("a", 80), "\u{1b}[2ma");
        assert_eq!(screen.finish(80), "\u{1b}[0m\n");
    }

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(Screen::new(false).push("a\u{1b}[2Jb\tc", 80), "a\\u{1b}[2Jb     c");
    }
}
