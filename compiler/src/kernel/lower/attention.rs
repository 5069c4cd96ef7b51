//! Attention with online softmax, in one pass over the cache (as flash attention does).
//!
//! In: an attention and the box of it that a task needs. Out: a loop over blocks of positions that updates three tiles:
//!
//! ```text
//!  m' = max(m, max s)      s: scores of the block      scale = exp(m - m')
//!  l' = l · scale + Σ exp(s - m')                      sum of the weights
//!  o' = o · scale + Σ exp(s - m') · v                  weighted sum of the values; o / l at the end
//! ```
//!
//! A sink is where m starts, with a weight of 1. The maximum m keeps the exponential from overflowing. Where few tasks
//! would leave compute units idle, tasks split the positions (flash decoding): each takes every n-th block, and
//! [`PartBuilder::combine`] reduces their (m, l, o).

use crate::graph::NodeId;
use crate::graph::op::{Binary, Fold, Scalar, Unary};
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::lower::axis_span::{AxisSpan, dims};
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::params::Scratch;
use crate::kernel::lower::part_builder::{PartBuilder, Partial, TooLarge};
use crate::kernel::lower::tiles::TileContent;
use crate::kernel::lower::tiles::fill_tile::FoldNest;
use crate::kernel::mask::{ends, first_seen};
use crate::kernel::{Access, Blocks, Expr, ExprId, Nest, ParamId, Place, Range, Stmt, TileId, VarId};
use crate::target::MIN_POSITIONS_PER_STEP;
use crate::tensor::dtype::DType;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

/// Below every finite score, and itself finite, so that differences are never NaN.
const BELOW_ALL: f32 = f32::MIN;

/// The running results of online softmax.
#[derive(Clone, Copy)]
pub(super) struct OnlineSoftmax {
    pub(super) sum: TileId,
    pub(super) weights: TileId,
    pub(super) most: TileId,
}

/// Loops over the rows that share a score, with their positions and tile elements.
struct RowLoops {
    loops: Vec<VarId>,
    at: At,
    element: Vec<Index>,
}

/// The loops over the positions of one block, with where they are and the tile columns that they fill.
struct PositionLoops {
    /// The loop over blocks.
    outer: VarId,
    loops: Vec<VarId>,
    at: Vec<(Axis, Index)>,
    column: Vec<Index>,
    /// The sizes of a tile along the columns.
    dims: Vec<usize>,
}

impl PositionLoops {
    /// A place among the rows, at the current position.
    fn of(&self, rows: &At) -> At {
        self.at.iter().fold(rows.clone(), |at, (axis, index)| at.with(*axis, index.clone()))
    }
}

impl RowLoops {
    /// The row's element in a tile of `rows`: rows are the leading axes of this tile.
    fn row_of(&self, rows: &Self) -> Vec<Index> {
        self.element[..rows.element.len()].to_vec()
    }
}

impl PartBuilder<'_> {
    /// Attends to all positions.
    pub(super) fn stream(
        &mut self,
        node: NodeId,
        over: &[Axis],
        spans: &[AxisSpan],
    ) -> Result<TileContent, TooLarge> {
        let running = self.stream_blocks(node, over, spans, None)?;
        Ok(TileContent::Ratio { sum: running.sum, weights: running.weights })
    }

    /// Attends to every block, or to every n-th from the one that `split` numbers.
    pub(super) fn stream_blocks(
        &mut self,
        node: NodeId,
        over: &[Axis],
        spans: &[AxisSpan],
        split: Option<(VarId, i64)>,
    ) -> Result<OnlineSoftmax, TooLarge> {
        let args = &self.node(node).args;
        let (scores, values) = (args[0], args[1]);
        let scores_shape = &self.node(scores).ty.shape;
        let size = |axis: &Axis| scores_shape.size(*axis).cloned().unwrap_or_default();
        let end = size(&over[0]);
        let inner: Vec<(Axis, Sym)> = over[1..].iter().map(|axis| (*axis, size(axis))).collect();
        let row_spans: Vec<AxisSpan> =
            spans.iter().filter(|span| scores_shape.has(span.axis)).cloned().collect();
        let running = OnlineSoftmax {
            sum: self.box_tile(DType::F32, spans),
            weights: self.box_tile(DType::F32, &row_spans),
            most: self.tile(DType::F32, dims(&row_spans)),
        };
        let rows = self.rows(&row_spans);
        let all = self.rows(spans);
        // Of tasks that split the positions, none has the sink: `combine` adds it.
        let sink = self.node(node).args.get(2).copied().filter(|_| split.is_none());
        let mut nest = NestBuilder::new(&rows.loops);
        let most = match sink {
            Some(sink) => self.value(sink, &rows.at, &mut nest)?,
            None => nest.number(BELOW_ALL),
        };
        self.push_nest(nest, Place::Tile(running.most), rows.element.clone(), most);
        let weight = if sink.is_some() { 1.0 } else { 0.0 };
        self.push_constant(&rows.loops, running.weights, &rows.element, Scalar::float(weight));
        self.push_constant(&all.loops, running.sum, &all.element, Scalar::float(0.0));

        // Tasks that split the positions take few at a time, so that they get about as many each.
        let positions = match split {
            Some(_) => MIN_POSITIONS_PER_STEP,
            None => self.from.target.tuning.positions_per_step(dims(&row_spans).iter().product()),
        };
        let n_inner: i64 = inner.iter().map(|(_, size)| size.most().max(1)).product();
        let block = (positions as i64 / n_inner).clamp(1, end.most().max(1));
        let (start, step) = split.map_or((Index::default(), block), |(var, n_splits)| {
            (Index::var(var).times(block), block * n_splits)
        });
        let outer = self.open_loop(over[0], Range::Blocks(Blocks { start, step, block, end }));
        let positions = self.positions(over[0], outer, block, inner);
        self.step(running, (scores, values), &positions, &rows, &all)?;
        self.close_loop(outer);
        Ok(running)
    }

    /// The loops over the positions of a block.
    fn positions(&mut self, first: Axis, outer: VarId, block: i64, inner: Vec<(Axis, Sym)>) -> PositionLoops {
        let mut positions =
            PositionLoops { outer, loops: Vec::new(), at: Vec::new(), column: Vec::new(), dims: Vec::new() };
        if block > 1 || inner.is_empty() {
            let inside = self.nest_var(first, Range::Within { of: outer });
            positions.loops.push(inside);
            positions.at.push((first, Index::var(inside)));
            positions.column.push(Index::var(inside).minus(&Index::var(outer)));
            positions.dims.push(block as usize);
        } else {
            positions.at.push((first, Index::var(outer)));
        }
        for (axis, size) in inner {
            let var = self.nest_var(axis, Range::Whole { len: size.clone() });
            positions.loops.push(var);
            positions.at.push((axis, Index::var(var)));
            positions.column.push(Index::var(var));
            positions.dims.push(size.most().max(1) as usize);
        }
        positions
    }

    /// One block: its scores, the new maximum, the weights, and the rescaled sums.
    fn step(
        &mut self,
        running: OnlineSoftmax,
        (scores, values): (NodeId, NodeId),
        positions: &PositionLoops,
        rows: &RowLoops,
        all: &RowLoops,
    ) -> Result<(), TooLarge> {
        let row_dims = self.part.tiles[running.most].dims.clone();
        let block_dims = [&row_dims[..], &positions.dims].concat();
        let score = self.tile(DType::F32, block_dims.clone());
        let weight = self.tile(DType::F32, block_dims);
        let (most, scale) = (self.tile(DType::F32, row_dims.clone()), self.tile(DType::F32, row_dims));
        let inside = &positions.loops;
        let column = |rows: &RowLoops| [&rows.element[..], &positions.column].concat();

        let mut nest = NestBuilder::new(&[&rows.loops[..], inside].concat());
        let x = self.value(scores, &positions.of(&rows.at), &mut nest)?;
        self.push_nest(nest, Place::Tile(score), column(rows), x);
        self.start_at_window(positions);
        self.end_at_mask(positions, &rows.loops)?;

        let mut nest = NestBuilder::new(&rows.loops);
        let x = nest.load(score, &column(rows));
        let init = nest.load(running.most, &rows.element);
        self.fold(nest, (most, rows), inside, Fold::Max, init, x);

        let mut nest = NestBuilder::new(&rows.loops);
        let before = nest.load(running.most, &rows.element);
        let shrink = exp_of_difference(&mut nest, before, (most, &rows.element));
        self.push_nest(nest, Place::Tile(scale), rows.element.clone(), shrink);

        let mut nest = NestBuilder::new(&[&rows.loops[..], inside].concat());
        let x = nest.load(score, &column(rows));
        let w = exp_of_difference(&mut nest, x, (most, &rows.element));
        self.push_nest(nest, Place::Tile(weight), column(rows), w);

        let mut nest = NestBuilder::new(&rows.loops);
        let w = nest.load(weight, &column(rows));
        let init = scaled(&mut nest, (running.weights, &rows.element), (scale, &rows.element));
        self.fold(nest, (running.weights, rows), inside, Fold::Sum, init, w);

        let mut nest = NestBuilder::new(&[&all.loops[..], inside].concat());
        let row = all.row_of(rows);
        let w = nest.load(weight, &[row.clone(), column(rows).split_off(row.len())].concat());
        let at = positions.of(&all.at);
        let v = if self.are_staged(&[values], &at, &nest) {
            self.operand(values, &at, &mut nest, true)?
        } else {
            self.value(values, &at, &mut nest)?
        };
        let is_single = self.node(values).ty.dtype == DType::F32;
        let v = if is_single { v } else { nest.add(Expr::Cast(DType::F32, v)) };
        let product = nest.binary(Binary::Mul, w, v);
        let init = scaled(&mut nest, (running.sum, &all.element), (scale, &row));
        self.fold(nest, (running.sum, all), inside, Fold::Sum, init, product);

        let mut nest = NestBuilder::new(&rows.loops);
        let x = nest.load(most, &rows.element);
        self.push_nest(nest, Place::Tile(running.most), rows.element.clone(), x);
        Ok(())
    }

    /// Starts at the first block that a sliding window shows to any query of the task.
    fn start_at_window(&mut self, positions: &PositionLoops) {
        let Some(Stmt::Nest(nest)) = self.scopes.last().and_then(|scope| scope.last()) else { return };
        let PositionLoops { outer, loops, .. } = positions;
        let outer = *outer;
        // A block begins where its first loop does, if that is not the loop over blocks itself.
        let along = loops.first().copied().filter(|var| self.is_within(*var, outer)).unwrap_or(outer);
        let Some(first) = first_seen(nest, along, &self.part.vars) else { return };
        let vars = &self.part.vars;
        let first = Index::atom(Atom::Max(Box::new(first), 0));
        if let Range::Blocks(blocks) = &vars[outer].range {
            let start = blocks.start.plus(&first.div(blocks.block, vars).times(blocks.block));
            self.part.vars[outer].range = Range::Blocks(Blocks { start, ..blocks.clone() });
        }
    }

    /// Ends every loop over positions before those that the mask hides from all queries of the task: they would add
    /// nothing, and behind the end of a sequence they are no numbers that anybody wrote.
    fn end_at_mask(&mut self, positions: &PositionLoops, rows: &[VarId]) -> Result<(), TooLarge> {
        let Some((Stmt::Nest(nest), others)) = self.scopes.last().and_then(|scope| scope.split_last()) else {
            return Ok(());
        };
        let vars = &self.part.vars;
        // The loop over blocks, then those over the positions of one.
        let loops = [&[positions.outer], &positions.loops[..]].concat();
        let ends_of = |(number, var): (usize, &VarId)| {
            let around = &loops[1..number.max(1)];
            let inside: Vec<VarId> = nest.loops.iter().filter(|var| !around.contains(var)).copied().collect();
            // Tasks of several sequences, each with an end of its own, are not made.
            ends(nest, *var, (&inside, rows), vars).ok_or(TooLarge)
        };
        let ends: Vec<Vec<Index>> = loops.iter().enumerate().map(ends_of).collect::<Result<_, _>>()?;
        // What the scores are made of, such as products and dequantised rows, ends there too.
        let same = |nest: &Nest, var: VarId| nest.loops.iter().copied().find(|own| is_same(*own, var, vars));
        let of_nest = |nest: &Nest| loops.iter().map(|var| same(nest, *var).unwrap_or(*var)).collect();
        let others = others.iter().filter_map(Stmt::nest).map(of_nest);
        let all: Vec<Vec<VarId>> = others.chain([loops.clone()]).collect();
        for own in all {
            let renamed = |var: VarId| {
                let number = loops.iter().position(|other| *other == var);
                Index::var(number.map_or(var, |number| own[number]))
            };
            for (var, ends) in own.iter().zip(&ends) {
                let until = ends.iter().map(|end| end.replaced(&renamed, &self.part.vars)).collect();
                self.part.vars[*var].until = until;
            }
        }
        Ok(())
    }

    fn is_within(&self, var: VarId, of: VarId) -> bool {
        self.part.vars[var].range == Range::Within { of }
    }

    /// Reduces the partial results of several tasks.
    pub(super) fn combine(
        &mut self,
        partial: &Partial,
        over: &[Axis],
        spans: &[AxisSpan],
    ) -> Result<TileContent, TooLarge> {
        let node = partial.node;
        let sink = self.node(node).args.get(2).copied();
        let scores_shape = self.node(self.node(node).args[0]).ty.shape.without_all(over);
        let row_spans: Vec<AxisSpan> =
            spans.iter().filter(|span| scores_shape.has(span.axis)).cloned().collect();
        let (rows, all) = (self.rows(&row_spans), self.rows(spans));
        let most = self.tile(DType::F32, dims(&row_spans));
        let weights = self.box_tile(DType::F32, &row_spans);
        let sum = self.box_tile(DType::F32, spans);
        let of_each = self.scratch(partial, Access::Read);

        let split = self.nest_var(partial.axis, Range::Whole { len: Sym::from(partial.n_splits) });
        let part_of = |which: Scratch, at: &At| {
            let (param, shape) = &of_each[which as usize];
            let at = at.with(partial.axis, Index::var(split)).in_order_of(shape);
            Expr::Load { from: Place::Param(*param), at }
        };
        let mut nest = NestBuilder::new(&rows.loops);
        let init = match sink {
            Some(sink) => self.value(sink, &rows.at, &mut nest)?,
            None => nest.number(BELOW_ALL),
        };
        let x = nest.add(part_of(Scratch::Most, &rows.at));
        self.fold(nest, (most, &rows), &[split], Fold::Max, init, x);

        for (target, which, over_all) in [(weights, Scratch::Weights, false), (sum, Scratch::Sum, true)] {
            let run = if over_all { &all } else { &rows };
            let row = run.row_of(&rows);
            let mut nest = NestBuilder::new(&run.loops);
            let own = nest.add(part_of(Scratch::Most, &run.at));
            let factor = exp_of_difference(&mut nest, own, (most, &row));
            let x = nest.add(part_of(which, &run.at));
            let x = nest.binary(Binary::Mul, factor, x);
            let init = match sink.filter(|_| !over_all) {
                Some(sink) => {
                    let sink = self.value(sink, &run.at, &mut nest)?;
                    exp_of_difference(&mut nest, sink, (most, &row))
                }
                None => nest.number(0.0),
            };
            self.fold(nest, (target, run), &[split], Fold::Sum, init, x);
        }
        // Divided once here: a product would do it for every row of its weight.
        let whole = self.box_tile(DType::F32, spans);
        let all = self.rows(spans);
        let mut nest = NestBuilder::new(&all.loops);
        let x = self.read_content(TileContent::Ratio { sum, weights }, &all.element, &mut nest);
        self.push_nest(nest, Place::Tile(whole), all.element.clone(), x);
        Ok(TileContent::Value(whole))
    }

    /// The buffers of partial results with their shapes: sums, weights, maxima.
    pub(super) fn scratch(&mut self, partial: &Partial, access: Access) -> [(ParamId, Shape); 3] {
        let node = partial.node;
        let values = &self.node(self.node(node).args[1]).ty.shape;
        let scores = &self.node(self.node(node).args[0]).ty.shape;
        let whole = &self.node(node).ty.shape;
        let over = values.axes().filter(|axis| !whole.has(*axis));
        let rows = over.fold(scores.clone(), |rows, over| rows.without(over));
        let all = rows.union(&self.node(node).ty.shape).unwrap_or_default();
        let split = |shape: &Shape| {
            let own = [(partial.axis, Sym::from(partial.n_splits))];
            Shape::new(own.into_iter().chain(shape.iter().cloned())).unwrap_or_default()
        };
        [(Scratch::Sum, split(&all)), (Scratch::Weights, split(&rows)), (Scratch::Most, split(&rows))]
            .map(|(which, shape)| (self.params.scratch(node, which, &shape, access), shape))
    }

    fn rows(&mut self, spans: &[AxisSpan]) -> RowLoops {
        let (loops, at, element) = self.loop_over(spans);
        RowLoops { loops, at, element }
    }

    fn fold(
        &mut self,
        nest: NestBuilder,
        (tile, rows): (TileId, &RowLoops),
        inside: &[VarId],
        fold: Fold,
        init: ExprId,
        value: ExprId,
    ) {
        let (target, at, loops) = (Place::Tile(tile), rows.element.clone(), rows.loops.clone());
        let shape = FoldNest { target, at, loops, inner: inside.to_vec(), fold, init: Some(init) };
        self.push_fold(nest, shape, value);
    }
}

/// Whether two loops run over the same positions.
fn is_same(a: VarId, b: VarId, vars: &Vars) -> bool {
    (vars[a].name, &vars[a].range) == (vars[b].name, &vars[b].range)
}

/// `exp(x - most)`
fn exp_of_difference(nest: &mut NestBuilder, x: ExprId, (most, at): (TileId, &[Index])) -> ExprId {
    let most = nest.load(most, at);
    let difference = nest.binary(Binary::Sub, x, most);
    nest.unary(Unary::Exp, difference)
}

/// The product of two elements.
fn scaled(nest: &mut NestBuilder, x: (TileId, &[Index]), scale: (TileId, &[Index])) -> ExprId {
    let (x, scale) = (nest.load(x.0, x.1), nest.load(scale.0, scale.1));
    nest.binary(Binary::Mul, x, scale)
}
