//! Which values are written to memory.
//!
//! A cut is a set of nodes. Every node in it is stored by exactly one kernel; every other value is computed inside
//! the kernels that need it. Leaves with storage of their own (inputs, weights, states, tables) count as stored.
//! A view of a weight is in no cut: kernels decode what they read, and the dequantised form of a matrix is never
//! written to memory, not even that of matrices which are gathered for each token.
//! `merge.rs` chooses a cut, `kernel/lower` obeys it.

use std::collections::BTreeSet;

use crate::foundation::entity::List;
use crate::graph::op::{Binary, Op};
use crate::graph::{Graph, Node, NodeId};
use crate::tensor::dtype::DType;

/// A set of values that live in memory between kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    stored: List<NodeId, bool>,
}

impl Cut {
    /// Everything that is computed is stored: one kernel for each operation except movement. The pieces of a
    /// concatenation may be stored together. Views of weights are not stored, and neither are numbers of positions,
    /// from which masks are known.
    pub fn everywhere(graph: &Graph) -> Self {
        let is_weight = weight_views(graph);
        let mut computed: List<NodeId, bool> = List::default();
        let mut stored: List<NodeId, bool> = List::default();
        for (id, node) in graph.nodes.iter() {
            let is_movement = node.op.is_movement();
            let from_computed = node.args.iter().any(|arg| computed[*arg]);
            let is_computed = !node.op.is_leaf() && (!is_movement || from_computed) && !is_weight[id];
            computed.push(is_computed);
            let is_number = is_sum_of(graph, id, &is_position_or_input);
            stored.push(is_computed && !is_number && (!is_movement || matches!(node.op, Op::Concat { .. })));
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

    /// Keeps a value in memory.
    #[cfg(test)]
    pub(crate) fn store(&mut self, node: NodeId) {
        self.stored[node] = true;
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

/// Whether a value is a sum of positions and symbols, which a kernel computes wherever it wants it.
pub(crate) fn is_position(graph: &Graph, node: NodeId) -> bool {
    is_sum_of(graph, node, &|leaf| matches!(leaf.op, Op::Iota { .. } | Op::Symbolic(_) | Op::Const(_)))
}

/// The same, and a single number that is an input: how many tokens a sequence has.
fn is_position_or_input(leaf: &Node) -> bool {
    match leaf.op {
        Op::Iota { .. } | Op::Symbolic(_) | Op::Const(_) => true,
        Op::Input { .. } => leaf.ty.dtype == DType::I32 && leaf.ty.shape.rank() == 0,
        _ => false,
    }
}

fn is_sum_of(graph: &Graph, node: NodeId, is_part: &dyn Fn(&Node) -> bool) -> bool {
    let Node { op, args, .. } = &graph.nodes[node];
    match op {
        Op::Binary(Binary::Add | Binary::Sub) => args.iter().all(|arg| is_sum_of(graph, *arg, is_part)),
        Op::Split { .. } | Op::Merge { .. } | Op::Rename { .. } | Op::Slice { .. } | Op::Expand { .. } => {
            is_sum_of(graph, args[0], is_part)
        }
        _ => is_part(&graph.nodes[node]),
    }
}

/// The arguments that a kernel reads to compute a node: a write reads its value, not the state it changes.
pub(crate) fn operands(graph: &Graph, node: NodeId) -> &[NodeId] {
    let args = graph.nodes[node].args.as_slice();
    if matches!(graph.nodes[node].op, Op::Write { .. }) { &args[1..] } else { args }
}

/// Which values are views of a stored matrix: what movement, casts and gathers make of a weight. A gathered matrix is
/// one, a gathered row is not: the embedding of a token is a vector to compute with.
pub(crate) fn weight_views(graph: &Graph) -> List<NodeId, bool> {
    let mut views: List<NodeId, bool> = List::default();
    for Node { op, args, .. } in graph.nodes.values() {
        let is_view = match op {
            Op::Weight { shape, .. } => shape.rank() >= 2,
            Op::Gather { .. } => views[args[0]] && graph.nodes[args[0]].ty.shape.rank() > 2,
            Op::Cast(_) => views[args[0]],
            _ => op.is_movement() && args.iter().all(|arg| views[*arg]),
        };
        views.push(is_view);
    }
    views
}

/// Whether a leaf is a buffer rather than a formula.
pub(crate) fn has_storage(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Table { .. })
}
