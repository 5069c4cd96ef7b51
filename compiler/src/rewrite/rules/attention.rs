//! Finds attention in the formula its paper gives.
//!
//! Nothing but `exp(x - max x) / Σ exp(x - max x)`, summed against values, is looked for, over one axis or several:
//! masks and scales belong to `x`. A sink is one more score, of a value of 0: `m = max(max x, sink)`, and
//! `exp(x - m) / (Σ exp(x - m) + exp(sink - m))`.

use egg::Id;

use crate::graph::op::{Binary, Fold, Op, Unary};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::Term;
use crate::tensor::shape::Axis;

pub(super) const RULES: &[Rule] = &[ATTEND_FROM_SOFTMAX, ATTEND_WITH_SINK];

/// What: a softmax over an axis, summed against values over the same axis, becomes `attend`.
/// Why equal: it is the definition of `attend`; subtracting the maximum changes nothing and is kept. Where all scores
/// are -∞, `attend` gives 0 and the formula NaN.
/// Why cheaper: one pass with a running maximum and sum: scores are never stored, and values are read once.
const ATTEND_FROM_SOFTMAX: Rule = Rule {
    name: "attend-from-softmax",
    holds_for: HoldsFor::Defined,
    search: Search::Nodes(&[Kind::Contract], attend),
};

/// What: a softmax over some axes and a sink, summed against values, becomes `attend` with a sink.
/// Why equal: it is the definition of a sink; subtracting the maximum changes nothing and is kept.
/// Why cheaper: as without a sink.
const ATTEND_WITH_SINK: Rule = Rule {
    name: "attend-with-sink",
    holds_for: HoldsFor::Defined,
    search: Search::Nodes(&[Kind::Contract], attend_with_sink),
};

fn attend(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    weighted(node, |weights, values, over| {
        let found = softmax_of(egraph, weights, over).into_iter();
        found.map(|(x, over)| Term::node(Op::Attend { over }, vec![x.into(), values.into()])).collect()
    })
}

fn attend_with_sink(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    weighted(node, |weights, values, over| {
        let found = softmax_with_sink(egraph, weights, over).into_iter();
        let term = |(x, sink, over): (Id, Id, _)| {
            Term::node(Op::Attend { over }, vec![x.into(), values.into(), sink.into()])
        };
        found.map(term).collect()
    })
}

/// The terms that `of` makes of each reading of a contraction as weights, values, and the axes that they meet over.
fn weighted(node: &ENode, of: impl Fn(Id, Id, &[Axis]) -> Vec<Term>) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let [a, b] = node.args[..] else { return Vec::new() };
    [of(a, b, over), of(b, a, over)].concat()
}

/// Every `x` that the class is a softmax of, and the axes in the order in which its author nested the maxima, the
/// outermost first.
fn softmax_of(egraph: &EGraph, class: Id, over: &[Axis]) -> Vec<(Id, Vec<Axis>)> {
    let mut found = Vec::new();
    for (numerator, denominator) in quotients(egraph, class) {
        if reduced(egraph, Fold::Sum, denominator, numerator, over).is_none() {
            continue;
        }
        let differences = exponents_of_differences(egraph, numerator);
        found.extend(differences.filter_map(|(x, m)| Some((x, reduced(egraph, Fold::Max, m, x, over)?))));
    }
    found
}

/// Every `x` and sink that the class is a softmax of, and the axes as in [`softmax_of`].
fn softmax_with_sink(egraph: &EGraph, class: Id, over: &[Axis]) -> Vec<(Id, Id, Vec<Axis>)> {
    let mut found = Vec::new();
    for (numerator, denominator) in quotients(egraph, class) {
        for (sum, own) in either_order(egraph, denominator, Binary::Add) {
            if reduced(egraph, Fold::Sum, sum, numerator, over).is_none() {
                continue;
            }
            for (sink, most) in exponents_of_differences(egraph, own) {
                let scores = exponents_of_differences(egraph, numerator).filter(|(_, m)| *m == most);
                for (x, _) in scores {
                    let maxima = either_order(egraph, most, Binary::Max).into_iter();
                    let of_x = maxima.filter(|(_, other)| *other == sink);
                    let orders = of_x.filter_map(|(m, _)| reduced(egraph, Fold::Max, m, x, over));
                    found.extend(orders.map(|order| (x, sink, order)));
                }
            }
        }
    }
    found
}

/// Every reading of a class as `exp(a - b)`.
fn exponents_of_differences(egraph: &EGraph, class: Id) -> impl Iterator<Item = (Id, Id)> {
    let exponents = args(egraph, class, &Op::Unary(Unary::Exp));
    let differences = exponents.flat_map(|own| args(egraph, own[0], &Op::Binary(Binary::Sub)));
    differences.map(|own| (own[0], own[1]))
}

/// Every reading of a class as a function of two arguments, in both orders.
fn either_order(egraph: &EGraph, class: Id, f: Binary) -> Vec<(Id, Id)> {
    args(egraph, class, &Op::Binary(f)).flat_map(|own| [(own[0], own[1]), (own[1], own[0])]).collect()
}

/// Every reading of a class as `a / b` or `a · (1/b)`.
fn quotients(egraph: &EGraph, class: Id) -> Vec<(Id, Id)> {
    let mut found: Vec<(Id, Id)> =
        args(egraph, class, &Op::Binary(Binary::Div)).map(|args| (args[0], args[1])).collect();
    for (a, b) in either_order(egraph, class, Binary::Mul) {
        found.extend(args(egraph, b, &Op::Unary(Unary::Recip)).map(|args| (a, args[0])));
    }
    found
}

/// The order in which a class is another one folded over some axes, the last first; nothing where it is not.
fn reduced(egraph: &EGraph, fold: Fold, class: Id, of: Id, over: &[Axis]) -> Option<Vec<Axis>> {
    if over.is_empty() {
        return (class == of).then(Vec::new);
    }
    over.iter().find_map(|axis| {
        let others: Vec<Axis> = over.iter().copied().filter(|other| other != axis).collect();
        let op = Op::Reduce { fold, axis: *axis };
        let inner = args(egraph, class, &op).find_map(|args| reduced(egraph, fold, args[0], of, &others))?;
        Some([&[*axis][..], &inner].concat())
    })
}

/// The arguments of every node of a class that does `op`.
fn args<'a>(egraph: &'a EGraph, class: Id, op: &'a Op) -> impl Iterator<Item = &'a [Id]> {
    egraph[class].iter().filter(move |node| &*node.op == op).map(|node| &node.args[..])
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;

    #[test]
    fn a_softmax_with_a_sink_streams() {
        let (g, [t, h, s, e, page, row]) =
            sizes([("t", 2), ("h", 3), ("s", 6), ("e", 4), ("page", 2), ("row", 3)]);
        let (x, v) = (g.input("x", F32, &[&t, &h, &s]), g.input("v", F32, &[&s, &h, &e]));
        let sink = &g.input("sink", F32, &[&h]);
        let m = x.max(&s).maximum(sink);
        let p = (&x - &m).exp();
        fires("attend-with-sink", &g, &(&p / (p.sum(&s) + (sink - &m).exp())).contract(&v, [&s]));
        let (x, v) = (x.split(&s, &[&page, &row]), v.split(&s, &[&page, &row]));
        let m = sink.maximum(&x.max(&row).max(&page));
        let p = (&x - &m).exp();
        let sum = (sink - m).exp() + p.sum(&row).sum(&page);
        fires("attend-with-sink", &g, &(p * sum.recip()).contract(&v, [&page, &row]));
    }

    #[test]
    fn a_softmax_against_values_streams() {
        let (g, [t, h, s, e, page, row]) =
            sizes([("t", 2), ("h", 3), ("s", 6), ("e", 4), ("page", 2), ("row", 3)]);
        let (x, v) = (g.input("x", F32, &[&t, &h, &s]), g.input("v", F32, &[&s, &h, &e]));
        let p = (&x - x.max(&s)).exp();
        fires("attend-from-softmax", &g, &(&p / p.sum(&s)).contract(&v, [&s]));
        fires("attend-from-softmax", &g, &(&p * p.sum(&s).recip()).contract(&v, [&s]));
        let (x, v) = (x.split(&s, &[&page, &row]), v.split(&s, &[&page, &row]));
        let p = (&x - x.max(&row).max(&page)).exp();
        fires("attend-from-softmax", &g, &(&p / p.sum(&page).sum(&row)).contract(&v, [&page, &row]));
    }
}
