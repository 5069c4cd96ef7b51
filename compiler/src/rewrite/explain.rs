//! The report of an improvement: rules found, rules chosen, and what they save.
//!
//! In: a saturated e-graph and the choices made in it. Out: a [`Report`] for the story and for tests of counts.
//! Seconds are estimates of the cost model: they explain a choice and promise nothing.

use std::collections::{BTreeMap, HashMap};

use egg::Id;

use crate::foundation::entity::{Id as _, List};
use crate::graph::{Graph, NodeId, Site};
use crate::rewrite::cost::{Arg, Bill, Ledger};
use crate::rewrite::extract::Choices;
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::saturate::Saturation;
use crate::rewrite::settle::whole;
use crate::rewrite::{Form, Report};
use crate::target::Target;

const AS_WRITTEN: &str = "as written";

/// The report on these choices.
pub(crate) fn report(
    graph: &Graph,
    saturation: &Saturation<'_>,
    classes: &List<NodeId, Id>,
    choices: &Choices<'_>,
    target: &Target,
) -> Report {
    let egraph = &saturation.egraph;
    let roots: Vec<Id> = graph.roots().into_iter().map(|root| egraph.find(classes[root])).collect();
    let chosen = choices.below(&roots).unwrap_or_default();
    let origins = Origins::of(saturation);
    let mut used: Vec<&str> = chosen.iter().filter_map(|(_, node)| origins.rule(node)).collect();
    used.sort_unstable();
    used.dedup();
    Report {
        nodes: egraph.total_number_of_nodes(),
        classes: egraph.number_of_classes(),
        rounds: saturation.rounds,
        stopped: saturation.stopped,
        fired: count(&saturation.applied),
        used,
        seconds: whole(egraph, target, &chosen),
        seconds_before: before(graph, egraph, classes, target),
        forms: Priced { graph, egraph, classes, choices, target }.forms(&chosen, &origins),
        log: saturation.applied.iter().map(|(name, _)| *name).collect(),
    }
}

/// Which rule added each node of the e-graph.
struct Origins<'a> {
    rules: HashMap<ENode, Option<&'static str>>,
    saturation: &'a Saturation<'a>,
}

impl<'a> Origins<'a> {
    fn of(saturation: &'a Saturation<'a>) -> Self {
        let mut rules = HashMap::new();
        for (number, node) in saturation.egraph.nodes().iter().enumerate() {
            // Nodes that have become equal count as found by the rule that came first.
            rules
                .entry(Self::canonical(&saturation.egraph, node))
                .or_insert_with(|| saturation.origin(number));
        }
        Self { rules, saturation }
    }

    fn rule(&self, node: &ENode) -> Option<&'static str> {
        *self.rules.get(&Self::canonical(&self.saturation.egraph, node))?
    }

    fn name(&self, node: &ENode) -> &'static str {
        self.rule(node).unwrap_or(AS_WRITTEN)
    }

    fn canonical(egraph: &EGraph, node: &ENode) -> ENode {
        egg::Language::map_children(node.clone(), |id| egraph.find(id))
    }
}

fn count(applied: &[(&'static str, usize)]) -> Vec<(&'static str, usize)> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, _) in applied {
        *counts.entry(name).or_default() += 1;
    }
    counts.into_iter().collect()
}

/// Seconds of the graph as it was written, by the same model.
fn before(graph: &Graph, egraph: &EGraph, classes: &List<NodeId, Id>, target: &Target) -> f64 {
    let mut ledger = Ledger::default();
    let mut bills: List<NodeId, Bill> = List::default();
    for (id, node) in graph.nodes.iter() {
        let arg = |arg: &NodeId| Arg {
            value: arg.index(),
            facts: &egraph[classes[*arg]].data,
            op: &graph.nodes[*arg].op,
            bill: &bills[*arg],
        };
        let args: Vec<Arg<'_>> = node.args.iter().map(arg).collect();
        let bill = ledger.enter(target, id.index(), &node.op, &egraph[classes[id]].data, &args);
        bills.push(bill);
    }
    ledger.total()
}

/// Everything needed to price a form that was not taken.
struct Priced<'a> {
    graph: &'a Graph,
    egraph: &'a EGraph,
    classes: &'a List<NodeId, Id>,
    choices: &'a Choices<'a>,
    target: &'a Target,
}

impl Priced<'_> {
    /// For each rule that was taken or could have been, against each other, the value where that matters most.
    fn forms(&self, chosen: &[(Id, &ENode)], origins: &Origins<'_>) -> Vec<Form> {
        let mut most: BTreeMap<(&str, &str), Form> = BTreeMap::new();
        let gain = |form: &Form| form.other_seconds - form.chosen_seconds;
        for (class, node) in chosen {
            let name = origins.name(node);
            let Some(chosen_seconds) = self.price(*class, node) else { continue };
            let others =
                self.egraph[*class].iter().filter(|other| origins.name(other) != name && is_heavy(other));
            for (other, other_seconds) in self.cheapest(*class, others, origins) {
                let form =
                    Form { site: self.site(*class), chosen: name, chosen_seconds, other, other_seconds };
                if gain(&form) > most.get(&(name, other)).map_or(0.0, gain) {
                    most.insert((name, other), form);
                }
            }
        }
        most.into_values().collect()
    }

    /// The least that the nodes of each rule would take.
    fn cheapest<'b>(
        &self,
        class: Id,
        nodes: impl Iterator<Item = &'b ENode>,
        origins: &Origins<'_>,
    ) -> BTreeMap<&'static str, f64> {
        let mut least: BTreeMap<&str, f64> = BTreeMap::new();
        for node in nodes {
            let Some(seconds) = self.price(class, node) else { continue };
            let known = least.entry(origins.name(node)).or_insert(seconds);
            *known = known.min(seconds);
        }
        least
    }

    fn price(&self, class: Id, node: &ENode) -> Option<f64> {
        self.choices.bill(self.egraph, self.target, class, node).map(|bill| bill.total)
    }

    fn site(&self, class: Id) -> Option<Site> {
        let (node, _) = self.classes.iter().find(|(_, id)| self.egraph.find(**id) == class)?;
        self.graph.nodes[node].site
    }
}

fn is_heavy(node: &ENode) -> bool {
    matches!(node.kind(), Kind::Contract | Kind::Attend | Kind::Binary | Kind::Reduce)
}
