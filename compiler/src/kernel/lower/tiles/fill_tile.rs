//! Fills tiles with computed values.
//!
//! In: a node and the spans of a box. Out: nests pushed into the current scope, and the tile they fill. Reductions and
//! contractions fold straight into the tile; those that dequantise an operand first are in `dequantise.rs`, attention
//! is in `attention.rs`, top-k in `top_k.rs`.

use crate::graph::op::{Binary, Fold, Op, Scalar};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::AxisSpan;
use crate::kernel::lower::joined_weights::WeightNest;
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::lower::tiles::TileContent;
use crate::kernel::lower::value::concat_sum::Sum;
use crate::kernel::{Expr, ExprId, Folding, Nest, Place, Stmt, TileId, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;

/// A folding nest without its expressions.
pub(crate) struct FoldNest {
    pub(crate) target: Place,
    pub(crate) at: Vec<Index>,
    pub(crate) loops: Vec<VarId>,
    pub(crate) inner: Vec<VarId>,
    pub(crate) fold: Fold,
    pub(crate) init: Option<ExprId>,
}

impl PartBuilder<'_> {
    /// Fills a tile with a box of a value that is computed here.
    pub(crate) fn fill(&mut self, node: NodeId, spans: &[AxisSpan]) -> Result<TileContent, TooLarge> {
        if let Some(partial) = self.partial.filter(|partial| partial.node == node) {
            return match &self.node(node).op {
                Op::Attend { over } => self.combine(partial, over, spans),
                _ => Ok(self.sum_experts(partial, spans)),
            };
        }
        let Node { op, ty, .. } = self.node(node);
        match op {
            Op::Attend { over } => return self.stream(node, over, spans),
            Op::TopK { axis, into, k } => {
                return self.top_k(node, *axis, *into, *k, spans).map(TileContent::Value);
            }
            Op::Contract { over } => {
                if let Some(block) = self.dequantised_axis(node, over, spans) {
                    return self.contract_in_k_steps(node, &block, spans).map(TileContent::Value);
                }
            }
            _ => {}
        }
        let tile = self.box_tile(ty.dtype, spans);
        let (loops, at, element) = self.loop_over(spans);
        if op.is_fold() {
            self.fold_into(node, &at, loops, Place::Tile(tile), element)?;
        } else {
            let mut nest = NestBuilder::new(&loops);
            let value = self.compute(node, &at, &mut nest)?;
            self.push_nest(nest, Place::Tile(tile), element, value);
        }
        Ok(TileContent::Value(tile))
    }

    /// Copies a box of a value to a tile, wherever it comes from.
    pub(crate) fn copy(&mut self, node: NodeId, spans: &[AxisSpan]) -> Result<TileContent, TooLarge> {
        let tile = self.box_tile(self.node(node).ty.dtype, spans);
        let (loops, at, element) = self.loop_over(spans);
        let mut nest = NestBuilder::new(&loops);
        let value = self.value(node, &at, &mut nest)?;
        self.push_nest(nest, Place::Tile(tile), element, value);
        Ok(TileContent::Value(tile))
    }

    /// Folds a reduction or a contraction into its place: one nest, or one for each concatenated weight.
    pub(crate) fn fold_into(
        &mut self,
        node: NodeId,
        at: &At,
        loops: Vec<VarId>,
        target: Place,
        element: Vec<Index>,
    ) -> Result<(), TooLarge> {
        for WeightNest { at, loops, element } in self.nests_of_weights(node, at, loops, element) {
            self.fold_run(node, &at, &loops, target, &element)?;
        }
        Ok(())
    }

    fn fold_run(
        &mut self,
        node: NodeId,
        at: &At,
        loops: &[VarId],
        target: Place,
        element: &[Index],
    ) -> Result<(), TooLarge> {
        let (fold, axes): (Fold, &[Axis]) = match &self.node(node).op {
            Op::Reduce { fold, axis } => (*fold, std::slice::from_ref(axis)),
            Op::Contract { over } => (Fold::Sum, over),
            _ => return Err(TooLarge),
        };
        self.fold_along(node, at, (fold, axes), loops, (target, element))
    }

    /// Folds a reduction or a contraction along some of its axes; the others have positions.
    pub(crate) fn fold_along(
        &mut self,
        node: NodeId,
        at: &At,
        (fold, axes): (Fold, &[Axis]),
        loops: &[VarId],
        (target, element): (Place, &[Index]),
    ) -> Result<(), TooLarge> {
        let Node { op, args, .. } = self.node(node);
        let (inner, at) = self.summed_loops(args[0], axes, at);
        let sums = match (op, target) {
            // Sums of several pieces accumulate in place, which only a tile allows.
            (Op::Contract { .. }, Place::Tile(_)) => self.sums_of_concat(args, &at, inner),
            _ => vec![Sum { at, inner }],
        };
        for (number, Sum { at, inner }) in sums.into_iter().enumerate() {
            let locals: Vec<VarId> = loops.iter().chain(&inner).copied().collect();
            let mut nest = NestBuilder::new(&locals);
            let value = match op {
                Op::Contract { .. } => self.product(args, &at, &mut nest)?,
                _ => self.value(args[0], &at, &mut nest)?,
            };
            let init = match target {
                Place::Tile(tile) if number > 0 => Some(nest.load(tile, element)),
                Place::Tile(_) | Place::Param(_) => None,
            };
            let (at, loops) = (element.to_vec(), loops.to_vec());
            self.push_fold(nest, FoldNest { target, at, loops, inner, fold, init }, value);
        }
        Ok(())
    }

    pub(crate) fn push_fold(&mut self, nest: NestBuilder, shape: FoldNest, value: ExprId) {
        let FoldNest { target, at, loops, inner, fold, init } = shape;
        let fold = (!inner.is_empty() || init.is_some()).then_some(Folding { fold, loops: inner, init });
        self.push(Stmt::Nest(Nest { target, at, loops, fold, exprs: nest.finish(), value, product: None }));
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
        let (staged, widened) = (self.are_staged(args, at, nest), self.widened(args));
        let is_copied = |arg: NodeId| staged || widened == Some(arg);
        let a = self.operand(args[0], at, nest, is_copied(args[0]))?;
        let b = self.operand(args[1], at, nest, is_copied(args[1]))?;
        Ok(nest.binary(Binary::Mul, a, b))
    }

    /// An operand of a product: computed once into a tile where the nest would compute it again for other loops, and
    /// copied to one where operands are staged.
    pub(crate) fn operand(
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
            let (filled, element) = self.tile_of(inner, &inner_at, nest)?;
            self.read_tile(&filled, &element, nest)
        } else if staged && repeats && self.is_view(inner) {
            let (filled, element) = self.tile_filled_by(inner, &inner_at, nest, Self::copy)?;
            self.read_tile(&filled, &element, nest)
        } else {
            self.value(inner, &inner_at, nest)?
        };
        let expr_dtype = self.node(inner).ty.dtype;
        Ok(if expr_dtype == DType::I32 { nest.add(Expr::Cast(DType::F32, expr)) } else { expr })
    }

    /// Whether a value is only a view of something stored.
    pub(crate) fn is_view(&self, node: NodeId) -> bool {
        let Node { op, args, .. } = self.node(node);
        self.from.is_loadable(node)
            || match op {
                Op::Gather { .. } | Op::Cast(_) => self.is_view(args[0]),
                Op::Const(_) | Op::Iota { .. } | Op::Symbolic(_) => true,
                _ => op.is_movement() && args.iter().all(|arg| self.is_view(*arg)),
            }
    }

    pub(crate) fn push_constant(&mut self, loops: &[VarId], tile: TileId, at: &[Index], value: Scalar) {
        let mut nest = NestBuilder::new(loops);
        let value = nest.add(Expr::Const(value));
        self.push_nest(nest, Place::Tile(tile), at.to_vec(), value);
    }
}
