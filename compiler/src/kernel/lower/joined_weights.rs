//! Concatenated projections (such as q, k and v): each weight is computed by nests of its own.
//!
//! In: a contraction with concatenated weights. Out: the rows of each weight: as separate parts of a launch where rows
//! number tasks, else as consecutive nests. Selecting the weight row by row would be right as well, but no microkernel
//! does that. The target requires the split, and fusion decides without it.

use crate::graph::op::Op;
use crate::graph::{Node, NodeId};
use crate::kernel::VarId;
use crate::kernel::index::Index;
use crate::kernel::lower::grid::Grid;
use crate::kernel::lower::lowering::Lowering;
use crate::kernel::lower::nest_builder::At;
use crate::kernel::lower::part_builder::PartBuilder;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// The rows of one weight within the concatenation.
#[derive(Clone, Debug)]
pub(super) struct WeightRows {
    pub(super) axis: Axis,
    pub(super) start: i64,
    pub(super) end: i64,
}

/// The loops of a nest for the rows of one weight.
pub(super) struct WeightNest {
    pub(super) at: At,
    pub(super) loops: Vec<VarId>,
    pub(super) element: Vec<Index>,
}

impl Lowering<'_> {
    /// The rows of each part that stores these roots; none where one part stores all rows.
    pub(super) fn weights_of_parts(self, roots: &[NodeId], grid: &Grid) -> Vec<Option<WeightRows>> {
        let [root] = roots else { return vec![None] };
        let is_numbered =
            |rows: &WeightRows| grid.iter().any(|(axis, block)| *axis == rows.axis && block.is_some());
        let rows = self.joined(*root);
        if rows.iter().all(is_numbered) && !rows.is_empty() {
            rows.into_iter().map(Some).collect()
        } else {
            vec![None]
        }
    }

    /// The rows of each weight of a contraction with concatenated weights; none for any other.
    fn joined(self, node: NodeId) -> Vec<WeightRows> {
        let Self { graph, target, .. } = self;
        if !target.tuning.splits_joined_weights {
            return Vec::new();
        }
        let Node { op: Op::Contract { over }, args, .. } = &graph.nodes[node] else { return Vec::new() };
        for arg in args {
            let Node { op: Op::Concat { axis }, args: weights, .. } = &graph.nodes[*arg] else { continue };
            if over.contains(axis) || self.is_loadable(*arg) {
                continue;
            }
            let size = |weight: &NodeId| graph.nodes[*weight].ty.shape.size(*axis).and_then(Sym::as_const);
            let Some(sizes) = weights.iter().map(size).collect::<Option<Vec<i64>>>() else { continue };
            let mut end = 0;
            let rows = sizes.into_iter().map(|size| {
                end += size;
                WeightRows { axis: *axis, start: end - size, end }
            });
            return rows.filter(|rows| rows.start < rows.end).collect();
        }
        Vec::new()
    }
}

impl PartBuilder<'_> {
    /// One nest for each weight, where a loop runs through the rows of all.
    pub(super) fn nests_of_weights(
        &mut self,
        node: NodeId,
        at: &At,
        loops: Vec<VarId>,
        element: Vec<Index>,
    ) -> Vec<WeightNest> {
        let rows = self.from.joined(node);
        let whole = rows.first().zip(rows.last()).and_then(|(first, last)| {
            let var = at.get(first.axis).single_var()?;
            let all = self.part.vars[var].range.whole_len().and_then(Sym::as_const);
            (all == Some(last.end) && loops.contains(&var)).then_some(var)
        });
        let Some(whole) = whole else { return vec![WeightNest { at: at.clone(), loops, element }] };
        let run = |rows: WeightRows| {
            let sub_loop = self.sub_loop(whole, rows.start, rows.end - rows.start);
            let (moved, vars) = (|var| sub_loop.position(var), &self.part.vars);
            WeightNest {
                at: at.replaced(&moved, vars),
                loops: sub_loop.among(&loops),
                element: element.iter().map(|index| index.replaced(&moved, vars)).collect(),
            }
        };
        rows.into_iter().map(run).collect()
    }
}
