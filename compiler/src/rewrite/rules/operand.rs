//! Movement around a contraction goes into its operands, where it is a view of a weight or nothing at all.
//!
//! An axis that is not summed belongs to an operand; cutting, naming or splitting it may as well be done there.

use egg::Id;

use crate::graph::op::Op;
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, binary, contract, facts};
use crate::tensor::shape::{Axis, Shape};

pub(super) const RULES: &[Rule] =
    &[CONTRACT_MOVE_OPERAND, CONTRACT_UNMERGE_AXIS, CONTRACT_DROP_EXPAND, BINARY_DROP_EXPAND];

/// What: a slice, split, merge or rename of a contraction's row axis becomes that of the operand that has the axis,
/// where another contraction reads the result.
/// Why equal: the axis is not summed, so each of its positions is computed on its own.
/// Why cheaper: of a weight it is a view, and the two contractions can be summed in another order.
const CONTRACT_MOVE_OPERAND: Rule = Rule {
    name: "contract-move-operand",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Slice, Kind::Split, Kind::Merge, Kind::Rename], move_operand),
};

fn move_operand(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let (gone, new): (Vec<Axis>, Vec<Axis>) = match &*node.op {
        Op::Slice { axis, .. } => (vec![*axis], Vec::new()),
        Op::Split { axis, into } => (vec![*axis], into.axes().filter(|new| new != axis).collect()),
        Op::Merge { axes, into } => {
            (axes.clone(), [*into].into_iter().filter(|new| !axes.contains(new)).collect())
        }
        Op::Rename { from, to } => (vec![*from], vec![*to]),
        _ => return Vec::new(),
    };
    let mut found = Vec::new();
    if !is_contracted(egraph, node) {
        return found;
    }
    for product in egraph[node.args[0]].iter() {
        let Op::Contract { .. } = &*product.op else { continue };
        for (own, other) in [(product.args[0], product.args[1]), (product.args[1], product.args[0])] {
            let (own_facts, other_facts) = (facts(egraph, own), facts(egraph, other));
            // New names must mean nothing to either operand: one that does would be summed, or meet another axis.
            let is_own = own_facts.has_all(&gone) && !other_facts.has_any(&gone);
            if is_own && !own_facts.has_any(&new) && !other_facts.has_any(&new) {
                found.push(Term::like(product, vec![Term::like(node, vec![own.into()]), other.into()]));
            }
        }
    }
    found
}

/// Whether a contraction reads the value of a node. Elsewhere rows that are cut apart would be computed apart.
fn is_contracted(egraph: &EGraph, node: &ENode) -> bool {
    let class = egraph.lookup(node.clone());
    class.is_some_and(|class| {
        egraph[class].parents().any(|reader| egraph.id_to_node(reader).kind() == Kind::Contract)
    })
}

/// What: a contraction over a merged axis becomes one over its parts, the other operand being split.
/// Why equal: both list the same positions, and a sum does not mind their order.
/// Why cheaper: the merge is not needed, and rules for the parts apply.
const CONTRACT_UNMERGE_AXIS: Rule = Rule {
    name: "contract-unmerge-axis",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Contract], unmerge),
};

fn unmerge(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let mut found = Vec::new();
    for (own, other) in [(node.args[0], node.args[1]), (node.args[1], node.args[0])] {
        for merge in egraph[own].iter() {
            let Op::Merge { axes, into } = &*merge.op else { continue };
            let inner = &facts(egraph, merge.args[0]).ty.shape;
            let is_free = axes.iter().all(|axis| axis == into || !facts(egraph, other).has(*axis));
            if !over.contains(into) || !is_free {
                continue;
            }
            let parts = axes.iter().filter_map(|axis| Some((*axis, inner.size(*axis)?.clone())));
            let Some(parts) = Shape::new(parts) else { continue };
            let split = Term::node(Op::Split { axis: *into, into: parts }, vec![other.into()]);
            let kept = over.iter().copied().filter(|axis| axis != into);
            found.push(contract(kept.chain(axes.iter().copied()).collect(), merge.args[0], split));
        }
    }
    found
}

/// What: an operand that is the same along an axis of the other operand need not have the axis.
/// Why equal: operands meet by name, and the axis is not summed.
/// Why cheaper: one movement less; the smaller operand is seen as what it is.
const CONTRACT_DROP_EXPAND: Rule = Rule {
    name: "contract-drop-expand",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Contract], contract_drop_expand),
};

fn contract_drop_expand(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let dropped = dropped(egraph, node).into_iter();
    dropped
        .filter(|(axis, _, _)| !over.contains(axis))
        .map(|(_, a, b)| contract(over.clone(), a, b))
        .collect()
}

/// What: an elementwise operand that is the same along an axis of the other operand need not have the axis.
/// Why equal: operands meet by name.
/// Why cheaper: one movement less.
const BINARY_DROP_EXPAND: Rule = Rule {
    name: "binary-drop-expand",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Binary], binary_drop_expand),
};

fn binary_drop_expand(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Binary(f) = *node.op else { return Vec::new() };
    dropped(egraph, node).into_iter().map(|(_, a, b)| binary(f, a, b)).collect()
}

/// Both operands, one of them without an axis it was expanded by and the other has; first the axis.
fn dropped(egraph: &EGraph, node: &ENode) -> Vec<(Axis, Id, Id)> {
    let [a, b] = node.args[..] else { return Vec::new() };
    let expansions = |class: Id, other: Id| {
        egraph[class].iter().filter_map(move |node| match *node.op {
            Op::Expand { axis, .. } if facts(egraph, other).has(axis) => Some((axis, node.args[0])),
            _ => None,
        })
    };
    let left = expansions(a, b).map(|(axis, inner)| (axis, inner, b));
    left.chain(expansions(b, a).map(|(axis, inner)| (axis, a, inner))).collect()
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    #[test]
    fn rows_are_cut_from_the_weight() {
        let (g, [t, d, h, e, m]) = sizes([("t", 2), ("d", 3), ("h", 2), ("e", 3), ("m", 6)]);
        let (x, w) = (g.input("x", F32, &[&t, &d]), g.weight("w", Format::F32, &[&m, &d]));
        let (y, m4, k) = (x.contract(&w, [&d]), m.sized(4), g.input("k", F32, &[&m.sized(4)]));
        fires("contract-move-operand", &g, &y.slice(&m, 1, 4).contract(&k, [&m4]));
        let k = g.input("heads", F32, &[&h, &e]);
        fires("contract-move-operand", &g, &y.split(&m, &[&h, &e]).contract(&k, [&e]));
    }

    #[test]
    fn heads_are_summed_where_they_are() {
        let (g, [t, d, h, e, m]) = sizes([("t", 2), ("d", 3), ("h", 2), ("e", 3), ("m", 6)]);
        let (x, w) = (g.input("x", F32, &[&t, &h, &e]), g.weight("w", Format::F32, &[&d, &m]));
        fires("contract-unmerge-axis", &g, &x.merge(&[&h, &e], &m).contract(&w, [&m]));
    }

    #[test]
    fn what_is_the_same_for_all_heads_is_there_once() {
        let (g, [t, h, e, s]) = sizes([("t", 2), ("h", 2), ("e", 3), ("s", 4)]);
        let (q, k) = (g.input("q", F32, &[&t, &h, &e]), g.input("k", F32, &[&s, &e]));
        fires("contract-drop-expand", &g, &q.contract(&k.expand(&h), [&e]));
        fires("binary-drop-expand", &g, &(&q + q.sum(&h).expand(&h)));
    }
}
