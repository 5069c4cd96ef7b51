//! Lowering: the values that a kernel stores become loops over tasks and tiles.
//!
//! In: a graph, a cut, and the roots that one launch stores. Out: kernels in order, with the buffers their parameters
//! are bound to: one kernel, or two where attention is split over positions (then partial results are combined), or
//! where many rows are routed to experts (then products are summed). Any cut can be lowered, and the result is right
//! for any cut; `grid.rs` and `measure.rs` are about what it costs. Read `part_builder.rs` next: `value/` makes
//! expressions, `tiles/` decides what is computed into tiles, and fills them.

use crate::fuse::cut::Cut;
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::{Access, Kernel, ParamId, Place, Range, Skeleton, TileId, VarId};
use crate::target::{MIN_POSITIONS_PER_STEP, Target};
use crate::tensor::label::Label;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

mod attention;
mod axis_span;
mod expert_split;
mod grid;
mod joined_weights;
mod lowering;
mod name;
mod nest_builder;
pub mod params;
mod part_builder;
mod store;
mod tiles;
mod value;

use axis_span::AxisSpan;
use grid::Grid;
use lowering::Lowering;
use nest_builder::NestBuilder;
use params::{Buffer, Params};
use part_builder::{PartBuilder, Partial, TooLarge};
use tiles::tile_requests::TileRequests;

/// A kernel, and the buffers its parameters are bound to.
pub type Bound = (Kernel, Vec<Buffer>);

/// The kernels that store `roots`; none where there is nothing to store.
///
/// # Errors
/// `TooLarge` where the computation is not worth one kernel; never when every argument is stored.
pub fn lower(graph: &Graph, cut: &Cut, roots: &[NodeId], target: &Target) -> Result<Vec<Bound>, TooLarge> {
    // A value without elements needs no store.
    let roots: Vec<NodeId> =
        roots.iter().copied().filter(|root| !grid::stored_shape(graph, *root).is_empty()).collect();
    if roots.is_empty() {
        return Ok(Vec::new());
    }
    let lowering = Lowering { graph, cut, target };
    let (partial, first) = if let Some(partial) = lowering.split_attention(&roots) {
        let first = lowering.partial_attention(&partial)?;
        (partial, first)
    } else if let Some((partial, routing)) = lowering.split_experts(&roots) {
        let first = lowering.partial_experts(&partial, &routing)?;
        (partial, first)
    } else {
        return Ok(vec![lowering.whole(&roots, None)?]);
    };
    let second = lowering.whole(&roots, Some(&partial))?;
    Ok(vec![first, second])
}

impl Lowering<'_> {
    fn whole(self, roots: &[NodeId], partial: Option<&Partial>) -> Result<Bound, TooLarge> {
        let mut params = Params::default();
        let mut parts = Vec::new();
        for roots in self.shared_parts(roots, partial) {
            let grid = self.grid(roots[0], partial.map(|partial| partial.node));
            for rows in self.weights_of_parts(&roots, &grid) {
                let build = |params: &mut Params, merged: &TileRequests| {
                    let mut builder = PartBuilder::new(self, params, partial, merged);
                    let shape = grid::stored_shape(self.graph, roots[0]);
                    let places = builder.open_grid(shape, &grid, rows.as_ref());
                    for root in &roots {
                        builder.store(*root, &places)?;
                    }
                    Ok(builder.finish())
                };
                parts.push(built_twice(&mut params, build)?);
            }
        }
        let skeleton = match partial {
            Some(_) => Skeleton::Combine,
            None => name::skeleton(self.graph, self.cut, roots),
        };
        self.finish(roots, skeleton, params, parts)
    }

    /// A kernel of one part that stores partial results of a value.
    fn of_partial(
        self,
        node: NodeId,
        skeleton: Skeleton,
        build: impl Fn(&mut PartBuilder<'_>) -> Result<(), TooLarge>,
    ) -> Result<Bound, TooLarge> {
        let mut params = Params::default();
        let part = built_twice(&mut params, |params, merged| {
            let mut builder = PartBuilder::new(self, params, None, merged);
            build(&mut builder)?;
            Ok(builder.finish())
        })?;
        self.finish(&[node], skeleton, params, vec![part])
    }

    fn finish(
        self,
        roots: &[NodeId],
        skeleton: Skeleton,
        params: Params,
        parts: Vec<super::Part>,
    ) -> Result<Bound, TooLarge> {
        if params.clash {
            return Err(TooLarge);
        }
        let name = name::name(self.graph, self.cut, roots, skeleton, &params.accesses());
        let (params, buffers) = params.finish();
        Ok((Kernel { name, skeleton, params, parts }, buffers))
    }

    /// Roots of equal shape and grid that share a fold are stored by one part; every other has its own.
    fn shared_parts(self, roots: &[NodeId], partial: Option<&Partial>) -> Vec<Vec<NodeId>> {
        let Self { graph, cut, .. } = self;
        let mut parts: Vec<(Vec<NodeId>, Grid, Option<NodeId>)> = Vec::new();
        for root in roots {
            let grid = self.grid(*root, partial.map(|partial| partial.node));
            let fold = grid::heaviest_fold(graph, cut, *root);
            let shape = grid::stored_shape(graph, *root);
            let same = parts.iter_mut().find(|(others, other_grid, other_fold)| {
                fold.is_some()
                    && fold == *other_fold
                    && grid == *other_grid
                    && shape == grid::stored_shape(graph, others[0])
                    && !self.reads_slices(*root)
            });
            match same {
                Some((others, ..)) => others.push(*root),
                None => parts.push((vec![*root], grid, fold)),
            }
        }
        parts.into_iter().map(|(roots, ..)| roots).collect()
    }

    /// Whether the root takes only a slice of what it computes, as readers of a concatenated projection do.
    fn reads_slices(self, root: NodeId) -> bool {
        let is_slice = |node: &NodeId| matches!(self.graph.nodes[*node].op, Op::Slice { .. });
        self.cut.cone(self.graph, &[root]).iter().any(is_slice)
    }

    /// How tasks split the positions of an attention, where too few other tasks would keep the target busy.
    fn split_attention(self, roots: &[NodeId]) -> Option<Partial> {
        let Self { graph, cut, target } = self;
        let cone = cut.cone(graph, roots);
        let mut attends = cone.iter().filter(|node| matches!(graph.nodes[**node].op, Op::Attend { .. }));
        let (node, others) = (*attends.next()?, attends.next());
        if others.is_some() {
            return None;
        }
        let Node { op: Op::Attend { over }, args, ty, .. } = &graph.nodes[node] else { return None };
        let scores = &graph.nodes[args[0]].ty.shape;
        let positions: i64 = over.iter().map(|over| scores.size(*over).map_or(1, Sym::near)).product();
        let n_tasks: i64 = self
            .grid(node, None)
            .iter()
            .zip(ty.shape.iter())
            .map(|((_, block), (_, size))| block.map_or(1, |block| (size.near() + block - 1) / block).max(1))
            .product();
        let wanted = target.rates.compute_units as i64 / n_tasks.max(1);
        let most = positions / MIN_POSITIONS_PER_STEP as i64;
        let n_splits = wanted.min(most);
        let axis = Label::fresh("split", |label| ty.shape.has(label) || scores.has(label));
        (n_splits > 1).then_some(Partial { node, axis, n_splits })
    }

    /// The kernel whose tasks each attend to some of the positions.
    fn partial_attention(self, partial: &Partial) -> Result<Bound, TooLarge> {
        let node = partial.node;
        let Node { op: Op::Attend { over }, args, ty, .. } = &self.graph.nodes[node] else {
            return Err(TooLarge);
        };
        let rows = self.graph.nodes[args[0]].ty.shape.without_all(over);
        let all = rows.union(&ty.shape).map_err(|_| TooLarge)?;
        let grid = self.grid(node, None);
        self.of_partial(node, Skeleton::Attention, |builder| {
            builder.store_partial(partial, over, &all, &grid)
        })
    }
}

/// Builds a part; a second time, where tiles that it requests are better merged.
fn built_twice(
    params: &mut Params,
    build: impl Fn(&mut Params, &TileRequests) -> Result<(super::Part, TileRequests), TooLarge>,
) -> Result<super::Part, TooLarge> {
    let mut first = params.clone();
    let (part, mut requests) = build(&mut first, &TileRequests::default())?;
    if requests.merge() {
        return Ok(build(params, &requests)?.0);
    }
    *params = first;
    Ok(part)
}

impl PartBuilder<'_> {
    /// Stores the partial results of attention over some of the positions.
    fn store_partial(
        &mut self,
        partial: &Partial,
        over: &[Axis],
        all: &Shape,
        grid: &Grid,
    ) -> Result<(), TooLarge> {
        let node = partial.node;
        let split = self.task_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
        let places = self.open_grid(&self.node(node).ty.shape, grid, None);
        let spans: Vec<AxisSpan> = all.iter().map(|(axis, size)| places.span(*axis, size)).collect();
        let running = self.stream_blocks(node, over, &spans, Some((split, partial.n_splits)))?;
        let scratch = self.scratch(partial, Access::Write);
        for (tile, (param, shape)) in [running.sum, running.weights, running.most].into_iter().zip(scratch) {
            let own: Vec<AxisSpan> = spans.iter().filter(|span| shape.has(span.axis)).cloned().collect();
            self.store_part(tile, &own, (partial.axis, split), (param, &shape));
        }
        Ok(())
    }

    /// Stores a tile as partial results; `var` numbers their axis.
    fn store_part(
        &mut self,
        tile: TileId,
        spans: &[AxisSpan],
        (axis, var): (Axis, VarId),
        (param, shape): (ParamId, &Shape),
    ) {
        let (loops, at, element) = self.loop_over(spans);
        let mut nest = NestBuilder::new(&loops);
        let value = nest.load(tile, &element);
        let at = at.with(axis, Index::var(var)).in_order_of(shape);
        self.push_nest(nest, Place::Param(param), at, value);
    }
}
