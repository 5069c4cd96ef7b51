//! Finds the rule that changed what a graph means.
//!
//! In: a graph that comes out wrong, and a judge. Out: the name of the rule whose application made it wrong.
//! Applications come in a fixed order, so a smaller allowance gives the same e-graph up to there.

use crate::graph::Graph;
use crate::rewrite::rules::Rule;
use crate::rewrite::{Settings, improve_with};

/// The rule behind the first application after which the graph is no longer right; nothing where it stays right.
///
/// Bisects, taking it that what is wrong with few applications stays wrong with more.
pub fn blame(
    graph: &Graph,
    rules: &[Rule],
    settings: &Settings,
    is_right: impl Fn(&Graph) -> bool,
) -> Option<&'static str> {
    let with = |fuel: Option<usize>| improve_with(graph, rules, &Settings { fuel, ..settings.clone() });
    let (made, report) = with(settings.fuel);
    if is_right(&made) {
        return None;
    }
    let (mut right, mut wrong) = (0, report.log.len());
    while right + 1 < wrong {
        let middle = usize::midpoint(right, wrong);
        if is_right(&with(Some(middle)).0) {
            right = middle;
        } else {
            wrong = middle;
        }
    }
    report.log.get(wrong.checked_sub(1)?).copied()
}
