//! A factor that a sum does not run along leaves the sum.
//!
//! This is how a norm stops being a kernel: its row scale leaves the projection, and what is left of the norm is a
//! factor per column. Products are looked through, so no rule has to reorder them.

use egg::Id;

use crate::graph::op::{Binary, Op};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, binary, contract, facts};
use crate::tensor::shape::Axis;

pub(super) const RULES: &[Rule] = &[CONTRACT_HOIST_SCALE];

/// How deep in a product a factor is looked for.
const DEPTH: usize = 4;

/// What: a contraction of `a·s` with `b` becomes `s` times the contraction of `a` with `b`; likewise for `a/s`.
/// Why equal: `s` has no summed axis, so it is the same number in every term of a sum.
/// Why cheaper: where `s` is made of a sum over the same axis, the contraction need not wait for it: both sums run
/// side by side, and `s` is applied to the result. Other factors stay, as they would have to be carried further.
const CONTRACT_HOIST_SCALE: Rule = Rule {
    name: "contract-hoist-scale",
    holds_for: HoldsFor::Finite,
    search: Search::Nodes(&[Kind::Contract], hoist),
};

fn hoist(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Contract { over } = &*node.op else { return Vec::new() };
    if over.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (scaled, other) in [(node.args[0], node.args[1]), (node.args[1], node.args[0])] {
        let peeled = peel(egraph, scaled, over, DEPTH);
        for peeled in peeled.into_iter().filter(|peeled| is_awaited(egraph, peeled.factor, over)) {
            let product = contract(over.clone(), peeled.rest, other);
            found.push(binary(peeled.by, product, peeled.factor));
        }
    }
    found
}

/// Whether a factor is made of a sum over one of the axes.
fn is_awaited(egraph: &EGraph, factor: Id, over: &[Axis]) -> bool {
    facts(egraph, factor).awaits.iter().any(|axis| over.contains(axis))
}

/// A product taken apart: `rest by factor`.
struct Peeled {
    rest: Term,
    by: Binary,
    factor: Id,
}

/// Every way to take one factor without any of the axes out of a product.
fn peel(egraph: &EGraph, class: Id, axes: &[Axis], depth: usize) -> Vec<Peeled> {
    let mut found = Vec::new();
    for node in egraph[class].iter() {
        let Op::Binary(f @ (Binary::Mul | Binary::Div)) = *node.op else { continue };
        let [left, right] = node.args[..] else { continue };
        let mut try_factor = |kept: Id, factor: Id, factor_first: bool| {
            let may_go = !factor_first || f == Binary::Mul;
            if may_go && !facts(egraph, factor).has_any(axes) {
                found.push(Peeled { rest: kept.into(), by: f, factor });
            } else if depth > 0 && facts(egraph, kept).has_all(axes) {
                found.extend(peel(egraph, kept, axes, depth - 1).into_iter().map(|inner| {
                    let (rest, factor) = (inner.rest, Term::from(factor));
                    let rest = if factor_first { binary(f, factor, rest) } else { binary(f, rest, factor) };
                    Peeled { rest, by: inner.by, factor: inner.factor }
                }));
            }
        };
        try_factor(left, right, false);
        if f == Binary::Mul {
            try_factor(right, left, true);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;
    use crate::tensor::quant::Format;

    #[test]
    fn a_row_scale_leaves_the_projection() {
        let (g, [t, d, h]) = sizes([("t", 3), ("d", 8), ("h", 4)]);
        let (x, gain) = (g.input("x", F32, &[&t, &d]), g.table(&d, &[1.5; 8]));
        let scale = ((&x * &x).sum(&d) + 1.0).rsqrt();
        let w = g.weight("w", Format::F32, &[&h, &d]);
        let y = (&x * scale * gain).contract(&w, [&d]);
        fires("contract-hoist-scale", &g, &y);
    }

    #[test]
    fn a_divisor_leaves_too() {
        let (g, [t, d, h]) = sizes([("t", 3), ("d", 8), ("h", 4)]);
        let (x, w) = (g.input("x", F32, &[&t, &d]), g.weight("w", Format::F32, &[&h, &d]));
        let y = (&x / (x.max(&d) + 9.0)).contract(&w, [&d]);
        fires("contract-hoist-scale", &g, &y);
    }
}
