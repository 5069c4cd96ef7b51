//! Finds the rule that changed what a graph means.
//!
//! In: a graph of which some form comes out wrong, and a judge. Out: the name of the rule that made it wrong.
//! Applications come in a fixed order, so a smaller allowance gives the same e-graph up to there.
//! A lie shows only in the forms that use it; that is why many forms are judged, not one.

use crate::foundation::bisect::first_wrong;
use crate::graph::Graph;
use crate::rewrite::rules::rule::Rule;
use crate::rewrite::{Choice, Settings, improve_with};

/// How many random forms are judged beside the one the settings ask for.
const N_FORMS: u64 = 16;

/// The rule whose application made the first wrong form; nothing where all are right.
///
/// Bisects, taking it that what is wrong after few applications stays wrong after more.
pub fn blame(
    graph: &Graph,
    rules: &[Rule],
    settings: &Settings,
    is_right: impl Fn(&Graph) -> bool,
) -> Option<&'static str> {
    let choices: Vec<Choice> = (0..N_FORMS).map(Choice::Random).chain([settings.choice]).collect();
    let made = |fuel, choice| improve_with(graph, rules, &Settings { choice, fuel, ..settings.clone() });
    let all_right = |fuel| choices.iter().all(|choice| is_right(&made(Some(fuel), *choice).0));
    let (_, report) = made(settings.fuel, settings.choice);
    first_wrong(report.log.len(), all_right).and_then(|number| report.log.get(number).copied())
}
