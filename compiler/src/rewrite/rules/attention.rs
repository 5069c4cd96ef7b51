//! Finds attention in the formula its paper gives.
//!
//! Nothing but `exp(x - max x) / Σ exp(x - max x)`, summed against values, is looked for, over one axis or several:
//! masks and scales belong to `x`.

use egg::Id;

use crate::graph::op::{Binary, Fold, Op, Unary};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::{Rule, Search};
use crate::rewrite::term::Term;
use crate::tensor::shape::Axis;

pub(super) const RULES: &[Rule] = &[ATTEND_FROM_SOFTMAX];

/// What: a softmax over an axis, summed against values over the same axis, becomes `attend`.
/// Why equal: it is the definition of `attend`; subtracting the maximum changes nothing and is kept.
/// Why cheaper: one pass with a running maximum and sum: scores are never stored, and values are read once.
const ATTEND_FROM_SOFTMAX: Rule =
    Rule { name: "attend-from-softmax", search: Search::Nodes(&[Kind::Contract], attend) };

fn attend(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let [a, b] = node.args[..] else { return Vec::new() };
    let mut found = Vec::new();
    for (weights, values) in [(a, b), (b, a)] {
        for (scores, over) in softmax_of(egraph, weights, over) {
            found.push(Term::node(Op::Attend { over }, vec![scores.into(), values.into()]));
        }
    }
    found
}

/// Every `x` that the class is a softmax of, and the axes in the order in which its author nested the maxima, the
/// outermost first.
fn softmax_of(egraph: &EGraph, class: Id, over: &[Axis]) -> Vec<(Id, Vec<Axis>)> {
    let mut found = Vec::new();
    for (numerator, denominator) in quotients(egraph, class) {
        if reduced(egraph, Fold::Sum, denominator, numerator, over).is_none() {
            continue;
        }
        let exponents = args(egraph, numerator, &Op::Unary(Unary::Exp));
        let differences = exponents.flat_map(|args| self::args(egraph, args[0], &Op::Binary(Binary::Sub)));
        found.extend(differences.filter_map(|d| Some((d[0], reduced(egraph, Fold::Max, d[1], d[0], over)?))));
    }
    found
}

/// Every reading of a class as `a / b` or `a · (1/b)`.
fn quotients(egraph: &EGraph, class: Id) -> Vec<(Id, Id)> {
    let mut found: Vec<(Id, Id)> =
        args(egraph, class, &Op::Binary(Binary::Div)).map(|args| (args[0], args[1])).collect();
    for product in args(egraph, class, &Op::Binary(Binary::Mul)) {
        for (a, b) in [(product[0], product[1]), (product[1], product[0])] {
            found.extend(args(egraph, b, &Op::Unary(Unary::Recip)).map(|args| (a, args[0])));
        }
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
