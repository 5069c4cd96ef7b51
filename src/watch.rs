//! What a program may hear while a model is started.
//!
//! In: nothing. Out: events, on the thread that starts the model: sentences for people, and how far an upload is.

use std::sync::Arc;

/// What happens while a model is started.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Something that people want to know.
    Note(&'a str),
    /// Weights go to a GPU: bytes so far, and in all.
    Uploading {
        /// So far.
        done: usize,
        /// In all.
        all: usize,
    },
}

/// Hears of events, on the thread that starts the model.
pub type Watch = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// A watcher that tells nobody.
pub fn unwatched() -> Watch {
    Arc::new(|_| {})
}
