//! A part under construction: its variables, loops, tiles and statements.
//!
//! Statements go into the innermost open loop, or into an outer one while a tile is filled there (loop-invariant tiles
//! are hoisted). A variable of the grid or of a loop knows its depth. What is computed is in `value.rs`, `tiles.rs` and
//! `fill_tile.rs`. It is right for any cut; `measure.rs` says what it costs.

use indexmap::IndexMap;

use crate::foundation::entity::List;
use crate::graph::op::Scalar;
use crate::graph::{Node, NodeId};
use crate::kernel::index::Index;
use crate::kernel::lower::axis_span::{AxisSpan, SpanLoop, dims};
use crate::kernel::lower::lowering::Lowering;
use crate::kernel::lower::nest_builder::NestBuilder;
use crate::kernel::lower::params::Params;
use crate::kernel::lower::tiles::FilledTile;
use crate::kernel::lower::tiles::tile_requests::TileRequests;
use crate::kernel::{ExprId, Nest, Part, Place, Range, Stmt, Tile, TileId, Var, VarId};
use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;
use crate::tensor::sym::Sym;

/// The computation is too large to be one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// A value computed as partial results by several tasks, which its reader combines.
pub(super) struct Partial {
    pub(super) node: NodeId,
    pub(super) axis: Axis,
    pub(super) n_splits: i64,
}

/// A loop over a range of consecutive iterations of another loop.
#[derive(Clone, Copy)]
pub(super) struct SubLoop {
    whole: VarId,
    own: VarId,
    start: i64,
}

impl SubLoop {
    /// The position that replaces a variable.
    pub(super) fn position(self, var: VarId) -> Index {
        if var == self.whole {
            Index::var(self.own).plus(&Index::constant(self.start))
        } else {
            Index::var(var)
        }
    }

    /// Loops, with this one in place of the whole.
    pub(super) fn among(self, loops: &[VarId]) -> Vec<VarId> {
        loops.iter().map(|var| if *var == self.whole { self.own } else { *var }).collect()
    }
}

pub(super) struct PartBuilder<'a> {
    pub(super) from: Lowering<'a>,
    pub(super) params: &'a mut Params,
    pub(super) part: Part,
    /// The value whose partial results this part combines.
    pub(super) partial: Option<&'a Partial>,
    /// Tiles to fill as one, from an earlier build.
    pub(super) merged_requests: &'a TileRequests,
    /// The tiles that nests ask for.
    pub(super) requests: TileRequests,
    pub(super) scopes: Vec<Vec<Stmt>>,
    /// The scope a variable belongs to; none for the loops of nests.
    pub(super) depths: List<VarId, Option<usize>>,
    pub(super) tile_depths: List<TileId, usize>,
    pub(super) filled: IndexMap<(NodeId, Vec<AxisSpan>), FilledTile>,
}

impl<'a> PartBuilder<'a> {
    pub(super) fn new(
        from: Lowering<'a>,
        params: &'a mut Params,
        partial: Option<&'a Partial>,
        merged_requests: &'a TileRequests,
    ) -> Self {
        Self {
            from,
            params,
            partial,
            merged_requests,
            requests: TileRequests::default(),
            part: Part::default(),
            scopes: vec![Vec::new()],
            depths: List::default(),
            tile_depths: List::default(),
            filled: IndexMap::new(),
        }
    }

    /// The part, and every tile that its nests requested.
    pub(super) fn finish(mut self) -> (Part, TileRequests) {
        self.part.body = self.scopes.pop().unwrap_or_default();
        (self.part, self.requests)
    }

    pub(super) fn node(&self, node: NodeId) -> &'a Node {
        &self.from.graph.nodes[node]
    }

    /// A variable of the grid.
    pub(super) fn task_var(&mut self, axis: Axis, range: Range) -> VarId {
        let var = self.scope_var(axis, range, 0);
        self.part.grid.push(var);
        var
    }

    /// The loop of a nest.
    pub(super) fn nest_var(&mut self, axis: Axis, range: Range) -> VarId {
        self.depths.push(None);
        self.part.vars.push(Var::new(axis, range))
    }

    /// A loop over `len` iterations of another, from `start` on.
    pub(super) fn sub_loop(&mut self, whole: VarId, start: i64, len: i64) -> SubLoop {
        let own = self.nest_var(self.part.vars[whole].name, Range::Whole { len: Sym::from(len) });
        SubLoop { whole, own, start }
    }

    fn scope_var(&mut self, axis: Axis, range: Range, depth: usize) -> VarId {
        self.depths.push(Some(depth));
        self.part.vars.push(Var::new(axis, range))
    }

    /// Opens a loop around what is pushed until [`Self::close_loop`].
    pub(super) fn open_loop(&mut self, axis: Axis, range: Range) -> VarId {
        let var = self.scope_var(axis, range, self.scopes.len());
        self.scopes.push(Vec::new());
        var
    }

    pub(super) fn close_loop(&mut self, var: VarId) {
        let body = self.scopes.pop().unwrap_or_default();
        let depth = self.scopes.len();
        self.filled.retain(|_, filled| filled.depth < depth);
        self.push(Stmt::Loop { var, body });
    }

    pub(super) fn push(&mut self, stmt: Stmt) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.push(stmt);
        }
    }

    pub(super) fn tile(&mut self, dtype: DType, dims: Vec<usize>) -> TileId {
        self.tile_depths.push(self.scopes.len() - 1);
        self.part.tiles.push(Tile { dtype, dims })
    }

    /// A tile for a box, zeroed where it may be read beyond what fills it.
    pub(super) fn box_tile(&mut self, dtype: DType, spans: &[AxisSpan]) -> TileId {
        let tile = self.tile(dtype, dims(spans));
        if spans.iter().any(|span| matches!(span.run, SpanLoop::Padded(_))) {
            let all = |span: &AxisSpan| match span.run {
                SpanLoop::Point => span.clone(),
                SpanLoop::Block(_) | SpanLoop::Whole(_) | SpanLoop::Padded(_) => {
                    AxisSpan { run: SpanLoop::Whole(Sym::from(span.len.max(1))), ..span.clone() }
                }
            };
            let all: Vec<AxisSpan> = spans.iter().map(all).collect();
            let (loops, _, element) = self.loop_over(&all);
            let zero = if dtype == DType::I32 { Scalar::I32(0) } else { Scalar::float(0.0) };
            self.push_constant(&loops, tile, &element, zero);
        }
        tile
    }

    /// A loop over an axis of one tensor; no loop for an axis of one position.
    pub(super) fn axis_loop(&mut self, axis: Axis, len: &Sym, loops: &mut Vec<VarId>) -> Index {
        if len.as_const() == Some(1) {
            return Index::default();
        }
        let var = self.nest_var(axis, Range::Whole { len: len.clone() });
        loops.push(var);
        Index::var(var)
    }

    /// Pushes a nest that stores `value` for every iteration of its loops.
    pub(super) fn push_nest(&mut self, nest: NestBuilder, target: Place, at: Vec<Index>, value: ExprId) {
        let loops = nest.locals.clone();
        let exprs = nest.finish();
        self.push(Stmt::Nest(Nest { target, at, loops, fold: None, exprs, value, product: None }));
    }
}
