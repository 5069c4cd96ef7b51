//! GEMMs that dequantise an operand into tiles, one K-step at a time.
//!
//! In: a contraction and the spans of the box. Out: nests in a loop over K-steps, and the tile they accumulate in:
//!
//! ```text
//!  sum = 0
//!  for each step of K:  tile = dequantised weight [rows × k_step];  sum += x · tileᵀ
//! ```
//!
//! An operand is dequantised into a tile where decoding it again for each use costs more, on targets whose kernels do
//! not decode by themselves; where the weight is transposed (its rows run across K); and where tensor cores want tiles.

use crate::graph::op::{Binary, Fold, Op};
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::AxisSpan;
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::lower::tiles::fill_tile::FoldNest;
use crate::kernel::{Blocks, Place, Range, TileId, VarId};
use crate::tensor::quant::Format;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// Rows or columns of an MMA tile.
const MMA_SIDE: i64 = 16;
/// The most elements of an operand that is staged beside the other tiles of attention.
const MAX_STAGED: i64 = 8192;

impl PartBuilder<'_> {
    /// The summed axis to step along, where dequantising an operand into a tile saves work.
    pub(crate) fn dequantised_axis(
        &self,
        node: NodeId,
        over: &[Axis],
        spans: &[AxisSpan],
    ) -> Option<(Axis, Sym)> {
        let args = &self.node(node).args;
        let saves = |arg: &NodeId| {
            let format = self.stored_format(*arg, spans);
            let Some(cost) = format.map(Format::decoding_operations) else { return false };
            if !self.from.target.capabilities.dequantises_to_tiles && !self.is_transposed(*arg, over, spans) {
                return false;
            }
            let shape = &self.node(*arg).ty.shape;
            let n_uses: i64 =
                spans.iter().filter(|span| !shape.has(span.axis)).map(|span| span.len).product();
            n_uses * cost > cost + 2 || self.from.target.tuning.stages_operands && n_uses >= MMA_SIDE
        };
        let weight = args.iter().find(|arg| saves(arg))?;
        let shape = &self.node(*weight).ty.shape;
        if shape.is_empty() {
            return None;
        }
        let axis = over.iter().max_by_key(|axis| shape.size(**axis).map_or(0, Sym::most))?;
        let len = shape.size(*axis)?;
        (len.most() > 1).then(|| (*axis, len.clone()))
    }

    /// The format of the stored tensor that a box is a view of, unless its elements need neither decoding nor a tile;
    /// of several, the costliest to decode.
    fn stored_format(&self, node: NodeId, spans: &[AxisSpan]) -> Option<Format> {
        let Node { op, args, .. } = self.node(node);
        match op {
            Op::Weight { format, .. } => {
                (self.from.target.tuning.stages_operands || *format != Format::F32).then_some(*format)
            }
            _ if self.from.is_loadable(node) => None,
            Op::Concat { axis } => {
                let formats = self.pieces_within(args, *axis, spans).into_iter();
                formats
                    .filter_map(|arg| self.stored_format(arg, &[]))
                    .max_by_key(|format| format.decoding_operations())
            }
            _ if op.is_movement() || matches!(op, Op::Gather { .. }) => self.stored_format(args[0], &[]),
            _ => None,
        }
    }

    /// Whether the contiguous axis of a weight is not summed over: microkernels need its rows in a tile along K first.
    fn is_transposed(&self, arg: NodeId, over: &[Axis], spans: &[AxisSpan]) -> bool {
        self.contiguous_axis(arg, spans).is_some_and(|axis| !over.contains(&axis))
    }

    /// The axis that is contiguous in the weight that a box is a view of.
    fn contiguous_axis(&self, node: NodeId, spans: &[AxisSpan]) -> Option<Axis> {
        let Node { op, args, ty, .. } = self.node(node);
        let of_arg = || self.contiguous_axis(*args.first()?, &[]);
        match op {
            Op::Weight { .. } => ty.shape.axes().last(),
            Op::Rename { from, to } => of_arg().map(|axis| if axis == *from { *to } else { axis }),
            Op::Merge { axes, into } => match of_arg()? {
                axis if axes.last() == Some(&axis) => Some(*into),
                axis => (!axes.contains(&axis)).then_some(axis),
            },
            Op::Split { axis, into } => match of_arg()? {
                own if own == *axis => into.axes().last(),
                own => Some(own),
            },
            Op::Slice { .. } | Op::Expand { .. } | Op::Gather { .. } => of_arg(),
            Op::Concat { axis } => {
                let mut found = self.pieces_within(args, *axis, spans).into_iter();
                let first = self.contiguous_axis(found.next()?, &[])?;
                found.all(|arg| self.contiguous_axis(arg, &[]) == Some(first)).then_some(first)
            }
            _ => None,
        }
    }

    /// The pieces of a concatenation that a box may overlap.
    fn pieces_within(&self, args: &[NodeId], axis: Axis, spans: &[AxisSpan]) -> Vec<NodeId> {
        let Some(span) = spans.iter().find(|span| span.axis == axis) else { return args.to_vec() };
        let (first, last) = span.base.bounds(&self.part.vars);
        let mut end = 0;
        let within = |arg: &&NodeId| {
            let start = end;
            end += self.node(**arg).ty.shape.size(axis).map_or(0, Sym::most);
            start < last + span.len && first < end
        };
        args.iter().filter(within).copied().collect()
    }

    /// Whether a contraction dequantises an operand into tiles, and so needs a tile to accumulate in.
    pub(crate) fn is_dequantised(&self, node: NodeId, spans: &[AxisSpan]) -> bool {
        match &self.node(node).op {
            Op::Contract { over } => self.dequantised_axis(node, over, spans).is_some(),
            _ => false,
        }
    }

    /// Whether operands are copied to tiles for tensor cores: rows of a state (KV cache) that many queries meet.
    pub(crate) fn are_staged(&self, args: &[NodeId], at: &At, nest: &NestBuilder) -> bool {
        let len = |var: &VarId| self.part.n_values(*var, &Sym::most).max(1);
        let is_state = |arg: &NodeId| {
            let (mut node, at) = self.look_through(*arg, at);
            // Caches in narrower formats are widened where they are read.
            while let Node { op: Op::Cast(_), args, .. } = self.node(node) {
                node = self.look_through(args[0], &at).0;
            }
            self.from.graph.state_of(node).is_some()
        };
        let fits = |arg: &NodeId| {
            let at = at.restricted(&self.node(*arg).ty.shape);
            let (own, others): (Vec<VarId>, Vec<VarId>) = nest.locals.iter().partition(|var| at.uses(**var));
            let product = |vars: &[VarId]| vars.iter().map(len).product::<i64>();
            product(&others) % MMA_SIDE == 0 && product(&own) <= MAX_STAGED
        };
        self.from.target.tuning.stages_operands && args.iter().any(is_state) && args.iter().all(fits)
    }

    /// The factor that is widened into a tile first: rows of a KV cache in half precision or less that meet a weight.
    /// CPU kernels multiply weights with vectors in single precision only.
    pub(crate) fn widened(&self, args: &[NodeId]) -> Option<NodeId> {
        let is_weight = |arg: &NodeId| self.stored_format(*arg, &[]).is_some();
        let meets_weight = !self.from.target.capabilities.dequantises_to_tiles && args.iter().any(is_weight);
        args.iter().copied().find(|arg| meets_weight && !is_weight(arg) && self.is_narrow(*arg))
    }

    /// Whether a value is a view of a stored one whose elements have fewer bits than single precision.
    fn is_narrow(&self, node: NodeId) -> bool {
        let Node { op, args, ty, .. } = self.node(node);
        match op {
            _ if self.from.is_loadable(node) => {
                let format = self.from.graph.stored_format(node).unwrap_or(Format::of(ty.dtype));
                ty.dtype.is_float() && format != Format::F32
            }
            Op::Gather { .. } | Op::Cast(_) => self.is_narrow(args[0]),
            _ => op.is_movement() && args.iter().any(|arg| self.is_narrow(*arg)),
        }
    }

    /// Accumulates a box of a contraction, one K-step after another.
    pub(crate) fn contract_in_k_steps(
        &mut self,
        node: NodeId,
        block: &(Axis, Sym),
        spans: &[AxisSpan],
    ) -> Result<TileId, TooLarge> {
        let Node { op, args, ty, .. } = self.node(node);
        let Op::Contract { over } = op else { return Err(TooLarge) };
        let tile = self.box_tile(ty.dtype, spans);
        let (loops, at, element) = self.loop_over(spans);
        let mut zero = NestBuilder::new(&loops);
        let value = zero.number(0.0);
        self.push_nest(zero, Place::Tile(tile), element.clone(), value);

        let (axis, end) = block;
        let len = self.from.target.tuning.k_step;
        let range =
            Range::Blocks(Blocks { start: Index::default(), step: len, block: len, end: end.clone() });
        // Other summed axes become outer loops, so that tiles hold one K-step.
        let mut at = at;
        let mut around = Vec::new();
        for axis in over.iter().filter(|other| *other != axis) {
            let len = self.node(args[0]).ty.shape.size(*axis).cloned().unwrap_or_default();
            let var = self.open_loop(*axis, Range::Whole { len });
            at.set(*axis, Index::var(var));
            around.push(var);
        }
        let outer = self.open_loop(*axis, range);
        let within = self.nest_var(*axis, Range::Within { of: outer });
        let inner = vec![within];
        at.set(*axis, Index::var(within));
        let locals: Vec<VarId> = loops.iter().chain(&inner).copied().collect();
        let mut nest = NestBuilder::new(&locals);
        let mut factors = Vec::new();
        for arg in args {
            let at = at.restricted(&self.node(*arg).ty.shape);
            let is_staged = self.from.target.tuning.stages_operands && self.node(*arg).ty.dtype.is_float();
            factors.push(if self.stored_format(*arg, spans).is_some() {
                let (filled, element) = self.tile_of(*arg, &at, &nest)?;
                self.read_tile(&filled, &element, &mut nest)
            } else if is_staged && !self.node(*arg).ty.shape.is_empty() {
                let (filled, element) = self.tile_filled_by(*arg, &at, &nest, Self::copy)?;
                self.read_tile(&filled, &element, &mut nest)
            } else {
                self.operand(*arg, &at, &mut nest, false)?
            });
        }
        let value = nest.binary(Binary::Mul, factors[0], factors[1]);
        let init = Some(nest.load(tile, &element));
        let fold = FoldNest { target: Place::Tile(tile), at: element, loops, inner, fold: Fold::Sum, init };
        self.push_fold(nest, fold, value);
        self.close_loop(outer);
        around.into_iter().rev().for_each(|var| self.close_loop(var));
        Ok(tile)
    }
}
