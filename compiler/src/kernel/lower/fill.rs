//! Fills tiles: the box of a folded value that a task needs.
//!
//! In: a node and the spans of the box. Out: nests pushed into the current scope, and the tile they fill.
//! Reductions and contractions fold straight into their place; top-k searches round by round.
//! Contractions that unpack an operand first are in `unpack.rs`, attention is in `attend.rs`.

use crate::graph::op::{Binary, Fold, Op, Scalar, Unary};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::hold::Content;
use crate::kernel::lower::nest::{At, NestBuilder};
use crate::kernel::lower::part::{PartBuilder, TooLarge};
use crate::kernel::lower::rows::RunOfRows;
use crate::kernel::lower::span::{Run, Span, dims};
use crate::kernel::{Expr, ExprId, Folding, Nest, Place, Range, Stmt, TileId, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// A nest that folds, but for its expressions.
pub(super) struct FoldNest {
    pub(super) target: Place,
    pub(super) at: Vec<Index>,
    pub(super) loops: Vec<VarId>,
    pub(super) inner: Vec<VarId>,
    pub(super) fold: Fold,
    pub(super) init: Option<ExprId>,
}

impl PartBuilder<'_> {
    /// Fills a box of a value that is computed here.
    pub(super) fn fill(&mut self, node: NodeId, spans: &[Span]) -> Result<Content, TooLarge> {
        if let Some(partial) = self.partial.filter(|partial| partial.node == node) {
            return Ok(match self.node(node).op {
                Op::Attend { over } => self.combine(partial, over, spans),
                _ => self.added_up(partial, spans),
            });
        }
        let Node { op, ty, .. } = self.node(node);
        match op {
            Op::Attend { over } => return self.stream(node, *over, spans),
            Op::TopK { axis, into, k } => {
                return self.top_k(node, *axis, *into, *k, spans).map(Content::Value);
            }
            Op::Contract { over } => {
                if let Some(block) = self.unpacked_axis(node, over, spans) {
                    return self.contract_by_blocks(node, &block, spans).map(Content::Value);
                }
            }
            _ => {}
        }
        let tile = self.box_tile(ty.dtype, spans);
        let (loops, at, element) = self.run_through(spans);
        if op.is_fold() {
            self.fold_into(node, &at, loops, Place::Tile(tile), element)?;
        } else {
            let mut nest = NestBuilder::new(&loops);
            let value = self.compute(node, &at, &mut nest)?;
            self.push_nest(nest, Place::Tile(tile), element, value);
        }
        Ok(Content::Value(tile))
    }

    /// Copies a box of a value, wherever it comes from.
    pub(super) fn copy(&mut self, node: NodeId, spans: &[Span]) -> Result<Content, TooLarge> {
        let tile = self.box_tile(self.node(node).ty.dtype, spans);
        let (loops, at, element) = self.run_through(spans);
        let mut nest = NestBuilder::new(&loops);
        let value = self.value(node, &at, &mut nest)?;
        self.push_nest(nest, Place::Tile(tile), element, value);
        Ok(Content::Value(tile))
    }

    /// Folds a reduction or a contraction into its place: by one nest, or one for each weight that is joined.
    pub(super) fn fold_into(
        &mut self,
        node: NodeId,
        at: &At,
        loops: Vec<VarId>,
        target: Place,
        element: Vec<Index>,
    ) -> Result<(), TooLarge> {
        for RunOfRows { at, loops, element } in self.runs_of_rows(node, at, loops, element) {
            self.fold_run(node, &at, loops, target, element)?;
        }
        Ok(())
    }

    fn fold_run(
        &mut self,
        node: NodeId,
        at: &At,
        loops: Vec<VarId>,
        target: Place,
        element: Vec<Index>,
    ) -> Result<(), TooLarge> {
        let (fold, axes): (Fold, &[Axis]) = match &self.node(node).op {
            Op::Reduce { fold, axis } => (*fold, std::slice::from_ref(axis)),
            Op::Contract { over } => (Fold::Sum, over),
            _ => return Err(TooLarge),
        };
        self.fold_along(node, at, (fold, axes), loops, (target, element))
    }

    /// Folds what a reduction or a contraction does along some of its axes; the others have positions.
    pub(super) fn fold_along(
        &mut self,
        node: NodeId,
        at: &At,
        (fold, axes): (Fold, &[Axis]),
        loops: Vec<VarId>,
        (target, element): (Place, Vec<Index>),
    ) -> Result<(), TooLarge> {
        let Node { op, args, .. } = self.node(node);
        let (inner, at) = self.summed_loops(args[0], axes, at);
        let locals: Vec<VarId> = loops.iter().chain(&inner).copied().collect();
        let mut nest = NestBuilder::new(&locals);
        let value = match op {
            Op::Contract { .. } => self.product(args, &at, &mut nest)?,
            _ => self.value(args[0], &at, &mut nest)?,
        };
        self.push_fold(nest, FoldNest { target, at: element, loops, inner, fold, init: None }, value);
        Ok(())
    }

    pub(super) fn push_fold(&mut self, nest: NestBuilder, shape: FoldNest, value: ExprId) {
        let FoldNest { target, at, loops, inner, fold, init } = shape;
        let fold = (!inner.is_empty() || init.is_some()).then_some(Folding { fold, loops: inner, init });
        self.push(Stmt::Nest(Nest { target, at, loops, fold, exprs: nest.finish(), value }));
    }

    /// Loops over the summed axes, and the position in the argument that they give.
    fn summed_loops(&mut self, arg: NodeId, axes: &[Axis], at: &At) -> (Vec<VarId>, At) {
        let mut inner = Vec::new();
        let mut at = at.clone();
        for axis in axes {
            let len = self.node(arg).ty.shape.size(*axis).cloned().unwrap_or_default();
            let position = self.axis_loop(*axis, &len, &mut inner);
            at.set(*axis, position);
        }
        (inner, at)
    }

    fn product(&mut self, args: &[NodeId], at: &At, nest: &mut NestBuilder) -> Result<ExprId, TooLarge> {
        let staged = self.are_staged(args, at, nest);
        let a = self.operand(args[0], at, nest, staged)?;
        let b = self.operand(args[1], at, nest, staged)?;
        Ok(nest.add(Expr::Binary(Binary::Mul, a, b)))
    }

    /// A factor of a product: computed once into a tile where the nest would compute it again for other loops, and
    /// copied to one where factors are staged.
    pub(super) fn operand(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &mut NestBuilder,
        staged: bool,
    ) -> Result<ExprId, TooLarge> {
        let (inner, inner_at) = self.look_through(node, at);
        let inner_at = inner_at.restricted(&self.node(inner).ty.shape);
        let is_empty = self.node(inner).ty.shape.is_empty();
        let repeats = !is_empty && nest.locals.iter().any(|var| !inner_at.uses(*var));
        let expr = if repeats && !self.is_view(inner) && !self.node(inner).op.is_fold() {
            let (held, element) = self.hold(inner, &inner_at, nest)?;
            self.read_held(&held, element, nest)
        } else if staged && repeats && self.is_view(inner) {
            let (held, element) = self.hold_by(inner, &inner_at, nest, Self::copy)?;
            self.read_held(&held, element, nest)
        } else {
            self.value(inner, &inner_at, nest)?
        };
        let expr_dtype = self.node(inner).ty.dtype;
        Ok(if expr_dtype == DType::I32 { nest.add(Expr::Cast(DType::F32, expr)) } else { expr })
    }

    /// Whether a value is nothing but a way of reading something stored.
    fn is_view(&self, node: NodeId) -> bool {
        let Node { op, args, .. } = self.node(node);
        self.cut.is_loadable(self.graph, node)
            || match op {
                Op::Gather { .. } | Op::Cast(_) => self.is_view(args[0]),
                Op::Const(_) | Op::Iota { .. } | Op::Symbolic(_) => true,
                _ => op.is_movement() && args.iter().all(|arg| self.is_view(*arg)),
            }
    }

    /// The largest elements, one round for each rank: a round takes the largest that comes after the one before, in
    /// the order of falling value and rising position.
    fn top_k(
        &mut self,
        node: NodeId,
        axis: Axis,
        into: Axis,
        k: usize,
        spans: &[Span],
    ) -> Result<TileId, TooLarge> {
        let arg = self.node(node).args[0];
        let n = self.node(arg).ty.shape.size(axis).cloned().unwrap_or_default();
        let rows: Vec<Span> = spans.iter().filter(|span| span.axis != into).cloned().collect();
        let row_dims = dims(&rows);
        let out = self.box_tile(DType::I32, spans);
        let elements = self.tile(DType::F32, [row_dims.clone(), vec![n.most().max(1) as usize]].concat());
        let last_value = self.tile(DType::F32, row_dims.clone());
        let last_place = self.tile(DType::I32, row_dims);
        let (loops, at, row) = self.run_through(&rows);

        // What cannot be compared counts as the smallest.
        let mut inner = loops.clone();
        let position = self.axis_loop(axis, &n, &mut inner);
        let mut nest = NestBuilder::new(&inner);
        let x = self.value(arg, &at.with(axis, position.clone()), &mut nest)?;
        let comparable = nest.add(Expr::Binary(Binary::Eq, x, x));
        let lowest = nest.number(f32::NEG_INFINITY);
        let x = nest.add(Expr::Select(comparable, x, lowest));
        let column = [row.clone(), vec![position]].concat();
        self.push_nest(nest, Place::Tile(elements), column, x);
        self.push_constant(&loops, last_value, &row, Scalar::float(f32::INFINITY));
        self.push_constant(&loops, last_place, &row, Scalar::I32(-1));
        let (all, _, element) = self.run_through(spans);
        self.push_constant(&all, out, &element, Scalar::I32(0));

        let round = self.open_loop(into, Range::Whole { len: Sym::from(k) });
        let best_value = self.tile(DType::F32, self.part.tiles[last_value].dims.clone());
        let best_place = self.tile(DType::I32, self.part.tiles[last_value].dims.clone());
        for (target, fold) in [(best_value, None), (best_place, Some(best_value))] {
            let mut inner = Vec::new();
            let position = self.axis_loop(axis, &n, &mut inner);
            let locals: Vec<VarId> = loops.iter().chain(&inner).copied().collect();
            let mut nest = NestBuilder::new(&locals);
            let load = |tile, at: &Vec<Index>| Expr::Load { from: Place::Tile(tile), at: at.clone() };
            let x = nest.add(load(elements, &[row.clone(), vec![position.clone()]].concat()));
            let value = nest.add(load(last_value, &row));
            let place = nest.add(load(last_place, &row));
            let here = nest.add(Expr::Position(position));
            let less = nest.add(Expr::Binary(Binary::Lt, x, value));
            let equal = nest.add(Expr::Binary(Binary::Eq, x, value));
            let later = nest.add(Expr::Binary(Binary::Lt, place, here));
            let tie = nest.add(Expr::Binary(Binary::Mul, equal, later));
            let mut remains = nest.add(Expr::Binary(Binary::Max, less, tie));
            let found = if let Some(best) = fold {
                let best = nest.add(load(best, &row));
                let is_best = nest.add(Expr::Binary(Binary::Eq, x, best));
                remains = nest.add(Expr::Binary(Binary::Mul, remains, is_best));
                let first = nest.add(Expr::Unary(Unary::Neg, here));
                let none = nest.add(Expr::Const(Scalar::I32(i32::MIN + 1)));
                nest.add(Expr::Select(remains, first, none))
            } else {
                let none = nest.number(f32::NEG_INFINITY);
                nest.add(Expr::Select(remains, x, none))
            };
            let target = Place::Tile(target);
            let fold = FoldNest {
                target,
                at: row.clone(),
                loops: loops.clone(),
                inner,
                fold: Fold::Max,
                init: None,
            };
            self.push_fold(nest, fold, found);
        }
        let rank = |at: &[Span]| -> Vec<Index> {
            let mut rows = row.iter();
            let axes = at.iter().filter(|span| !matches!(span.run, Run::Point) || span.axis == into);
            axes.map(|s| {
                if s.axis == into { Index::var(round) } else { rows.next().cloned().unwrap_or_default() }
            })
            .collect()
        };
        self.push_copy(&loops, best_value, &row, Place::Tile(last_value), row.clone(), false);
        self.push_copy(&loops, best_place, &row, Place::Tile(last_place), row.clone(), true);
        self.push_copy(&loops, best_place, &row, Place::Tile(out), rank(spans), true);
        self.close_loop(round);
        Ok(out)
    }

    pub(super) fn push_constant(&mut self, loops: &[VarId], tile: TileId, at: &[Index], value: Scalar) {
        let mut nest = NestBuilder::new(loops);
        let value = nest.add(Expr::Const(value));
        self.push_nest(nest, Place::Tile(tile), at.to_vec(), value);
    }

    fn push_copy(
        &mut self,
        loops: &[VarId],
        from: TileId,
        from_at: &[Index],
        target: Place,
        at: Vec<Index>,
        negate: bool,
    ) {
        let mut nest = NestBuilder::new(loops);
        let mut value = nest.add(Expr::Load { from: Place::Tile(from), at: from_at.to_vec() });
        if negate {
            value = nest.add(Expr::Unary(Unary::Neg, value));
        }
        self.push_nest(nest, target, at, value);
    }
}
