//! Whatever is chosen means the same, and a rule that lies is found out.
//!
//! In: small blocks and random bindings. Out: nothing, or the first number that differs. No form is looked at here.

use super::parts::{Block, SMALL, Sizes};
use super::{cpu, means_the_same};
use crate::graph::Graph;
use crate::graph::op::{Binary, Op};
use crate::rewrite::blame::blame;
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::all;
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, mul};
use crate::rewrite::{Choice, Limits, Settings, Stop, improve};

/// Checks the cheapest form and as many others, with all rules.
fn check(graph: &Graph, n_seeds: u64) {
    let settings = Settings::new(cpu());
    let choices = (0..n_seeds).map(Choice::Random).chain([Choice::Cheapest]);
    for choice in choices {
        let (made, _) = improve(graph, &Settings { choice, ..settings.clone() });
        means_the_same(graph, &made).unwrap_or_else(|error| panic!("{choice:?}: {error}\n{made}"));
    }
}

#[test]
fn every_form_of_every_part_means_the_same() {
    for tokens in [1, 2] {
        let sizes = Sizes { tokens, ..SMALL };
        let parts = [Block::attention, Block::latent, Block::latent_combined, Block::experts];
        for part in parts {
            let b = Block::new(sizes);
            let x = &b.x();
            let y = x + part(&b, &b.norm("gain", x, &b.d));
            check(&b.finish(&y), 16);
        }
    }
}

#[test]
fn every_form_of_a_block_means_the_same() {
    let b = Block::new(SMALL);
    let x = &b.embedding();
    let y = x + b.latent(&b.norm("first", x, &b.d));
    check(&b.finish(&(&y + b.experts(&b.norm("second", &y, &b.d)))), 16);
}

#[test]
fn limits_are_outcomes() {
    let b = Block::new(SMALL);
    let graph = b.finish(&b.latent(&b.x()));
    let settings = Settings::new(cpu());
    let usual = settings.limits;
    let with = |limits, fuel| improve(&graph, &Settings { limits, fuel, ..settings.clone() });
    for (limits, fuel, stopped) in [
        (Limits { nodes: graph.nodes.len() + 3, ..usual }, None, Stop::Nodes),
        (Limits { rounds: 2, ..usual }, None, Stop::Rounds),
        (usual, Some(5), Stop::Fuel),
        (usual, None, Stop::Saturated),
    ] {
        let (made, report) = with(limits, fuel);
        assert_eq!(report.stopped, stopped);
        means_the_same(&graph, &made).unwrap();
    }
}

#[test]
fn without_fuel_a_graph_stays_as_it_is() {
    let b = Block::new(SMALL);
    let graph = b.finish(&b.experts(&b.x()));
    let (made, report) = improve(&graph, &Settings { fuel: Some(0), ..Settings::new(cpu()) });
    assert_eq!((made.nodes.len(), report.log.len()), (graph.nodes.len(), 0));
    assert_eq!(report.seconds, report.seconds_before);
}

/// `a / b = a · b`, which is well typed.
const LIE: Rule =
    Rule { name: "div-lie", holds_for: HoldsFor::Every, search: Search::Nodes(&[Kind::Binary], lie) };

fn lie(_: &EGraph, node: &ENode) -> Vec<Term> {
    let is_quotient = *node.op == Op::Binary(Binary::Div);
    if is_quotient { vec![mul(node.args[0], node.args[1])] } else { Vec::new() }
}

#[test]
fn a_rule_that_lies_is_named() {
    let b = Block::new(SMALL);
    let graph = b.finish(&b.experts(&b.norm("gain", &b.x(), &b.d)));
    let is_right = |made: &Graph| means_the_same(&graph, made).is_ok();
    let mut rules = all();
    assert_eq!(blame(&graph, &rules, &Settings::new(cpu()), is_right), None);
    for place in [0, rules.len()] {
        rules.insert(place, LIE);
        assert_eq!(blame(&graph, &rules, &Settings::new(cpu()), is_right), Some("div-lie"));
        rules.remove(place);
    }
}
