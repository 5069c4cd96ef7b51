//! How the work of storing one value is cut into tasks.
//!
//! In: a root and the cut around it. Out: for each axis of the root, how many positions one task takes. The heaviest
//! fold decides: an axis numbers tasks only where every use of that fold depends on it; otherwise each task would
//! compute the same fold again. Lighter operations may be repeated; `measure.rs` counts them.

use std::collections::BTreeMap;

use crate::fuse::cut::{Cut, operands};
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};
use crate::kernel::lower::lowering::Lowering;
use crate::target::GemmTile;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::sym::Sym;

/// Up to this many tokens share one pass over a weight (GEMV).
const FEW_TOKENS: i64 = 8;
/// Up to this many routed rows, most experts have one row at most: grouping does not pay.
const FEW_ROUTED_ROWS: i64 = 64;
/// Elements of a map, or rows of a light reduction, that one task takes.
const ELEMENTS_PER_TASK: i64 = 1024;
/// Elements that one task takes where partial results are combined.
const COMBINED_PER_TASK: i64 = 256;

/// A set of axes of the root, one bit each; those from the 64th on share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Axes(u64);

impl Axes {
    const ALL: Self = Self(u64::MAX);

    /// The axis at a position of the root.
    fn one(position: usize) -> Self {
        Self(1 << position.min(63))
    }

    fn has(self, position: usize) -> bool {
        self.also_in(Self::one(position)) != Self::default()
    }

    fn also_in(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl FromIterator<Self> for Axes {
    /// The union.
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        Self(all.into_iter().fold(0, |any, own| any | own.0))
    }
}

/// For each axis of the root, how many positions a task takes; none where it takes all.
pub(super) type Grid = Vec<(Axis, Option<i64>)>;

/// The heaviest fold of a kernel, and how its axes depend on the root's.
struct Heaviest {
    node: NodeId,
    work: f64,
    /// Axes of the root that every use depends on.
    shared: Axes,
    /// The root axes that each axis of the fold's first use depends on.
    axes: BTreeMap<Axis, Axes>,
}

impl Heaviest {
    /// The root axes that any of these axes depends on.
    fn root_axes_of(&self, axes: impl Iterator<Item = Axis>) -> Axes {
        axes.filter_map(|axis| self.axes.get(&axis).copied()).collect()
    }
}

/// The shape that a root stores: for a write, that of the value written.
pub(super) fn stored_shape(graph: &Graph, root: NodeId) -> &Shape {
    let Node { op, args, ty, .. } = &graph.nodes[root];
    if matches!(op, Op::Write { .. }) { &graph.nodes[args[1]].ty.shape } else { &ty.shape }
}

/// For a root in a block format: the axis along which blocks run, and their length.
pub(super) fn rows_of_blocks(graph: &Graph, root: NodeId) -> Option<(Axis, i64)> {
    let block = graph.stored_format(root)?.block_len() as i64;
    let rows = graph.nodes[root].ty.shape.axes().last()?;
    (block > 1).then_some((rows, block))
}

/// The heaviest fold that storing `root` computes, if it folds at all.
pub(super) fn heaviest_fold(graph: &Graph, cut: &Cut, root: NodeId) -> Option<NodeId> {
    find_heaviest(graph, cut, root, None).map(|heaviest| heaviest.node)
}

/// The number of vectors that a contraction multiplies its weight with.
pub(super) fn n_columns(graph: &Graph, contraction: NodeId) -> i64 {
    let Node { args, ty, .. } = &graph.nodes[contraction];
    let weight = &graph.nodes[args[weight_of(graph, args)]].ty.shape;
    ty.shape.iter().filter(|(axis, _)| !weight.has(*axis)).map(|(_, size)| size.near().max(1)).product()
}

/// Which of two operands counts as the weight: a stored one, else the second.
fn weight_of(graph: &Graph, args: &[NodeId]) -> usize {
    usize::from(is_stored_weight(graph, args[1]) || !is_stored_weight(graph, args[0]))
}

impl Lowering<'_> {
    /// The grid of the tasks that store `root`. Partial results that are only combined weigh nothing.
    pub(super) fn grid(self, root: NodeId, combined: Option<NodeId>) -> Grid {
        let Self { graph, cut, .. } = self;
        let shape = stored_shape(graph, root);
        let (_, concat) = root_value(graph, cut, root);
        let fixed = |axis: Axis| Some(axis) == concat;
        let heaviest = find_heaviest(graph, cut, root, combined);
        let blocks: Vec<Option<i64>> = match &heaviest {
            None if combined.is_some() => fill_inner(shape, Axes::ALL, COMBINED_PER_TASK),
            None => fill_inner(shape, Axes::ALL, ELEMENTS_PER_TASK),
            Some(heaviest) => match &graph.nodes[heaviest.node].op {
                Op::Attend { over } => self.queries(shape, heaviest, over),
                Op::Contract { over } => self.rows_and_tokens(shape, heaviest, over),
                _ => fill_inner(shape, heaviest.shared, 1),
            },
        };
        let rows = rows_of_blocks(graph, root);
        let filled = |axis: Axis, len: i64| match rows {
            Some((own, block)) if own == axis => (len + block - 1) / block * block,
            _ => len,
        };
        shape
            .iter()
            .zip(blocks)
            .map(|((axis, size), block)| {
                let block = block.map(|len| filled(*axis, len));
                let whole = block.is_none_or(|block| size.most() <= block) || fixed(*axis);
                (*axis, if whole { None } else { block })
            })
            .collect()
    }

    /// Rows of the weight are cut into blocks; few tokens stay together, many are cut too. Axes of both are cut to
    /// single positions, except where many rows are routed to experts: those of an expert should be in one task.
    fn rows_and_tokens(self, shape: &Shape, heaviest: &Heaviest, over: &[Axis]) -> Vec<Option<i64>> {
        let Self { graph, cut, target } = self;
        let args = &graph.nodes[heaviest.node].args;
        let weight = weight_of(graph, args);
        let axes_of = |arg: NodeId| {
            heaviest.root_axes_of(graph.nodes[arg].ty.shape.axes().filter(|axis| !over.contains(axis)))
        };
        let (rows, tokens) = (axes_of(args[weight]), axes_of(args[1 - weight]));
        let both = rows.also_in(tokens);
        let n_of = |set: Axes| -> i64 {
            let own = shape.iter().enumerate().filter(|(position, _)| set.has(*position));
            own.map(|(_, (_, size))| size.near().max(1)).product()
        };
        let (n_rows, n_tokens) = (n_of(rows.without(tokens)), n_of(tokens.without(rows)));
        let Routing { axes: routed, n_folded, are_many, are_stored } =
            routing(graph, cut, heaviest, args[weight]);
        let are_grouped_here = are_many && target.tuning.routed_rows_per_task > 1;
        // Tasks with one routed row each can be grouped by expert in code generation.
        let may_be_grouped_later = are_many && are_stored && !are_grouped_here && n_folded == 1;
        let are_few = n_tokens <= FEW_TOKENS;
        let gemm_tile = target.gemm_tile(|GemmTile { tokens: t, rows: r }| {
            n_of(both) * ((n_tokens + t - 1) / t) * ((n_rows + r - 1) / r)
        });
        let rows_per_task = match (may_be_grouped_later, are_few) {
            (true, _) => target.tuning.expert_rows_per_task as i64,
            (false, true) => target.tuning.rows_per_task as i64,
            (false, false) => gemm_tile.rows,
        };
        // Rows that every task has anyway count towards the limit.
        let n_kept = n_of(rows.without(heaviest.shared));
        let mut row_room = (rows_per_task / n_kept.max(1)).max(1);
        let mut routed_room = (target.tuning.routed_rows_per_task as i64 / n_folded).max(1);
        let mut token_room = gemm_tile.tokens;
        let mut blocks = vec![None; shape.rank()];
        for (position, (_, size)) in shape.iter().enumerate().rev() {
            let near = size.near().max(1);
            blocks[position] = if !heaviest.shared.has(position) {
                None
            } else if are_grouped_here && routed.has(position) {
                Some(take_block(&mut routed_room, size.most()))
            } else if both.has(position) {
                Some(1)
            } else if rows.has(position) {
                Some(take_block(&mut row_room, near))
            } else if are_few {
                None
            } else {
                Some(take_block(&mut token_room, near))
            };
        }
        blocks
    }

    /// Query heads that share a KV head stay together with the tokens of a block; axes of the values are cut to single
    /// positions.
    fn queries(self, shape: &Shape, heaviest: &Heaviest, over: &[Axis]) -> Vec<Option<i64>> {
        let Self { graph, target, .. } = self;
        let args = &graph.nodes[heaviest.node].args;
        let (scores, values) = (&graph.nodes[args[0]].ty.shape, &graph.nodes[args[1]].ty.shape);
        let axes_of = |are_of_values: bool| {
            let axes =
                scores.axes().filter(|axis| !over.contains(axis) && values.has(*axis) == are_of_values);
            heaviest.root_axes_of(axes).also_in(heaviest.shared)
        };
        let (batch, query) = (axes_of(true), axes_of(false));
        let mut room = target.tuning.queries_per_task as i64;
        let mut blocks = vec![None; shape.rank()];
        for (position, (_, size)) in shape.iter().enumerate().rev() {
            if batch.has(position) {
                blocks[position] = Some(1);
            } else if query.has(position) {
                blocks[position] = Some(take_block(&mut room, size.near().max(1)));
            }
        }
        blocks
    }
}

/// What a root computes, and the axis of concatenation if it is one.
pub(super) fn root_value(graph: &Graph, cut: &Cut, root: NodeId) -> (NodeId, Option<Axis>) {
    let value = match &graph.nodes[root] {
        Node { op: Op::Write { .. }, args, .. } if !cut.is_loadable(graph, args[1]) => args[1],
        _ => root,
    };
    match graph.nodes[value].op {
        Op::Concat { axis } => (value, Some(axis)),
        _ => (value, None),
    }
}

/// One position a task, except for the innermost axes, which take up to `len` positions together.
fn fill_inner(shape: &Shape, allowed: Axes, len: i64) -> Vec<Option<i64>> {
    let mut room = len.max(1);
    let mut blocks: Vec<Option<i64>> = shape
        .iter()
        .enumerate()
        .rev()
        .map(|(position, (_, size))| {
            allowed.has(position).then(|| {
                let block = room.min(size.most().max(1));
                room = (room / block.max(1)).max(1);
                block
            })
        })
        .collect();
    blocks.reverse();
    blocks
}

/// The expert routing of a weight.
struct Routing {
    /// The root axes that the routing depends on, except those that the fold goes through.
    axes: Axes,
    /// Routed rows that the fold goes through.
    n_folded: i64,
    /// Whether there are many, of matrices with rows.
    are_many: bool,
    /// Whether all indices are stored.
    are_stored: bool,
}

fn routing(graph: &Graph, cut: &Cut, heaviest: &Heaviest, weight: NodeId) -> Routing {
    let shape = &graph.nodes[weight].ty.shape;
    let all = routing_indices(graph, weight);
    let axes: Vec<Axis> = all.iter().flat_map(|index| graph.nodes[*index].ty.shape.axes()).collect();
    let are_stored = all.iter().all(|index| is_only_moved(graph, cut, *index));
    let size = |axis: &Axis| shape.size(*axis).map_or(1, Sym::most).max(1);
    let n_routed: i64 = axes.iter().map(size).product();
    let has_rows = shape.axes().any(|axis| !axes.contains(&axis) && heaviest.axes.contains_key(&axis));
    // Those that the fold goes through are in every task.
    let (own, folded): (Vec<Axis>, Vec<Axis>) =
        axes.into_iter().partition(|axis| heaviest.axes.contains_key(axis));
    Routing {
        axes: heaviest.root_axes_of(own.into_iter()),
        n_folded: folded.iter().map(size).product(),
        are_many: n_routed > FEW_ROUTED_ROWS && has_rows,
        are_stored,
    }
}

/// The index tensors that choose the matrices of a weight.
fn routing_indices(graph: &Graph, mut weight: NodeId) -> Vec<NodeId> {
    let mut found = Vec::new();
    while let Node { op, args, .. } = &graph.nodes[weight]
        && (op.is_movement() || matches!(op, Op::Gather { .. } | Op::Cast(_)))
    {
        if let Op::Gather { .. } = op {
            found.push(args[1]);
        }
        weight = args[0];
    }
    found
}

/// A sum over the experts of a token.
pub(super) struct FoldedRouting {
    pub(super) axis: Axis,
    /// How many experts a token has.
    pub(super) n: i64,
    /// The axes of the routing.
    pub(super) of: Shape,
}

/// The routing that a contraction sums over, where rows are many, indices are stored, and matrices have rows.
pub(super) fn folded_routing(graph: &Graph, cut: &Cut, contraction: NodeId) -> Option<FoldedRouting> {
    let Node { op: Op::Contract { over }, args, ty, .. } = &graph.nodes[contraction] else { return None };
    let weight = args[weight_of(graph, args)];
    let weight_shape = &graph.nodes[weight].ty.shape;
    let index = *routing_indices(graph, weight).first()?;
    let of = graph.nodes[index].ty.shape.clone();
    let (axis, n) = over.iter().find_map(|axis| Some((*axis, of.size(*axis)?.as_const()?)))?;
    let are_many = of.len().most() > FEW_ROUTED_ROWS && n > 1;
    let rows = ty.shape.axes().filter(|axis| !of.has(*axis));
    let has_rows = rows.filter(|axis| weight_shape.has(*axis)).count() == 1;
    (are_many && has_rows && is_only_moved(graph, cut, index)).then_some(FoldedRouting { axis, n, of })
}

/// Whether a value is stored, or a view of a stored one.
fn is_only_moved(graph: &Graph, cut: &Cut, mut node: NodeId) -> bool {
    while !cut.is_loadable(graph, node) {
        let Node { op, args, .. } = &graph.nodes[node];
        if !op.is_movement() {
            return false;
        }
        node = args[0];
    }
    true
}

/// Takes up to `size` positions, as far as they fit.
fn take_block(room: &mut i64, size: i64) -> i64 {
    let block = (*room).min(size).max(1);
    *room = (*room / block).max(1);
    block
}

fn is_stored_weight(graph: &Graph, mut node: NodeId) -> bool {
    loop {
        let Node { op, args, .. } = &graph.nodes[node];
        match op {
            Op::Weight { .. } => return true,
            _ if op.is_movement() || matches!(op, Op::Gather { .. } | Op::Cast(_)) => node = args[0],
            _ => return false,
        }
    }
}

fn find_heaviest(graph: &Graph, cut: &Cut, root: NodeId, combined: Option<NodeId>) -> Option<Heaviest> {
    let mut search = Search { graph, cut, combined, heaviest: None, seen: Vec::new() };
    let shape = stored_shape(graph, root);
    let own: BTreeMap<Axis, Axes> =
        shape.axes().enumerate().map(|(position, axis)| (axis, Axes::one(position))).collect();
    match &graph.nodes[root] {
        Node { op: Op::Write { .. }, args, .. } => search.visit(args[1], own, false),
        _ => search.visit(root, own, true),
    }
    search.heaviest
}

struct Search<'a> {
    graph: &'a Graph,
    cut: &'a Cut,
    combined: Option<NodeId>,
    heaviest: Option<Heaviest>,
    seen: Vec<(NodeId, BTreeMap<Axis, Axes>)>,
}

impl Search<'_> {
    fn visit(&mut self, node: NodeId, mut axes: BTreeMap<Axis, Axes>, is_root: bool) {
        if self.combined == Some(node) || !is_root && self.cut.is_loadable(self.graph, node) {
            return;
        }
        let Node { op, args, ty, .. } = &self.graph.nodes[node];
        axes.retain(|axis, _| ty.shape.has(*axis));
        if self.seen.iter().any(|(n, a)| *n == node && *a == axes) {
            return;
        }
        self.seen.push((node, axes.clone()));
        if op.is_fold() {
            self.record(node, &axes);
        }
        let get = |axis: &Axis| axes.get(axis).copied().unwrap_or_default();
        let mut inner = axes.clone();
        match op {
            Op::Split { axis, into } => {
                inner.insert(*axis, into.axes().map(|part| get(&part)).collect());
            }
            Op::Merge { axes: parts, into } => inner.extend(parts.iter().map(|part| (*part, get(into)))),
            Op::Rename { from, to } => {
                inner.insert(*from, get(to));
            }
            Op::Gather { axis } => {
                let index = &self.graph.nodes[args[1]].ty.shape;
                inner.insert(*axis, index.axes().map(|own| get(&own)).collect());
            }
            Op::Reduce { axis, .. } | Op::TopK { axis, .. } => {
                inner.insert(*axis, Axes::default());
            }
            Op::Contract { over } | Op::Attend { over } => {
                inner.extend(over.iter().map(|axis| (*axis, Axes::default())));
            }
            _ => {}
        }
        for arg in operands(self.graph, node) {
            self.visit(*arg, inner.clone(), false);
        }
    }

    fn record(&mut self, node: NodeId, axes: &BTreeMap<Axis, Axes>) {
        let shared: Axes = axes.values().copied().collect();
        let work = fold_work(self.graph, node);
        match &mut self.heaviest {
            Some(heaviest) if heaviest.node == node => {
                heaviest.shared = heaviest.shared.also_in(shared);
            }
            Some(heaviest) if heaviest.work >= work => {}
            _ => self.heaviest = Some(Heaviest { node, work, shared, axes: axes.clone() }),
        }
    }
}

/// The number of elements that a fold goes through, roughly.
fn fold_work(graph: &Graph, node: NodeId) -> f64 {
    let Node { op, args, ty, .. } = &graph.nodes[node];
    let size =
        |arg: NodeId, axis: &Axis| graph.nodes[arg].ty.shape.size(*axis).map_or(1, Sym::near).max(1) as f64;
    let own = ty.shape.len().near().max(1) as f64;
    match op {
        Op::Contract { over } => own * over.iter().map(|axis| size(args[0], axis)).product::<f64>(),
        Op::Attend { over } => 4.0 * own * over.iter().map(|axis| size(args[0], axis)).product::<f64>(),
        Op::Reduce { axis, .. } | Op::TopK { axis, .. } => own * size(args[0], axis),
        _ => 0.0,
    }
}
