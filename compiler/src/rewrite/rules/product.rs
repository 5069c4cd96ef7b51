//! Contractions inside contractions: which product is summed first.
//!
//! With named axes one rule covers every case, with no shapes to juggle: a summed axis belongs to the innermost product
//! that holds all its occurrences. This is how the expansion of a latent cache moves from all cached tokens to the
//! one query.

use egg::Id;

use crate::graph::op::{Binary, Fold, Op};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, contract, facts, mul};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;

pub(super) const RULES: &[Rule] = &[REDUCE_TO_CONTRACT, CONTRACT_REASSOCIATE, CONTRACT_MERGE_NESTED];

/// What: a sum of a product of two different tensors becomes a contraction.
/// Why equal: that is what a contraction is.
/// Why cheaper: the product is never stored, and the rules for contractions apply.
const REDUCE_TO_CONTRACT: Rule = Rule {
    name: "reduce-mul-to-contract",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Reduce], reduce_to_contract),
};

fn reduce_to_contract(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Op::Reduce { fold: Fold::Sum, axis } = *node.op else { return Vec::new() };
    let products = egraph[node.args[0]].iter().filter(|node| *node.op == Op::Binary(Binary::Mul));
    let is_contraction = |[a, b]: [Id; 2]| {
        // A sum of squares stays what it is: the start of a norm.
        a != b
            && [a, b].iter().all(|x| facts(egraph, *x).has(axis) && facts(egraph, *x).ty.dtype == DType::F32)
    };
    products
        .map(|product| [product.args[0], product.args[1]])
        .filter(|args| is_contraction(*args))
        .map(|[a, b]| contract(vec![axis], a, b))
        .collect()
}

/// What: `x·(p·q)` becomes `(x·p)·q`; every summed axis moves to the innermost product that holds all of it.
/// Why equal: sums and products of numbers may be done in any order, as no axis summed inside occurs in `x`.
/// Why cheaper: `x·p` may be far smaller than `p·q`: one query instead of every cached token.
const CONTRACT_REASSOCIATE: Rule = Rule {
    name: "contract-reassociate",
    holds_for: HoldsFor::Finite,
    search: Search::Nodes(&[Kind::Contract], reassociate),
};

fn reassociate(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let mut found = Vec::new();
    for Nested { outer, x, inner, p, q } in nested(egraph, node) {
        let (first, last): (Vec<Axis>, Vec<Axis>) =
            outer.iter().partition(|axis| facts(egraph, p).has(**axis) && !facts(egraph, q).has(**axis));
        // Without a sum to do first, `x·p` would only be larger; a product of two weights is no less so.
        let are_weights = facts(egraph, x).is_weight && facts(egraph, p).is_weight;
        if first.is_empty() || are_weights || facts(egraph, x).has_any(inner) {
            continue;
        }
        let last = [last, inner.to_vec()].concat();
        found.push(contract(last, contract(first, x, p), q));
    }
    found
}

/// What: `x·(p·q)` becomes one sum of `(x∘p)·q` over the axes of both.
/// Why equal: as for `contract-reassociate`, all axes of `x` being axes of `p`.
/// Why cheaper: one contraction instead of two; the product of `x` and `p` is no larger than `p` and is computed on
/// the way in. This is how routing weights join the last projection of the experts.
const CONTRACT_MERGE_NESTED: Rule = Rule {
    name: "contract-merge-nested",
    holds_for: HoldsFor::Finite,
    search: Search::Nodes(&[Kind::Contract], merge_nested),
};

fn merge_nested(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let mut found = Vec::new();
    for Nested { outer, x, inner, p, q } in nested(egraph, node) {
        let (x_facts, p_facts) = (facts(egraph, x), facts(egraph, p));
        let is_within = x_facts.ty.shape.axes().all(|axis| p_facts.has(axis));
        let are_floats = x_facts.ty.dtype == DType::F32 && p_facts.ty.dtype == DType::F32;
        let apart = !x_facts.has_any(inner) && facts(egraph, q).has_all(outer);
        if is_within && are_floats && apart && !p_facts.is_weight && !x_facts.is_weight {
            found.push(contract([outer, inner].concat(), mul(x, p), q));
        }
    }
    found
}

/// A contraction `x·(p·q)` with the axes of both sums.
struct Nested<'a> {
    outer: &'a [Axis],
    x: Id,
    inner: &'a [Axis],
    p: Id,
    q: Id,
}

/// Every reading of a contraction as one of a contraction.
fn nested<'a>(egraph: &'a EGraph, node: &'a ENode) -> Vec<Nested<'a>> {
    let Op::Contract { over: outer } = &*node.op else { return Vec::new() };
    let [a, b] = node.args[..] else { return Vec::new() };
    let mut found = Vec::new();
    for (x, product) in [(a, b), (b, a)] {
        for inside in egraph[product].iter() {
            let Op::Contract { over: inner } = &*inside.op else { continue };
            let [p, q] = inside.args[..] else { continue };
            found.push(Nested { outer, x, inner, p, q });
            found.push(Nested { outer, x, inner, p: q, q: p });
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
    fn a_sum_of_products_is_a_contraction() {
        let (g, [t, k, x]) = sizes([("t", 2), ("k", 3), ("x", 5)]);
        let (a, b) = (g.input("a", F32, &[&t, &k, &x]), g.input("b", F32, &[&t, &k]));
        fires("reduce-mul-to-contract", &g, &(a * b).sum(&k));
    }

    #[test]
    fn an_expansion_moves_from_the_cache_to_the_query() {
        let (g, [t, h, e, s, c]) = sizes([("t", 2), ("h", 3), ("e", 4), ("s", 6), ("c", 5)]);
        let (q, low) = (g.input("q", F32, &[&t, &h, &e]), g.input("low", F32, &[&s, &c]));
        let w = g.weight("w", Format::F32, &[&h, &c, &e]);
        fires("contract-reassociate", &g, &q.contract(&low.contract(&w, [&c]), [&e]));
    }

    #[test]
    fn weights_of_terms_go_into_the_sum() {
        let (g, [t, k, d, f]) = sizes([("t", 2), ("k", 3), ("d", 4), ("f", 5)]);
        let (weight, h) = (g.input("weight", F32, &[&t, &k]), g.input("h", F32, &[&t, &k, &f]));
        let w = g.input("w", F32, &[&t, &k, &d, &f]);
        fires("contract-merge-nested", &g, &weight.contract(&h.contract(&w, [&f]), [&k]));
    }
}
