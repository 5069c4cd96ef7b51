//! Why a value is written to memory.
//!
//! Every stored value has one reason, and where prices decided it has both. Stories and tables print them; nothing is
//! decided by them afterwards.

use std::fmt;

/// The reason for a cut between the kernel that stores a value and those that read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barrier {
    /// The caller gets it back.
    Output,
    /// A state is written, which others read back: the realize barrier.
    StateWrite,
    /// The author asked for it.
    Asked,
    /// The reader needs all of it before it can begin: each of its tasks would compute all of it again.
    NeedsEveryRow,
    /// Several kernels read it, and each would compute it again.
    SeveralReaders,
    /// The reader goes through it in another shape, and would compute parts of it again.
    OtherShape,
    /// The target cannot hold the larger kernel, or it would compute too many values to be worth its code.
    TargetLimit,
    /// Merging was stopped before it was tried.
    NotTried,
    /// Tasks share the positions of an attention, and their parts are combined by the next kernel.
    Split,
}

/// The estimated seconds of the launches around a move, without it and with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// As they were.
    pub without: f64,
    /// As they would be.
    pub with: f64,
}

/// Why a value is stored: what stands against computing it where it is read, and what that would cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reason {
    /// What stands against it.
    pub barrier: Barrier,
    /// What it costs, where that was asked.
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

    /// The words for it in stories and tables.
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
