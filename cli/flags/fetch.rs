//! Fetching a model by its name, with bars.
//!
//! In: `owner/name`, or the name of a stored model. Out: its path, and bars of what is being fetched.

use std::path::{Path, PathBuf};

use fusebox::host;
use fusebox::hub::find;
use fusebox_hub::fetch::Caller;
use fusebox_models::load::check_architecture;
use indicatif::{ProgressBar, ProgressStyle};

use crate::terminal::output::note;

/// Shows what is being fetched.
pub(crate) struct Shown {
    bar: ProgressBar,
}

impl Shown {
    /// No bar yet.
    pub(crate) fn new() -> Self {
        Self { bar: ProgressBar::hidden() }
    }
}

impl Caller for Shown {
    fn check(&self, architecture: &str) -> Result<(), String> {
        check_architecture(architecture)
    }

    fn free_memory(&self) -> Option<u64> {
        host::memory().map(|(_, free)| free)
    }

    fn begin(&mut self, file: &str, n_bytes: u64, n_here: u64) {
        let form = "{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.finish_and_clear();
        self.bar = ProgressBar::new(n_bytes).with_style(style).with_message(file.to_owned());
        self.bar.set_position(n_here);
        self.bar.reset_eta();
    }

    fn advance(&mut self, n_bytes: u64) {
        self.bar.inc(n_bytes);
    }

    fn end(&mut self) {
        self.bar.finish_and_clear();
    }

    fn note(&mut self, text: &str) {
        self.bar.suspend(|| note(text));
    }
}

/// The path of the model of this name: one that is stored, or, for `owner/name`, one that is fetched now, with bars.
pub(crate) fn path_of(name: &Path) -> Result<Option<PathBuf>, String> {
    find(name, &mut Shown::new())
}
