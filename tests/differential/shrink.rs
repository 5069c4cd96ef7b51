//! Makes a failing graph small.
//!
//! In: a graph and a test that it fails. Out: a graph that fails as well and has no part that could be left out:
//! outputs go, nodes give way to an argument of the same type or to an input, what nothing needs goes.

use fusebox_compiler::foundation::entity::List;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::graph::verify::verify;
use fusebox_compiler::graph::{Graph, Node, NodeId};

/// A smaller graph that `fails` as well.
pub(crate) fn shrink(graph: &Graph, fails: impl Fn(&Graph) -> bool) -> Graph {
    let mut smallest = without_dead(graph);
    if !fails(&smallest) {
        smallest = graph.clone();
    }
    while let Some(smaller) = candidates(&smallest)
        .into_iter()
        .find(|other| size(other) < size(&smallest) && verify(other).is_empty() && fails(other))
    {
        smallest = smaller;
    }
    smallest
}

/// What gets smaller: nodes, then what is not an input yet.
fn size(graph: &Graph) -> (usize, usize, usize) {
    let computed = graph.nodes.values().filter(|node| !node.op.is_leaf()).count();
    (computed, graph.nodes.len(), graph.outputs.len())
}

fn candidates(graph: &Graph) -> Vec<Graph> {
    let mut found = Vec::new();
    for position in 0..graph.outputs.len() {
        let mut other = graph.clone();
        other.outputs.remove(position);
        found.push(without_dead(&other));
    }
    for (id, node) in graph.nodes.iter() {
        if !node.op.is_leaf() {
            let mut other = graph.clone();
            other.outputs = vec![("y".into(), id)];
            found.push(without_dead(&other));
        }
    }
    for (id, node) in graph.nodes.iter() {
        for arg in node.args.iter().filter(|arg| graph.nodes[**arg].ty == node.ty) {
            found.push(without_dead(&bypassed(graph, id, *arg)));
        }
        if !node.op.is_leaf() {
            let mut other = graph.clone();
            let name = format!("in{}", other.nodes.ids().position(|other| other == id).unwrap_or(0));
            let op = Op::Input { name: name.into(), ty: node.ty.clone() };
            other.nodes[id] = Node { op, args: Vec::new(), ..node.clone() };
            found.push(without_dead(&other));
        }
    }
    found
}

/// The graph in which `by` is used instead of a node.
fn bypassed(graph: &Graph, gone: NodeId, by: NodeId) -> Graph {
    let mut other = graph.clone();
    let ids: Vec<NodeId> = other.nodes.ids().collect();
    for id in ids {
        for arg in other.nodes[id].args.iter_mut().filter(|arg| **arg == gone) {
            *arg = by;
        }
    }
    for (_, output) in other.outputs.iter_mut().filter(|(_, output)| *output == gone) {
        *output = by;
    }
    // A write that nothing reads is still done.
    other.nodes[gone] = Node { op: Op::Barrier, args: vec![by], ..other.nodes[gone].clone() };
    other
}

/// The graph without the nodes that no output and no write needs.
fn without_dead(graph: &Graph) -> Graph {
    let mut needed: List<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
    let mut pending = graph.roots();
    while let Some(node) = pending.pop() {
        if !std::mem::replace(&mut needed[node], true) {
            pending.extend(&graph.nodes[node].args);
        }
    }
    let mut made = Graph { blocks: graph.blocks.clone(), ..Graph::default() };
    let mut place: List<NodeId, Option<NodeId>> = List::default();
    for (id, node) in graph.nodes.iter() {
        let args = node.args.iter().filter_map(|arg| place[*arg]).collect();
        place.push(needed[id].then(|| made.push(Node { args, ..node.clone() })));
    }
    let outputs = graph.outputs.iter().filter_map(|(name, node)| Some((name.clone(), place[*node]?)));
    made.outputs = outputs.collect();
    made
}
