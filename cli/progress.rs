//! A bar on standard error while a model is made ready.
//!
//! In: what is being done. Out: one line that is gone in the end, and nothing where standard error is no terminal.

use std::io::{IsTerminal, Write};

/// How wide the bar is.
const WIDTH: usize = 24;

/// A bar of so many stages.
pub(crate) struct Progress {
    n_stages: usize,
    n_begun: usize,
    is_shown: bool,
}

impl Progress {
    /// A bar that stands at nothing.
    pub(crate) fn new(n_stages: usize) -> Self {
        Self { n_stages, n_begun: 0, is_shown: std::io::stderr().is_terminal() }
    }

    /// Begins the next stage.
    pub(crate) fn begin(&mut self, what: &str) {
        let n_full = WIDTH * self.n_begun / self.n_stages.max(1);
        let n_full = n_full.min(WIDTH);
        self.n_begun += 1;
        self.show(&format!("[{}{}] {what}", "#".repeat(n_full), " ".repeat(WIDTH - n_full)));
    }

    fn show(&self, line: &str) {
        if self.is_shown {
            overwrite(line);
        }
    }
}

/// Puts a line where the last one was.
pub(crate) fn overwrite(line: &str) {
    let mut to = std::io::stderr().lock();
    // Whether anybody sees it changes nothing.
    let _ = write!(to, "\r\u{1b}[2K{line}").and_then(|()| to.flush());
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
