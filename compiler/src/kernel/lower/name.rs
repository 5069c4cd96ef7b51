//! The name of a kernel: its skeleton, the weights it reads, and where its results go.
//!
//! In: the roots of a kernel and the cut around them. Out: words for people and for tables.
//! Nothing but text and tables may rest on a name.

use crate::fuse::cut::Cut;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};
use crate::kernel::Skeleton;
use crate::kernel::lower::grid::{heaviest_fold, stored_shape};
use crate::kernel::lower::params::storage_of;

/// More columns than this make a product of matrices.
const MANY_COLUMNS: i64 = 8;

/// The pattern that the heaviest fold of a kernel follows.
pub fn skeleton(graph: &Graph, cut: &Cut, roots: &[NodeId]) -> Skeleton {
    let folds: Vec<Skeleton> = roots.iter().filter_map(|root| fold_skeleton(graph, cut, *root)).collect();
    let order = [
        Skeleton::Attention,
        Skeleton::Experts,
        Skeleton::MatrixMatrix,
        Skeleton::MatrixVector,
        Skeleton::TopK,
        Skeleton::RowReduction,
    ];
    order.into_iter().find(|skeleton| folds.contains(skeleton)).unwrap_or(Skeleton::Map)
}

fn fold_skeleton(graph: &Graph, cut: &Cut, root: NodeId) -> Option<Skeleton> {
    let fold = heaviest_fold(graph, cut, root)?;
    let cone = cut.cone(graph, &[root]);
    let gathers = |node: &NodeId| matches!(graph.nodes[*node].op, Op::Gather { .. });
    Some(match &graph.nodes[fold].op {
        Op::Attend { .. } => Skeleton::Attention,
        Op::Contract { .. } if cone.iter().any(gathers) && reads_weight(graph, cut, &cone) => {
            Skeleton::Experts
        }
        Op::Contract { .. } => {
            let tokens = stored_shape(graph, root).iter().next().map_or(1, |(_, size)| size.near());
            if tokens > MANY_COLUMNS { Skeleton::MatrixMatrix } else { Skeleton::MatrixVector }
        }
        Op::TopK { .. } => Skeleton::TopK,
        _ => Skeleton::RowReduction,
    })
}

fn reads_weight(graph: &Graph, cut: &Cut, cone: &[NodeId]) -> bool {
    cut.loads(graph, cone).iter().any(|load| matches!(graph.nodes[*load].op, Op::Weight { .. }))
}

/// What a kernel is called.
pub fn name(graph: &Graph, cut: &Cut, roots: &[NodeId], skeleton: Skeleton) -> String {
    let cone = cut.cone(graph, roots);
    let mut words: Vec<String> = vec![skeleton.name().to_owned()];
    for load in cut.loads(graph, &cone) {
        if let Op::Weight { name, .. } = &graph.nodes[storage_of(graph, load)].op {
            words.push(short(name));
        } else if let Some(name) = graph.state_of(load) {
            words.push(short(name));
        }
    }
    let states = roots.iter().filter(|root| matches!(graph.nodes[**root].op, Op::Write { .. }));
    for root in states {
        words.push(format!("→{}", graph.state_of(*root).map(|name| short(name)).unwrap_or_default()));
    }
    if words.len() == 1 {
        let ops = cone.iter().map(|node| graph.nodes[*node].op.name()).filter(|op| *op != "const");
        let mut ops: Vec<&str> = ops.collect();
        ops.dedup();
        words.extend(ops.iter().rev().take(3).rev().map(|op| (*op).to_owned()));
    }
    words.join(" ")
}

/// A weight's name without the block it belongs to.
fn short(name: &str) -> String {
    name.strip_suffix(".weight").unwrap_or(name).rsplit('.').next().unwrap_or(name).to_owned()
}
