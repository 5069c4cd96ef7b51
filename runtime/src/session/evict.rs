//! Eviction: a sequence drops tokens of its middle, so that its KV cache is bounded.
//!
//! In: how many tokens a sequence keeps. Out: how many of the first, of the last and of those between stay.
//! [`Sliding`] keeps none between: whole pages are dropped from the page table, and nothing moves
//! (`engine/evicting.rs`). What attention sees afterwards is a text of the tokens that are kept, side by side.
//! [`SnapKv`] keeps some between, each head those that the last tokens attend to most: their rows move together
//! (`engine/compacting.rs`), and each stays at the distance where it was.

/// The most tokens of a sequence that drops some: positions are whole numbers of 32 bits.
const MOST_TOKENS: usize = i32::MAX as usize;

/// A policy.
pub trait Eviction: Send {
    /// What a sequence of `n_kept` tokens needs before it is extended.
    fn needed(&self, n_kept: usize) -> Needed;

    /// The most tokens of a sequence, those that it dropped among them.
    fn longest(&self) -> usize {
        MOST_TOKENS
    }
}

/// What a sequence needs of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed {
    /// So many of the first.
    pub first: usize,
    /// The number of those between; each head keeps its own. Where none are needed, whole pages go.
    pub between: usize,
    /// So many of the last.
    pub last: usize,
}

impl Needed {
    /// How many tokens that are.
    pub fn n_tokens(self) -> usize {
        self.first + self.between + self.last
    }
}

/// The first tokens (attention sinks) and a window over the last ones, as `StreamingLLM` has it.
#[derive(Clone, Copy, Debug)]
pub struct Sliding {
    /// How many of the first tokens are kept.
    pub first: usize,
    /// How many of the last tokens each token sees at least, itself among them.
    pub window: usize,
    /// With less memory than this, in bytes, a quarter of the tokens goes, whatever the window is.
    pub below: u64,
    /// Bytes of memory that are available, where that is known.
    pub available: fn() -> Option<u64>,
}

impl Eviction for Sliding {
    fn needed(&self, n_kept: usize) -> Needed {
        // The token that comes is one of the window.
        let mut last = self.window.saturating_sub(1);
        if is_below(self.below, self.available) {
            last = last.min(three_quarters(n_kept));
        }
        Needed { first: self.first, between: 0, last }
    }
}

/// After a prompt, and whenever a sequence has grown beyond it again, a window of tokens is kept: the first and the
/// last, and between them, for each head, those that the last attend to most (`SnapKV`).
#[derive(Clone, Copy, Debug)]
pub struct SnapKv {
    /// How many of the first tokens are kept.
    pub first: usize,
    /// How many of the last tokens choose, and are kept.
    pub observed: usize,
    /// How many tokens are kept in all.
    pub window: usize,
    /// The most tokens of a sequence: positions go on, and no model is trained for any.
    pub longest: usize,
    /// With less memory than this, in bytes, a quarter of the tokens goes, whatever the window is.
    pub below: u64,
    /// Bytes of memory that are available, where that is known.
    pub available: fn() -> Option<u64>,
}

impl Eviction for SnapKv {
    fn needed(&self, n_kept: usize) -> Needed {
        let mut window = self.window;
        if is_below(self.below, self.available) {
            window = window.min(three_quarters(n_kept));
        }
        let ends = self.first + self.observed;
        Needed { first: self.first, between: window.saturating_sub(ends).max(1), last: self.observed }
    }

    fn longest(&self) -> usize {
        self.longest
    }
}

fn is_below(least: u64, available: fn() -> Option<u64>) -> bool {
    available().is_some_and(|available| available < least)
}

fn three_quarters(n: usize) -> usize {
    n - n / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_kept_and_under_pressure_three_quarters() {
        let ample = Sliding { first: 4, window: 100, below: 1000, available: || Some(1000) };
        assert_eq!(ample.needed(500), Needed { first: 4, between: 0, last: 99 });
        let short = Sliding { available: || Some(999), ..ample };
        assert_eq!([40, 100, 500].map(|n| short.needed(n).last), [30, 75, 99]);
        let unknown = Sliding { available: || None, ..ample };
        assert_eq!(unknown.needed(40).last, 99);
    }

    #[test]
    fn rows_between_fill_the_window() {
        let available = || Some(1000);
        let ample = SnapKv { first: 4, observed: 16, window: 100, longest: 900, below: 1000, available };
        assert_eq!(ample.needed(500), Needed { first: 4, between: 80, last: 16 });
        assert_eq!((ample.needed(500).n_tokens(), ample.longest()), (100, 900));
        let short = SnapKv { available: || Some(999), ..ample };
        assert_eq!([20, 100, 500].map(|n| short.needed(n).n_tokens()), [21, 75, 100]);
    }
}
