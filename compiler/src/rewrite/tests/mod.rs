//! Whole blocks through the rules: which forms are found, and that all of them mean the same.
//!
//! `parts.rs` writes the parts of models as their authors would; `forms.rs` looks at what comes out at real sizes;
//! `meaning.rs` evaluates small ones.

use crate::graph::verify::verify;
use crate::graph::{Graph, NodeId};
use crate::reference::{compare, evaluate, random};
use crate::target::{CPU, Target};

mod forms;
mod meaning;
mod parts;

/// The target of most tests.
pub(crate) fn cpu() -> Target {
    CPU
}

/// Whether two graphs give the same numbers, up to rounding; otherwise what differs.
pub(crate) fn means_the_same(graph: &Graph, made: &Graph) -> Result<(), String> {
    if let Some(complaint) = verify(made).first() {
        return Err(complaint.to_string());
    }
    let bindings = random::bindings(graph, 5, &[]);
    let expected = evaluate(graph, &bindings).map_err(|error| error.to_string())?;
    let actual = evaluate(made, &bindings).map_err(|error| error.to_string())?;
    let tolerance = compare::Tolerance::of(graph);
    let pairs = expected.outputs.iter().map(|(name, value)| (name, value, actual.outputs.get(name)));
    let states = expected.states.iter().map(|(name, value)| (name, value, actual.states.get(name)));
    for (name, value, found) in pairs.chain(states) {
        let found = found.ok_or_else(|| format!("{name} is missing"))?;
        compare::close(value, found, tolerance).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// The nodes that do something of this name, as lines of text.
pub(crate) fn lines(graph: &Graph, op: &str) -> Vec<String> {
    let found = graph.nodes.iter().filter(|(_, node)| node.op.name() == op).map(|(id, _)| id);
    found.map(|id: NodeId| line(graph, id)).collect()
}

fn line(graph: &Graph, id: NodeId) -> String {
    let node = &graph.nodes[id];
    let args: Vec<String> = node.args.iter().map(|arg| graph.nodes[*arg].ty.shape.to_string()).collect();
    format!("{} {} -> {}", node.op.name(), args.join(" "), node.ty.shape)
}
