//! Whether a rule is true: it is fired, and what comes out is compared with the reference.
//!
//! In: a rule, and a graph to fire it on, or none: then small random graphs are tried. Out: how often it fired, or a
//! sentence with the graph on which it is false.
//! That a rule was not found false proves nothing; most false rules are found at their first graphs. Numbers are of
//! both signs, zeros, and those that are not finite, as far as the rule says that it holds for them; and where the
//! operations allow it, an axis is empty. `numbers.rs` draws, `empty.rs` empties.

use crate::error::Error;
use crate::foundation::random::Random;
use crate::graph::Graph;
use crate::graph::build::{Builder, Tensor};
use crate::graph::verify::verify;
use crate::reference::compare::{Tolerance, close};
use crate::reference::{Bindings, evaluate, evaluate_all, random};
use crate::rewrite::rules::rule::{HoldsFor, Rule};
use crate::rewrite::{Choice, Settings, improve_with};
use crate::target::CPU;
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;

mod empty;
mod numbers;

use empty::emptied;
use numbers::{Draw, has};

/// The most random graphs that are tried.
const N_GRAPHS: u64 = 4_000;
/// On how many of them a rule has to fire.
const N_FIRED: usize = 24;
/// Random forms that are compared for each graph, beside the cheapest.
const N_FORMS: u64 = 8;
/// Sets of numbers that each form is compared with.
const N_BINDINGS: u64 = 3;
/// A random graph is passed over where a number in it is larger: rounding would be magnified.
const LARGEST: f64 = 1e3;
/// How much more than its rounding a random graph may differ: it may subtract what is nearly equal.
const SLACK: f64 = 100.0;

/// How a rule was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Graphs that were tried.
    pub n_graphs: usize,
    /// Graphs on which the rule added an equality.
    pub n_fired: usize,
}

/// Checks a rule on small random graphs of elementwise operations, reductions, products and movements.
///
/// # Errors
/// Where the rule is false, with the graph; or where it never fired: then it needs a graph of its own, for
/// [`check_on`].
pub fn check(rule: &Rule) -> Result<Checked, Error> {
    let mut done = Checked { n_graphs: 0, n_fired: 0 };
    for seed in 0..N_GRAPHS {
        let Some(graph) = random_graph(seed) else { continue };
        done.n_graphs += 1;
        done.n_fired += usize::from(is_fired(rule, &graph, SLACK)?);
        if done.n_fired == N_FIRED {
            return Ok(done);
        }
    }
    if done.n_fired > 0 {
        return Ok(done);
    }
    let what = format!("it fired on none of {} random graphs; check it on a graph of its own", done.n_graphs);
    Err(Error::input(place(rule), what))
}

/// Checks a rule on a graph.
///
/// # Errors
/// Where the rule is false, or does not fire on the graph.
pub fn check_on(rule: &Rule, graph: &Graph) -> Result<Checked, Error> {
    if is_fired(rule, graph, 1.0)? {
        return Ok(Checked { n_graphs: 1, n_fired: 1 });
    }
    Err(Error::input(place(rule), format!("it does not fire on\n{graph}")))
}

fn place(rule: &Rule) -> String {
    format!("the rule `{}`", rule.name())
}

/// Whether a rule fires on a graph; an error where a form that it leads to means something else.
fn is_fired(rule: &Rule, graph: &Graph, slack: f64) -> Result<bool, Error> {
    let Some(forms) = Forms::of(rule, graph) else { return Ok(false) };
    forms.hold(rule, &[], slack)?;
    for (graph, symbol) in emptied(graph) {
        let Some(forms) = Forms::of(rule, &graph) else { continue };
        for size in [0, 1.min(symbol.max)] {
            forms.hold(rule, &[(symbol.name, size)], slack)?;
        }
    }
    Ok(true)
}

/// A graph, and what a rule makes of it.
struct Forms<'a> {
    graph: &'a Graph,
    made: Vec<Graph>,
}

impl<'a> Forms<'a> {
    /// The cheapest form and random ones; nothing where the rule does not fire.
    fn of(rule: &Rule, graph: &'a Graph) -> Option<Self> {
        let settings = Settings::new(CPU);
        let (cheapest, report) = improve_with(graph, &[*rule], &settings);
        if report.fired.is_empty() {
            return None;
        }
        let random = (0..N_FORMS).map(|seed| {
            improve_with(graph, &[*rule], &Settings { choice: Choice::Random(seed), ..settings.clone() }).0
        });
        let mut made: Vec<Graph> = Vec::new();
        for form in [cheapest].into_iter().chain(random) {
            if form != *graph && !made.contains(&form) {
                made.push(form);
            }
        }
        Some(Self { graph, made })
    }

    /// Whether every form gives the same, of every kind of numbers that the rule holds for.
    fn hold(&self, rule: &Rule, symbols: &[(Label, i64)], slack: f64) -> Result<(), Error> {
        let Tolerance { absolute, relative } = Tolerance::of(self.graph);
        let tolerance = Tolerance { absolute, relative: relative * slack };
        for (draw, seed) in
            Draw::ALL.into_iter().flat_map(|draw| (0..N_BINDINGS).map(move |seed| (draw, seed)))
        {
            let mut bindings = random::bindings(self.graph, seed, symbols);
            draw.put(self.graph, seed, &mut bindings);
            if !is_held(rule.holds_for(), self.graph, &bindings)? {
                continue;
            }
            for made in &self.made {
                same(self.graph, made, &bindings, tolerance).map_err(|what| {
                    let (graph, holds_for) = (self.graph, rule.holds_for());
                    let with = format!("with {draw:?} numbers of seed {seed}, {symbols:?}");
                    let what = format!(
                        "it is false: {what}\nit is for {holds_for}, {with}\nthe graph is\n{graph}\nit became\n{made}"
                    );
                    Error::input(place(rule), what)
                })?;
            }
        }
        Ok(())
    }
}

/// Whether a rule is held to what it says with these numbers.
fn is_held(holds_for: HoldsFor, graph: &Graph, bindings: &Bindings) -> Result<bool, Error> {
    let is_wrong = match holds_for {
        HoldsFor::Every => return Ok(true),
        HoldsFor::Defined => f32::is_nan,
        HoldsFor::Finite => |x: f32| !x.is_finite(),
    };
    Ok(!evaluate_all(graph, bindings)?.values().any(|value| has(value, is_wrong)))
}

/// Whether two graphs give the same numbers, up to a tolerance; otherwise what differs.
pub(crate) fn same(
    graph: &Graph,
    made: &Graph,
    bindings: &Bindings,
    tolerance: Tolerance,
) -> Result<(), String> {
    if let Some(complaint) = verify(made).first() {
        return Err(complaint.to_string());
    }
    let expected = evaluate(graph, bindings).map_err(|error| error.to_string())?;
    let actual = evaluate(made, bindings).map_err(|error| error.to_string())?;
    let pairs = expected.outputs.iter().map(|(name, value)| (name, value, actual.outputs.get(name)));
    let states = expected.states.iter().map(|(name, value)| (name, value, actual.states.get(name)));
    for (name, value, found) in pairs.chain(states) {
        let found = found.ok_or_else(|| format!("{name} is missing"))?;
        close(value, found, tolerance).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// A graph of a few operations, if they fit together and their numbers stay small.
fn random_graph(seed: u64) -> Option<Graph> {
    let mut random = Random::new(seed);
    let g = Builder::new();
    let [i, j, k] = [("i", 4), ("j", 3), ("k", 2)].map(|(name, size)| g.dim(name, size));
    let input = |name: &str, dims: &[_]| g.input(name, DType::F32, dims);
    let mut pool =
        vec![input("a", &[&i, &j]), input("b", &[&i, &j]), input("c", &[&i]), input("w", &[&j, &k])];
    pool.push(g.constant([0.0, 1.0, 2.0, -0.5][random.below(4)]));
    for _ in 0..3 + random.below(5) {
        // Later values are taken more often, so that operations stand one above another.
        let [x, y] = [(); 2].map(|()| pool[random.below(pool.len()).max(random.below(pool.len()))].clone());
        let axis = [&i, &j, &k][random.below(3)];
        pool.push(operation(random.below(19), &g, [&x, &y], axis));
    }
    let graph = g.finish(&[("y", pool.last()?)]).ok()?;
    let values = evaluate_all(&graph, &random::bindings(&graph, 0, &[])).ok()?;
    let is_small = |x: f64| x.is_nan() || x.abs() <= LARGEST;
    let len = |axes: &[(_, usize)]| axes.iter().map(|(_, size)| *size).product::<usize>();
    values.values().all(|value| (0..len(&value.axes)).all(|at| is_small(value.number(at)))).then_some(graph)
}

/// One of the operations that rules look for.
fn operation(number: usize, g: &Builder, [x, y]: [&Tensor; 2], axis: &crate::graph::build::Dim) -> Tensor {
    match number {
        0 | 1 => x.exp(),
        2 => x.ln(),
        3 => x.sqrt(),
        4 => x.rsqrt(),
        5 => x.recip(),
        6 => x.sin(),
        7 => x.cos(),
        8 | 9 => x + y,
        10 | 11 => x * y,
        12 => -x,
        13 => x.maximum(y),
        14 => x.minimum(y),
        15 => x.sum(axis),
        16 => x.max(axis),
        17 => x.contract(y, [axis]),
        _ => g.concat(axis, &[x, y]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::op::{Binary, Op, Unary};
    use crate::rewrite::language::{EGraph, ENode, Kind};
    use crate::rewrite::rules::all;
    use crate::rewrite::rules::rule::Search;
    use crate::rewrite::term::{Term, binary};

    fn joined(egraph: &EGraph, node: &ENode, outer: Binary, f: Unary, inner: Binary) -> Vec<Term> {
        if *node.op != Op::Binary(outer) {
            return Vec::new();
        }
        let below = |class| egraph[class].iter().filter(|node| *node.op == Op::Unary(f));
        let pairs =
            below(node.args[0]).flat_map(|a| below(node.args[1]).map(move |b| (a.args[0], b.args[0])));
        pairs.map(|(a, b)| Term::node(Op::Unary(f), vec![binary(inner, a, b)])).collect()
    }

    #[test]
    fn a_true_rule_passes_and_false_ones_are_named_with_their_graph() {
        let right = Rule::new("exp-join", &[Kind::Binary], |egraph, node| {
            joined(egraph, node, Binary::Mul, Unary::Exp, Binary::Add)
        });
        assert!(check(&right).unwrap().n_fired >= 8);
        let wrong = Rule::new("exp-lie", &[Kind::Binary], |egraph, node| {
            joined(egraph, node, Binary::Mul, Unary::Exp, Binary::Mul)
        });
        let sentence = check(&wrong).unwrap_err().to_string();
        assert!(sentence.contains("the rule `exp-lie`") && sentence.contains("it is false: y"), "{sentence}");
        // True where both logarithms are numbers; of two negative numbers they are none.
        let half = Rule::new("ln-join", &[Kind::Binary], |egraph, node| {
            joined(egraph, node, Binary::Add, Unary::Ln, Binary::Mul)
        });
        assert!(check(&half).unwrap().n_fired > 0);
        let all = half.that_holds_for(HoldsFor::Every);
        assert!(check(&all).unwrap_err().to_string().contains("`ln-join`: it is false"));
    }

    #[test]
    fn a_rule_that_never_fires_says_so() {
        let idle = Rule::new("idle", &[Kind::Binary], |_, _| Vec::new());
        assert!(check(&idle).unwrap_err().to_string().contains("fired on none"));
        let graph = random_graph(1).or_else(|| random_graph(2)).or_else(|| random_graph(3)).unwrap();
        assert!(check_on(&idle, &graph).unwrap_err().to_string().contains("does not fire"));
    }

    #[test]
    fn no_rule_of_the_compiler_is_called_false() {
        for rule in all().iter().filter(|rule| matches!(rule.search, Search::Nodes(..))) {
            if let Err(error) = check(rule) {
                assert!(error.to_string().contains("fired on none"), "{error}");
            }
        }
    }
}
