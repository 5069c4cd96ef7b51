//! A rule as a value: its name, the numbers it holds for, and where it looks.
//!
//! In: a function that finds equal terms. Out: a [`Rule`] that `saturate.rs` tries. The rules themselves, each with its
//! argument, are in the files beside this one.

use std::fmt;

use egg::Id;

use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::term::Term;

/// A named equality.
#[derive(Clone, Copy)]
pub struct Rule {
    pub(crate) name: &'static str,
    pub(crate) holds_for: HoldsFor,
    pub(crate) search: Search,
}

/// The numbers that a rule is an equality for. What is on the way are the values of all nodes of the graph as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldsFor {
    /// Those where everything on the way is finite: equalities of real numbers.
    Finite,
    /// Those where nothing on the way is NaN.
    Defined,
    /// All, infinities and NaN too.
    Every,
}

impl fmt::Display for HoldsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Finite => "finite numbers",
            Self::Defined => "all numbers that make no NaN",
            Self::Every => "all numbers, infinities and NaN too",
        })
    }
}

impl Rule {
    /// A rule that looks at every node of some kinds and holds for finite numbers.
    pub const fn new(name: &'static str, kinds: &'static [Kind], find: Find) -> Self {
        Self { name, holds_for: HoldsFor::Finite, search: Search::Nodes(kinds, find) }
    }

    /// The same rule, which holds for more numbers; a check holds it to that.
    #[must_use]
    pub const fn that_holds_for(self, holds_for: HoldsFor) -> Self {
        Self { holds_for, ..self }
    }

    /// The numbers that it is an equality for.
    pub fn holds_for(&self) -> HoldsFor {
        self.holds_for
    }

    /// How stories call it: `subject-effect`.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Rules are told apart by their names.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// Where a rule looks.
#[derive(Clone, Copy)]
pub(crate) enum Search {
    /// At every node of these kinds: other ways to compute its class.
    Nodes(&'static [Kind], Find),
    /// At the nodes of the best form so far, once nothing else is found: classes, and other ways to compute them.
    Chosen(FindChosen),
}

/// From a node to other ways to compute its class.
pub type Find = fn(&EGraph, &ENode) -> Vec<Term>;

/// From the chosen nodes to classes and other ways to compute them.
type FindChosen = fn(&EGraph, &[(Id, ENode)]) -> Vec<(Id, Term)>;
