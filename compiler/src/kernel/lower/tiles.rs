//! Boxes of values in task memory: what a nest reads of a folded value, and when it is filled.
//!
//! In: a node and the position that a nest reads it at. Out: the tile that holds the box, and where in it.
//! A box is filled once, in the outermost loop where its place is known, and is forgotten where that loop ends.
//! `span.rs` finds the box, `boxes.rs` joins boxes that touch, `fill.rs` fills them.

use crate::graph::op::{Binary, Op};
use crate::graph::{Node, NodeId};
use crate::kernel::index::{Atom, Index};
use crate::kernel::lower::nest::{At, NestBuilder};
use crate::kernel::lower::part::{PartBuilder, TooLarge};
use crate::kernel::lower::span::{Run, Span, span_of};
use crate::kernel::{ExprId, Place, Range, TileId, VarId};
use crate::tensor::shape::Shape;

/// A box of a value held in task memory.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) content: Content,
    pub(super) depth: usize,
}

/// What the tiles of a box hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// The value.
    Value(TileId),
    /// A weighted sum, and the sum of the weights.
    Ratio { sum: TileId, weights: TileId },
}

impl PartBuilder<'_> {
    pub(super) fn folded(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &mut NestBuilder,
    ) -> Result<ExprId, TooLarge> {
        let (held, at) = self.hold(node, at, nest)?;
        Ok(self.read_held(&held, &at, nest))
    }

    /// The expression of an element of a held box.
    pub(super) fn read_held(&self, held: &Held, at: &[Index], nest: &mut NestBuilder) -> ExprId {
        self.read_content(held.content, at, nest)
    }

    /// The expression of an element of what tiles hold.
    pub(super) fn read_content(&self, content: Content, at: &[Index], nest: &mut NestBuilder) -> ExprId {
        match content {
            Content::Value(tile) => nest.load(tile, at),
            Content::Ratio { sum, weights } => {
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

    /// The box of a value that a nest reads at a position, filled if it is not there yet, and where in it.
    pub(super) fn hold(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &NestBuilder,
    ) -> Result<(Held, Vec<Index>), TooLarge> {
        self.hold_by(node, at, nest, Self::fill)
    }

    /// The same with another way to fill it.
    pub(super) fn hold_by(
        &mut self,
        node: NodeId,
        at: &At,
        nest: &NestBuilder,
        fill: fn(&mut Self, NodeId, &[Span]) -> Result<Content, TooLarge>,
    ) -> Result<(Held, Vec<Index>), TooLarge> {
        let shape = self.held_shape(node);
        let mut asked = Vec::new();
        let mut within_asked = Vec::new();
        for (axis, size) in &shape {
            let (span, within) = match self.node(node).op {
                // A top-k finds its ranks one after another: all of them or none.
                Op::TopK { into, .. } if into == *axis => (Span::whole(*axis, size), Some(at.get(*axis))),
                _ => span_of(*axis, size, &at.get(*axis), &nest.locals, &self.part.vars),
            };
            asked.push(span);
            within_asked.push(within);
        }
        self.asked.note(node, &asked);
        let spans = self.boxes.widened(node, &asked);
        let mut relative = Vec::new();
        for ((span, asked), within) in spans.iter().zip(&asked).zip(within_asked) {
            if !matches!(span.run, Run::Point) {
                relative.push(within.unwrap_or_default().plus(&asked.base.minus(&span.base)));
            }
        }
        let key = (node, spans);
        if let Some(held) = self.held.get(&key) {
            return Ok((held.clone(), relative));
        }
        let depth = key.1.iter().map(|span| self.depth_of(&span.base, &span.run)).max().unwrap_or(0);
        let inner = self.scopes.split_off(depth + 1);
        let content = fill(self, node, &key.1);
        self.scopes.extend(inner);
        let held = Held { content: content?, depth };
        self.held.insert(key, held.clone());
        Ok((held, relative))
    }

    /// The axes of a box of the value, in the order of its tile.
    fn held_shape(&self, node: NodeId) -> Shape {
        let Node { op, args, ty, .. } = self.node(node);
        let Op::Attend { over } = op else { return ty.shape.clone() };
        // The rows first, which the sum of the weights has too.
        let rows = self.node(args[0]).ty.shape.without(*over);
        rows.union(&ty.shape).unwrap_or_else(|_| ty.shape.clone())
    }

    fn depth_of(&self, base: &Index, run: &Run) -> usize {
        let mut depth = 0;
        let mut see = |var: VarId| depth = self.depths[var].unwrap_or(0).max(depth);
        if let Run::Block(of) = run {
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

    /// Loops that run through spans: the loops, the position of each axis, and the element of the tile.
    pub(super) fn run_through(&mut self, spans: &[Span]) -> (Vec<VarId>, At, Vec<Index>) {
        let mut loops = Vec::new();
        let mut at = At::default();
        let mut element = Vec::new();
        for span in spans {
            let (position, within) = match &span.run {
                Run::Point => (span.base.clone(), None),
                Run::Block(of) => {
                    let var = self.nest_var(span.axis, Range::Within { of: *of });
                    loops.push(var);
                    let within = Index::var(var).minus(&Index::var(*of));
                    (span.base.plus(&within), Some(within))
                }
                Run::Whole(len) | Run::Padded(len) => {
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
