//! Local search after extraction: prices the whole graph, and changes single choices.
//!
//! In: choices made value by value. Out: choices of which no single one can be changed for less. Greedy extraction
//! assumes that the reader of a slice of a projection shares it with the readers of the rest; where two values, each
//! for nearly nothing, chose slices of different projections, both projections are computed in full. Here every value
//! costs what it costs. Only near ties are tried: a choice that is much more expensive by itself does not pay for the
//! whole.

use std::collections::BTreeMap;

use egg::Id;

use crate::rewrite::cost::{Arg, Bill, Ledger};
use crate::rewrite::extract::{Best, Choices};
use crate::rewrite::language::{EGraph, ENode};
use crate::target::Target;

/// How often all values are gone through.
const SWEEPS: usize = 2;

/// How many launches more expensive a form may be, by itself, to be tried.
const MARGIN: f64 = 2.0;

/// Changes single choices as long as the whole gets cheaper.
pub(crate) fn settle<'a>(egraph: &'a EGraph, target: &Target, roots: &[Id], choices: &mut Choices<'a>) {
    let Some(mut chosen) = choices.below(roots) else { return };
    let mut least = whole(egraph, target, &chosen);
    for _ in 0..SWEEPS {
        let before = least;
        for (class, _) in chosen.clone() {
            for other in &egraph[class].nodes {
                let Some(cost) = tried(egraph, target, roots, choices, (class, other), least) else {
                    continue;
                };
                least = cost;
            }
        }
        if least >= before {
            return;
        }
        chosen = choices.below(roots).unwrap_or_default();
    }
}

/// Takes `other` for its class if that makes the whole cheaper, and says how cheap.
fn tried<'a>(
    egraph: &'a EGraph,
    target: &Target,
    roots: &[Id],
    choices: &mut Choices<'a>,
    (class, other): (Id, &'a ENode),
    least: f64,
) -> Option<f64> {
    let own = choices.of(class)?;
    let bill = choices.bill(egraph, target, class, other)?;
    if own.node == other || bill.total > own.bill.total + MARGIN * target.rates.launch {
        return None;
    }
    let old = choices.replace(class, Best { node: other, bill })?;
    let cost = choices.below(roots).map(|chosen| whole(egraph, target, &chosen));
    if cost.is_some_and(|cost| cost < least * (1.0 - 1e-9)) {
        return cost;
    }
    choices.replace(class, old);
    None
}

/// Seconds of a whole graph: classes with their nodes, arguments first.
pub(crate) fn whole(egraph: &EGraph, target: &Target, chosen: &[(Id, &ENode)]) -> f64 {
    let mut ledger = Ledger::default();
    let mut entered: BTreeMap<Id, (&ENode, Bill)> = BTreeMap::new();
    for (class, node) in chosen {
        let arg = |id: &Id| {
            let (node, bill) = &entered[id];
            Arg { value: usize::from(*id), facts: &egraph[*id].data, op: &node.op, bill }
        };
        let args: Vec<Arg<'_>> = node.args.iter().map(arg).collect();
        let bill = ledger.enter(target, usize::from(*class), &node.op, &egraph[*class].data, &args);
        entered.insert(*class, (node, bill));
    }
    ledger.total()
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::sizes;
    use crate::rewrite::tests::{cpu, lines};
    use crate::rewrite::{Settings, improve};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    #[test]
    fn parts_of_one_projection_are_computed_once() {
        let (g, [t, d, h, e]) = sizes([("t", 512), ("d", 768), ("h", 20), ("e", 256)]);
        let x = g.input("x", F32, &[&t, &d]);
        let normed = &x * ((&x * &x).sum(&d) + 1.0).rsqrt() * g.weight("gain", Format::F32, &[&d]);
        let q = normed.contract(&g.weight("w", Format::Q8_0, &[&h, &e, &d]), [&d]);
        let (nope, rope) = (q.slice(&e, 0, 192), q.slice(&e, 192, 64));
        let graph = g.finish(&[("nope", &nope), ("rope", &rope.cos())]).unwrap();
        let (made, _) = improve(&graph, &Settings::new(cpu()));
        assert_eq!(lines(&made, "contract").len(), 1, "{made}");
    }
}
