//! Barriers: why a value is written to memory.
//!
//! Every stored value has one reason, with both prices where prices decided it. Stories and tables print them; nothing
//! is decided by them afterwards.

use std::fmt;

/// The reason for a cut between the kernel that stores a value and those that read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barrier {
    /// It is an output of the graph.
    Output,
    /// It updates a state (such as a KV cache) that later kernels read: the realize barrier.
    StateWrite,
    /// The author wrote a `barrier`.
    Asked,
    /// The reader reduces or multiplies all of it: each of the reader's tasks would compute all of it again.
    NeedsEveryRow,
    /// Several kernels read it, and each would compute it again.
    SeveralReaders,
    /// The reader loops over it in another shape, and would compute parts of it again.
    OtherShape,
    /// The fused kernel exceeds the target's limits, or would compute too many values to be worth its code.
    TargetLimit,
    /// Out of fuel before merging was tried.
    NotTried,
    /// Tasks split the positions of an attention, and the next kernel combines their partial results.
    Split,
}

/// The estimated seconds of the affected launches, without a merge and with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// As they are.
    pub without: f64,
    /// As they would be.
    pub with: f64,
}

/// Why a value is stored: what prevents computing it where it is read, and what that would cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// What prevents it.
    pub barrier: Barrier,
    /// What it would cost, where that was estimated.
    pub prices: Option<Prices>,
}

impl From<Barrier> for Reason {
    fn from(barrier: Barrier) -> Self {
        Self { barrier, prices: None }
    }
}

impl Barrier {
    /// Every reason, in the order of the declaration.
    pub const ALL: [Self; 9] = [
        Self::Output,
        Self::StateWrite,
        Self::Asked,
        Self::NeedsEveryRow,
        Self::SeveralReaders,
        Self::OtherShape,
        Self::TargetLimit,
        Self::NotTried,
        Self::Split,
    ];

    /// Its name in stories and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::StateWrite => "state write",
            Self::Asked => "asked for by the author",
            Self::NeedsEveryRow => "needs every row",
            Self::SeveralReaders => "several readers",
            Self::OtherShape => "other shape",
            Self::TargetLimit => "target limit",
            Self::NotTried => "not tried",
            Self::Split => "split over positions",
        }
    }

    /// The reason with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|barrier| barrier.name() == name)
    }
}

impl fmt::Display for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} us instead of {:.1} us", self.with * 1e6, self.without * 1e6)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.barrier)?;
        match self.prices {
            Some(prices) => write!(f, "; computed where it is read, {prices}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
