//! Products with picked matrices, where many vectors pick: stored for each pick before they are added up.
//!
//! In: a contraction that multiplies with what is picked and adds up over the picks of a vector. Out: a kernel that
//! stores the products of each pick, and nests of another that add them up. Code can do the picks of a matrix together
//! only where each has a result of its own: decision 0019.

use crate::graph::op::{Fold, Op};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::fill::FoldNest;
use crate::kernel::lower::grid::{FoldedPicks, Grid, folded_picks};
use crate::kernel::lower::hold::Content;
use crate::kernel::lower::nest::NestBuilder;
use crate::kernel::lower::params::Scratch;
use crate::kernel::lower::part::{PartBuilder, Partial, TooLarge};
use crate::kernel::lower::span::Span;
use crate::kernel::lower::{Bound, Lowering};
use crate::kernel::{Access, Expr, ParamId, Place, Range, Skeleton};
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

impl Lowering<'_> {
    /// The contraction whose picks have results of their own, where code does them together, and the axes of its picks.
    pub(super) fn split_picks(self, roots: &[NodeId]) -> Option<(Partial, Shape)> {
        let Self { graph, cut, target } = self;
        let cone = cut.cone(graph, roots);
        let mut found = cone.iter().filter_map(|node| Some((*node, folded_picks(graph, cut, *node)?)));
        let ((node, FoldedPicks { axis, n, of }), others) = (found.next()?, found.next());
        (target.stages && others.is_none()).then_some((Partial { node, axis, n_splits: n }, of))
    }

    /// The kernel that stores the products of each pick; picks have these axes.
    pub(super) fn partial_picks(self, partial: &Partial, picks: &Shape) -> Result<Bound, TooLarge> {
        let node = partial.node;
        let Node { op: Op::Contract { over }, ty, .. } = &self.graph.nodes[node] else {
            return Err(TooLarge);
        };
        let rows = self.target.rows_of_picked as i64;
        let block = |size: &Sym| (size.most() > rows).then_some(rows);
        let cut_of = |axis: Axis, size: &Sym| if picks.has(axis) { Some(1) } else { block(size) };
        let grid: Grid = ty.shape.iter().map(|(axis, size)| (*axis, cut_of(*axis, size))).collect();
        let others: Vec<Axis> = over.iter().copied().filter(|axis| *axis != partial.axis).collect();
        self.of_partial(node, Skeleton::Experts, |builder| {
            let places = builder.open_grid(&ty.shape, &grid, None);
            let pick = builder.task_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
            let spans: Vec<Span> = ty.shape.iter().map(|(axis, size)| places.span(*axis, size)).collect();
            let tile = builder.box_tile(ty.dtype, &spans);
            let (loops, at, element) = builder.run_through(&spans);
            let own = at.with(partial.axis, Index::var(pick));
            builder.fold_along(node, &own, (Fold::Sum, &others), &loops, (Place::Tile(tile), &element))?;
            let (param, shape) = builder.products(partial, Access::Write);
            builder.store_part(tile, &spans, (partial.axis, pick), (param, &shape));
            Ok(())
        })
    }
}

impl PartBuilder<'_> {
    /// Adds up the products of all picks.
    pub(super) fn added_up(&mut self, partial: &Partial, spans: &[Span]) -> Content {
        let tile = self.box_tile(self.node(partial.node).ty.dtype, spans);
        let (loops, at, element) = self.run_through(spans);
        let (param, shape) = self.products(partial, Access::Read);
        let pick = self.nest_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
        let mut nest = NestBuilder::new(&loops);
        let at = at.with(partial.axis, Index::var(pick)).in_order_of(&shape);
        let value = nest.add(Expr::Load { from: Place::Param(param), at });
        let target = Place::Tile(tile);
        let fold = FoldNest { target, at: element, loops, inner: vec![pick], fold: Fold::Sum, init: None };
        self.push_fold(nest, fold, value);
        Content::Value(tile)
    }

    /// The buffer of the products of each pick, and its shape.
    fn products(&mut self, partial: &Partial, access: Access) -> (ParamId, Shape) {
        let whole = self.node(partial.node).ty.shape.iter().cloned();
        let picks = [(partial.axis, Sym::from(partial.n_splits))];
        let shape = Shape::new(picks.into_iter().chain(whole)).unwrap_or_default();
        (self.params.scratch(partial.node, Scratch::Sum, &shape, access), shape)
    }
}
