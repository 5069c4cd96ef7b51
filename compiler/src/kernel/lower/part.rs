//! One part under construction: values become expressions, and what is folded becomes tiles.
//!
//! `PartBuilder::value` follows the graph from a wanted value down to what can be loaded. Elementwise operations
//! become expressions of the nest, movement becomes index arithmetic, and anything that folds is asked for as a tile:
//! just the box of it that the nest reads, filled once in the outermost loop where its place is known.
//! It is always right for any cut; whether it is cheap is asked of `measure.rs`. `fill.rs` fills tiles.

use indexmap::IndexMap;

use crate::foundation::entity::List;
use crate::fuse::cut::Cut;
use crate::graph::op::{Binary, Op, Scalar};
use crate::graph::{Graph, Node, NodeId};
use crate::kernel::index::{Atom, Index};
use crate::kernel::lower::boxes::Boxes;
use crate::kernel::lower::fill::dims;
use crate::kernel::lower::nest::{At, NestBuilder};
use crate::kernel::lower::params::Params;
use crate::kernel::{Expr, ExprId, Nest, Part, Place, Range, Stmt, Tile, TileId, Var, VarId};
use crate::target::Target;
use crate::tensor::dtype::DType;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

/// More expressions than this in one nest are not worth a kernel.
const MAX_EXPRS: usize = 1500;

/// The computation is too large to be one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// Where one axis of a tile starts, and how many positions it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Span {
    pub(super) axis: Axis,
    pub(super) base: Index,
    pub(super) len: i64,
    /// How the positions are run through.
    pub(super) run: Run,
}

impl Span {
    /// All positions of an axis.
    pub(super) fn whole(axis: Axis, size: &Sym) -> Self {
        Self { axis, base: Index::default(), len: size.most(), run: Run::Whole(size.clone()) }
    }

    /// One position, known outside the nest.
    pub(super) fn point(axis: Axis, base: Index) -> Self {
        Self { axis, base, len: 1, run: Run::Point }
    }
}

/// How a fill runs through a span.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Run {
    /// One position, known outside the nest.
    Point,
    /// The positions of the block that starts at a variable.
    Block(VarId),
    /// The first so many positions.
    Whole(Sym),
    /// The same, read at other positions too where what is read there is not used: the tile starts as zeros.
    Padded(Sym),
}

/// A box of a value held in task memory.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) content: Content,
    depth: usize,
}

/// What the tiles of a box hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// The value.
    Value(TileId),
    /// A weighted sum, and the sum of the weights.
    Ratio { sum: TileId, weights: TileId },
}

/// A value kept as partial results of several tasks, which whoever reads it combines.
pub(super) struct Partial {
    pub(super) node: NodeId,
    pub(super) axis: Axis,
    pub(super) n_splits: i64,
}

pub(super) struct PartBuilder<'a> {
    pub(super) graph: &'a Graph,
    pub(super) cut: &'a Cut,
    pub(super) target: &'a Target,
    pub(super) params: &'a mut Params,
    pub(super) part: Part,
    /// The attention whose partial results this part combines.
    pub(super) partial: Option<&'a Partial>,
    /// The boxes that are filled as one.
    boxes: &'a Boxes,
    /// The boxes asked for.
    pub(super) asked: Boxes,
    scopes: Vec<Vec<Stmt>>,
    /// The scope a variable belongs to; nothing for the loops of nests.
    depths: List<VarId, Option<usize>>,
    tile_depths: List<TileId, usize>,
    held: IndexMap<(NodeId, Vec<Span>), Held>,
}

impl<'a> PartBuilder<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        cut: &'a Cut,
        target: &'a Target,
        params: &'a mut Params,
        partial: Option<&'a Partial>,
        boxes: &'a Boxes,
    ) -> Self {
        Self {
            graph,
            cut,
            target,
            params,
            partial,
            boxes,
            asked: Boxes::default(),
            part: Part::default(),
            scopes: vec![Vec::new()],
            depths: List::default(),
            tile_depths: List::default(),
            held: IndexMap::new(),
        }
    }

    /// The part, and every box its nests asked for.
    pub(super) fn finish(mut self) -> (Part, Boxes) {
        self.part.body = self.scopes.pop().unwrap_or_default();
        (self.part, self.asked)
    }

    pub(super) fn node(&self, node: NodeId) -> &'a Node {
        &self.graph.nodes[node]
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
        self.part.vars.push(Var { name: axis, range })
    }

    fn scope_var(&mut self, axis: Axis, range: Range, depth: usize) -> VarId {
        self.depths.push(Some(depth));
        self.part.vars.push(Var { name: axis, range })
    }

    /// Opens a loop; what is pushed until [`Self::close_loop`] is repeated.
    pub(super) fn open_loop(&mut self, axis: Axis, range: Range) -> VarId {
        let var = self.scope_var(axis, range, self.scopes.len());
        self.scopes.push(Vec::new());
        var
    }

    pub(super) fn close_loop(&mut self, var: VarId) {
        let body = self.scopes.pop().unwrap_or_default();
        let depth = self.scopes.len();
        self.held.retain(|_, held| held.depth < depth);
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

    /// A tile for a box, of zeros where it may be read beyond what fills it.
    pub(super) fn box_tile(&mut self, dtype: DType, spans: &[Span]) -> TileId {
        let tile = self.tile(dtype, dims(spans));
        if spans.iter().any(|span| matches!(span.run, Run::Padded(_))) {
            let all = |span: &Span| match span.run {
                Run::Point => span.clone(),
                Run::Block(_) | Run::Whole(_) | Run::Padded(_) => {
                    Span { run: Run::Whole(Sym::from(span.len.max(1))), ..span.clone() }
                }
            };
            let all: Vec<Span> = spans.iter().map(all).collect();
            let (loops, _, element) = self.run_through(&all);
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
        self.push(Stmt::Nest(Nest { target, at, loops, fold: None, exprs, value }));
    }

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
        let is_loadable = self.cut.is_loadable(self.graph, node);
        let expr = if is_loadable { self.load(node, &at, nest) } else { self.compute(node, &at, nest)? };
        nest.known.insert((node, at), expr);
        Ok(expr)
    }

    /// The number that stands for an element where there is none.
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
        let from = Place::Param(self.params.read(self.graph, node));
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
            Op::Write { axis, from, at: start } => {
                let position = at.get(*axis).minus(&Index::sym(start));
                return self.value(args[1], &at.with(*from, position), nest);
            }
            Op::Concat { axis } => return self.concat(args, *axis, at, nest),
            Op::Gather { axis } => return self.gather(node, *axis, at, nest),
            Op::Reduce { .. } | Op::Contract { .. } | Op::Attend { .. } | Op::TopK { .. } => {
                return self.folded(node, at, nest);
            }
            Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::Table { .. } => {
                return Ok(self.load(node, &at.restricted(&ty.shape), nest));
            }
        };
        Ok(nest.add(expr))
    }

    /// The position in the argument of a movement operation that `at` in its result comes from.
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
            let is_here = nest.add(Expr::Binary(Binary::Lt, position, end));
            expr = nest.add(Expr::Select(is_here, here, expr));
            next = start.clone();
        }
        Ok(expr)
    }

    /// One piece of a concatenation; a position outside it reads some element inside, which is not used.
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

    /// Passes movement that is mere index arithmetic.
    pub(super) fn look_through(&self, mut node: NodeId, at: &At) -> (NodeId, At) {
        let mut at = at.clone();
        while !self.cut.has(node)
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

    fn folded(&mut self, node: NodeId, at: &At, nest: &mut NestBuilder) -> Result<ExprId, TooLarge> {
        let (held, at) = self.hold(node, at, nest)?;
        Ok(self.read_held(&held, at, nest))
    }

    /// The expression of an element of a held box.
    pub(super) fn read_held(&mut self, held: &Held, at: Vec<Index>, nest: &mut NestBuilder) -> ExprId {
        match held.content {
            Content::Value(tile) => nest.add(Expr::Load { from: Place::Tile(tile), at }),
            Content::Ratio { sum, weights } => {
                let rows = self.part.tiles[weights].dims.len();
                let weights_at = at[..rows].to_vec();
                let sum = nest.add(Expr::Load { from: Place::Tile(sum), at });
                let weights = nest.add(Expr::Load { from: Place::Tile(weights), at: weights_at });
                // No position with any weight: the weighted mean of nothing is 0, not 0/0.
                let least = nest.number(f32::MIN_POSITIVE);
                let weights = nest.add(Expr::Binary(Binary::Max, weights, least));
                nest.add(Expr::Binary(Binary::Div, sum, weights))
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
        let shape = self.held_shape(node);
        let mut asked = Vec::new();
        let mut within_asked = Vec::new();
        for (axis, size) in &shape {
            let (span, within) = match self.node(node).op {
                // A top-k finds its ranks one after another: all of them or none.
                Op::TopK { into, .. } if into == *axis => (Span::whole(*axis, size), Some(at.get(*axis))),
                _ => self.span(*axis, size, &at.get(*axis), nest),
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
        let content = self.fill(node, &key.1);
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

    /// What a nest reads of one axis: where it starts outside the nest, and the position relative to that.
    fn span(&self, axis: Axis, size: &Sym, index: &Index, nest: &NestBuilder) -> (Span, Option<Index>) {
        let vars = &self.part.vars;
        let is_local = |var: VarId| nest.locals.contains(&var);
        let mut base = Index::constant(index.offset());
        let mut local = Index::default();
        let mut run = None;
        let mut n_local = 0;
        for (atom, factor) in index.terms() {
            let term = Index::atom(atom.clone());
            let uses_local = term.uses_var(is_local);
            if !uses_local {
                base = base.plus(&term.times(*factor));
                continue;
            }
            n_local += 1;
            let Atom::Var(var) = atom else {
                local = local.plus(&term.times(*factor));
                continue;
            };
            match &vars[*var].range {
                Range::Within { of } if !is_local(*of) => {
                    base = base.plus(&Index::var(*of).times(*factor));
                    local = local.plus(&term.minus(&Index::var(*of)).times(*factor));
                    run = (*factor == 1).then_some(Run::Block(*of));
                }
                Range::Whole { len } => {
                    local = local.plus(&term.times(*factor));
                    run = (*factor == 1).then(|| Run::Whole(len.clone()));
                }
                Range::Within { .. } | Range::Blocks { .. } => local = local.plus(&term.times(*factor)),
            }
        }
        if n_local == 0 {
            return (Span { axis, base, len: 1, run: Run::Point }, None);
        }
        let (low, high) = local.bounds(vars);
        if n_local > 1 || run.is_none() {
            // The last block of an uneven division has fewer positions: the box would leave the axis.
            let (first, last) = base.bounds(vars);
            let leaves = first + low < 0 || last + high >= size.most();
            if leaves || high - low + 1 >= size.most() || size.as_const().is_none() {
                let mut whole = Span::whole(axis, size);
                if size.as_const().is_none() {
                    whole.run = Run::Padded(size.clone());
                }
                return (whole, Some(index.clone()));
            }
            run = Some(Run::Whole(Sym::from(high - low + 1)));
        }
        let base = base.plus(&Index::constant(low));
        let relative = local.minus(&Index::constant(low));
        let span = Span { axis, base, len: high - low + 1, run: run.unwrap_or(Run::Point) };
        (span, Some(relative))
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
