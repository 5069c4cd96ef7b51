//! The rules: each a true equality that can save time.
//!
//! In: an e-graph and a node in it. Out: terms that compute the same value. A rule only reads the e-graph.
//! One family a file; each rule says what it does, why that is equal and why it can be cheaper, and has a test that
//! fires it. No rule states that an operation is commutative or associative in general: those only grow the e-graph.
//! `README.md` beside this folder is the charter.

use crate::rewrite::rules::rule::Rule;

mod attention;
mod concat;
mod experts;
mod join;
mod movement;
mod numbers;
mod operand;
mod product;
pub mod rule;
mod scale;
#[cfg(test)]
pub(crate) mod tests;

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
