//! Positions by axis name, and the nest under construction.
//!
//! [`At`] gives the position along every axis of a value; movement operations map one `At` to another.
//! [`NestBuilder`] collects the scalar expressions of one nest, each once (value numbering).
//! Neither knows of tiles or scopes: see `part_builder.rs`.

use indexmap::{IndexMap, IndexSet};

use crate::foundation::entity::{Id, List};
use crate::graph::NodeId;
use crate::graph::op::{Binary, Scalar, Unary};
use crate::kernel::index::{Index, Vars};
use crate::kernel::{Expr, ExprId, Place, TileId, VarId};
use crate::tensor::shape::{Axis, Shape};

/// One position for each axis, sorted by axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct At(Vec<(Axis, Index)>);

impl At {
    pub(super) fn new(positions: impl IntoIterator<Item = (Axis, Index)>) -> Self {
        let mut at = Self::default();
        for (axis, index) in positions {
            at.set(axis, index);
        }
        at
    }

    /// The position along an axis; the first one where the axis is not mentioned.
    pub(super) fn get(&self, axis: Axis) -> Index {
        self.0.iter().find(|(a, _)| *a == axis).map(|(_, index)| index.clone()).unwrap_or_default()
    }

    pub(super) fn set(&mut self, axis: Axis, index: Index) {
        match self.0.binary_search_by_key(&axis, |(a, _)| *a) {
            Ok(found) => self.0[found].1 = index,
            Err(missing) => self.0.insert(missing, (axis, index)),
        }
    }

    /// The same positions with one more axis.
    pub(super) fn with(&self, axis: Axis, index: Index) -> Self {
        let mut at = self.clone();
        at.set(axis, index);
        at
    }

    /// The sum of the positions of two along every axis.
    pub(super) fn plus(&self, other: &Self) -> Self {
        other.0.iter().fold(self.clone(), |at, (axis, index)| at.with(*axis, at.get(*axis).plus(index)))
    }

    /// Only the axes of `shape`; an axis of one position is at 0.
    pub(super) fn restricted(&self, shape: &Shape) -> Self {
        Self::new(shape.iter().map(|(axis, size)| {
            let index = if size.as_const() == Some(1) { Index::default() } else { self.get(*axis) };
            (*axis, index)
        }))
    }

    /// Whether a position depends on a variable.
    pub(super) fn uses(&self, var: VarId) -> bool {
        self.0.iter().any(|(_, index)| index.uses_var(|v| v == var))
    }

    /// The same positions with every variable replaced.
    pub(super) fn replaced(&self, with: &impl Fn(VarId) -> Index, vars: &Vars) -> Self {
        Self(self.0.iter().map(|(axis, index)| (*axis, index.replaced(with, vars))).collect())
    }

    /// The positions in storage order.
    pub(super) fn in_order_of(&self, shape: &Shape) -> Vec<Index> {
        shape.axes().map(|axis| self.get(axis)).collect()
    }

    /// Positions of the parts that an axis was merged from, the last running fastest.
    pub(super) fn unmerged(&self, axes: &[Axis], shape: &Shape, into: Axis, vars: &Vars) -> Self {
        let mut at = self.clone();
        let mut rest = self.get(into);
        for (position, axis) in axes.iter().enumerate().rev() {
            let size = shape.size(*axis).and_then(crate::tensor::sym::Sym::as_const);
            match size {
                Some(size) if position > 0 => {
                    at.set(*axis, rest.rem(size.max(1), vars));
                    rest = rest.div(size.max(1), vars);
                }
                _ => at.set(*axis, rest.clone()),
            }
        }
        at
    }

    /// The position along an axis that was split into `parts`, the last running fastest.
    pub(super) fn rejoined(&self, parts: &Shape) -> Index {
        parts
            .iter()
            .zip(parts.strides())
            .fold(Index::default(), |sum, ((axis, _), stride)| sum.plus(&self.get(*axis).times(stride)))
    }
}

/// The scalar expressions of one nest.
#[derive(Default)]
pub(super) struct NestBuilder {
    exprs: IndexSet<Expr>,
    /// Values already expressed at a position.
    pub(super) known: IndexMap<(NodeId, At), ExprId>,
    /// The loops of this nest, outer and inner.
    pub(super) locals: Vec<VarId>,
}

impl NestBuilder {
    pub(super) fn new(locals: &[VarId]) -> Self {
        Self { locals: locals.to_vec(), ..Self::default() }
    }

    /// The id of an expression, which is added unless an equal one is there.
    pub(super) fn add(&mut self, expr: Expr) -> ExprId {
        ExprId::from_index(self.exprs.insert_full(expr).0)
    }

    pub(super) fn number(&mut self, value: f32) -> ExprId {
        self.add(Expr::Const(Scalar::float(value)))
    }

    /// An element of a tile.
    pub(super) fn load(&mut self, tile: TileId, at: &[Index]) -> ExprId {
        self.add(Expr::Load { from: Place::Tile(tile), at: at.to_vec() })
    }

    pub(super) fn unary(&mut self, f: Unary, x: ExprId) -> ExprId {
        self.add(Expr::Unary(f, x))
    }

    pub(super) fn binary(&mut self, f: Binary, a: ExprId, b: ExprId) -> ExprId {
        self.add(Expr::Binary(f, a, b))
    }

    pub(super) fn len(&self) -> usize {
        self.exprs.len()
    }

    pub(super) fn finish(self) -> List<ExprId, Expr> {
        self.exprs.into_iter().collect()
    }
}
