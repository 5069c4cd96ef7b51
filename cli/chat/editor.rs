//! Where the messages of a chat come from: a line editor, or plain lines where input is no terminal.
//!
//! In: keys, or lines. Out: one message at a time. A message that starts with `"""` goes on to the next `"""`, one
//! that ends in `\` goes on in the next line, and what is pasted in one piece is one message.
//! History is kept in a file of the user's own; where that cannot be written, only this chat has one.

use std::fs;
use std::io::{BufRead, IsTerminal, Read, stdin};
use std::path::PathBuf;

use fusebox_compiler::options::state_folder;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};

use super::command;

/// Longer lines are refused.
pub(super) const MAX_LINE_BYTES: u64 = 16 << 20;
/// Messages that are remembered.
const MAX_HISTORY: usize = 1000;
/// What stands around a message of several lines.
const QUOTES: &str = "\"\"\"";
const PROMPT: &str = "> ";

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    Message(String),
    /// Ctrl-C: the line was cleared.
    Cleared,
    /// Not UTF-8.
    NotUtf8,
    /// Longer than [`MAX_LINE_BYTES`].
    TooLong,
    End,
}

/// Where messages come from.
pub(super) enum Input {
    Terminal(Box<Terminal>),
    Lines,
}

/// A line editor with its history.
pub(super) struct Terminal {
    editor: Editor<Rules, FileHistory>,
    history: Option<PathBuf>,
}

/// When a message is whole, and which commands there are.
struct Rules;

impl Input {
    /// The terminal where standard input is one, else lines.
    pub(super) fn open() -> Result<Self, String> {
        if !stdin().is_terminal() {
            return Ok(Self::Lines);
        }
        let config =
            Config::builder().max_history_size(MAX_HISTORY).map(|config| config.auto_add_history(false));
        let editor = config.and_then(|config| Editor::with_config(config.build()));
        let mut editor = editor.map_err(|error| format!("the terminal: {error}"))?;
        editor.set_helper(Some(Rules));
        let history = state_folder().map(|folder| folder.join("history"));
        if let Some(path) = &history {
            // Without the file of an earlier chat there is nothing to remember.
            let _ = editor.load_history(path);
        }
        Ok(Self::Terminal(Box::new(Terminal { editor, history })))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Reads the next message.
    pub(super) fn next(&mut self) -> Result<Entry, String> {
        match self {
            Self::Terminal(terminal) => terminal.next(),
            Self::Lines => next_of_lines(&mut stdin().lock()),
        }
    }
}

impl Terminal {
    fn next(&mut self) -> Result<Entry, String> {
        loop {
            let line = match self.editor.readline(PROMPT) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(Entry::Cleared),
                Err(ReadlineError::Eof) => return Ok(Entry::End),
                // The window has another size.
                Err(ReadlineError::Signal(_)) => continue,
                Err(error) => return Err(format!("the terminal: {error}")),
            };
            if !line.trim().is_empty() {
                self.remember(&line);
            }
            return Ok(Entry::Message(unwrapped(&line)));
        }
    }

    fn remember(&mut self, line: &str) {
        // A history that cannot be kept is no reason to end a chat.
        let _ = self.editor.add_history_entry(line);
        if let Some(path) = &self.history {
            let folder_is_there = path.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok());
            if folder_is_there {
                let _ = self.editor.append_history(path);
            }
        }
    }
}

/// Reads the next message of lines.
fn next_of_lines(from: &mut impl BufRead) -> Result<Entry, String> {
    let mut message: Option<String> = None;
    loop {
        let mut line = Vec::new();
        let n_bytes = from.take(MAX_LINE_BYTES).read_until(b'\n', &mut line);
        let n_bytes = n_bytes.map_err(|error| format!("standard input: {error}"))?;
        if n_bytes == 0 {
            return Ok(message.map_or(Entry::End, |message| Entry::Message(unwrapped(&message))));
        }
        let so_far = message.as_ref().map_or(0, String::len);
        if (so_far + n_bytes) as u64 >= MAX_LINE_BYTES {
            let is_whole = line.last() == Some(&b'\n');
            let skipped = if is_whole { Ok(0) } else { from.skip_until(b'\n') };
            return skipped.map(|_| Entry::TooLong).map_err(|error| format!("standard input: {error}"));
        }
        let Ok(line) = String::from_utf8(line) else { return Ok(Entry::NotUtf8) };
        let whole = message.take().unwrap_or_default() + &line;
        if !is_open(whole.trim_end_matches(['\r', '\n'])) {
            return Ok(Entry::Message(unwrapped(&whole)));
        }
        message = Some(whole);
    }
}

/// Whether a message goes on in the next line.
fn is_open(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(rest) => !rest.contains(QUOTES),
        None => text.ends_with('\\'),
    }
}

/// The message without what marks its lines.
fn unwrapped(text: &str) -> String {
    let text = text.trim_end_matches(['\r', '\n']);
    let Some(rest) = text.trim_start().strip_prefix(QUOTES) else { return text.replace("\\\n", "\n") };
    let (inner, after) = rest.split_once(QUOTES).unwrap_or((rest, ""));
    let inner = inner.strip_prefix('\n').unwrap_or(inner);
    format!("{}{after}", inner.strip_suffix('\n').unwrap_or(inner))
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_open = is_open(context.input());
        Ok(if is_open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Self::Candidate>)> {
        let typed = &line[..at];
        let names = command::NAMES.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, names.map(|name| (*name).to_owned()).collect()))
    }
}

impl Hinter for Rules {
    type Hint = String;
}

impl Highlighter for Rules {}
impl Helper for Rules {}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<Entry> {
        let mut from = text.as_bytes();
        let next = || next_of_lines(&mut from).unwrap();
        std::iter::repeat_with(next).take_while(|entry| *entry != Entry::End).collect()
    }

    #[test]
    fn quotes_and_a_backslash_join_lines() {
        let message = |text: &str| Entry::Message(text.to_owned());
        assert_eq!(messages("a\nb\r\n"), [message("a"), message("b")]);
        assert_eq!(messages("\"\"\"\na\n\nb\n\"\"\"\nc"), [message("a\n\nb"), message("c")]);
        assert_eq!(messages("a \\\nb\nc\n"), [message("a \nb"), message("c")]);
        assert_eq!(messages("\"\"\"open\nto the end"), [message("open\nto the end")]);
        assert_eq!(messages("say \"\"\"x\"\"\" twice\n"), [message("say \"\"\"x\"\"\" twice")]);
    }
}
