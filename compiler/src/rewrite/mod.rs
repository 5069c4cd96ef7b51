//! Finds a cheaper graph that means the same.
//!
//! In: the graph of one block, a target and limits. Out: a graph with the same outputs and writes, and a [`Report`].
//! Every rule adds an equality to an e-graph and removes nothing, so their order does not decide; costs do.
//! Equal input gives equal output, to the byte. A graph that cannot be improved comes back as it is; running out of
//! a limit is an outcome, not an error. Rounding may change, meaning never does.
//! `README.md` is the charter for rules and tells the cost model; the rules are in `rules/`.

use std::fmt;

use egg::Id;

use crate::graph::{Graph, Site};
use crate::target::Target;

pub mod blame;
pub mod check;
mod cost;
mod emit;
mod encode;
mod explain;
mod extract;
pub(crate) mod facts;
pub mod language;
pub mod rules;
mod saturate;
mod settle;
pub mod term;
#[cfg(test)]
pub(crate) mod tests;

use extract::Choices;
use language::ENode;
use rules::rule::Rule;
use saturate::Saturation;

/// Which of the equal forms is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Choice {
    /// The one that takes the least time on the target.
    #[default]
    Cheapest,
    /// Any, by this seed; for tests.
    Random(u64),
}

/// How far an e-graph may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Nodes.
    pub nodes: usize,
    /// Rounds in which every rule looks at every node.
    pub rounds: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { nodes: 4_000, rounds: 24 }
    }
}

/// What an improvement depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The device whose time is saved.
    pub target: Target,
    /// How far the e-graph may grow.
    pub limits: Limits,
    /// Which form is taken.
    pub choice: Choice,
    /// How many applications of rules are allowed, to find a wrong one by bisection.
    pub fuel: Option<usize>,
    /// The one rule that is used, for its tests.
    pub only: Option<&'static str>,
}

impl Settings {
    /// The cheapest form for a target, within the usual limits.
    pub fn new(target: Target) -> Self {
        Self { target, limits: Limits::default(), choice: Choice::Cheapest, fuel: None, only: None }
    }
}

/// Why saturation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No rule finds anything new.
    Saturated,
    /// There are as many nodes as allowed.
    Nodes,
    /// There were as many rounds as allowed.
    Rounds,
    /// As many rules were applied as allowed.
    Fuel,
}

/// How an improvement went.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Nodes of the e-graph.
    pub nodes: usize,
    /// Classes of the e-graph.
    pub classes: usize,
    /// Rounds in which rules were applied.
    pub rounds: usize,
    /// Why there were no more.
    pub stopped: Stop,
    /// How often each rule added an equality, by name.
    pub fired: Vec<(&'static str, usize)>,
    /// The rules whose forms are in the graph that came out, by name.
    pub used: Vec<&'static str>,
    /// Estimated seconds of the graph that came out.
    pub seconds: f64,
    /// Estimated seconds of the graph that went in.
    pub seconds_before: f64,
    /// Where there was a choice that mattered: the forms taken, and the best that was not.
    pub forms: Vec<Form>,
    /// The rule of each application, in order.
    pub log: Vec<&'static str>,
}

/// A value for which different forms were priced.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The author's line that computes the value, where one does.
    pub site: Option<Site>,
    /// The rule that found the form taken, or `as written`.
    pub chosen: &'static str,
    /// Estimated seconds to compute the value and all it needs.
    pub chosen_seconds: f64,
    /// The rule that found the best of the other forms, or `as written`.
    pub other: &'static str,
    /// What it would have taken.
    pub other_seconds: f64,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chosen, other) = (self.chosen_seconds * 1e6, self.other_seconds * 1e6);
        write!(f, "{}: {chosen:.1} us against {other:.1} us {}", self.chosen, self.other)?;
        self.site.map_or(Ok(()), |site| write!(f, " at {site}"))
    }
}

/// A graph of the same meaning that takes less time on the target, and how it was found.
pub fn improve(graph: &Graph, settings: &Settings) -> (Graph, Report) {
    improve_with(graph, &rules::all(), settings)
}

/// [`improve`] with rules of the caller's.
pub fn improve_with(graph: &Graph, rules: &[Rule], settings: &Settings) -> (Graph, Report) {
    let rules: Vec<Rule> =
        rules.iter().filter(|rule| settings.only.is_none_or(|only| rule.name() == only)).copied().collect();
    let encoded = encode::encode(graph);
    let mut saturation = Saturation::new(encoded.egraph, &rules, settings.limits, settings.fuel);
    let roots = |saturation: &Saturation<'_>| -> Vec<Id> {
        graph.roots().into_iter().map(|root| saturation.egraph.find(encoded.classes[root])).collect()
    };

    saturation.run();
    // Some rules look only at what the best form so far computes: they would drown in all the others.
    let cheapest = choose(&saturation, &roots(&saturation), &settings.target, Choice::Cheapest);
    let chosen = cheapest.below(&roots(&saturation)).unwrap_or_default();
    let chosen: Vec<(Id, ENode)> = chosen.into_iter().map(|(class, node)| (class, node.clone())).collect();
    if saturation.run_chosen(&chosen) {
        saturation.run();
    }

    let choices = choose(&saturation, &roots(&saturation), &settings.target, settings.choice);
    let report = explain::report(graph, &saturation, &encoded.classes, &choices, &settings.target);
    let made = emit::emit(graph, &saturation.egraph, &encoded.classes, &choices);
    debug_assert!(made.is_some(), "choices go in circles");
    (made.unwrap_or_else(|| graph.clone()), report)
}

fn choose<'a>(saturation: &'a Saturation<'_>, roots: &[Id], target: &Target, choice: Choice) -> Choices<'a> {
    match choice {
        Choice::Cheapest => {
            let mut choices = extract::cheapest(&saturation.egraph, target);
            settle::settle(&saturation.egraph, target, roots, &mut choices);
            choices
        }
        Choice::Random(seed) => extract::any(&saturation.egraph, seed),
    }
}
