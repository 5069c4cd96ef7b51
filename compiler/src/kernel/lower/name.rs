//! The name of a kernel: its skeleton, the weights it reads, and where its results go.
//!
//! In: the roots of a kernel and the cut around them. Out: words for people and for tables.
//! Nothing but text and tables may rest on a name.

use crate::fuse::cut::Cut;
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};
use crate::kernel::lower::grid::{self, heaviest_fold};
use crate::kernel::lower::params::Buffer;
use crate::kernel::{Access, Skeleton};

/// More columns than this make a GEMM.
const MANY_COLUMNS: i64 = 8;

/// The pattern that the heaviest fold of a kernel follows.
pub(super) fn skeleton(graph: &Graph, cut: &Cut, roots: &[NodeId]) -> Skeleton {
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
    Some(match &graph.nodes[fold].op {
        Op::Attend { .. } => Skeleton::Attention,
        Op::Contract { .. } if cone.iter().any(|node| picks_weights(graph, *node)) => Skeleton::Experts,
        Op::Contract { .. } => {
            let n_columns = grid::n_columns(graph, fold);
            if n_columns > MANY_COLUMNS { Skeleton::MatrixMatrix } else { Skeleton::MatrixVector }
        }
        Op::TopK { .. } => Skeleton::TopK,
        _ => Skeleton::RowReduction,
    })
}

/// Whether a node picks rows of a weight, as tokens do of experts.
fn picks_weights(graph: &Graph, node: NodeId) -> bool {
    let Node { op: Op::Gather { .. }, args, .. } = &graph.nodes[node] else { return false };
    let mut table = args[0];
    while graph.nodes[table].op.is_movement() {
        table = graph.nodes[table].args[0];
    }
    matches!(graph.nodes[table].op, Op::Weight { .. })
}

/// The name of a kernel: the weights and states it reads, and the states it writes.
pub(super) fn name(
    graph: &Graph,
    cut: &Cut,
    roots: &[NodeId],
    skeleton: Skeleton,
    buffers: &[(Buffer, Access)],
) -> String {
    let mut words: Vec<String> = vec![skeleton.name().to_owned()];
    let mut written = Vec::new();
    for (buffer, access) in buffers {
        let Buffer::Node(node) = buffer else { continue };
        match (&graph.nodes[*node].op, access) {
            (Op::Weight { name, .. } | Op::State { name, .. }, Access::Read) => words.push(short(name)),
            (Op::State { name, .. }, Access::Write) => written.push(format!("→{}", short(name))),
            _ => {}
        }
    }
    words.extend(written);
    if words.len() == 1 {
        let cone = cut.cone(graph, roots);
        let ops =
            cone.iter().map(|node| &graph.nodes[*node].op).filter(|op| !op.is_leaf() && !op.is_movement());
        let mut ops: Vec<&str> = ops.map(Op::name).filter(|op| *op != skeleton.name()).collect();
        ops.dedup();
        words.extend(ops.iter().rev().take(3).rev().map(|op| (*op).to_owned()));
    }
    words.join(" ")
}

/// A weight's name without the block it belongs to; a bias keeps its ending.
fn short(name: &str) -> String {
    let (name, ending) = name.strip_suffix(".bias").map_or((name, ""), |name| (name, ".bias"));
    let name = name.strip_suffix(".weight").unwrap_or(name);
    format!("{}{ending}", name.rsplit('.').next().unwrap_or(name))
}
