//! Tiles of computed values: which box a nest needs, and in which loop it is filled.
//!
//! In: a node and the position at which a nest reads it. Out: the tile that holds the box, and the element in it.
//! A box is filled once, in the outermost loop where its base is known, and is forgotten where that loop ends.
//! `axis_span.rs` finds the box, `tile_requests.rs` merges boxes that touch, `fill_tile.rs` fills them.

use crate::graph::op::{Binary, Op};
use crate::graph::{Node, NodeId};
use crate::kernel::index::{Atom, Index};
use crate::kernel::lower::axis_span::{AxisSpan, SpanLoop, axis_span};
use crate::kernel::lower::nest_builder::{At, NestBuilder};
use crate::kernel::lower::part_builder::{PartBuilder, TooLarge};
use crate::kernel::{ExprId, Place, Range, TileId, VarId};
use crate::tensor::shape::Shape;

mod dequantise;
pub(super) mod fill_tile;
pub(super) mod tile_requests;

/// A box of a value in a tile.
#[derive(Clone, Debug)]
pub(super) struct FilledTile {
    pub(super) content: TileContent,
    pub(super) depth: usize,
}

/// What the tiles of a box hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum TileContent {
    /// The value.
    Value(TileId),
    /// A weighted sum and the sum of its weights, still to be divided.
    Ratio { sum: TileId, weights: TileId },
}

impl PartBuilder<'_> {
    pub(super) fn load_folded(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let (filled, at) = self.tile_of(node, at, nest)?;
        Ok(self.read_tile(&filled, &at, nest))
    }

    /// Reads an element of a filled tile.
    pub(super) fn read_tile(&self, filled: &FilledTile, at: &[Index], nest: &mut NestBuilder) -> ExprId {
        self.read_content(filled.content, at, nest)
    }

    /// Reads an element of what tiles hold.
    pub(super) fn read_content(&self, content: TileContent, at: &[Index], nest: &mut NestBuilder) -> ExprId {
        match content {
            TileContent::Value(tile) => nest.load(tile, at),
            TileContent::Ratio { sum, weights } => {
                let rows = self.part.tiles[weights].dims.len();
                let sum = nest.load(sum, at);
                let weights = nest.load(weights, &at[..rows]);
                // No position with any weight: the weighted mean of nothing is 0, not 0/0.
                let least = nest.number(f32::MIN_POSITIVE);
                let weights = nest.binary(Binary::Max, weights, least);
                nest.binary(Binary::Div, sum, weights)
            }
        }
    }

    /// The tile of the box that a nest reads at a position, filled if it is not there yet, and the element in it.
    pub(super) fn tile_of(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &NestBuilder,
    ) -> Result<(FilledTile, Vec<Index>), TooLarge> {
        self.tile_filled_by(node, at, nest, Self::fill)
    }

    /// The same, with another way to fill it.
    pub(super) fn tile_filled_by(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &NestBuilder,
        fill: fn(&mut Self, NodeId, &[AxisSpan]) -> Result<TileContent, TooLarge>,
    ) -> Result<(FilledTile, Vec<Index>), TooLarge> {
        let shape = self.tile_shape(node);
        let mut asked = Vec::new();
        let mut within_asked = Vec::new();
        for (axis, size) in &shape {
            let (span, within) = match self.node(node).op {
                // Top-k finds its ranks one after another: all of them or none.
                Op::TopK { into, .. } if into == *axis => (AxisSpan::whole(*axis, size), Some(at.get(*axis))),
                _ => axis_span(*axis, size, &at.get(*axis), &nest.locals, &self.part.vars),
            };
            asked.push(span);
            within_asked.push(within);
        }
        self.requests.record(node, &asked);
        let spans = self.merged_requests.widened(node, &asked);
        let mut relative = Vec::new();
        for ((span, asked), within) in spans.iter().zip(&asked).zip(within_asked) {
            if !matches!(span.run, SpanLoop::Point) {
                relative.push(within.unwrap_or_default().plus(&asked.base.minus(&span.base)));
            }
        }
        let key = (node, spans);
        if let Some(filled) = self.filled.get(&key) {
            return Ok((filled.clone(), relative));
        }
        let depth = key.1.iter().map(|span| self.depth_of(&span.base, &span.run)).max().unwrap_or(0);
        let inner = self.scopes.split_off(depth + 1);
        let content = fill(self, node, &key.1);
        self.scopes.extend(inner);
        let filled = FilledTile { content: content?, depth };
        self.filled.insert(key, filled.clone());
        Ok((filled, relative))
    }

    /// The axes of a tile of the value, in order.
    fn tile_shape(&self, node: NodeId) -> Shape {
        let Node { op, args, ty, .. } = self.node(node);
        let Op::Attend { over } = op else { return ty.shape.clone() };
        // The rows first: they are the axes of the sum of weights, too.
        let rows = self.node(args[0]).ty.shape.without_all(over);
        rows.union(&ty.shape).unwrap_or_else(|_| ty.shape.clone())
    }

    fn depth_of(&self, base: &Index, run: &SpanLoop) -> usize {
        let mut depth = 0;
        let mut see = |var: VarId| depth = self.depths[var].unwrap_or(0).max(depth);
        if let SpanLoop::Block(of) = run {
            see(*of);
        }
        base.any(&mut |atom| {
            if let Atom::Var(var) = atom {
                see(*var);
            }
            false
        });
        let mut tiles = 0;
        base.any(&mut |atom| {
            if let Atom::Lookup { from: Place::Tile(tile), .. } = atom {
                tiles = self.tile_depths[*tile].max(tiles);
            }
            false
        });
        depth.max(tiles)
    }

    /// Loops over spans: the loops, the position along each axis, and the element of the tile.
    pub(super) fn loop_over(&mut self, spans: &[AxisSpan]) -> (Vec<VarId>, At, Vec<Index>) {
        let mut loops = Vec::new();
        let mut at = At::default();
        let mut element = Vec::new();
        for span in spans {
            let (position, within) = match &span.run {
                SpanLoop::Point => (span.base.clone(), None),
                SpanLoop::Block(of) => {
                    let var = self.nest_var(span.axis, Range::Within { of: *of });
                    loops.push(var);
                    let within = Index::var(var).minus(&Index::var(*of));
                    (span.base.plus(&within), Some(within))
                }
                SpanLoop::Whole(len) | SpanLoop::Padded(len) => {
                    let var = self.nest_var(span.axis, Range::Whole { len: len.clone() });
                    loops.push(var);
                    (span.base.plus(&Index::var(var)), Some(Index::var(var)))
                }
            };
            at.set(span.axis, position);
            element.extend(within);
        }
        (loops, at, element)
    }
}
