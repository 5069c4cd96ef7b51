//! Opens the grid of a part and stores the pieces of its tasks.
//!
//! In: the grid of a root, and the root. Out: variables that number the tasks, and nests that store the task's piece. A
//! fold goes straight into its buffer; a concatenation is stored piece by piece; a write looks up where its
//! elements go.

use crate::graph::op::Op;
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::{AxisSpan, SpanLoop};
use crate::kernel::lower::grid::{Grid, rows_of_blocks};
use crate::kernel::lower::joined_weights::WeightRows;
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::{Blocks, Place, Range, VarId};
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

/// The positions of each axis of a root that the current task stores.
pub(super) struct TaskPositions(Vec<(Axis, AxisPosition)>);

#[derive(Clone)]
enum AxisPosition {
    Task(Index),
    /// A block of positions, from a variable plus an offset on.
    Block(VarId, Index, i64),
    Whole,
}

impl TaskPositions {
    /// Whether each task has every position of an axis.
    fn has_whole(&self, axis: Axis) -> bool {
        self.0.iter().all(|(a, place)| *a != axis || matches!(place, AxisPosition::Whole))
    }

    /// The span of an axis that the task needs.
    pub(super) fn span(&self, axis: Axis, size: &Sym) -> AxisSpan {
        let place = self.0.iter().find(|(a, _)| *a == axis).map(|(_, place)| place);
        match place {
            _ if size.as_const() == Some(1) => AxisSpan::point(axis, Index::default()),
            Some(AxisPosition::Task(index)) => AxisSpan::point(axis, index.clone()),
            Some(AxisPosition::Block(var, first, block)) => {
                AxisSpan { axis, base: Index::var(*var).plus(first), len: *block, run: SpanLoop::Block(*var) }
            }
            Some(AxisPosition::Whole) | None => AxisSpan::whole(axis, size),
        }
    }
}

impl PartBuilder<'_> {
    /// Makes the variables that number the tasks; with `rows`, for some positions of one axis only.
    pub(super) fn open_grid(
        &mut self,
        shape: &Shape,
        grid: &Grid,
        rows: Option<&WeightRows>,
    ) -> TaskPositions {
        let place = |builder: &mut Self, axis: Axis, size: &Sym, block: Option<i64>| {
            let own = rows.filter(|rows| rows.axis == axis);
            let first = Index::constant(own.map_or(0, |rows| rows.start));
            let len = own.map_or_else(|| size.clone(), |rows| Sym::from(rows.end - rows.start));
            match block {
                None => AxisPosition::Whole,
                Some(1) => {
                    let var = builder.task_var(axis, Range::Whole { len });
                    AxisPosition::Task(Index::var(var).plus(&first))
                }
                Some(block) => {
                    let (start, end) = (Index::default(), len);
                    let var =
                        builder.task_var(axis, Range::Blocks(Blocks { start, step: block, block, end }));
                    AxisPosition::Block(var, first, block)
                }
            }
        };
        let places = shape.iter().zip(grid);
        TaskPositions(
            places.map(|((axis, size), (_, block))| (*axis, place(self, *axis, size, *block))).collect(),
        )
    }

    /// Stores the task's piece of a root.
    pub(super) fn store(&mut self, root: NodeId, places: &TaskPositions) -> Result<(), TooLarge> {
        let Node { op, args, ty, .. } = self.node(root);
        let target = Place::Param(self.params.write(self.from.graph, root));
        if let Op::Write { axes } = op {
            let indices = axes.iter().copied().zip(args[2..].iter().copied()).collect();
            let store = Store { shape: &ty.shape, indices, shift: At::default() };
            return match rows_of_blocks(self.from.graph, root) {
                Some((axis, _)) => self.store_blocks(args[1], axis, places, target, &store),
                None => self.store_value(args[1], false, places, target, &store),
            };
        }
        let store = Store { shape: &ty.shape, indices: Vec::new(), shift: At::default() };
        self.store_value(root, true, places, target, &store)
    }

    /// Stores whole quantised blocks along an axis, from a tile: a block's elements are quantised together.
    fn store_blocks(
        &mut self,
        node: NodeId,
        rows: Axis,
        places: &TaskPositions,
        target: Place,
        store: &Store<'_>,
    ) -> Result<(), TooLarge> {
        let shape = &self.node(node).ty.shape;
        let mut spans: Vec<AxisSpan> = shape.iter().map(|(axis, size)| places.span(*axis, size)).collect();
        spans.sort_by_key(|span| span.axis == rows);
        let content = self.copy(node, &spans)?;
        let (loops, at, element) = self.loop_over(&spans);
        let mut nest = NestBuilder::new(&loops);
        let value = self.read_content(content, &element, &mut nest);
        let element = self.stored_element(store, &at, &nest)?;
        self.push_nest(nest, target, element, value);
        Ok(())
    }

    fn store_value(
        &mut self,
        node: NodeId,
        is_root: bool,
        places: &TaskPositions,
        target: Place,
        store: &Store<'_>,
    ) -> Result<(), TooLarge> {
        let Node { op, args, ty, .. } = self.node(node);
        let is_computed = is_root || !self.from.is_loadable(node);
        if let Op::Concat { axis } = op
            && is_computed
            && places.has_whole(*axis)
        {
            return self.store_pieces(args, *axis, places, target, store);
        }
        let spans: Vec<AxisSpan> = ty.shape.iter().map(|(axis, size)| places.span(*axis, size)).collect();
        let (loops, at, _) = self.loop_over(&spans);
        let mut nest = NestBuilder::new(&loops);
        let element = self.stored_element(store, &at, &nest)?;
        let folds = matches!(op, Op::Reduce { .. } | Op::Contract { .. });
        if folds && is_computed && !self.is_dequantised(node, &spans) {
            return self.fold_into(node, &at, loops, target, element);
        }
        let value =
            if is_root { self.compute(node, &at, &mut nest)? } else { self.value(node, &at, &mut nest)? };
        self.push_nest(nest, target, element, value);
        Ok(())
    }

    /// Stores a concatenation piece by piece.
    fn store_pieces(
        &mut self,
        args: &[NodeId],
        axis: Axis,
        places: &TaskPositions,
        target: Place,
        store: &Store<'_>,
    ) -> Result<(), TooLarge> {
        let mut start = Sym::from(0i64);
        for arg in args {
            let size = self.node(*arg).ty.shape.size(axis).cloned().unwrap_or_default();
            let inner = store.shifted(axis, &start);
            if size.most() > 0 {
                self.store_value(*arg, false, places, target, &inner)?;
            }
            start = start + size;
        }
        Ok(())
    }
}

/// How positions of a value map to a buffer.
#[derive(Clone)]
struct Store<'a> {
    shape: &'a Shape,
    /// Axes of the buffer whose positions are read from index tensors.
    indices: Vec<(Axis, NodeId)>,
    /// Where the value begins in the whole that is stored, along its axes.
    shift: At,
}

impl Store<'_> {
    /// The same for a piece of the value that begins further on.
    fn shifted(&self, axis: Axis, by: &Sym) -> Self {
        let shift = self.shift.get(axis).plus(&Index::sym(by));
        Self { shift: self.shift.with(axis, shift), ..self.clone() }
    }
}

impl PartBuilder<'_> {
    /// The element of the buffer that a position of the value goes to.
    fn stored_element(
        &mut self,
        store: &Store<'_>,
        at: &At,
        nest: &NestBuilder,
    ) -> Result<Vec<Index>, TooLarge> {
        let at = at.plus(&store.shift);
        let mut position = |axis: Axis, size: &Sym| match store.indices.iter().find(|(own, _)| *own == axis) {
            Some((_, index)) => self.lookup(*index, &at, size.most().max(1), nest),
            None => Ok(at.get(axis)),
        };
        store.shape.iter().map(|(axis, size)| position(*axis, size)).collect()
    }
}
