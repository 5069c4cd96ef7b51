//! A rewrite rule of your own: defined, applied, and caught if it is wrong.
//!
//! Run with `cargo run --example new_rule`. A rule looks at a node and returns other ways to compute its value; the
//! e-graph and the cost model do the rest. The second rule is wrong on purpose, and `blame` names it.

use fusebox_compiler::graph::op::{Binary, Op, Unary};
use fusebox_compiler::graph::{Graph, build::Builder};
use fusebox_compiler::reference::compare::{Tolerance, close};
use fusebox_compiler::reference::{evaluate, random};
use fusebox_compiler::rewrite::blame::blame;
use fusebox_compiler::rewrite::language::{EGraph, ENode, Kind};
use fusebox_compiler::rewrite::rules::Rule;
use fusebox_compiler::rewrite::term::{Term, binary};
use fusebox_compiler::rewrite::{Settings, improve_with};
use fusebox_compiler::target::CPU;
use fusebox_compiler::tensor::dtype::DType;

/// What: `exp(a)·exp(b)` becomes `exp(a + b)`.
/// Why equal: that is what powers do.
/// Why cheaper: one exponential instead of two.
const EXP_JOIN: Rule =
    Rule::new("exp-join", &[Kind::Binary], |egraph, node| powers(egraph, node, Binary::Add));

/// The same with a slip: the exponents multiplied.
const EXP_LIE: Rule = Rule::new("exp-lie", &[Kind::Binary], |egraph, node| powers(egraph, node, Binary::Mul));

fn powers(egraph: &EGraph, node: &ENode, combine: Binary) -> Vec<Term> {
    if *node.op != Op::Binary(Binary::Mul) {
        return Vec::new();
    }
    let exponents = |class| egraph[class].iter().filter(|node| *node.op == Op::Unary(Unary::Exp));
    let pairs =
        exponents(node.args[0]).flat_map(|a| exponents(node.args[1]).map(move |b| (a.args[0], b.args[0])));
    pairs.map(|(a, b)| Term::node(Op::Unary(Unary::Exp), vec![binary(combine, a, b)])).collect()
}

#[expect(clippy::print_stdout, reason = "an example shows what it did")]
fn main() -> Result<(), fusebox_compiler::error::Error> {
    let g = Builder::new();
    let d = g.dim("d", 8);
    let (a, b) = (g.input("a", DType::F32, &[&d]), g.input("b", DType::F32, &[&d]));
    let graph = g.finish(&[("y", &(a.exp() * b.exp()))])?;
    let settings = Settings::new(CPU);

    let (better, report) = improve_with(&graph, &[EXP_JOIN], &settings);
    println!("{better}\nfired: {:?}", report.fired);

    let bindings = random::bindings(&graph, 1, &[]);
    let expected = evaluate(&graph, &bindings)?;
    let is_right = |form: &Graph| {
        let own = evaluate(form, &bindings);
        own.is_ok_and(|own| close(&expected.outputs["y"], &own.outputs["y"], Tolerance::of(&graph)).is_ok())
    };
    println!("blamed: {:?}", blame(&graph, &[EXP_JOIN, EXP_LIE], &settings, is_right));
    Ok(())
}
