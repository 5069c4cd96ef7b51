//! Expert routing with many tokens: products are stored for each routed row, then summed by a second kernel.
//!
//! In: a contraction with routed matrices that also sums over the experts of a token. Out: a kernel that stores one
//! product for each (token, expert) pair, and the nests of another that sum over the experts. Kernels can group rows by
//! expert only where each row has a result of its own: decision 0019.

use crate::graph::op::{Fold, Op};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::Bound;
use crate::kernel::lower::axis_span::AxisSpan;
use crate::kernel::lower::grid::{FoldedRouting, Grid, folded_routing};
use crate::kernel::lower::lowering::Lowering;
use crate::kernel::lower::nest_builder::NestBuilder;
use crate::kernel::lower::params::Scratch;
use crate::kernel::lower::part_builder::{PartBuilder, Partial, TooLarge};
use crate::kernel::lower::tiles::TileContent;
use crate::kernel::lower::tiles::fill_tile::FoldNest;
use crate::kernel::{Access, Expr, ParamId, Place, Range, Skeleton};
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

impl Lowering<'_> {
    /// The contraction whose routed rows get results of their own, where kernels group them by expert, and the axes of
    /// the routing.
    pub(super) fn split_experts(self, roots: &[NodeId]) -> Option<(Partial, Shape)> {
        let Self { graph, cut, target } = self;
        let cone = cut.cone(graph, roots);
        let mut found = cone.iter().filter_map(|node| Some((*node, folded_routing(graph, cut, *node)?)));
        let ((node, FoldedRouting { axis, n, of }), others) = (found.next()?, found.next());
        (target.tuning.stages_operands && others.is_none())
            .then_some((Partial { node, axis, n_splits: n }, of))
    }

    /// The kernel that stores the product of each routed row; the routing has these axes.
    pub(super) fn partial_experts(self, partial: &Partial, routing: &Shape) -> Result<Bound, TooLarge> {
        let node = partial.node;
        let Node { op: Op::Contract { over }, ty, .. } = &self.graph.nodes[node] else {
            return Err(TooLarge);
        };
        let rows = self.target.tuning.expert_rows_per_task as i64;
        let block = |size: &Sym| (size.most() > rows).then_some(rows);
        let cut_of = |axis: Axis, size: &Sym| if routing.has(axis) { Some(1) } else { block(size) };
        let grid: Grid = ty.shape.iter().map(|(axis, size)| (*axis, cut_of(*axis, size))).collect();
        let others: Vec<Axis> = over.iter().copied().filter(|axis| *axis != partial.axis).collect();
        self.of_partial(node, Skeleton::Experts, |builder| {
            let places = builder.open_grid(&ty.shape, &grid, None);
            let routed = builder.task_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
            let spans: Vec<AxisSpan> = ty.shape.iter().map(|(axis, size)| places.span(*axis, size)).collect();
            let tile = builder.box_tile(ty.dtype, &spans);
            let (loops, at, element) = builder.loop_over(&spans);
            let own = at.with(partial.axis, Index::var(routed));
            builder.fold_along(node, &own, (Fold::Sum, &others), &loops, (Place::Tile(tile), &element))?;
            let (param, shape) = builder.products(partial, Access::Write);
            builder.store_part(tile, &spans, (partial.axis, routed), (param, &shape));
            Ok(())
        })
    }
}

impl PartBuilder<'_> {
    /// Sums the products over the experts of a token.
    pub(super) fn sum_experts(&mut self, partial: &Partial, spans: &[AxisSpan]) -> TileContent {
        let tile = self.box_tile(self.node(partial.node).ty.dtype, spans);
        let (loops, at, element) = self.loop_over(spans);
        let (param, shape) = self.products(partial, Access::Read);
        let routed = self.nest_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
        let mut nest = NestBuilder::new(&loops);
        let at = at.with(partial.axis, Index::var(routed)).in_order_of(&shape);
        let value = nest.add(Expr::Load { from: Place::Param(param), at });
        let target = Place::Tile(tile);
        let fold = FoldNest { target, at: element, loops, inner: vec![routed], fold: Fold::Sum, init: None };
        self.push_fold(nest, fold, value);
        TileContent::Value(tile)
    }

    /// The buffer of the products of all routed rows, and its shape.
    fn products(&mut self, partial: &Partial, access: Access) -> (ParamId, Shape) {
        let whole = self.node(partial.node).ty.shape.iter().cloned();
        let routing = [(partial.axis, Sym::from(partial.n_splits))];
        let shape = Shape::new(routing.into_iter().chain(whole)).unwrap_or_default();
        (self.params.scratch(partial.node, Scratch::Sum, &shape, access), shape)
    }
}
