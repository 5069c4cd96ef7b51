//! Which values are written to memory.
//!
//! A cut is a set of nodes. Every node in it is stored by exactly one kernel; every other value is computed inside
//! the kernels that need it. Leaves with storage of their own (inputs, weights, states, tables) count as stored.
//! `merge.rs` chooses a cut, `kernel/lower` obeys it.

use std::collections::BTreeSet;

use crate::foundation::entity::List;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};

/// A set of values that live in memory between kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    stored: List<NodeId, bool>,
}

impl Cut {
    /// Everything that is computed is stored: one kernel for each operation except movement. The pieces of a
    /// concatenation may be stored together.
    pub fn everywhere(graph: &Graph) -> Self {
        let mut computed: List<NodeId, bool> = List::default();
        let mut stored: List<NodeId, bool> = List::default();
        for node in graph.nodes.values() {
            let is_movement = node.op.is_movement();
            let from_computed = node.args.iter().any(|arg| computed[*arg]);
            let is_computed = !node.op.is_leaf() && (!is_movement || from_computed);
            computed.push(is_computed);
            stored.push(is_computed && (!is_movement || matches!(node.op, Op::Concat { .. })));
        }
        for root in graph.roots() {
            stored[root] = true;
        }
        Self { stored }
    }

    /// Whether a kernel stores the value.
    pub fn has(&self, node: NodeId) -> bool {
        self.stored[node]
    }

    /// Whether the value can be loaded: it is stored, or is a leaf with storage of its own.
    pub fn is_loadable(&self, graph: &Graph, node: NodeId) -> bool {
        self.stored[node] || has_storage(&graph.nodes[node].op)
    }

    /// The stored values, in order.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.stored.iter().filter(|(_, stored)| **stored).map(|(node, _)| node)
    }

    /// Stops storing a value: its readers compute it themselves.
    pub fn dissolve(&mut self, node: NodeId) {
        self.stored[node] = false;
    }

    /// The fan-in cone of `roots`: everything that a kernel storing them computes (a backward slice that ends at stored
    /// values), in order, the roots included.
    pub fn cone(&self, graph: &Graph, roots: &[NodeId]) -> Vec<NodeId> {
        // Arguments precede their readers, so that the last node is never found again.
        let mut pending: BTreeSet<NodeId> = roots.iter().copied().collect();
        let mut cone = Vec::new();
        while let Some(node) = pending.pop_last() {
            cone.push(node);
            pending.extend(operands(graph, node).iter().filter(|arg| !self.is_loadable(graph, **arg)));
        }
        cone.reverse();
        cone
    }

    /// What a kernel that computes `cone` loads, in order, each once.
    pub fn loads(&self, graph: &Graph, cone: &[NodeId]) -> Vec<NodeId> {
        let mut loads: Vec<NodeId> = cone
            .iter()
            .flat_map(|node| operands(graph, *node))
            .copied()
            .filter(|arg| self.is_loadable(graph, *arg))
            .collect();
        loads.sort();
        loads.dedup();
        loads
    }
}

/// The arguments that a kernel reads to compute a node: a write reads its value, not the state it changes.
pub(crate) fn operands(graph: &Graph, node: NodeId) -> &[NodeId] {
    let args = graph.nodes[node].args.as_slice();
    if matches!(graph.nodes[node].op, Op::Write { .. }) { &args[1..] } else { args }
}

/// Whether a leaf is a buffer rather than a formula.
pub(crate) fn has_storage(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Table { .. })
}
