//! Sums over an axis that was put together of parts, and sums that together cover an axis.
//!
//! Scores over `[nope | rope]` come apart here, and join again over the cache, where both parts lie side by side.

use egg::Id;

use crate::graph::op::{Binary, Op};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, binary, contract, facts, rename, slice};
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

pub(super) const RULES: &[Rule] = &[CONTRACT_SPLIT_CONCAT, CONTRACT_JOIN_SLICES];

/// What: a contraction over an axis along which both operands are concatenations becomes a sum of contractions.
/// Why equal: the parts meet position by position, and a sum over all positions is the sum over the parts.
/// Why cheaper: each part can be rewritten on its own, and neither concatenation need exist.
const CONTRACT_SPLIT_CONCAT: Rule = Rule {
    name: "contract-split-concat",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Contract], split_concat),
};

fn split_concat(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    let mut found = Vec::new();
    for axis in over {
        let parts = |class: Id| egraph[class].iter().filter(|node| *node.op == Op::Concat { axis: *axis });
        for a in parts(node.args[0]) {
            for b in parts(node.args[1]) {
                let size = |id: &Id| facts(egraph, *id).ty.shape.size(*axis).cloned();
                if a.args.iter().map(size).ne(b.args.iter().map(size)) {
                    continue;
                }
                let products = a.args.iter().zip(&b.args).map(|(a, b)| contract(over.clone(), *a, *b));
                found.extend(products.reduce(|sum, product| binary(Binary::Add, sum, product)));
            }
        }
    }
    found
}

/// What: `x·u[0..m] + y·u[m..n]` becomes `concat(x, y)·u[0..n]`, whatever the summed axis is called in either.
/// Why equal: as for `contract-split-concat`, read backwards.
/// Why cheaper: one contraction reads `u` in one piece: one pass over the cache for both halves of the scores.
const CONTRACT_JOIN_SLICES: Rule = Rule {
    name: "contract-join-slices",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Binary], join_slices),
};

fn join_slices(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    if *node.op != Op::Binary(Binary::Add) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let (left, right) = (runs(egraph, node.args[0]), runs(egraph, node.args[1]));
    for a in &left {
        for b in &right {
            let is_one = (a.cut.whole, a.cut.axis, &a.others) == (b.cut.whole, b.cut.axis, &b.others);
            if is_one && a.cut.start.clone() + &a.cut.len == b.cut.start {
                found.extend(joined(egraph, a, b));
            } else if is_one && b.cut.start.clone() + &b.cut.len == a.cut.start {
                found.extend(joined(egraph, b, a));
            }
        }
    }
    found
}

/// A contraction of `x` with a run of positions, summed over the run and over other axes.
struct Run {
    x: Id,
    others: Vec<Axis>,
    cut: Cut,
}

/// A run of positions of `whole`, whose axis is called `name` outside.
struct Cut {
    name: Axis,
    whole: Id,
    axis: Axis,
    start: Sym,
    len: Sym,
}

/// Every reading of a class as a contraction with a run of something.
fn runs(egraph: &EGraph, class: Id) -> Vec<Run> {
    let mut found = Vec::new();
    for node in egraph[class].iter() {
        let Op::Contract { over } = &*node.op else { continue };
        for (x, part) in [(node.args[0], node.args[1]), (node.args[1], node.args[0])] {
            for cut in cuts(egraph, part).into_iter().filter(|cut| over.contains(&cut.name)) {
                let others = over.iter().copied().filter(|axis| *axis != cut.name).collect();
                found.push(Run { x, others, cut });
            }
        }
    }
    found
}

/// Every reading of a class as a run of positions of something, whose axis may have been renamed.
fn cuts(egraph: &EGraph, class: Id) -> Vec<Cut> {
    let named = |class: Id, name: Option<(Axis, Axis)>| {
        egraph[class].iter().filter_map(move |node| {
            let Op::Slice { axis, start, len } = &*node.op else { return None };
            let (from, name) = name.unwrap_or((*axis, *axis));
            let cut = Cut { name, whole: node.args[0], axis: *axis, start: start.clone(), len: len.clone() };
            (from == *axis).then_some(cut)
        })
    };
    let mut found: Vec<Cut> = named(class, None).collect();
    for node in egraph[class].iter() {
        if let Op::Rename { from, to } = *node.op {
            found.extend(named(node.args[0], Some((from, to))));
        }
    }
    found
}

fn joined(egraph: &EGraph, first: &Run, second: &Run) -> Option<Term> {
    let axis = first.cut.axis;
    // The name the axis has in `u` must be free in both.
    let is_free =
        |run: &Run| run.cut.name == axis || !facts(egraph, run.x).has(axis) && !run.others.contains(&axis);
    if !is_free(first) || !is_free(second) {
        return None;
    }
    let parts = [first, second].map(|run| rename(run.x, run.cut.name, axis));
    let x = Term::node(Op::Concat { axis }, parts.to_vec());
    x.ty(egraph)?;
    let len = first.cut.len.clone() + &second.cut.len;
    let is_all = facts(egraph, first.cut.whole).ty.shape.size(axis) == Some(&len);
    let u = first.cut.whole;
    let u = if is_all { u.into() } else { slice(u, axis, first.cut.start.clone(), len) };
    Some(contract([first.others.clone(), vec![axis]].concat(), x, u))
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;

    #[test]
    fn a_sum_over_parts_is_the_sum_of_the_parts() {
        let (g, [t, s, e]) = sizes([("t", 2), ("s", 3), ("e", 4)]);
        let part = |name, dim, n: i64| g.input(name, F32, &[dim, &e.sized(n)]);
        let q = g.concat(&e, &[&part("a", &t, 4), &part("b", &t, 2)]);
        let k = g.concat(&e, &[&part("c", &s, 4), &part("d", &s, 2)]);
        fires("contract-split-concat", &g, &q.contract(&k, [&e]));
    }

    #[test]
    fn halves_of_the_scores_join_over_the_cache() {
        let (g, [t, s, c, e]) = sizes([("t", 2), ("s", 3), ("c", 6), ("e", 2)]);
        let u = g.input("u", F32, &[&s, &c]);
        let (low, rope) = (u.slice(&c, 0, 4), u.slice(&c, 4, 2).rename(&c, &e));
        let (x, y) = (g.input("x", F32, &[&t, &c.sized(4)]), g.input("y", F32, &[&t, &e]));
        fires("contract-join-slices", &g, &(x.contract(&low, [&c]) + y.contract(&rope, [&e])));
    }
}
