//! The name of a kernel: its skeleton, the weights it reads, and where its results go.
//!
//! In: the roots of a kernel and the cut around them. Out: words for people and for tables.
//! Nothing but text and tables may rest on a name.

use crate::fuse::cut::Cut;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};
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
    let gathers = |node: &NodeId| matches!(graph.nodes[*node].op, Op::Gather { .. });
    Some(match &graph.nodes[fold].op {
        Op::Attend { .. } => Skeleton::Attention,
        Op::Contract { .. } if cone.iter().any(gathers) && reads_weight(graph, cut, &cone) => {
            Skeleton::Experts
        }
        Op::Contract { .. } => {
            let n_columns = grid::n_columns(graph, fold);
            if n_columns > MANY_COLUMNS { Skeleton::MatrixMatrix } else { Skeleton::MatrixVector }
        }
        Op::TopK { .. } => Skeleton::TopK,
        _ => Skeleton::RowReduction,
    })
}

fn reads_weight(graph: &Graph, cut: &Cut, cone: &[NodeId]) -> bool {
    cut.loads(graph, cone).iter().any(|load| matches!(graph.nodes[*load].op, Op::Weight { .. }))
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
