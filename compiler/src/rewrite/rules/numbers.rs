//! Numbers that are known: constants meet, and what they leave alone is not computed.
//!
//! What is known about a class comes from `facts.rs`: a mask no position of which is hidden is known to be 0.

use egg::Id;

use crate::graph::op::{Binary, Op, Scalar, Unary};
use crate::rewrite::language::{EGraph, ENode, Kind};
use crate::rewrite::rules::rule::{HoldsFor, Rule, Search};
use crate::rewrite::term::{Term, facts, mul};
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

pub(super) const RULES: &[Rule] = &[CONSTANT_FOLD, FACTOR_FOLD, BINARY_DROP_NEUTRAL, SELECT_KNOWN];

/// What: an operation on constant numbers becomes its result.
/// Why equal: it is computed here in the same precision.
/// Why cheaper: it is computed once, and never again.
const CONSTANT_FOLD: Rule = Rule {
    name: "constant-fold",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Unary, Kind::Binary], fold),
};

fn fold(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let number = |id: &Id| {
        let facts = facts(egraph, *id);
        match facts.constant {
            Some(Scalar::F32(bits)) if facts.ty.shape.rank() == 0 => Some(f32::from_bits(bits)),
            _ => None,
        }
    };
    let Some(args) = node.args.iter().map(number).collect::<Option<Vec<f32>>>() else { return Vec::new() };
    let result = match (&*node.op, &args[..]) {
        (Op::Unary(Unary::Neg), [a]) => -a,
        (Op::Unary(Unary::Recip), [a]) => 1.0 / a,
        (Op::Binary(f), [a, b]) => match arithmetic(*f, *a, *b) {
            Some(result) => result,
            None => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    vec![Term::node(Op::Const(Scalar::float(result)), Vec::new())]
}

fn arithmetic(f: Binary, a: f32, b: f32) -> Option<f32> {
    match f {
        Binary::Add => Some(a + b),
        Binary::Sub => Some(a - b),
        Binary::Mul => Some(a * b),
        Binary::Div => Some(a / b),
        // Which of two zeros or of a number and NaN comes out is for the evaluator to say.
        Binary::Max | Binary::Min | Binary::Lt | Binary::Le | Binary::Eq => None,
    }
}

/// What: two constant factors, one after the other, become one.
/// Why equal: multiplication is associative.
/// Why cheaper: one operation less for every element.
const FACTOR_FOLD: Rule = Rule {
    name: "factor-fold",
    holds_for: HoldsFor::Finite,
    search: Search::Nodes(&[Kind::Binary], factors),
};

fn factors(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let Some((scaled, outer)) = constant_factor(egraph, node) else { return Vec::new() };
    let inside = egraph[scaled].iter().filter_map(|inside| constant_factor(egraph, inside));
    inside.map(|(x, inner)| mul(x, mul(inner, outer))).collect()
}

/// A product as something times a constant number; of two constants, neither is.
fn constant_factor(egraph: &EGraph, node: &ENode) -> Option<(Id, Id)> {
    let (Op::Binary(Binary::Mul), [a, b]) = (&*node.op, &node.args[..]) else { return None };
    let is_factor = |id: Id| facts(egraph, id).constant.is_some() && facts(egraph, id).ty.shape.rank() == 0;
    match (is_factor(*a), is_factor(*b)) {
        (false, true) => Some((*a, *b)),
        (true, false) => Some((*b, *a)),
        _ => None,
    }
}

/// What: times 1, divided by 1, plus 0 and minus 0 are left out.
/// Why equal: they change no number; the sign of a zero at most.
/// Why cheaper: nothing is computed, and what the number was computed from may not be needed.
const BINARY_DROP_NEUTRAL: Rule = Rule {
    name: "binary-drop-neutral",
    holds_for: HoldsFor::Every,
    search: Search::Nodes(&[Kind::Binary], drop_neutral),
};

fn drop_neutral(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let (Op::Binary(f), [a, b]) = (&*node.op, &node.args[..]) else { return Vec::new() };
    let neutral = match f {
        Binary::Mul | Binary::Div => 1.0,
        Binary::Add | Binary::Sub => 0.0,
        Binary::Max | Binary::Min | Binary::Lt | Binary::Le | Binary::Eq => return Vec::new(),
    };
    let may_drop = |kept: Id, number: Id| {
        let has_axes = facts(egraph, number).ty.shape.axes().all(|axis| facts(egraph, kept).has(axis));
        facts(egraph, number).is_number(neutral) && has_axes
    };
    let mut found = Vec::new();
    if may_drop(*a, *b) {
        found.push((*a).into());
    }
    if f.is_commutative() && may_drop(*b, *a) {
        found.push((*b).into());
    }
    found
}

/// What: a choice whose condition is known becomes the branch it takes.
/// Why equal: the condition has the same value for every element, by the bounds of the positions it compares.
/// Why cheaper: with one token the causal mask hides nothing, and is not there.
const SELECT_KNOWN: Rule =
    Rule { name: "select-known", holds_for: HoldsFor::Every, search: Search::Nodes(&[Kind::Select], select) };

fn select(egraph: &EGraph, node: &ENode) -> Vec<Term> {
    let [condition, yes, no] = node.args[..] else { return Vec::new() };
    let Some(truth) = facts(egraph, condition).constant else { return Vec::new() };
    let (taken, left) = if truth.number() == 0.0 { (no, yes) } else { (yes, no) };
    // The branch is the same along axes that only the condition or the other branch has.
    let own = &facts(egraph, taken).ty.shape;
    let [left, condition] = [left, condition].map(|id| &facts(egraph, id).ty.shape);
    let lacking = left.iter().chain(condition.iter().filter(|(axis, _)| !left.has(*axis)));
    let expand =
        |x, (axis, len): &(Axis, Sym)| Term::node(Op::Expand { axis: *axis, len: len.clone() }, vec![x]);
    let result = lacking.filter(|(axis, _)| !own.has(*axis)).fold(Term::from(taken), expand);
    vec![result]
}

#[cfg(test)]
mod tests {
    use crate::rewrite::rules::tests::{fires, sizes};
    use crate::tensor::dtype::DType::F32;

    #[test]
    fn constants_meet() {
        let (g, [t]) = sizes([("t", 3)]);
        let x = g.input("x", F32, &[&t]);
        fires("constant-fold", &g, &(&x * (g.constant(3.0) * 4.0)));
        fires("factor-fold", &g, &(&x * 3.0 * 4.0));
        fires("binary-drop-neutral", &g, &(&x / 1.0));
        fires("binary-drop-neutral", &g, &(g.constant(0.0) + &x));
    }

    #[test]
    fn one_token_sees_every_position_before_it() {
        let (g, [t, s]) = sizes([("t", 1), ("s", 5)]);
        let seen = g.iota(&s).le(&(g.iota(&t) + g.symbolic(4)));
        let x = g.input("x", F32, &[&t, &s]);
        fires("select-known", &g, &g.select(&seen, &x, &g.constant(f32::NEG_INFINITY)));
    }
}
