//! Builds the graph of an extraction.
//!
//! In: the original graph and a node for each class. Out: a graph with the same outputs and the same writes.
//! Outputs have the axes they had; their order may differ, so the layout of an output follows the original type.
//! A node keeps the author's line of the value it computes; one that the author did not write has that of its reader.

use std::collections::BTreeMap;

use egg::Id;

use crate::foundation::entity::List;
use crate::graph::infer::infer;
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};
use crate::rewrite::extract::Choices;
use crate::rewrite::language::{EGraph, ENode};
use crate::tensor::shape::Type;

/// The graph that computes the roots of `graph` as chosen; nothing where the choices go in circles.
pub(crate) fn emit(
    graph: &Graph,
    egraph: &EGraph,
    classes: &List<NodeId, Id>,
    choices: &Choices<'_>,
) -> Option<Graph> {
    let class_of = |node: NodeId| egraph.find(classes[node]);
    let roots: Vec<Id> = graph.roots().into_iter().map(class_of).collect();
    let order = choices.below(&roots)?;
    let written = written(graph, class_of);
    let origins = origins(&written, &order);

    let mut made = Graph { blocks: graph.blocks.clone(), ..Graph::default() };
    let mut places: BTreeMap<Id, NodeId> = BTreeMap::new();
    for (class, node) in order {
        let wanted = written.get(&class).map(|id| &graph.nodes[*id].ty);
        let (args, ty) = arrange(egraph, &made, &places, node, wanted)?;
        let origin = origins.get(&class).map(|id| &graph.nodes[*id]);
        let (block, site) = origin.map_or((None, None), |origin| (origin.block, origin.site));
        let op = Op::clone(&node.op);
        places.insert(class, made.push(Node { op, args, ty, block, site }));
    }
    made.outputs = graph.outputs.iter().map(|(name, id)| (name.clone(), places[&class_of(*id)])).collect();
    Some(made)
}

/// The first node of the original graph in each class.
fn written(graph: &Graph, class_of: impl Fn(NodeId) -> Id) -> BTreeMap<Id, NodeId> {
    let mut written = BTreeMap::new();
    for id in graph.nodes.ids() {
        written.entry(class_of(id)).or_insert(id);
    }
    written
}

/// The node of the original graph that each class stands for: its own, or that of a reader.
fn origins(written: &BTreeMap<Id, NodeId>, order: &[(Id, &ENode)]) -> BTreeMap<Id, NodeId> {
    let mut origins = written.clone();
    for (class, node) in order.iter().rev() {
        let Some(own) = origins.get(class).copied() else { continue };
        for arg in &node.args {
            origins.entry(*arg).or_insert(own);
        }
    }
    origins
}

/// The arguments, in the order that lays the result out as wanted: an activation before a weight, more axes before
/// fewer, unless the author's order can be had.
fn arrange(
    egraph: &EGraph,
    made: &Graph,
    places: &BTreeMap<Id, NodeId>,
    node: &ENode,
    wanted: Option<&Type>,
) -> Option<(Vec<NodeId>, Type)> {
    let infer = |args: &[Id]| {
        let args: Vec<NodeId> = args.iter().map(|arg| places[arg]).collect();
        let types: Vec<&Type> = args.iter().map(|arg| &made.nodes[*arg].ty).collect();
        infer(&node.op, &types).ok().map(|ty| (args, ty))
    };
    let mut args = node.args.clone();
    if !node.is_commutative() {
        return infer(&args);
    }
    args.sort_by_key(|arg| {
        let facts = &egraph[*arg].data;
        (facts.is_weight, std::cmp::Reverse(facts.ty.shape.rank()), places[arg])
    });
    let first = infer(&args)?;
    if wanted.is_none_or(|wanted| *wanted == first.1) {
        return Some(first);
    }
    args.reverse();
    let second = infer(&args)?;
    Some(if wanted == Some(&second.1) { second } else { first })
}
