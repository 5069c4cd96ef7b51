//! Projections of the same activations become one.
//!
//! The whole group is joined at once, in the order in which the author wrote the weights; joining by twos would add a
//! node for every subset. Only what the best form so far computes is joined: what nobody computes costs nothing.

use egg::Id;

use crate::graph::op::Op;
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, contract, facts, rename, slice};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

pub(super) const RULES: &[Rule] = &[CONTRACT_JOIN_SHARED_INPUT];

/// What: contractions of one tensor with several weights, over the same axes, become slices of a contraction with the
/// weights' rows one after another.
/// Why equal: a row of the result depends on its own row of the weights only.
/// Why cheaper: one launch instead of several, and the activations are read once. The weights stay where they are:
/// their concatenation is a view.
const CONTRACT_JOIN_SHARED_INPUT: Rule =
    Rule { name: "contract-join-shared-input", holds_for: HoldsFor::Every, search: Search::Chosen(join) };

fn join(egraph: &EGraph, chosen: &[(Id, ENode)]) -> Vec<(Id, Term)> {
    let mut projections: Vec<Projection> =
        chosen.iter().filter_map(|(class, node)| projection(egraph, *class, node)).collect();
    // The classes of stored tensors are numbered as the author wrote them.
    projections.sort_by(|a, b| {
        let rank = |p: &Projection| (stored(egraph, p.weight), p.weight);
        (a.key(), rank(a)).cmp(&(b.key(), rank(b)))
    });
    projections.dedup_by_key(|p| (p.class, p.weight));
    let groups = projections.chunk_by(|a, b| a.key() == b.key()).filter(|group| group.len() > 1);
    groups.flat_map(|group| joined(egraph, group)).collect()
}

/// A contraction of activations with a weight.
struct Projection {
    class: Id,
    x: Id,
    over: Vec<Axis>,
    /// Axes that are not summed and stay as they are, the same for a whole group: those that the activations have too,
    /// and those of an index that picks among the weights.
    batch: Vec<Axis>,
    weight: Id,
    dtype: DType,
    /// The axes of the weight that only the result has.
    rows: Vec<(Axis, Sym)>,
}

impl Projection {
    /// What all of a group have in common.
    fn key(&self) -> (Id, &[Axis], &[Axis], DType) {
        (self.x, &self.over, &self.batch, self.dtype)
    }

    fn n_rows(&self) -> Sym {
        self.rows.iter().fold(Sym::from(1i64), |product, (_, size)| product * size)
    }
}

fn projection(egraph: &EGraph, class: Id, node: &ENode) -> Option<Projection> {
    let Op::Contract { over } = &*node.op else { return None };
    let is_weight = |id: Id| facts(egraph, id).is_weight;
    let [a, b] = node.args[..] else { return None };
    let (x, weight) = match (is_weight(a), is_weight(b)) {
        (false, true) => (a, b),
        (true, false) => (b, a),
        (true, true) | (false, false) => return None,
    };
    let shape = &facts(egraph, weight).ty.shape;
    let free: Vec<(Axis, Sym)> = shape.iter().filter(|(axis, _)| !over.contains(axis)).cloned().collect();
    let stays = |axis: Axis| facts(egraph, x).has(axis) || is_routed(egraph, weight, axis);
    let (batch, rows): (Vec<_>, Vec<_>) = free.into_iter().partition(|(axis, _)| stays(*axis));
    let mut batch: Vec<Axis> = batch.into_iter().map(|(axis, _)| axis).collect();
    batch.sort();
    // Rows that vary in number cannot follow each other in storage.
    let are_fixed = !rows.is_empty() && rows.iter().all(|(_, size)| size.as_const().is_some());
    let dtype = facts(egraph, weight).ty.dtype;
    are_fixed.then(|| Projection { class, x, over: over.clone(), batch, weight, dtype, rows })
}

/// Whether an axis of gathered weights is one of the index.
fn is_routed(egraph: &EGraph, weight: Id, axis: Axis) -> bool {
    let mut gathers = egraph[weight].iter().filter(|node| node.kind() == Kind::Gather);
    gathers.any(|gather| facts(egraph, gather.args[1]).has(axis))
}

/// The stored tensor that a weight is a view of.
fn stored(egraph: &EGraph, weight: Id) -> Id {
    let view =
        egraph[weight].iter().find_map(|node| node.args.first().filter(|of| facts(egraph, **of).is_weight));
    view.map_or(weight, |of| if *of == weight { weight } else { stored(egraph, *of) })
}

fn joined(egraph: &EGraph, group: &[Projection]) -> Vec<(Id, Term)> {
    let Some(first) = group.first() else { return Vec::new() };
    let is_taken = |label: Label| {
        facts(egraph, first.x).has(label) || group.iter().any(|p| facts(egraph, p.weight).has(label))
    };
    let row = Label::fresh("row", is_taken);
    let parts = group.iter().map(|p| stacked(p, row)).collect();
    let all = contract(first.over.clone(), first.x, Term::node(Op::Concat { axis: row }, parts));
    let mut start = Sym::from(0i64);
    let mut found = Vec::new();
    for p in group {
        let part = slice(all.clone(), row, start.clone(), p.n_rows());
        start = start + p.n_rows();
        found.push((p.class, unstacked(p, part, row)));
    }
    found
}

/// The weight with all its rows along one axis.
fn stacked(p: &Projection, row: Axis) -> Term {
    match &p.rows[..] {
        [(axis, _)] => rename(p.weight, *axis, row),
        rows => {
            let axes = rows.iter().map(|(axis, _)| *axis).collect();
            Term::node(Op::Merge { axes, into: row }, vec![p.weight.into()])
        }
    }
}

fn unstacked(p: &Projection, part: Term, row: Axis) -> Term {
    match &p.rows[..] {
        [(axis, _)] => rename(part, row, *axis),
        rows => {
            let into = Shape::new(rows.iter().cloned()).unwrap_or_default();
            Term::node(Op::Split { axis: row, into }, vec![part])
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    #[test]
    fn projections_of_one_input_are_one() {
        let (g, [t, d, h, e]) = sizes([("t", 2), ("d", 4), ("h", 3), ("e", 2)]);
        let x = g.input("x", F32, &[&t, &d]);
        let q = x.contract(&g.weight("q", Format::F32, &[&h, &e, &d]), [&d]);
        let k = x.contract(&g.weight("k", Format::F32, &[&e, &d]), [&d]);
        fires("contract-join-shared-input", &g, &(&q * &k));
        // Tensors of another type stay apart: they cannot follow each other in one.
        let v = x.contract(&g.weight("v", Format::F16, &[&e, &d]), [&d]);
        fires("contract-join-shared-input", &g, &(q * k * v));
    }
}
