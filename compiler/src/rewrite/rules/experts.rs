//! Experts are gathered, not multiplied by zero.
//!
//! A sum over all experts with one-hot weights becomes a gather of the one that is hot; the gather then goes down to
//! the weights, so that only the experts selected are ever read.

use egg::Id;

use crate::graph::op::{Binary, Op};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, facts};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;

pub(super) const RULES: &[Rule] = &[CONTRACT_ONE_HOT, GATHER_ELEMENTWISE, GATHER_CONTRACT, GATHER_MOVEMENT];

/// What: a contraction with a one-hot tensor, over the axis it is hot along, becomes a gather.
/// Why equal: every term but one is zero; the position is known to lie within the axis.
/// Why cheaper: one row is read, instead of all being computed and multiplied by zero.
const CONTRACT_ONE_HOT: Rule = Rule {
    name: "contract-one-hot-gather",
    holds_for: HoldsFor::Finite,
    search: Search::Nodes(&[Kind::Contract], one_hot),
};

fn one_hot(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let ([axis], [a, b]) = (&over[..], &node.args[..]) else { return Vec::new() };
    let mut found = Vec::new();
    for (hot, rows) in [(*a, *b), (*b, *a)] {
        if facts(egraph, rows).ty.dtype != DType::F32 {
            continue;
        }
        for index in hot_at(egraph, hot, *axis) {
            found.push(gather(*axis, rows, index));
        }
    }
    found
}

/// Every index that the class is 1 at and 0 elsewhere along an axis, and that lies within it.
fn hot_at(egraph: &EGraph, class: Id, axis: Axis) -> Vec<Id> {
    let casts = egraph[class].iter().filter(|node| matches!(&*node.op, Op::Cast(dtype) if dtype.is_float()));
    let equals = casts.flat_map(|cast| egraph[cast.args[0]].iter());
    let pairs =
        equals.filter(|node| *node.op == Op::Binary(Binary::Eq)).map(|node| (node.args[0], node.args[1]));
    let is_counted = |class: Id| {
        egraph[class].iter().any(|node| matches!(&*node.op, Op::Iota { axis: own, .. } if *own == axis))
    };
    let is_within = |index: Id| {
        let (index, class) = (facts(egraph, index), facts(egraph, class));
        let (Some((low, high)), Some(len)) = (&index.bounds, class.ty.shape.size(axis)) else { return false };
        !index.has(axis) && low.least() >= 0 && (len.clone() - high).least() > 0
    };
    pairs
        .flat_map(|(a, b)| [(a, b), (b, a)])
        .filter(|(count, index)| is_counted(*count) && is_within(*index))
        .map(|(_, index)| index)
        .collect()
}

/// What: a gather of an elementwise result is that of gathered operands; one without the axis stays as it is.
/// Why equal: each element depends on its own position only, and there is a row to pick.
/// Why cheaper: the operation is done for the rows that are picked, and the gather comes nearer to the weights.
const GATHER_ELEMENTWISE: Rule = Rule {
    name: "gather-through-elementwise",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Gather], through_elementwise),
};

fn through_elementwise(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    through(egraph, node, |inner, _| {
        matches!(inner.kind(), Kind::Unary | Kind::Binary | Kind::Select | Kind::Cast)
    })
}

/// What: a gather along a contraction's row axis becomes a gather of the operand that has the axis.
/// Why equal: rows are computed on their own, and the index has none of the summed axes.
/// Why cheaper: only the rows that are picked are computed, and of a weight only they are read.
const GATHER_CONTRACT: Rule = Rule {
    name: "gather-through-contract",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Gather], through_contract),
};

fn through_contract(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    through(egraph, node, |inner, index| match &*inner.op {
        Op::Contract { over } => !facts(egraph, index).has_any(over),
        _ => false,
    })
}

/// What: a gather along one axis and a movement of others change places.
/// Why equal: the movement does not touch the gathered axis, nor any of the index.
/// Why cheaper: the gather comes nearer to the weights.
const GATHER_MOVEMENT: Rule = Rule {
    name: "gather-through-movement",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Gather], through_movement),
};

fn through_movement(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Gather { axis } = *node.op else { return Vec::new() };
    through(egraph, node, |inner, index| {
        let touched: Vec<Axis> = match &*inner.op {
            Op::Split { axis, into } => into.axes().chain([*axis]).collect(),
            Op::Merge { axes, into } => axes.iter().copied().chain([*into]).collect(),
            Op::Rename { from, to } => vec![*from, *to],
            Op::Slice { axis, .. } => vec![*axis],
            _ => return false,
        };
        !touched.contains(&axis) && !facts(egraph, index).has_any(&touched)
    })
}

/// The nodes of a gathered class that `may_pass`, done to gathered operands.
fn through(egraph: &EGraph, node: &ENode, may_pass: impl Fn(&ENode, Id) -> bool) -> Vec<Term> {
    let (Op::Gather { axis }, [table, index]) = (&*node.op, &node.args[..]) else { return Vec::new() };
    // A table without rows reads as zeros, which an operation need not keep.
    if facts(egraph, *table).ty.shape.size(*axis).is_none_or(|rows| rows.least() < 1) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for inner in egraph[*table].iter().filter(|inner| may_pass(inner, *index)) {
        let gathered = |arg: &Id| {
            if facts(egraph, *arg).has(*axis) { gather(*axis, *arg, *index) } else { (*arg).into() }
        };
        found.push(Term::like(inner, inner.args.iter().map(gathered).collect()));
    }
    found
}

fn gather(axis: Axis, table: Id, index: Id) -> Term {
    Term::node(Op::Gather { axis }, vec![table.into(), index.into()])
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    #[test]
    fn a_product_with_a_one_hot_tensor_picks_rows() {
        let (g, [t, k, x, d]) = sizes([("t", 2), ("k", 2), ("x", 5), ("d", 3)]);
        let (liking, rows) = (g.input("liking", F32, &[&t, &x]), g.input("rows", F32, &[&t, &x, &d]));
        let hot = liking.top_k(&x, &k).equals(&g.iota(&x)).cast(F32);
        fires("contract-one-hot-gather", &g, &hot.contract(&rows, [&x]));
    }

    #[test]
    fn a_gather_goes_down_to_the_weights() {
        let (g, [t, k, x, d, f, m]) = sizes([("t", 2), ("k", 2), ("x", 5), ("d", 3), ("f", 4), ("m", 4)]);
        let selected = g.input("liking", F32, &[&t, &x]).top_k(&x, &k);
        let (h, w) = (g.input("h", F32, &[&t, &d]), g.weight("w", Format::F32, &[&x, &f, &d]));
        let each = h.contract(&w, [&d]);
        fires("gather-through-contract", &g, &each.gather(&x, &selected));
        fires("gather-through-elementwise", &g, &(&each * g.table(&f, &[2.0; 4])).gather(&x, &selected));
        fires("gather-through-movement", &g, &each.rename(&f, &m).gather(&x, &selected));
    }
}
