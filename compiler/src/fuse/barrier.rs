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
    Explicit,
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
    /// The first refusal by price: what prevents it at last may only hold because of that one.
    pub first_priced: Option<(Barrier, Prices)>,
}

impl Reason {
    /// A refusal by price.
    pub fn priced(barrier: Barrier, prices: Prices) -> Self {
        Self { barrier, prices: Some(prices), first_priced: Some((barrier, prices)) }
    }

    /// This refusal, after earlier ones.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        Self { first_priced: earlier.first_priced.or(self.first_priced), ..self }
    }
}

impl From<Barrier> for Reason {
    fn from(barrier: Barrier) -> Self {
        Self { barrier, prices: None, first_priced: None }
    }
}

impl Barrier {
    /// Every reason, in the order of the declaration.
    pub const ALL: [Self; 9] = [
        Self::Output,
        Self::StateWrite,
        Self::Explicit,
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
            Self::Explicit => "explicit barrier",
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
        match (self.prices, self.first_priced) {
            (Some(prices), _) => write!(f, "{}; computed where it is read, {prices}", self.barrier),
            (None, Some((barrier, prices))) => {
                write!(f, "{barrier}; computed where it is read, {prices}; at last: {}", self.barrier)
            }
            (None, None) => write!(f, "{}", self.barrier),
        }
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_by_price_is_told_beside_the_last_reason() {
        let prices = |with| Prices { without: 13e-6, with };
        let [first, second] =
            [17.5e-6, 20e-6].map(|with| Reason::priced(Barrier::SeveralReaders, prices(with)));
        let told = |reason: Reason| reason.to_string();
        assert_eq!(
            told(Reason::from(Barrier::StateWrite).after(second.after(first))),
            "several readers; computed where it is read, 17.5 us instead of 13.0 us; at last: state write"
        );
        assert_eq!(
            told(second.after(first)),
            "several readers; computed where it is read, 20.0 us instead of 13.0 us"
        );
        assert_eq!(told(Reason::from(Barrier::StateWrite).after(Barrier::NotTried.into())), "state write");
    }
}
