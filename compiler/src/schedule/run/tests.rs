//! Plans that are run against the reference.
//!
//! Every plan here also verifies; a wrong place in the arena would show in the numbers.

use super::*;
use crate::fuse::cut::Cut;
use crate::graph::Graph;
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::reference::compare::{Tolerance, close};
use crate::reference::evaluate;
use crate::reference::random::bindings;
use crate::schedule::samples::{everywhere, hazard_graph, layers, residual_graph, sequence};
use crate::schedule::{Home, Sequence, Step, plan, verify};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::sym::Symbol;
use proptest::prelude::*;

fn check(graph: &Graph, sequence: Sequence, symbols: &[(Label, i64)]) -> Plan {
    let plan = plan(sequence).unwrap();
    assert_eq!(verify::verify(&plan), []);
    let bindings = bindings(graph, 1, symbols);
    let (expected, found) = (evaluate(graph, &bindings).unwrap(), run(&plan, &bindings).unwrap());
    let tolerance = Tolerance::of(graph);
    for (expected, found) in [(expected.outputs, found.outputs), (expected.states, found.states)] {
        assert!(expected.keys().eq(found.keys()));
        for (name, value) in expected {
            close(&value, &found[&name], tolerance).unwrap_or_else(|error| panic!("{name}: {error}\n{plan}"));
        }
    }
    plan
}

#[test]
fn a_result_in_place_of_an_argument_changes_nothing() {
    let (graph, cut) = residual_graph();
    let plan = check(&graph, sequence(&graph, &cut), &[]);
    assert_eq!(plan.arena_bytes, 2 * 96 * 4);
}

#[test]
fn layers_reuse_one_another_s_memory() {
    let sequence = layers(5);
    let weights = sequence.values.values().filter(|value| value.home == Home::Weight);
    let (graph, _) = residual_graph();
    let mut bindings = bindings(&graph, 1, &[]);
    for value in weights {
        bindings.weights.insert(value.name.clone(), bindings.weights["w"].clone());
    }
    let shared = plan(sequence).unwrap();
    let mut apart = shared.clone();
    for id in shared.buffers.ids() {
        if let Place::Arena { offset } = &mut apart.buffers[id].place {
            *offset = apart.arena_bytes;
            apart.arena_bytes += 96 * 4;
        }
    }
    assert_eq!(run(&shared, &bindings).unwrap(), run(&apart, &bindings).unwrap());
    assert!(run(&shared, &bindings).unwrap().outputs["out"].number(0).is_finite());
    assert_eq!(shared.arena_bytes, 2 * 96 * 4);
}

#[test]
fn a_state_is_read_before_and_after_it_is_written() {
    let graph = hazard_graph();
    let plan = check(&graph, everywhere(&graph), &[]);
    let touches = |step: &Step, wanted: Access| {
        let is_state = |id: BufferId| plan.buffers[id].place == Place::State;
        plan.bound(step).any(|(_, access, id)| access == wanted && is_state(id))
    };
    let reads: Vec<usize> =
        (0..plan.steps.len()).filter(|step| touches(&plan.steps[*step], Access::Read)).collect();
    let write = plan.steps.iter().position(|step| touches(step, Access::Write)).unwrap();
    assert!(reads[0] < write && write < *reads.last().unwrap(), "{plan}");
    // Without the write the later reader sees what the earlier one saw.
    let mut late = plan.clone();
    late.steps.remove(write);
    let bindings = bindings(&graph, 1, &[]);
    let (good, late) = (run(&plan, &bindings).unwrap(), run(&late, &bindings).unwrap());
    assert_eq!(good.outputs["before"], late.outputs["before"]);
    assert_ne!(good.outputs["after"], late.outputs["after"]);
}

#[test]
fn symbolic_sizes_keep_the_layout_of_the_largest() {
    let t = Symbol::new(Label::new("T").unwrap(), 0, 6, 2);
    let g = Builder::new();
    let (rows, d) = (g.dim("t", t), g.dim("d", 8));
    let x = g.input("x", DType::F32, &[&d, &rows]);
    let table = g.table(&d, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let y = (&x * &table).exp();
    let graph = g.finish(&[("y", &y), ("sum", &y.sum(&rows))]).unwrap();
    for value in [0, 1, 4, 6] {
        check(&graph, everywhere(&graph), &[(t.name, value)]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let (graph, cut) = residual_graph();
    let plan = plan(sequence(&graph, &cut)).unwrap();
    let good = bindings(&graph, 1, &[]);
    let message = |bindings: &Bindings| run(&plan, bindings).unwrap_err().to_string();
    assert_eq!(message(&Bindings { inputs: BTreeMap::new(), ..good.clone() }), "x: there is no such input");
    let mut other = good;
    other.weights.insert("w".into(), Stored { format: Format::Q8_0, bytes: [0u8; 34].into() });
    assert_eq!(message(&other), "w: the weight does not fit, expected q8_0[d:96, e:96]");
}

/// Chains of sums, products and reversals over earlier values, some kept in registers.
fn graph_of(ops: &[(u8, usize, usize)]) -> Graph {
    let g = Builder::new();
    let (d, e) = (g.dim("d", 12), g.dim("e", 12));
    let mut values = vec![g.input("x", DType::F32, &[&d])];
    let w = g.weight("w", Format::F32, &[&d, &e]);
    for (op, a, b) in ops {
        let (a, b) = (&values[a % values.len()], &values[b % values.len()]);
        values.push(match op {
            0 => a + b,
            1 => a * b,
            2 => b + w.contract(&a.rename(&d, &e), [&e]),
            _ => a - b * 0.5,
        });
    }
    g.finish(&[("out", values.last().unwrap())]).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_plan_keeps_the_meaning(
        ops in proptest::collection::vec((0u8..4, 0usize..100, 0usize..100), 1..14),
        dissolved in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let graph = graph_of(&ops);
        let mut cut = Cut::everywhere(&graph);
        for (node, dissolve) in graph.nodes.ids().zip(dissolved) {
            let is_product = matches!(graph.nodes[node].op, Op::Contract { .. });
            let n_readers = graph.readers()[node].len();
            if dissolve && is_product && n_readers == 1 && !graph.roots().contains(&node) {
                cut.dissolve(node);
            }
        }
        check(&graph, sequence(&graph, &cut), &[]);
    }
}
