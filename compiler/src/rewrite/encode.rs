//! Builds the e-graph of a graph.
//!
//! In: a verified graph. Out: an [`Encoded`] e-graph that holds each of its nodes, in the same order, with the class of
//! each. Nothing is simplified here. The way back is `emit.rs`.

use std::sync::Arc;

use egg::Id;

use crate::foundation::entity::List;
use crate::graph::{Graph, NodeId};
use crate::rewrite::facts::Meaning;
use crate::rewrite::language::{EGraph, ENode};

/// A graph as an e-graph.
pub(crate) struct Encoded {
    /// The e-graph.
    pub(crate) egraph: EGraph,
    /// The class that each node of the graph went to.
    pub(crate) classes: List<NodeId, Id>,
}

/// The e-graph that says just what the graph says.
pub(crate) fn encode(graph: &Graph) -> Encoded {
    let mut egraph = EGraph::new(Meaning);
    let mut classes: List<NodeId, Id> = List::default();
    for node in graph.nodes.values() {
        let args = node.args.iter().map(|arg| classes[*arg]).collect();
        classes.push(egraph.add(ENode::new(Arc::new(node.op.clone()), args)));
    }
    egraph.rebuild();
    Encoded { egraph, classes }
}
