//! `--evict`: what happens to a sequence that becomes too long.
//!
//! In: flags. Out: what the library is told.

use clap::{Args, ValueEnum};
use fusebox::Sliding;

/// Which tokens a sequence drops.
#[derive(Args, Clone, Copy)]
pub(crate) struct EvictFlags {
    /// Tokens that a sequence drops as it grows.
    #[arg(long, value_name = "POLICY", default_value = "none", alias = "eviction-policy")]
    evict: Policy,
    /// First tokens that --evict sliding keeps (attention sinks), rounded up to pages of 64.
    #[arg(
        long,
        value_name = "N",
        default_value_t = Sliding::default().keep_first,
        aliases = ["protected-prefix", "keep"]
    )]
    keep_first: usize,
    /// Last tokens that --evict sliding keeps [default: 512, or fewer where the context has no room for them].
    #[arg(long, value_name = "N", alias = "eviction-window")]
    window: Option<usize>,
    /// With less memory available, in MiB, --evict sliding drops a quarter of the tokens, whatever the window is.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = Sliding::default().evict_below >> 20,
        alias = "memory-threshold-mb"
    )]
    evict_below: u64,
}

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// A full context is the end.
    None,
    /// All but the first and the last ones: there is no end.
    Sliding,
}

impl EvictFlags {
    /// What is kept, where anything is dropped.
    pub(crate) fn sliding(self) -> Option<Sliding> {
        let Self { evict, keep_first, window, evict_below } = self;
        let evict_below = evict_below.saturating_mul(1 << 20);
        (evict == Policy::Sliding).then_some(Sliding { keep_first, window, evict_below })
    }
}
