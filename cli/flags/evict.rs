//! `--evict`: what happens to a sequence that becomes too long.
//!
//! In: flags. Out: what the library is told.

use clap::{Args, ValueEnum};
use fusebox::{Evict, Policy};

/// Which tokens a sequence drops.
#[derive(Args, Clone, Copy)]
pub(crate) struct EvictFlags {
    /// Tokens that a sequence drops as it grows.
    #[arg(long, value_name = "POLICY", default_value = "none", alias = "eviction-policy")]
    evict: Dropped,
    /// First tokens that --evict keeps (attention sinks); sliding rounds them up to whole pages.
    #[arg(
        long,
        value_name = "N",
        default_value_t = usual().keep_first,
        aliases = ["protected-prefix", "keep"]
    )]
    keep_first: usize,
    /// Tokens that --evict keeps: of the last with sliding, in all with snapkv [default: 512, or fewer where the
    /// context has no room for them].
    #[arg(long, value_name = "N", alias = "eviction-window")]
    window: Option<usize>,
    /// With less memory available, in MiB, --evict drops a quarter of the tokens, whatever the window is.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = usual().evict_below >> 20,
        alias = "memory-threshold-mb"
    )]
    evict_below: u64,
}

/// What goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dropped {
    /// A full context is the end.
    None,
    /// All but the first and the last ones: there is no end.
    Sliding,
    /// After a prompt, what its last 32 tokens attend to least, for each head its own.
    Snapkv,
}

fn usual() -> Evict {
    Evict::by(Policy::Sliding)
}

impl EvictFlags {
    /// What is kept, where anything is dropped.
    pub(crate) fn evict(self) -> Option<Evict> {
        let Self { evict, keep_first, window, evict_below } = self;
        let evict_below = evict_below.saturating_mul(1 << 20);
        let policy = match evict {
            Dropped::None => return None,
            Dropped::Sliding => Policy::Sliding,
            Dropped::Snapkv => Policy::SnapKv,
        };
        Some(Evict { policy, keep_first, window, evict_below })
    }
}
