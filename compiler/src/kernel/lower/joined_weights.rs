//! Projections that were joined are computed apart: each weight by nests of its own.
//!
//! In: a contraction with weights one after another. Out: the runs of rows that belong to one weight each: as parts of
//! a launch where rows number tasks, else as nests one after another.
//! A nest that chooses the weight row by row is right as well, but processors have no product for it. So this is done
//! where the target asks for it, and fusion decides without it.

use crate::graph::op::Op;
use crate::graph::{Node, NodeId};
use crate::kernel::VarId;
use crate::kernel::index::Index;
use crate::kernel::lower::Lowering;
use crate::kernel::lower::grid::Grid;
use crate::kernel::lower::nest::At;
use crate::kernel::lower::part::PartBuilder;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// Rows of one weight among those of all.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) axis: Axis,
    pub(super) start: i64,
    pub(super) end: i64,
}

/// What a nest for some of the rows runs through.
pub(super) struct RunOfRows {
    pub(super) at: At,
    pub(super) loops: Vec<VarId>,
    pub(super) element: Vec<Index>,
}

impl Lowering<'_> {
    /// The rows of each part that stores these roots; nothing where one part stores all rows.
    pub(super) fn rows_of_parts(self, roots: &[NodeId], grid: &Grid) -> Vec<Option<Rows>> {
        let [root] = roots else { return vec![None] };
        let is_numbered =
            |rows: &Rows| grid.iter().any(|(axis, block)| *axis == rows.axis && block.is_some());
        let rows = self.joined(*root);
        if rows.iter().all(is_numbered) && !rows.is_empty() {
            rows.into_iter().map(Some).collect()
        } else {
            vec![None]
        }
    }

    /// The rows of each weight of a contraction whose weights are joined; none where they are not.
    fn joined(self, node: NodeId) -> Vec<Rows> {
        let Self { graph, target, .. } = self;
        if !target.keeps_apart {
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
                Rows { axis: *axis, start: end - size, end }
            });
            return rows.filter(|rows| rows.start < rows.end).collect();
        }
        Vec::new()
    }
}

impl PartBuilder<'_> {
    /// The same rows, run through weight by weight where one loop runs through all of them.
    pub(super) fn runs_of_rows(
        &mut self,
        node: NodeId,
        at: &At,
        loops: Vec<VarId>,
        element: Vec<Index>,
    ) -> Vec<RunOfRows> {
        let rows = self.from.joined(node);
        let whole = rows.first().zip(rows.last()).and_then(|(first, last)| {
            let var = at.get(first.axis).single_var()?;
            let all = self.part.vars[var].range.whole_len().and_then(Sym::as_const);
            (all == Some(last.end) && loops.contains(&var)).then_some(var)
        });
        let Some(whole) = whole else { return vec![RunOfRows { at: at.clone(), loops, element }] };
        let run = |rows: Rows| {
            let stretch = self.stretch(whole, rows.start, rows.end - rows.start);
            let (moved, vars) = (|var| stretch.position(var), &self.part.vars);
            RunOfRows {
                at: at.replaced(&moved, vars),
                loops: stretch.among(&loops),
                element: element.iter().map(|index| index.replaced(&moved, vars)).collect(),
            }
        };
        rows.into_iter().map(run).collect()
    }
}
