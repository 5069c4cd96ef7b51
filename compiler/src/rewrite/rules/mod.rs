//! The rules: each a true equality that can save time.
//!
//! In: an e-graph and a node in it. Out: terms that compute the same value. A rule only reads the e-graph.
//! One family a file; each rule says what it does, why that is equal and why it can be cheaper, and has a test that
//! fires it. No rule states that an operation is commutative or associative in general: those only grow the e-graph.
//! `README.md` beside this folder is the charter.

use std::fmt;

use egg::Id;

use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::term::Term;

mod attention;
mod concat;
mod experts;
mod join;
mod movement;
mod numbers;
mod operand;
mod product;
mod scale;
#[cfg(test)]
pub(crate) mod tests;

/// A named equality.
#[derive(Clone, Copy)]
pub struct Rule {
    pub(crate) name: &'static str,
    pub(crate) search: Search,
}

impl Rule {
    /// A rule that looks at every node of some kinds.
    pub const fn new(name: &'static str, kinds: &'static [Kind], find: Find) -> Self {
        Self { name, search: Search::Nodes(kinds, find) }
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

/// Every rule, in the order in which they are tried.
pub fn all() -> Vec<Rule> {
    [
        numbers::RULES,
        movement::RULES,
        operand::RULES,
        concat::RULES,
        scale::RULES,
        product::RULES,
        attention::RULES,
        experts::RULES,
        join::RULES,
    ]
    .concat()
}
