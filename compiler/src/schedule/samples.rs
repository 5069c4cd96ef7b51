//! Sequences for the tests of this folder.
//!
//! In: small graphs with a cut. Out: the launches that fusion and lowering make of them, one graph as one instance;
//! [`layers`] launches the kernels of one block again and again, as a model does.

use std::collections::BTreeMap;

use crate::foundation::entity::Id;
use crate::fuse::barrier::Barrier;
use crate::fuse::cut::Cut;
use crate::fuse::fused::Fused;
use crate::fuse::group::Dependences;
use crate::graph::Graph;
use crate::graph::build::Builder;
use crate::graph::op::Op;
use crate::kernel::lower::lower;
use crate::kernel::lower::params::Buffer;
use crate::kernel::{Access, Param};
use crate::schedule::{BufferId, Home, Sequence, Step, Value};
use crate::target::CPU;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// The launches of a graph under a cut.
pub(super) fn sequence(graph: &Graph, cut: &Cut) -> Sequence {
    let target = CPU;
    let mut sequence = Sequence::default();
    let mut known: BTreeMap<Buffer, BufferId> = BTreeMap::new();
    for roots in Dependences::of(graph, cut).groups(graph).unwrap() {
        let is_output = roots.iter().any(|root| graph.output_of(*root).is_some());
        let barrier = if is_output { Barrier::Output } else { Barrier::NotTried };
        for (kernel, buffers) in lower(graph, cut, &roots, &target).unwrap() {
            let mut args = Vec::new();
            for (param, buffer) in kernel.params.values().zip(buffers) {
                let new = || sequence.values.push(value(graph, buffer, param));
                args.push(*known.entry(buffer).or_insert_with(new));
            }
            let kernel = sequence.kernels.push(kernel);
            sequence.steps.push(Step {
                kernel,
                args,
                instance: 0,
                fused: Fused::of(graph, &roots),
                barriers: vec![barrier],
            });
        }
    }
    sequence
}

/// The launches of a graph that stores everything.
pub(super) fn everywhere(graph: &Graph) -> Sequence {
    sequence(graph, &Cut::everywhere(graph))
}

fn value(graph: &Graph, buffer: Buffer, param: &Param) -> Value {
    let Param { name, format, shape, access: _ } = param.clone();
    let (name, home) = match buffer {
        Buffer::Scratch(..) => (name, Home::Temporary),
        Buffer::Node(node) => match &graph.nodes[node].op {
            Op::Input { .. } => (name, Home::Input),
            Op::Weight { .. } => (name, Home::Weight),
            Op::State { .. } => (name, Home::State),
            Op::Table { values, .. } => (name, Home::Constant(values.clone())),
            _ => graph.output_of(node).map_or((name, Home::Temporary), |name| (name.clone(), Home::Output)),
        },
    };
    Value { name, format, shape, home }
}

/// `y = x + W·a` in one kernel between others: the steps write h, a, y and out.
pub(super) fn residual_graph() -> (Graph, Cut) {
    let g = Builder::new();
    let (d, e) = (g.dim("d", 96), g.dim("e", 96));
    let x = g.input("x", DType::F32, &[&d]);
    let h = &x * 2.0;
    let a = h.sin();
    let w = g.weight("w", Format::Q8_0, &[&d, &e]);
    let y = &h + w.contract(&a.rename(&d, &e), [&e]);
    let graph = g.finish(&[("out", &(y * 3.0))]).unwrap();
    let mut cut = Cut::everywhere(&graph);
    let product = graph.nodes.iter().find(|(_, node)| matches!(node.op, Op::Contract { .. })).unwrap().0;
    cut.dissolve(product);
    (graph, cut)
}

pub(super) fn residual() -> Sequence {
    let (graph, cut) = residual_graph();
    sequence(&graph, &cut)
}

/// `n` layers of the middle of [`residual`], each with its own weight.
pub(super) fn layers(n: usize) -> Sequence {
    let Sequence { kernels, mut values, steps } = residual();
    let [first, sine, add, last] = <[Step; 4]>::try_from(steps).unwrap();
    let written = |step: &Step| {
        let mut args = kernels[step.kernel].params.values().zip(&step.args);
        *args.find(|(param, _)| param.access == Access::Write).unwrap().1
    };
    let (h, y) = (written(&first), written(&add));
    let w = *add.args.iter().find(|arg| values[**arg].home == Home::Weight).unwrap();
    let mut steps = vec![first];
    let mut stream = h;
    for instance in 0..n {
        let mut own = vec![(h, stream)];
        for id in [written(&sine), w, y] {
            let value = values[id].clone();
            own.push((id, values.push(Value { name: format!("{instance}.{}", value.name).into(), ..value })));
        }
        steps.extend([&sine, &add].map(|step| replaced(step, &own, instance)));
        stream = own[3].1;
    }
    steps.push(replaced(&last, &[(y, stream)], n));
    without_unused(Sequence { kernels, values, steps })
}

/// The same step with other values.
fn replaced(step: &Step, with: &[(BufferId, BufferId)], instance: usize) -> Step {
    let own = |arg: &BufferId| with.iter().find(|(from, _)| from == arg).map_or(*arg, |(_, to)| *to);
    Step { args: step.args.iter().map(own).collect(), instance, ..step.clone() }
}

fn without_unused(sequence: Sequence) -> Sequence {
    let mut renamed: BTreeMap<BufferId, BufferId> = BTreeMap::new();
    let Sequence { kernels, values, mut steps } = sequence;
    for arg in steps.iter_mut().flat_map(|step| &mut step.args) {
        let next = BufferId::from_index(renamed.len());
        *arg = *renamed.entry(*arg).or_insert(next);
    }
    let mut kept: Vec<(BufferId, BufferId)> = renamed.into_iter().map(|(old, new)| (new, old)).collect();
    kept.sort();
    let values = kept.into_iter().map(|(_, old)| values[old].clone()).collect();
    Sequence { kernels, values, steps }
}

/// A state that is read, written over in part, and read again.
pub(super) fn hazard_graph() -> Graph {
    let g = Builder::new();
    let (n, d) = (g.dim("n", 8), g.dim("d", 4));
    let new = g.dim("new", 1);
    let cache = g.state("cache", Format::F16, &[&n, &d]);
    let x = g.input("x", DType::F32, &[&new, &d]);
    let before = cache.cast(DType::F32).sum(&n);
    let row = (&x + before.expand(&new)).cast(DType::F16);
    let after = cache.write_run(&n, 5, &row, &new).cast(DType::F32).max(&n);
    g.finish(&[("before", &before), ("after", &after)]).unwrap()
}
