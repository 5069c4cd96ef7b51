//! Gathers: an index read from memory becomes a position (embedding rows, expert matrices).
//!
//! In: a gather and a position in its result. Out: the expression of the element; an index out of range reads the
//! nearest row. Rows beyond the table's run-time size are not used, though storage extends further.

use crate::fuse::cut::is_position;
use crate::graph::op::{Binary, Op, Scalar};
use crate::graph::{Node, NodeId};
use crate::kernel::index::{Atom, Index};
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::lower::tiles::TileContent;
use crate::kernel::{Expr, ExprId, Place};
use crate::tensor::shape::Axis;

impl PartBuilder<'_> {
    /// A row of a table; zeros where the table has no rows.
    pub(crate) fn gather(
        &mut self,
        node: NodeId,
        axis: Axis,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let args = &self.node(node).args;
        let size = self.node(args[0]).ty.shape.size(axis).cloned().unwrap_or_default();
        let mut row = self.lookup(args[1], at, size.most().max(1), nest)?;
        if size.as_const().is_none() {
            // The smaller of two numbers: `last - max(last - row, 0)`.
            let last = Index::sym(&(size.clone() - 1));
            let short = Index::atom(Atom::Max(Box::new(last.minus(&row)), 0));
            row = last.minus(&short).clamped((size.most() - 1).max(0), &self.part.vars);
        }
        let found = self.value(args[0], &at.with(axis, row), nest)?;
        if size.least() > 0 {
            return Ok(found);
        }
        let (none, n_rows) =
            (nest.add(Expr::Const(Scalar::I32(0))), nest.add(Expr::Position(Index::sym(&size))));
        let has_rows = nest.binary(Binary::Lt, none, n_rows);
        let zero = self.zero(node, nest);
        Ok(nest.add(Expr::Select(has_rows, found, zero)))
    }

    /// The value of an index tensor as a position in a table.
    pub(crate) fn lookup(
        &mut self,
        index: NodeId,
        at: &At,
        below: i64,
        nest: &NestBuilder,
    ) -> Result<Index, TooLarge> {
        if let Some(position) = self.position(index, at) {
            return Ok(position.clamped(below - 1, &self.part.vars));
        }
        let (index, at) = self.look_through(index, at);
        if self.node(index).ty.shape.is_empty() {
            return Ok(Index::default());
        }
        let at = at.restricted(&self.node(index).ty.shape);
        let (from, at) = if self.from.is_loadable(index) {
            let param = self.params.read(self.from.graph, index);
            (Place::Param(param), at.in_order_of(&self.node(index).ty.shape))
        } else {
            let (filled, at) = self.tile_of(index, &at, nest)?;
            let TileContent::Value(tile) = filled.content else { return Err(TooLarge) };
            (Place::Tile(tile), at)
        };
        Ok(Index::atom(Atom::Lookup { from, at, below }))
    }

    /// A whole number that is a sum of positions and symbols: it needs no memory, even where it is stored as well.
    fn position(&self, node: NodeId, at: &At) -> Option<Index> {
        let Node { op, args, ty, .. } = self.node(node);
        match op {
            Op::Iota { axis, .. } => Some(at.restricted(&ty.shape).get(*axis)),
            Op::Symbolic(value) => Some(Index::sym(value)),
            Op::Const(Scalar::I32(number)) => Some(Index::constant(i64::from(*number))),
            Op::Binary(Binary::Add) => Some(self.position(args[0], at)?.plus(&self.position(args[1], at)?)),
            Op::Binary(Binary::Sub) => Some(self.position(args[0], at)?.minus(&self.position(args[1], at)?)),
            _ if is_position(self.from.graph, node) => self.position(args[0], &self.moved(node, at)),
            _ => None,
        }
    }
}
