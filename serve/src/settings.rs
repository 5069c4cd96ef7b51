//! What a server is started with.
//!
//! In: flags of the command. Out: plain data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use fusebox::{Pooling, Run};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How models are run.
    pub run: Run,
    /// Sequences that are computed together.
    pub parallel: usize,
    /// The address to listen on.
    pub host: IpAddr,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// Keys, one of which a request must have; none for no check.
    pub keys: Vec<String>,
    /// Origins of web pages that may send requests; `*` for all.
    pub origins: Vec<String>,
    /// The most bytes of a body.
    pub max_body: usize,
    /// The most tokens of a replay.
    pub batch_tokens: usize,
    /// The most sequences in the queue.
    pub max_queue: usize,
    /// The most prompt tokens in the queue.
    pub max_queue_tokens: usize,
    /// How long a request may take to its first token, and in all.
    pub timeout: Option<Duration>,
    /// How long requests are still taken after SIGTERM.
    pub drain_delay: Duration,
    /// How long streams may then take to end.
    pub drain: Duration,
    /// A chat template in place of that of the model.
    pub template: Option<String>,
    /// How embeddings are pooled, where the model does not say.
    pub pooling: Option<Pooling>,
    /// Whether answers have `timings`.
    pub shows_timings: bool,
    /// Whether `reasoning` is sent beside `reasoning_content`.
    pub shows_reasoning: bool,
    /// Bytes that loaded models may take; those not used for longest are unloaded for others.
    pub memory: Option<u64>,
    /// After how much idleness a model is unloaded, where there are several.
    pub keep_alive: Duration,
    /// A certificate and its key, in PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The folder that prefix caches are written to at the end, and read from at the start.
    pub prompt_cache: Option<PathBuf>,
    /// The most tokens that are guessed for a sequence by its earlier text, and verified in one step; 0 for none.
    pub guesses: usize,
    /// Tells people what they may want to know.
    pub note: fn(&str),
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            run: Run::auto(),
            parallel: 4,
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8080,
            keys: Vec::new(),
            origins: Vec::new(),
            max_body: 32 << 20,
            batch_tokens: 512,
            max_queue: 256,
            max_queue_tokens: 1 << 20,
            timeout: None,
            drain_delay: Duration::from_secs(2),
            drain: Duration::from_secs(30),
            template: None,
            pooling: None,
            shows_timings: false,
            shows_reasoning: false,
            memory: None,
            keep_alive: Duration::from_mins(5),
            tls: None,
            prompt_cache: None,
            guesses: 0,
            note: |_| {},
        }
    }
}
