//! A rewrite rule of your own: stated, checked, and used by a model.
//!
//! Run with `cargo run --release --example own_rule`. A rule looks at a node and returns other ways to compute its
//! value; the e-graph and the cost model do the rest. The second rule is false on purpose, and the check names it.

use fusebox::graph::{Binary, Op, Unary};
use fusebox::rewrite::{EGraph, ENode, Kind, Rule, Term, binary, check};
use fusebox::{Error, Model, Run};

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
fn main() -> Result<(), Error> {
    let checked = check(&EXP_JOIN)?;
    println!("exp-join fired on {} of {} random graphs, and is not false", checked.n_fired, checked.n_graphs);
    match check(&EXP_LIE) {
        Ok(_) => return Err(Error::from("a false rule was not found")),
        Err(error) => println!("\n{error}\n"),
    }
    // Programs that are made with such a rule are kept on no disk: a name does not tell what a rule does.
    let mut model = Model::built_in(Run { rules: vec![EXP_JOIN], max_tokens: Some(24), ..Run::auto() })?;
    let answer = model.writer()?.go_on("Once upon a time", |_| std::ops::ControlFlow::Continue(()))?;
    println!("Once upon a time{}", answer.text);
    Ok(())
}
