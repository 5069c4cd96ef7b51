//! Chooses the cut: everything is stored at first; then values are merged into their readers while that saves time.
//!
//! In: a graph and a price. Out: a [`Partition`]. The only move is to *dissolve* a value: stop storing it, so that its
//! readers compute it themselves. Moves are tried in order of the graph until nothing changes. A move must be legal
//! (`group.rs`) and must save seconds (`price.rs`); why the last try failed is the value's barrier. A try prices only
//! the launches it affects, and each computes a limited number of values: so time is linear in the graph where values
//! are cheap and read no state.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::foundation::entity::List;
use crate::foundation::random::Random;
use crate::fuse::barrier::{Barrier, Prices, Reason};
use crate::fuse::cut::{Cut, is_position};
use crate::fuse::fused::Fused;
use crate::fuse::group::{Dependences, Groups, is_never_recomputed};
use crate::fuse::price::Price;
use crate::graph::op::{Op, Role};
use crate::graph::{Graph, Node, NodeId};

/// Passes over the graph before a fixed point is given up.
const MAX_PASSES: usize = 6;
/// The least saving, in seconds; less is noise of the estimate.
const LEAST_GAIN: f64 = 1e-9;
/// The most values that one launch stores.
const MAX_ROOTS: usize = 12;
/// The most values that one launch computes: a few hundred gain nothing more, and code for thousands is slow to make.
const MAX_COMPUTED: usize = 256;

/// How merging is steered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steering {
    /// Stop after this many merges.
    pub fuel: Option<usize>,
    /// Decide at random by this seed instead of by price, among legal moves.
    pub chaos: Option<u64>,
}

/// Which values are stored, by which launches, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Partition {
    /// The stored values.
    pub cut: Cut,
    /// The launches in order, each with the values it stores.
    pub regions: Groups,
    /// For each stored value, why it is.
    pub reasons: Vec<(NodeId, Reason)>,
    /// The merges that prices decided.
    pub merges: Vec<Move>,
    /// The launches that were joined.
    pub joins: Vec<Move>,
}

/// A move that saves time.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// The values it concerns.
    pub values: Vec<NodeId>,
    /// What it saves.
    pub prices: Prices,
}

impl Partition {
    /// Why a value is stored; nothing for one that is not.
    pub fn reason(&self, node: NodeId) -> Option<Reason> {
        self.reasons.iter().find(|(stored, _)| *stored == node).map(|(_, reason)| *reason)
    }

    /// The barriers after the kernels of a region: those of its roots after the last kernel, partial results before
    /// it.
    pub fn barriers(&self, roots: &[NodeId], is_last: bool) -> Vec<Barrier> {
        if !is_last {
            return vec![Barrier::Split];
        }
        let of_root = |root: &NodeId| self.reason(*root).map(|reason| reason.barrier);
        let mut barriers: Vec<Barrier> = roots.iter().filter_map(of_root).collect();
        barriers.sort();
        barriers.dedup();
        barriers
    }

    /// What a region computes, without leaves.
    pub fn computed(&self, graph: &Graph, roots: &[NodeId]) -> Vec<NodeId> {
        let cone = self.cut.cone(graph, roots);
        cone.into_iter().filter(|node| !graph.nodes[*node].op.is_leaf()).collect()
    }

    /// The operations that a region fuses.
    pub fn fused(&self, graph: &Graph, roots: &[NodeId]) -> Fused {
        Fused::of(graph, &self.computed(graph, roots))
    }
}

/// Partitions a graph into regions.
pub fn partition(graph: &Graph, price: &mut impl Price, steering: Steering) -> Partition {
    let mut merge = Merge {
        graph,
        price,
        steering,
        random: steering.chaos.map(Random::new),
        cut: Cut::everywhere(graph),
        launches: Rc::default(),
        indices: BTreeSet::new(),
        readers: graph.readers(),
        reasons: graph.nodes.ids().map(|_| Barrier::NotTried.into()).collect(),
        n_merges: 0,
        merges: Vec::new(),
    };
    merge.protect();
    merge.dissolve_scores();
    merge.dissolve_cached();
    merge.dissolve_trivial();
    for phase in [Phase::Epilogues, Phase::Rows, Phase::Shared, Phase::Prologues] {
        for _ in 0..MAX_PASSES {
            if !merge.pass(phase) {
                break;
            }
        }
    }
    merge.finish()
}

/// Merges come in this order, so that a value is merged into the kernel that makes its arguments (an epilogue) rather
/// than into its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Into a single reader, elementwise.
    Epilogues,
    /// Also into one that reduces it.
    Rows,
    /// Also into several readers.
    Shared,
    /// Into any reader.
    Prologues,
}

/// Launches, and which of them stores a value.
#[derive(Default)]
struct Launches {
    groups: Groups,
    of: List<NodeId, usize>,
}

struct Merge<'a, P> {
    graph: &'a Graph,
    price: &'a mut P,
    steering: Steering,
    random: Option<Random>,
    cut: Cut,
    /// The launches of the cut, from the first pass on.
    launches: Rc<Launches>,
    /// Values that say where elements are written, and are more than sums of positions: tasks keep apart by reading
    /// them from memory that all see.
    indices: BTreeSet<NodeId>,
    readers: List<NodeId, Vec<NodeId>>,
    reasons: List<NodeId, Reason>,
    n_merges: usize,
    merges: Vec<Move>,
}

impl<P: Price> Merge<'_, P> {
    /// Gives a reason to every value that must be stored.
    fn protect(&mut self) {
        for (id, node) in self.graph.nodes.iter() {
            match node.op {
                Op::Write { .. } => {
                    self.reasons[id] = Barrier::StateWrite.into();
                    for index in node.args[2..].iter().filter(|index| {
                        !is_position(self.graph, **index) && !self.graph.nodes[**index].op.is_leaf()
                    }) {
                        self.reasons[*index] = Barrier::StateWrite.into();
                        self.indices.insert(*index);
                    }
                }
                Op::Barrier => self.reasons[id] = Barrier::Explicit.into(),
                _ => {}
            }
        }
        for (_, output) in &self.graph.outputs {
            self.reasons[*output] = Barrier::Output.into();
        }
    }

    fn is_protected(&self, node: NodeId) -> bool {
        matches!(self.graph.nodes[node].op, Op::Write { .. } | Op::Barrier)
            || self.graph.output_of(node).is_some()
            || self.indices.contains(&node)
    }

    /// An elementwise value with a single elementwise reader of equal axes: merging always saves a load and a store.
    fn dissolve_trivial(&mut self) {
        if self.random.is_some() {
            return;
        }
        let ids: Vec<NodeId> = self.cut.nodes().collect();
        for node in ids {
            let [reader] = self.readers[node].as_slice() else { continue };
            let (own, next) = (&self.graph.nodes[node], &self.graph.nodes[*reader]);
            let pays =
                own.op.is_elementwise() && next.op.is_elementwise() && own.ty.shape.same_axes(&next.ty.shape);
            if pays && !self.is_protected(node) && self.has_fuel() {
                self.dissolve_if_legal(node);
            }
        }
    }

    /// Attention scores are never stored: attention streams over the cache in one pass.
    fn dissolve_scores(&mut self) {
        for (_, attend) in self.graph.nodes.iter().filter(|(_, node)| matches!(node.op, Op::Attend { .. })) {
            let mut pending = vec![attend.args[0]];
            while let Some(node) = pending.pop() {
                let Node { op, args, .. } = &self.graph.nodes[node];
                let is_score = op.is_elementwise() || op.is_movement() || matches!(op, Op::Contract { .. });
                let is_shared = self.readers[node].iter().any(|reader| *reader != self.readers[node][0]);
                if !is_score || is_shared || self.is_protected(node) || !self.has_fuel() {
                    continue;
                }
                if self.cut.has(node) {
                    self.dissolve_if_legal(node);
                }
                if !matches!(op, Op::Contract { .. }) {
                    pending.extend(args);
                }
            }
        }
    }

    /// Rows picked from a state are never stored: a KV cache is read where it lies.
    fn dissolve_cached(&mut self) {
        let graph = self.graph;
        let mut is_cached: List<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        for (id, Node { op, args, .. }) in graph.nodes.iter() {
            is_cached[id] = match op {
                Op::Gather { .. } => is_cached[args[0]] || graph.state_of(args[0]).is_some(),
                _ => op.is_movement() && args.iter().all(|arg| is_cached[*arg]),
            };
            if is_cached[id] && self.cut.has(id) && !self.is_protected(id) && self.has_fuel() {
                self.dissolve_if_legal(id);
            }
        }
    }

    fn dissolve_if_legal(&mut self, node: NodeId) {
        let mut cut = self.cut.clone();
        cut.dissolve(node);
        let fits = |user: &NodeId| cut.cone(self.graph, &[*user]).len() <= MAX_COMPUTED;
        let is_small = self.goes_into(node).iter().all(fits);
        match self.launches_without(node, &cut) {
            Ok(_) if is_small => {
                self.cut = cut;
                self.n_merges += 1;
            }
            Ok(_) => self.reasons[node] = Barrier::TargetLimit.into(),
            Err(barrier) => self.reasons[node] = barrier.into(),
        }
    }

    /// The launches of a cut from which a value was dissolved.
    fn launches_without(&self, node: NodeId, cut: &Cut) -> Result<Rc<Launches>, Barrier> {
        let cone = cut.cone(self.graph, &[node]);
        let is_expensive = cone.iter().any(|node| is_never_recomputed(&self.graph.nodes[*node].op));
        let sees_state =
            || cut.loads(self.graph, &cone).iter().any(|load| self.graph.state_of(*load).is_some());
        // Nodes that read a state must not move across its write, and contractions and attention force their readers
        // into one launch. Any other merge leaves the groups and their order as they are.
        if is_expensive || sees_state() { self.launches_of(cut) } else { Ok(Rc::clone(&self.launches)) }
    }

    fn launches_of(&self, cut: &Cut) -> Result<Rc<Launches>, Barrier> {
        let groups = Dependences::of(self.graph, cut).groups(self.graph)?;
        let mut of: List<NodeId, usize> = self.graph.nodes.ids().map(|_| 0).collect();
        for (launch, roots) in groups.iter().enumerate() {
            for root in roots {
                of[*root] = launch;
            }
        }
        Ok(Rc::new(Launches { groups, of }))
    }

    fn has_fuel(&self) -> bool {
        self.steering.fuel.is_none_or(|fuel| self.n_merges < fuel)
    }

    /// Tries every stored value once; gives whether anything changed.
    fn pass(&mut self, phase: Phase) -> bool {
        let ids: Vec<NodeId> = self.cut.nodes().filter(|node| !self.is_protected(*node)).collect();
        let mut changed = false;
        let Ok(launches) = self.launches_of(&self.cut) else { return false };
        self.launches = launches;
        for node in ids {
            if !self.has_fuel() {
                return false;
            }
            if self.needed_phase(node) > phase {
                continue;
            }
            match self.try_dissolve(node) {
                Ok((cut, launches, merge)) => {
                    (self.cut, self.launches) = (cut, launches);
                    self.n_merges += 1;
                    self.merges.push(merge);
                    changed = true;
                }
                Err(reason) => self.reasons[node] = reason.after(self.reasons[node]),
            }
        }
        changed
    }

    /// Dissolves a value; where that alone is illegal, together with its siblings.
    fn try_dissolve(&mut self, node: NodeId) -> Result<(Cut, Rc<Launches>, Move), Reason> {
        let mut dissolved = vec![node];
        let mut cut = self.cut.clone();
        cut.dissolve(node);
        let launches = match self.launches_without(node, &cut) {
            Ok(launches) => launches,
            Err(barrier) => {
                dissolved.extend(self.siblings(node));
                if dissolved.len() == 1 {
                    return Err(barrier.into());
                }
                for sibling in &dissolved {
                    cut.dissolve(*sibling);
                }
                self.launches_of(&cut).map_err(|_| barrier)?
            }
        };
        let near = self.affected_roots(&dissolved);
        let without = self.seconds(&self.cut.clone(), &self.launches.clone(), &near).unwrap_or(f64::INFINITY);
        let with = self.seconds(&cut, &launches, &near).ok_or(Barrier::TargetLimit)?;
        let prices = Prices { without, with };
        let accepted = match &mut self.random {
            Some(random) => random.below(3) > 0,
            None => without - with > LEAST_GAIN,
        };
        if accepted {
            Ok((cut, launches, Move { values: dissolved, prices }))
        } else {
            Err(Reason::priced(self.why_costly(node), prices))
        }
    }

    /// Other values of the same launch that have the same stored readers.
    fn siblings(&self, node: NodeId) -> Vec<NodeId> {
        let own = self.goes_into(node);
        let group = &self.launches.groups[self.launches.of[node]];
        let others = group.iter().filter(|other| **other != node && !self.is_protected(**other));
        others.copied().filter(|other| self.goes_into(*other) == own).collect()
    }

    /// The roots of all launches that dissolving changes: those that store the values or their readers.
    fn affected_roots(&self, dissolved: &[NodeId]) -> BTreeSet<NodeId> {
        let each = dissolved.iter().flat_map(|node| {
            let beside = self.launches.groups[self.launches.of[*node]].iter().copied();
            beside.chain(self.goes_into(*node))
        });
        each.collect()
    }

    /// The estimated seconds of the launches that store any of these values.
    fn seconds(&mut self, cut: &Cut, launches: &Launches, near: &BTreeSet<NodeId>) -> Option<f64> {
        let stored = near.iter().filter(|node| cut.has(**node));
        let touched: BTreeSet<usize> = stored.map(|node| launches.of[*node]).collect();
        let mut seconds = 0.0;
        for launch in touched {
            let roots = &launches.groups[launch];
            if cut.cone(self.graph, roots).len() > MAX_COMPUTED {
                return None;
            }
            seconds += self.price.seconds(cut, roots)?;
        }
        Some(seconds)
    }

    fn why_costly(&self, node: NodeId) -> Barrier {
        if self.goes_into(node).len() > 1 {
            return Barrier::SeveralReaders;
        }
        let folds = |user: &NodeId| self.graph.nodes[*user].op.is_fold();
        if self.uses(node).iter().any(folds) { Barrier::NeedsEveryRow } else { Barrier::OtherShape }
    }

    /// The earliest phase in which a value may be merged into all of its readers.
    fn needed_phase(&self, node: NodeId) -> Phase {
        let of_use = |user: &NodeId| {
            let op = &self.graph.nodes[*user].op;
            match op.role() {
                Role::Fold if matches!(op, Op::Reduce { .. }) => Phase::Rows,
                Role::Fold | Role::Gather => Phase::Prologues,
                Role::Leaf | Role::Elementwise | Role::Movement | Role::Write | Role::Barrier => {
                    Phase::Epilogues
                }
            }
        };
        let least = if self.goes_into(node).len() > 1 { Phase::Shared } else { Phase::Epilogues };
        self.uses(node).iter().map(of_use).fold(least, Phase::max)
    }

    /// The stored values that a value is computed into directly.
    fn goes_into(&self, node: NodeId) -> Vec<NodeId> {
        self.uses(node).into_iter().filter(|user| self.cut.has(*user)).collect()
    }

    /// Everything that is computed from a value, up to and including the next stored values.
    fn uses(&self, node: NodeId) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut pending = self.readers[node].clone();
        while let Some(user) = pending.pop() {
            if found.insert(user) && !self.cut.has(user) {
                pending.extend(&self.readers[user]);
            }
        }
        found
    }

    fn finish(self) -> Partition {
        let Self { graph, price, cut, reasons, merges, steering, .. } = self;
        let dependences = Dependences::of(graph, &cut);
        let groups = dependences.groups(graph).unwrap_or_default();
        let attends = |roots: &[NodeId]| {
            cut.cone(graph, roots).iter().any(|node| matches!(graph.nodes[*node].op, Op::Attend { .. }))
        };
        let widen = steering.fuel.is_none();
        let mut joins = Vec::new();
        let regions = dependences.widened(graph, &groups, |a, b| {
            if !widen || a.len() + b.len() > MAX_ROOTS || attends(a) || attends(b) {
                return false;
            }
            let mut both = [a, b].concat();
            both.sort();
            if cut.cone(graph, &both).len() > MAX_COMPUTED {
                return false;
            }
            let (a, b) = (price.seconds(&cut, a), price.seconds(&cut, b));
            let (Some(a), Some(b), Some(with)) = (a, b, price.seconds(&cut, &both)) else { return false };
            let prices = Prices { without: a + b, with };
            let pays = prices.with < prices.without;
            if pays {
                joins.push(Move { values: both, prices });
            }
            pays
        });
        let reasons = cut.nodes().map(|node| (node, reasons[node])).collect();
        Partition { cut, regions, reasons, merges, joins }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::graph::parse::parse;

    /// A launch costs a microsecond, and a nanosecond for each value that it computes.
    #[derive(Default)]
    struct Counted {
        n_questions: usize,
        largest: usize,
        graph: Graph,
    }

    impl Price for Counted {
        fn seconds(&mut self, cut: &Cut, roots: &[NodeId]) -> Option<f64> {
            let n_computed = cut.cone(&self.graph, roots).len();
            self.n_questions += 1;
            self.largest = self.largest.max(n_computed);
            Some(1e-6 + 1e-9 * n_computed as f64)
        }
    }

    /// A chain of sums, each of the one before it and one further back.
    fn sums(n: usize, distance: usize) -> Graph {
        let mut text = "%0 = input x : f32[d:4]\n".to_owned();
        for sum in 1..=n {
            writeln!(text, "%{sum} = add %{} %{}", sum - 1, sum.saturating_sub(distance)).unwrap();
        }
        parse(&format!("{text}output y = %{n}\n")).unwrap()
    }

    #[test]
    fn questions_grow_with_the_graph_and_kernels_do_not() {
        for distance in [1, 2, 7] {
            let n_sums = 4000;
            let graph = sums(n_sums, distance);
            let mut price = Counted { graph: graph.clone(), ..Counted::default() };
            let made = partition(&graph, &mut price, Steering::default());
            assert!(made.regions.len() <= n_sums / 16, "{} launches", made.regions.len());
            assert!(price.largest <= MAX_COMPUTED, "{} values in a kernel", price.largest);
            assert!(price.n_questions <= 8 * n_sums, "{} questions", price.n_questions);
        }
    }
}
