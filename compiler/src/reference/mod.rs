//! What every operation means: the slow evaluator that all else is held against.
//!
//! In: a graph and [`Bindings`] for its symbols, inputs, weights and states. Out: numbers, of the outputs or of every
//! node. Each element is computed in double precision and rounded once to the node's type; sums are rounded at their
//! end only.
//! This is the definition: no fast path may live here, and where a kernel disagrees the kernel is wrong.
//! Read `apply` below, then `element.rs` and `index.rs`; `compare.rs` holds every tolerance, `random.rs` makes
//! bindings.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::foundation::entity::List;
use crate::graph::op::Op;
use crate::graph::{Graph, Name, Node, NodeId};
use crate::tensor::label::Label;
use crate::tensor::quant::Format;
use crate::tensor::value::Value;

mod bind;
pub mod compare;
pub(crate) mod element;
mod index;
mod movement;
mod product;
pub mod random;
mod select;
#[cfg(test)]
mod tests;

use bind::Scope;
use index::Frame;

/// What a graph is evaluated with.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// The value of each symbol.
    pub symbols: BTreeMap<Label, i64>,
    /// The inputs by name, their axes in the declared order.
    pub inputs: BTreeMap<Name, Value>,
    /// The weights by name, as a file holds them.
    pub weights: BTreeMap<Name, Stored>,
    /// The states by name, as they are before the replay.
    pub states: BTreeMap<Name, Value>,
}

/// A stored tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// How its elements lie in the bytes.
    pub format: Format,
    /// The bytes.
    pub bytes: Arc<[u8]>,
}

/// What one step gives.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Results {
    /// The outputs by name.
    pub outputs: BTreeMap<Name, Value>,
    /// The states after the replay: those that are written, with every write done in the order of the graph.
    pub states: BTreeMap<Name, Value>,
}

/// Does one step of a graph.
///
/// # Errors
/// [`Error::Input`] where a binding is missing or does not fit, with its name as the place.
pub fn evaluate(graph: &Graph, bindings: &Bindings) -> Result<Results, Error> {
    let values = evaluate_all(graph, bindings)?;
    let outputs = graph.outputs.iter().map(|(name, id)| (name.clone(), values[*id].clone())).collect();
    let scope = Scope::new(graph, bindings)?;
    let mut states = BTreeMap::new();
    for (id, node) in graph.nodes.iter() {
        if let (Op::Write { .. }, Some(name)) = (&node.op, graph.state_of(id)) {
            let before = states.get(name).unwrap_or(&values[node.args[0]]);
            let others = node.args[1..].iter().map(|arg| &values[*arg]);
            let after = apply(graph, node, &[before].into_iter().chain(others).collect::<Vec<_>>(), &scope)?;
            states.insert(name.clone(), after);
        }
    }
    Ok(Results { outputs, states })
}

/// The value of every node, whether an output needs it or not.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_all(graph: &Graph, bindings: &Bindings) -> Result<List<NodeId, Value>, Error> {
    let scope = Scope::new(graph, bindings)?;
    let mut values: List<NodeId, Value> = List::default();
    for (_, node) in graph.nodes.iter() {
        let args: Vec<&Value> = node.args.iter().map(|arg| &values[*arg]).collect();
        let value = apply(graph, node, &args, &scope)?;
        values.push(value);
    }
    Ok(values)
}

/// One operation on its arguments, whose types were accepted by `infer`.
fn apply(graph: &Graph, node: &Node, args: &[&Value], scope: &Scope<'_>) -> Result<Value, Error> {
    let frame = Frame { dtype: node.ty.dtype, axes: scope.axes(&node.ty.shape) };
    Ok(match &node.op {
        Op::Input { name, .. } => scope.input(name, &frame)?,
        Op::Weight { name, format, .. } => scope.weight(name, *format, &frame)?,
        Op::State { name, format, .. } => scope.state(name, *format, &frame)?,
        Op::Const(scalar) => frame.filled([scalar.number()]),
        Op::Table { values, .. } => frame.filled(values.iter().map(|bits| f64::from(f32::from_bits(*bits)))),
        Op::Iota { .. } => frame.filled((0..frame.len()).map(|position| position as f64)),
        Op::Symbolic(sym) => frame.filled([element::wrapped(scope.number(sym))]),
        Op::Unary(f) => frame.filled(frame.read(args[0]).map(|x| element::unary(*f, x))),
        Op::Binary(f) => {
            let pairs = frame.read(args[0]).zip(frame.read(args[1]));
            frame.filled(pairs.map(|(a, b)| element::binary(*f, args[0].dtype, a, b)))
        }
        Op::Select => {
            let choices = frame.read(args[1]).zip(frame.read(args[2]));
            frame.filled(
                frame.read(args[0]).zip(choices).map(|(c, (yes, no))| if c == 0.0 { no } else { yes }),
            )
        }
        Op::Cast(dtype) => frame.filled(frame.read(args[0]).map(|x| element::cast(*dtype, x))),
        Op::Reduce { fold, axis } => product::reduce(&frame, args[0], *fold, *axis),
        Op::Split { axis, into } => movement::split(&frame, args[0], *axis, into),
        Op::Merge { axes, into } => movement::merge(&frame, args[0], axes, *into),
        Op::Rename { from, to } => movement::rename(&frame, args[0], *from, *to),
        // An argument reads the same at every position of an axis it lacks.
        Op::Expand { .. } => frame.filled(frame.read(args[0])),
        Op::Slice { axis, start, .. } => movement::slice(&frame, args[0], *axis, scope.whole(start)),
        Op::Concat { axis } => movement::concat(&frame, args, *axis),
        Op::Contract { over } => product::contract(&frame, args[0], args[1], over),
        Op::Gather { axis } => select::gather(&frame, args[0], args[1], *axis),
        Op::TopK { axis, into, k } => select::top_k(&frame, args[0], *axis, *into, *k),
        Op::Attend { over } => product::attend(&frame, args[0], args[1], args.get(2).copied(), over),
        Op::Write { axes } => {
            let written = select::write(&frame, args[0], args[1], axes, &args[2..]);
            // What was rounded before is not changed by being rounded again.
            graph.stored_format(node.args[0]).and_then(|format| written.stored_as(format)).unwrap_or(written)
        }
        Op::Barrier => args[0].clone(),
    })
}
