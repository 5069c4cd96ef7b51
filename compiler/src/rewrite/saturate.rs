//! Saturation: applies rules until nothing new is found or a limit is reached.
//!
//! In: an e-graph and rules. Out: the same e-graph with more equalities, and a log of what was applied. Classes, nodes
//! and rules are visited in a fixed order, so the same input gives the same e-graph. A term whose type is not that of
//! its class is refused: in debug builds loudly, with the rule's name. The rules are in `rules/`.

use std::collections::HashSet;

use egg::Id;

use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{Rule, Search};
use crate::rewrite::term::Term;
use crate::rewrite::{Limits, Stop};

/// An e-graph under saturation.
pub(crate) struct Saturation<'a> {
    /// The e-graph.
    pub(crate) egraph: EGraph,
    /// Rounds so far.
    pub(crate) rounds: usize,
    /// Why it ended.
    pub(crate) stopped: Stop,
    /// Every application that changed something: the rule and the number of nodes before it.
    pub(crate) applied: Vec<(&'static str, usize)>,
    rules: &'a [Rule],
    limits: Limits,
    fuel: usize,
    seen: HashSet<(usize, Id, Term)>,
}

/// What a rule found: the class, and another way to compute it.
type Match = (usize, Id, Term);

impl<'a> Saturation<'a> {
    /// An e-graph that no rule has been applied to.
    pub(crate) fn new(egraph: EGraph, rules: &'a [Rule], limits: Limits, fuel: Option<usize>) -> Self {
        Self {
            egraph,
            rounds: 0,
            stopped: Stop::Saturated,
            applied: Vec::new(),
            rules,
            limits,
            fuel: fuel.unwrap_or(usize::MAX),
            seen: HashSet::new(),
        }
    }

    /// Applies the rules that look at every node until nothing changes.
    pub(crate) fn run(&mut self) {
        loop {
            let matches = self.search_all();
            if !self.round(&matches) {
                return;
            }
        }
    }

    /// Applies the rules that look at chosen nodes, once.
    pub(crate) fn run_chosen(&mut self, chosen: &[(Id, ENode)]) -> bool {
        let mut matches = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            if let Search::Chosen(find) = rule.search {
                matches.extend(
                    find(&self.egraph, chosen).into_iter().map(|(class, term)| (number, class, term)),
                );
            }
        }
        self.round(&matches)
    }

    /// The rule that added the node of this number; nothing for a node of the graph itself.
    pub(crate) fn origin(&self, node: usize) -> Option<&'static str> {
        let after = self.applied.partition_point(|(_, before)| *before <= node);
        after.checked_sub(1).map(|at| self.applied[at].0)
    }

    /// One round of applications; whether another may find more.
    fn round(&mut self, matches: &[Match]) -> bool {
        if self.stopped != Stop::Saturated {
            return false;
        }
        if self.rounds == self.limits.rounds && !matches.is_empty() {
            self.stopped = Stop::Rounds;
            return false;
        }
        self.rounds += 1;
        let before = self.applied.len();
        for (number, class, term) in matches {
            if self.fuel == 0 {
                self.stopped = Stop::Fuel;
                break;
            }
            if self.egraph.total_size() >= self.limits.nodes {
                self.stopped = Stop::Nodes;
                break;
            }
            self.apply(self.rules[*number].name, *class, term);
        }
        self.egraph.rebuild();
        self.stopped == Stop::Saturated && self.applied.len() > before
    }

    fn apply(&mut self, name: &'static str, class: Id, term: &Term) {
        let own = &self.egraph[class].data.ty;
        let fits =
            term.ty(&self.egraph).is_some_and(|ty| ty.dtype == own.dtype && ty.shape.same_axes(&own.shape));
        debug_assert!(fits, "{name}: {term:?} of type {:?} is no {own}", term.ty(&self.egraph));
        if !fits {
            return;
        }
        let before = self.egraph.nodes().len();
        let equal = term.add(&mut self.egraph);
        if self.egraph.union(class, equal) {
            self.applied.push((name, before));
            self.fuel -= 1;
        }
    }

    fn search_all(&mut self) -> Vec<Match> {
        let index = by_kind(&self.egraph);
        let mut matches = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            let Search::Nodes(kinds, find) = rule.search else { continue };
            for (kind, class, node) in &index {
                if !kinds.contains(kind) {
                    continue;
                }
                for term in find(&self.egraph, node) {
                    let found = (number, *class, term);
                    if !self.seen.contains(&found) {
                        matches.push(found);
                    }
                }
            }
        }
        self.seen.extend(matches.iter().cloned());
        matches
    }
}

/// Every node with its kind and class, in the order of the classes.
fn by_kind(egraph: &EGraph) -> Vec<(Kind, Id, &ENode)> {
    let mut nodes: Vec<(Kind, Id, &ENode)> =
        egraph.classes().flat_map(|class| class.iter().map(|node| (node.kind(), class.id, node))).collect();
    // Stable, so that nodes of one class stay in egg's order, which is that of their operations.
    nodes.sort_by_key(|(_, class, _)| *class);
    nodes
}
