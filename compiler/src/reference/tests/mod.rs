//! The evaluator's own tests, and the helpers they share.
//!
//! `operations.rs` holds each operation to literal numbers; `composed.rs` holds norms, softmax, attention and caches
//! to plain loops over arrays.
//! No test here may compare the evaluator with itself alone.

use std::collections::BTreeMap;

use super::{Bindings, Results, Stored, evaluate};
use crate::graph::build::Tensor;
use crate::graph::infer::infer;
use crate::graph::op::Op;
use crate::graph::{Graph, Name, Node, NodeId};
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::shape::Axis;
use crate::tensor::value::Value;

mod composed;
mod operations;

fn label(name: &str) -> Label {
    Label::new(name).unwrap()
}

fn axes(axes: &[(&str, usize)]) -> Vec<(Axis, usize)> {
    axes.iter().map(|(name, size)| (label(name), *size)).collect()
}

fn floats(of: &[(&str, usize)], data: &[f32]) -> Value {
    Value::float(DType::F32, axes(of), data.to_vec())
}

fn ints(of: &[(&str, usize)], data: &[i32]) -> Value {
    Value::int(axes(of), data.to_vec())
}

/// Bindings of these inputs, without symbols, weights and states.
fn inputs(values: &[(&str, Value)]) -> Bindings {
    let named = |(name, value): &(&str, Value)| (Name::from(*name), value.clone());
    Bindings { inputs: values.iter().map(named).collect(), ..Bindings::default() }
}

fn symbols(values: &[(&str, i64)]) -> BTreeMap<Label, i64> {
    values.iter().map(|(name, value)| (label(name), *value)).collect()
}

fn stored(format: crate::tensor::quant::Format, bytes: &[u8]) -> Stored {
    Stored { format, bytes: bytes.into() }
}

/// The value of a tensor.
fn value_of(tensor: &Tensor, bindings: &Bindings) -> Value {
    let graph = tensor.builder().finish(&[("out", tensor)]).unwrap();
    evaluate(&graph, bindings).unwrap().outputs["out"].clone()
}

/// One step of a graph whose one output is the tensor.
fn step(tensor: &Tensor, bindings: &Bindings) -> Results {
    evaluate(&tensor.builder().finish(&[("out", tensor)]).unwrap(), bindings).unwrap()
}

/// The value of `attend`, which authors do not write: the compiler finds it.
fn attended(scores: &Tensor, values: &Tensor, over: &str, bindings: &Bindings) -> Value {
    let mut graph = scores.builder().finish(&[("scores", scores), ("values", values)]).unwrap();
    let args: Vec<NodeId> = graph.outputs.iter().map(|(_, id)| *id).collect();
    let id = push(&mut graph, Op::Attend { over: vec![label(over)] }, args);
    graph.outputs = vec![("out".into(), id)];
    evaluate(&graph, bindings).unwrap().outputs["out"].clone()
}

fn push(graph: &mut Graph, op: Op, args: Vec<NodeId>) -> NodeId {
    let ty = infer(&op, &args.iter().map(|arg| &graph.nodes[*arg].ty).collect::<Vec<_>>()).unwrap();
    graph.push(Node { op, args, ty, block: None, site: None })
}
