//! Inserts copies where one buffer would have to hold two values at a time (write-after-read hazards).
//!
//! In: a verified graph. Out: a graph of the same meaning with [`Op::Barrier`] copies, for which a launch order exists
//! and in which every output has a buffer of its own. Copied are: a value that reads a state as it was before a write,
//! but can only be computed after it; an output that lies in the buffer of a leaf or state; a second output of the same
//! value. Equal states become one node. Nothing else changes. `group.rs` finds no order without this.

use std::borrow::Cow;
use std::collections::BTreeMap;

use indexmap::IndexMap;

use crate::foundation::entity::List;
use crate::fuse::cut::{Cut, has_storage, operands};
use crate::graph::op::{Op, Role};
use crate::graph::{Graph, Node, NodeId};

/// The same graph with the copies that partitioning needs.
pub fn protect(graph: &Graph) -> Graph {
    let graph = separate_outputs(&with_states_once(graph)).into_owned();
    let late = late_readers(&graph);
    if late.is_empty() { graph } else { with_copies(&graph, &late) }
}

/// Merges nodes of the same state.
fn with_states_once(graph: &Graph) -> Graph {
    let mut first: BTreeMap<&Op, NodeId> = BTreeMap::new();
    let mut stands_for: List<NodeId, NodeId> = List::default();
    let mut made = graph.clone();
    for (id, node) in graph.nodes.iter() {
        let is_state = matches!(node.op, Op::State { .. });
        stands_for.push(if is_state { *first.entry(&node.op).or_insert(id) } else { id });
        made.nodes[id].args = node.args.iter().map(|arg| stands_for[*arg]).collect();
    }
    for (_, node) in &mut made.outputs {
        *node = stands_for[*node];
    }
    made
}

/// The same graph with every output computed, and only once; borrowed where that holds already.
pub fn separate_outputs(graph: &Graph) -> Cow<'_, Graph> {
    let is_foreign = |node: NodeId| has_storage(&graph.nodes[node].op) || graph.state_of(node).is_some();
    let is_second =
        |position: usize, node: NodeId| graph.outputs[..position].iter().any(|(_, other)| *other == node);
    let mut outputs = graph.outputs.iter().enumerate();
    let is_apart = outputs.all(|(position, (_, node))| !is_foreign(*node) && !is_second(position, *node));
    if is_apart { Cow::Borrowed(graph) } else { Cow::Owned(with_outputs_apart(graph)) }
}

fn with_outputs_apart(graph: &Graph) -> Graph {
    let mut made = graph.clone();
    for position in 0..made.outputs.len() {
        let node = made.outputs[position].1;
        let is_second = made.outputs[..position].iter().any(|(_, other)| *other == node);
        let is_foreign = has_storage(&made.nodes[node].op) || made.state_of(node).is_some();
        if is_second || is_foreign {
            made.outputs[position].1 = made.push(copy_of(graph, node, node));
        }
    }
    made
}

fn copy_of(graph: &Graph, node: NodeId, argument: NodeId) -> Node {
    let Node { ty, block, site, .. } = graph.nodes[node].clone();
    Node { op: Op::Barrier, args: vec![argument], ty, block, site }
}

/// Readers that can only run after a state was written, with the argument that reads the state from before.
fn late_readers(graph: &Graph) -> Vec<(NodeId, NodeId)> {
    let cut = Cut::everywhere(graph);
    let mut next = graph.readers();
    let writes = graph.nodes.iter().filter(|(_, node)| matches!(node.op, Op::Write { .. }));
    let writer: IndexMap<NodeId, NodeId> = writes.map(|(id, node)| (node.args[0], id)).collect();
    let mut late = Vec::new();
    for reader in cut.nodes() {
        for argument in operands(graph, reader) {
            for version in versions(graph, &cut, *argument) {
                let Some(write) = writer.get(&version) else { continue };
                if reaches(&next, *write, reader) {
                    late.push((reader, *argument));
                } else {
                    next[reader].push(*write);
                }
            }
        }
    }
    late
}

/// The versions of states that a value is a view of.
fn versions(graph: &Graph, cut: &Cut, node: NodeId) -> Vec<NodeId> {
    let Node { op, args, .. } = &graph.nodes[node];
    match op.role() {
        Role::Leaf if matches!(op, Op::State { .. }) => vec![node],
        Role::Write => vec![node],
        Role::Movement if !cut.has(node) => args.iter().flat_map(|arg| versions(graph, cut, *arg)).collect(),
        Role::Leaf | Role::Movement | Role::Elementwise | Role::Fold | Role::Gather | Role::Barrier => {
            Vec::new()
        }
    }
}

/// Whether `to` depends on `from`, or is it.
fn reaches(next: &List<NodeId, Vec<NodeId>>, from: NodeId, to: NodeId) -> bool {
    let mut seen: List<NodeId, bool> = next.ids().map(|_| false).collect();
    let mut pending = vec![from];
    while let Some(node) = pending.pop() {
        if node == to {
            return true;
        }
        if !std::mem::replace(&mut seen[node], true) {
            pending.extend(&next[node]);
        }
    }
    false
}

/// The graph in which late readers read copies instead.
fn with_copies(graph: &Graph, late: &[(NodeId, NodeId)]) -> Graph {
    let mut made = Graph { blocks: graph.blocks.clone(), ..Graph::default() };
    let mut place: List<NodeId, NodeId> = List::default();
    let mut copies: IndexMap<NodeId, NodeId> = IndexMap::new();
    for (id, node) in graph.nodes.iter() {
        let is_write = matches!(node.op, Op::Write { .. });
        let mut args = Vec::new();
        for (position, arg) in node.args.iter().enumerate() {
            let is_written_to = is_write && position == 0;
            if is_written_to || !late.contains(&(id, *arg)) {
                args.push(place[*arg]);
                continue;
            }
            let copy = copies.entry(*arg).or_insert_with(|| made.push(copy_of(graph, *arg, place[*arg])));
            args.push(*copy);
        }
        place.push(made.push(Node { args, ..node.clone() }));
    }
    made.outputs = graph.outputs.iter().map(|(name, node)| (name.clone(), place[*node])).collect();
    made
}
