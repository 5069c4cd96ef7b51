//! Eviction: a sequence drops tokens of its middle, so that it goes on for ever in a bounded KV cache.
//!
//! In: how many tokens a sequence keeps. Out: how many of the first and of the last stay.
//! Whole pages are dropped from its page table, and nothing moves (`engine/step.rs`). What attention sees afterwards is
//! a text of the tokens that are kept, side by side.

/// A policy.
pub trait Eviction: Send {
    /// How many of its first and of its last tokens a sequence of `n_kept` tokens needs before it is extended.
    fn needed(&self, n_kept: usize) -> Needed;
}

/// What a sequence needs of its tokens. The others go in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// So many of the first.
    pub first: usize,
    /// So many of the last.
    pub last: usize,
}

/// The first tokens (attention sinks) and a window over the last ones, as `StreamingLLM` has it.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    /// How many of the first tokens are kept.
    pub first: usize,
    /// How many of the last tokens each token sees at least, itself among them.
    pub window: usize,
    /// With less memory than so many bytes a quarter of the tokens goes, whatever the window is.
    pub below: u64,
    /// Bytes of memory that are available, where that is known.
    pub available: fn() -> Option<u64>,
}

impl Eviction for Sliding {
    fn needed(&self, n_kept: usize) -> Needed {
        let is_short = (self.available)().is_some_and(|available| available < self.below);
        // The token that comes is one of the window.
        let mut last = self.window.saturating_sub(1);
        if is_short {
            last = last.min(n_kept - n_kept / 4);
        }
        Needed { first: self.first, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_kept_and_under_pressure_three_quarters() {
        let ample = Sliding { first: 4, window: 100, below: 1000, available: || Some(1000) };
        assert_eq!(ample.needed(500), Needed { first: 4, last: 99 });
        let short = Sliding { available: || Some(999), ..ample };
        assert_eq!([40, 100, 500].map(|n| short.needed(n).last), [30, 75, 99]);
        let unknown = Sliding { available: || None, ..ample };
        assert_eq!(unknown.needed(40).last, 99);
    }
}
