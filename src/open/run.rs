//! How a model is run.
//!
//! In: what a program or a command line states. Out: a [`Run`]; what it leaves out is chosen in `open.rs`.

use std::path::PathBuf;

use fusebox_compiler::rewrite::rules::rule::Rule;
use fusebox_compiler::tensor::quant::Format;
use fusebox_models::adapters::Adapters;
use fusebox_models::generate::Settings;
use fusebox_models::sample::Settings as Sampling;

/// How large the KV cache is that many sequences share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPool {
    /// As many pages as fit into this number of bytes.
    Bytes(usize),
    /// This number of pages.
    Pages(usize),
}

/// Which tokens a sequence drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Whole pages, so that it goes on beyond its context (`StreamingLLM`): the first tokens stay, which
    /// attention needs as sinks, and a window over the last ones.
    Sliding,
    /// After a prompt each head keeps the rows that the last 32 tokens attend to most, beside the first and the last
    /// (`SnapKV`). It ends where the model's context does.
    SnapKv,
}

/// What is kept of a sequence that drops tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evict {
    /// Which tokens go.
    pub policy: Policy,
    /// How many of the first tokens stay.
    pub keep_first: usize,
    /// How many of the last tokens stay, or with [`Policy::SnapKv`] how many in all; 512, or fewer where the context
    /// has no room for them.
    pub window: Option<usize>,
    /// With less available memory than this, in bytes, a quarter of the tokens goes, whatever the window is.
    pub evict_below: u64,
}

impl Evict {
    /// A policy, with four first tokens and 256 MiB.
    pub fn by(policy: Policy) -> Self {
        Self { policy, keep_first: 4, window: None, evict_below: 256 << 20 }
    }
}

/// How a model is run. What is left out is chosen, as the command chooses it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Run {
    /// `cpu`, `cuda`, `vulkan` or `metal`.
    pub device: Option<String>,
    /// Threads; all hardware threads.
    pub threads: Option<usize>,
    /// Context length in tokens; the model's, at most 4096, and no more than memory allows.
    pub context: Option<usize>,
    /// Limit of GPU memory in bytes; all that is free.
    pub gpu_memory: Option<usize>,
    /// Computes in single precision throughout.
    pub precise: bool,
    /// The data type of the KV cache; half precision, or single where all is.
    pub kv_type: Option<Format>,
    /// Tokens of a page of the KV cache, a power of two from 16 to 1024; 64. Prefixes are shared and tokens evicted by
    /// whole pages.
    pub page_size: Option<usize>,
    /// The KV cache of an engine; the whole context of each sequence, on a GPU as much of it as is free.
    pub kv_pool: Option<KvPool>,
    /// The folder of compiled programs; one in the user's cache folder.
    pub cache: Option<PathBuf>,
    /// Settings of samplers; in a chat those that the model's files recommend, else greedy.
    pub sampling: Option<Sampling>,
    /// The most tokens of an answer or a text; no limit but the context.
    pub max_tokens: Option<usize>,
    /// What guesses tokens, so that several are verified in one step (speculative decoding): `ngram`, which is earlier
    /// text, or a smaller model with the same tokens.
    pub draft: Option<String>,
    /// When a chat fills its context, its oldest messages are forgotten; the system message stays.
    pub context_shift: bool,
    /// Sequences drop tokens.
    pub evict: Option<Evict>,
    /// What is added to the model: LoRA adapters and control vectors, with their scales.
    pub adapters: Adapters,
    /// Rewrite rules of your own, tried after those of the compiler; [`check`](crate::rewrite::check) them first.
    pub rules: Vec<Rule>,
}

impl Run {
    /// Everything is chosen.
    pub fn auto() -> Self {
        Self::default()
    }

    pub(crate) fn settings(&self, sampling: Sampling) -> Settings {
        let max_tokens = self.max_tokens.unwrap_or(usize::MAX);
        Settings { max_tokens, sampling: self.sampling.clone().unwrap_or(sampling), ..Settings::default() }
    }
}
