//! A progress bar on standard error.
//!
//! In: the stage that starts. Out: one line that is erased at the end, and nothing where standard error is no terminal.

use std::io::{IsTerminal, Write};

/// Columns of the bar.
const WIDTH: usize = 24;

/// A bar of several stages.
pub(crate) struct Progress {
    n_stages: usize,
    n_begun: usize,
    is_shown: bool,
}

impl Progress {
    /// An empty bar.
    pub(crate) fn new(n_stages: usize) -> Self {
        Self { n_stages, n_begun: 0, is_shown: std::io::stderr().is_terminal() }
    }

    /// Starts the next stage.
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

/// Overwrites the current line.
pub(crate) fn overwrite(line: &str) {
    let mut to = std::io::stderr().lock();
    // A failure to write it is ignored.
    let _ = write!(to, "\r\u{1b}[2K{line}").and_then(|()| to.flush());
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
