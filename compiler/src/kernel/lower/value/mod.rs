//! Values become scalar expressions.
//!
//! In: a node, a position in it, and the nest that wants it. Out: an expression of that nest. `PartBuilder::value`
//! follows the graph down to what can be loaded: elementwise operations become expressions, movement becomes index
//! arithmetic, and anything that folds is read from a tile (`tiles.rs`).

use crate::graph::op::{Binary, Op, Scalar};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::{Expr, ExprId, Place};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

pub(super) mod concat_sum;
mod gather;
mod top_k;

/// More expressions than this in one nest are not worth a kernel.
const MAX_EXPRS: usize = 1500;

impl PartBuilder<'_> {
    /// The expression of a node at a position: loaded where it is stored, else computed.
    pub(super) fn value(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let at = at.restricted(&self.node(node).ty.shape);
        if let Some(known) = nest.known.get(&(node, at.clone())) {
            return Ok(*known);
        }
        if nest.len() > MAX_EXPRS {
            return Err(TooLarge);
        }
        if self.node(node).ty.shape.is_empty() {
            return Ok(self.zero(node, nest));
        }
        let is_loadable = self.from.is_loadable(node);
        let expr = if is_loadable { self.load(node, &at, nest) } else { self.compute(node, &at, nest)? };
        nest.known.insert((node, at), expr);
        Ok(expr)
    }

    /// Zero in a value's type, for elements that do not exist.
    pub(super) fn zero(&self, node: NodeId, nest: &mut NestBuilder) -> ExprId {
        match self.node(node).ty.dtype {
            DType::I32 => nest.add(Expr::Const(Scalar::I32(0))),
            DType::F32 => nest.number(0.0),
            dtype @ (DType::F16 | DType::BF16) => {
                let zero = nest.number(0.0);
                nest.add(Expr::Cast(dtype, zero))
            }
        }
    }

    fn load(&mut self, node: NodeId, at: &At, nest: &mut NestBuilder) -> ExprId {
        let from = Place::Param(self.params.read(self.from.graph, node));
        nest.add(Expr::Load { from, at: at.in_order_of(&self.node(node).ty.shape) })
    }

    /// The expression of a node that is computed here, whether or not it is also stored.
    pub(super) fn compute(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let Node { op, args, ty, .. } = self.node(node);
        let expr = match op {
            Op::Const(scalar) => Expr::Const(*scalar),
            Op::Iota { axis, .. } => Expr::Position(at.get(*axis)),
            Op::Symbolic(value) => Expr::Position(Index::sym(value)),
            Op::Unary(f) => Expr::Unary(*f, self.value(args[0], at, nest)?),
            Op::Binary(f) => Expr::Binary(*f, self.value(args[0], at, nest)?, self.value(args[1], at, nest)?),
            Op::Select => Expr::Select(
                self.value(args[0], at, nest)?,
                self.value(args[1], at, nest)?,
                self.value(args[2], at, nest)?,
            ),
            Op::Cast(dtype) => Expr::Cast(*dtype, self.value(args[0], at, nest)?),
            Op::Split { .. }
            | Op::Merge { .. }
            | Op::Rename { .. }
            | Op::Slice { .. }
            | Op::Expand { .. }
            | Op::Barrier => {
                let at = self.moved(node, at);
                return self.value(args[0], &at, nest);
            }
            Op::Concat { axis } => return self.concat(args, *axis, at, nest),
            Op::Gather { axis } => return self.gather(node, *axis, at, nest),
            Op::Reduce { .. } | Op::Contract { .. } | Op::Attend { .. } | Op::TopK { .. } => {
                return self.load_folded(node, at, nest);
            }
            // A state that was written to is read where it lies.
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Table { .. } | Op::Write { .. } => {
                return Ok(self.load(node, &at.restricted(&ty.shape), nest));
            }
        };
        Ok(nest.add(expr))
    }

    /// The position in a movement's argument that corresponds to `at` in its result.
    pub(super) fn moved(&self, node: NodeId, at: &At) -> At {
        let Node { op, args, .. } = self.node(node);
        match op {
            Op::Split { axis, into } => at.with(*axis, at.rejoined(into)),
            Op::Merge { axes, into } => {
                at.unmerged(axes, &self.node(args[0]).ty.shape, *into, &self.part.vars)
            }
            Op::Rename { from, to } => at.with(*from, at.get(*to)),
            Op::Slice { axis, start, .. } => at.with(*axis, at.get(*axis).plus(&Index::sym(start))),
            _ => at.clone(),
        }
    }

    fn concat(
        &mut self,
        args: &[NodeId],
        axis: Axis,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let position = at.get(axis);
        let bounds = position.bounds(&self.part.vars);
        let mut start = Sym::from(0i64);
        let mut pieces: Vec<(Sym, NodeId)> = Vec::new();
        for arg in args {
            let end = start.clone() + self.node(*arg).ty.shape.size(axis).unwrap_or(&Sym::from(0i64));
            if bounds.0 < end.most() && bounds.1 >= start.least() {
                pieces.push((start, *arg));
            }
            start = end;
        }
        let Some(((start, arg), earlier)) = pieces.split_last() else {
            return Ok(nest.number(0.0));
        };
        let mut expr = self.piece(*arg, axis, start, at, nest)?;
        let mut next = start.clone();
        for (start, arg) in earlier.iter().rev() {
            let here = self.piece(*arg, axis, start, at, nest)?;
            let position = nest.add(Expr::Position(position.clone()));
            let end = nest.add(Expr::Position(Index::sym(&next)));
            let is_here = nest.binary(Binary::Lt, position, end);
            expr = nest.add(Expr::Select(is_here, here, expr));
            next = start.clone();
        }
        Ok(expr)
    }

    /// One piece of a concatenation; a position outside it is clamped, and what is read there is not used.
    fn piece(
        &mut self,
        arg: NodeId,
        axis: Axis,
        start: &Sym,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let most = self.node(arg).ty.shape.size(axis).map_or(0, Sym::most) - 1;
        let own = at.get(axis).minus(&Index::sym(start)).clamped(most.max(0), &self.part.vars);
        self.value(arg, &at.with(axis, own), nest)
    }

    /// Follows movement operations, which are only index arithmetic.
    pub(super) fn look_through(&self, mut node: NodeId, at: &At) -> (NodeId, At) {
        let mut at = at.clone();
        while !self.from.cut.has(node)
            && matches!(
                self.node(node).op,
                Op::Split { .. }
                    | Op::Merge { .. }
                    | Op::Rename { .. }
                    | Op::Slice { .. }
                    | Op::Expand { .. }
            )
        {
            at = self.moved(node, &at);
            node = self.node(node).args[0];
        }
        (node, at)
    }
}
