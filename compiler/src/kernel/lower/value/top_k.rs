//! Top-k by repeated search: one round for each rank.
//!
//! In: a search along an axis, and the box of ranks that is needed. Out: a tile of positions. A round finds the largest
//! element after the last one found, ordered by falling value, then rising position. Nothing is sorted or overwritten.

use crate::graph::NodeId;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::{AxisSpan, SpanLoop, dims};
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::lower::tiles::fill_tile::FoldNest;
use crate::kernel::{Expr, Place, Range, TileId, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// A search of several rows.
struct Search {
    axis: Axis,
    len: Sym,
    /// The loops over rows.
    loops: Vec<VarId>,
    /// A row's element in tiles of one element a row.
    row: Vec<Index>,
    /// The elements that are searched.
    elements: TileId,
    /// The last element found, and its position.
    last_value: TileId,
    last_place: TileId,
}

impl PartBuilder<'_> {
    /// Fills a box of the ranks.
    pub(crate) fn top_k(
        &mut self,
        node: NodeId,
        axis: Axis,
        into: Axis,
        k: usize,
        spans: &[AxisSpan],
    ) -> Result<TileId, TooLarge> {
        let arg = self.node(node).args[0];
        let len = self.node(arg).ty.shape.size(axis).cloned().unwrap_or_default();
        let rows: Vec<AxisSpan> = spans.iter().filter(|span| span.axis != into).cloned().collect();
        let row_dims = dims(&rows);
        let out = self.box_tile(DType::I32, spans);
        let elements = self.tile(DType::F32, [row_dims.clone(), vec![len.most().max(1) as usize]].concat());
        let last_value = self.tile(DType::F32, row_dims.clone());
        let last_place = self.tile(DType::I32, row_dims.clone());
        let (loops, at, row) = self.loop_over(&rows);
        let search = Search { axis, len, loops, row, elements, last_value, last_place };
        self.push_searched(&search, arg, &at)?;
        let Search { loops, row, .. } = &search;
        self.push_constant(loops, last_value, row, Scalar::float(f32::INFINITY));
        self.push_constant(loops, last_place, row, Scalar::I32(-1));
        let (all, _, element) = self.loop_over(spans);
        self.push_constant(&all, out, &element, Scalar::I32(0));

        let round = self.open_loop(into, Range::Whole { len: Sym::from(k) });
        let best_value = self.tile(DType::F32, row_dims.clone());
        let best_place = self.tile(DType::I32, row_dims);
        self.push_best(&search, best_value, None);
        self.push_best(&search, best_place, Some(best_value));
        let mut rest = row.iter();
        let axes = spans.iter().filter(|span| !matches!(span.run, SpanLoop::Point) || span.axis == into);
        let rank = |span: &AxisSpan| {
            if span.axis == into { Index::var(round) } else { rest.next().cloned().unwrap_or_default() }
        };
        let ranked: Vec<Index> = axes.map(rank).collect();
        self.push_copy(&search, best_value, (last_value, row), false);
        self.push_copy(&search, best_place, (last_place, row), true);
        self.push_copy(&search, best_place, (out, &ranked), true);
        self.close_loop(round);
        Ok(out)
    }

    /// Fills the searched tile. NaN counts as the smallest.
    fn push_searched(&mut self, search: &Search, arg: NodeId, at: &At) -> Result<(), TooLarge> {
        let mut locals = search.loops.clone();
        let position = self.axis_loop(search.axis, &search.len, &mut locals);
        let mut nest = NestBuilder::new(&locals);
        let x = self.value(arg, &at.with(search.axis, position.clone()), &mut nest)?;
        let is_comparable = nest.binary(Binary::Eq, x, x);
        let lowest = nest.number(f32::NEG_INFINITY);
        let x = nest.add(Expr::Select(is_comparable, x, lowest));
        let column = [search.row.clone(), vec![position]].concat();
        self.push_nest(nest, Place::Tile(search.elements), column, x);
        Ok(())
    }

    /// Finds the largest remaining element; with `known`, its first position, negated.
    fn push_best(&mut self, search: &Search, target: TileId, known: Option<TileId>) {
        let Search { axis, len, loops, row, elements, last_value, last_place } = search;
        let mut inner = Vec::new();
        let position = self.axis_loop(*axis, len, &mut inner);
        let mut nest = NestBuilder::new(&[&loops[..], &inner].concat());
        let x = nest.load(*elements, &[row.clone(), vec![position.clone()]].concat());
        let value = nest.load(*last_value, row);
        let place = nest.load(*last_place, row);
        let here = nest.add(Expr::Position(position));
        let less = nest.binary(Binary::Lt, x, value);
        let equal = nest.binary(Binary::Eq, x, value);
        let later = nest.binary(Binary::Lt, place, here);
        let tie = nest.binary(Binary::Mul, equal, later);
        let remains = nest.binary(Binary::Max, less, tie);
        let found = if let Some(best) = known {
            let best = nest.load(best, row);
            let is_best = nest.binary(Binary::Eq, x, best);
            let remains = nest.binary(Binary::Mul, remains, is_best);
            let first = nest.unary(Unary::Neg, here);
            let none = nest.add(Expr::Const(Scalar::I32(i32::MIN + 1)));
            nest.add(Expr::Select(remains, first, none))
        } else {
            let none = nest.number(f32::NEG_INFINITY);
            nest.add(Expr::Select(remains, x, none))
        };
        let (target, at, loops) = (Place::Tile(target), row.clone(), loops.clone());
        let fold = FoldNest { target, at, loops, inner, fold: Fold::Max, init: None };
        self.push_fold(nest, fold, found);
    }

    /// Copies what was found in each row, perhaps negated.
    fn push_copy(&mut self, search: &Search, from: TileId, (to, at): (TileId, &[Index]), negate: bool) {
        let mut nest = NestBuilder::new(&search.loops);
        let found = nest.load(from, &search.row);
        let value = if negate { nest.unary(Unary::Neg, found) } else { found };
        self.push_nest(nest, Place::Tile(to), at.to_vec(), value);
    }
}
