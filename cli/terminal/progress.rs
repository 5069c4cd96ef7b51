//! A progress bar on standard error.
//!
//! In: the stage that starts. Out: one line that counts the seconds and is erased at the end, and nothing where
//! standard error is no terminal.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fusebox::text::amount::counted;

/// Columns of the bar.
const WIDTH: usize = 24;
/// How often the seconds are counted.
const TICK: Duration = Duration::from_secs(1);

/// Whether a bar stands in the current line.
static STANDS: AtomicBool = AtomicBool::new(false);

/// A bar of several stages.
pub(crate) struct Progress {
    n_stages: usize,
    n_begun: usize,
    shown: Option<Shown>,
}

/// A bar that somebody sees.
struct Shown {
    /// The line, and when its first stage began.
    line: Arc<Mutex<(String, Instant)>>,
    /// Ends the clock when it is dropped.
    end: Option<Sender<()>>,
    clock: Option<JoinHandle<()>>,
}

/// The bar of a prompt that is read in several pieces.
pub(crate) struct Reading {
    bar: Option<Progress>,
    what: String,
}

impl Progress {
    /// An empty bar.
    pub(crate) fn new(n_stages: usize) -> Self {
        Self { n_stages, n_begun: 0, shown: std::io::stderr().is_terminal().then(Shown::new) }
    }

    /// Starts the next stage.
    pub(crate) fn begin(&mut self, what: &str) {
        let n_full = WIDTH * self.n_begun / self.n_stages.max(1);
        let n_full = n_full.min(WIDTH);
        self.n_begun += 1;
        if let Some(shown) = &self.shown {
            shown.begin(format!("[{}{}] {what}", "#".repeat(n_full), " ".repeat(WIDTH - n_full)));
        }
    }
}

impl Shown {
    fn new() -> Self {
        let line = Arc::new(Mutex::new((String::new(), Instant::now())));
        let (own, (end, ended)) = (Arc::clone(&line), channel());
        let clock = thread::spawn(move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let (line, start) = &*own.lock().unwrap_or_else(PoisonError::into_inner);
                if !line.is_empty() {
                    draw(&format!("{line}, {} s", start.elapsed().as_secs()));
                }
            }
        });
        Self { line, end: Some(end), clock: Some(clock) }
    }

    fn begin(&self, text: String) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        draw(&text);
        *line = (text, if line.0.is_empty() { Instant::now() } else { line.1 });
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(clock) = self.clock.take() {
            // A clock that panicked has nothing left to show.
            let _ = clock.join();
        }
        clear();
    }
}

impl Reading {
    /// Nothing is shown of a prompt that is read at once.
    pub(crate) fn new(n_pieces: usize, n_tokens: usize) -> Self {
        let what = format!("reading {}", counted(n_tokens, "token"));
        let mut bar = (n_pieces > 1).then(|| Progress::new(n_pieces));
        if let Some(bar) = &mut bar {
            bar.begin(&what);
        }
        Self { bar, what }
    }

    /// Takes a piece of the answer: an empty one stands for a piece of the prompt.
    pub(crate) fn take(&mut self, piece: &str) {
        match &mut self.bar {
            Some(bar) if piece.is_empty() => bar.begin(&self.what),
            _ => self.bar = None,
        }
    }
}

/// Erases a bar, if one stands in the current line.
pub(crate) fn clear() {
    if STANDS.swap(false, Ordering::Relaxed) {
        overwrite("");
    }
}

fn draw(line: &str) {
    overwrite(line);
    STANDS.store(true, Ordering::Relaxed);
}

/// Overwrites the current line.
pub(crate) fn overwrite(line: &str) {
    let mut to = std::io::stderr().lock();
    // A failure to write it is ignored.
    let _ = write!(to, "\r\u{1b}[2K{line}").and_then(|()| to.flush());
}
