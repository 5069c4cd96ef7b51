//! Whole blocks through the rules: which forms are found, and that all of them mean the same.
//!
//! `parts.rs` writes the parts of models as their authors would; `forms.rs` looks at what comes out at real sizes;
//! `meaning.rs` evaluates small ones.

use crate::graph::{Graph, NodeId};
use crate::reference::compare::Tolerance;
use crate::reference::random;
use crate::rewrite::check::same;
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
    same(graph, made, &random::bindings(graph, 5, &[]), Tolerance::of(graph))
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
