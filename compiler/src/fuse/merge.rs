//! Chooses the cut: everything is stored at first, then values dissolve into their readers while it pays.
//!
//! In: a graph and a price. Out: a [`Partition`]. One kind of move, tried in order of the graph until nothing changes:
//! stop storing a value, so that its readers compute it themselves. A move must be legal (`group.rs`) and must save
//! seconds (`price.rs`); the reason why the last try failed is the value's barrier.

use crate::foundation::entity::List;
use crate::foundation::random::Random;
use crate::fuse::barrier::Barrier;
use crate::fuse::cut::Cut;
use crate::fuse::group::{Dependences, Groups};
use crate::fuse::price::Price;
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};

/// Passes over the graph before merging gives up on finding a fixed point.
const MAX_PASSES: usize = 6;
/// A move must save this share of a second saved by one launch; less is noise of the estimate.
const LEAST_GAIN: f64 = 1e-9;
/// Values that one launch stores at most.
const MAX_ROOTS: usize = 12;

/// How a merge is steered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Steering {
    /// Stop after so many merges.
    pub fuel: Option<usize>,
    /// Decide by this seed instead of by price, among what is legal.
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
    pub barriers: Vec<(NodeId, Barrier)>,
    /// How many values were kept out of memory.
    pub n_merges: usize,
}

impl Partition {
    /// Why a value is stored; nothing for one that is not.
    pub fn reason(&self, node: NodeId) -> Option<Barrier> {
        self.barriers.iter().find(|(stored, _)| *stored == node).map(|(_, reason)| *reason)
    }

    /// Why the results of the kernels of a region are stored: of the last, its roots'; before it, partial results.
    pub fn reasons(&self, roots: &[NodeId], is_last: bool) -> Vec<Barrier> {
        if !is_last {
            return vec![Barrier::Split];
        }
        let mut reasons: Vec<Barrier> = roots.iter().filter_map(|root| self.reason(*root)).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }
}

/// Chooses regions for a graph.
pub fn partition(graph: &Graph, price: &mut impl Price, steering: Steering) -> Partition {
    let mut merge = Merge {
        graph,
        price,
        steering,
        random: steering.chaos.map(Random::new),
        cut: Cut::everywhere(graph),
        readers: graph.readers(),
        reasons: graph.nodes.ids().map(|_| Barrier::NotTried).collect(),
        n_merges: 0,
    };
    merge.protect();
    merge.dissolve_scores();
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

/// Merges come in this order, so that a value is taken up by the kernel that makes what it is made of, rather than by
/// the one that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Into one reader that takes it element by element.
    Epilogues,
    /// Also into one that reduces it.
    Rows,
    /// Also into several.
    Shared,
    /// Into any reader.
    Prologues,
}

struct Merge<'a, P> {
    graph: &'a Graph,
    price: &'a mut P,
    steering: Steering,
    random: Option<Random>,
    cut: Cut,
    readers: List<NodeId, Vec<NodeId>>,
    reasons: List<NodeId, Barrier>,
    n_merges: usize,
}

impl<P: Price> Merge<'_, P> {
    /// Names the reason of every value that must be stored.
    fn protect(&mut self) {
        for (id, node) in self.graph.nodes.iter() {
            match node.op {
                Op::Write { .. } => self.reasons[id] = Barrier::StateWrite,
                Op::Barrier => self.reasons[id] = Barrier::Asked,
                _ => {}
            }
        }
        for (_, output) in &self.graph.outputs {
            self.reasons[*output] = Barrier::Output;
        }
    }

    fn is_protected(&self, node: NodeId) -> bool {
        matches!(self.graph.nodes[node].op, Op::Write { .. } | Op::Barrier)
            || self.graph.outputs.iter().any(|(_, output)| *output == node)
    }

    /// An elementwise value with one elementwise reader of the same axes always pays: one load and one store less.
    fn dissolve_trivial(&mut self) {
        if self.random.is_some() {
            return;
        }
        let ids: Vec<NodeId> = self.cut.nodes().collect();
        for node in ids {
            let [reader] = self.readers[node].as_slice() else { continue };
            let (own, next) = (&self.graph.nodes[node], &self.graph.nodes[*reader]);
            let pays =
                is_elementwise(&own.op) && is_elementwise(&next.op) && own.ty.shape.same_axes(&next.ty.shape);
            if pays && !self.is_protected(node) && self.has_fuel() {
                self.dissolve_if_legal(node);
            }
        }
    }

    /// The scores of an attention are never stored: it streams. That is what its one pass over the cache means.
    fn dissolve_scores(&mut self) {
        for (_, attend) in self.graph.nodes.iter().filter(|(_, node)| matches!(node.op, Op::Attend { .. })) {
            let mut pending = vec![attend.args[0]];
            while let Some(node) = pending.pop() {
                let Node { op, args, .. } = &self.graph.nodes[node];
                let is_score = is_elementwise(op) || op.is_movement() || matches!(op, Op::Contract { .. });
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

    /// A value that sees a state before a write may not move behind it, however cheap that is.
    fn dissolve_if_legal(&mut self, node: NodeId) {
        let mut cut = self.cut.clone();
        cut.dissolve(node);
        let loads = cut.loads(self.graph, &cut.cone(self.graph, &[node]));
        if !loads.iter().any(|load| self.graph.state_of(*load).is_some()) {
            self.cut = cut;
            self.n_merges += 1;
            return;
        }
        match Dependences::of(self.graph, &cut).groups(self.graph) {
            Ok(_) => {
                self.cut = cut;
                self.n_merges += 1;
            }
            Err(reason) => self.reasons[node] = reason,
        }
    }

    fn has_fuel(&self) -> bool {
        self.steering.fuel.is_none_or(|fuel| self.n_merges < fuel)
    }

    /// Tries every stored value once; whether anything changed.
    fn pass(&mut self, phase: Phase) -> bool {
        let ids: Vec<NodeId> = self.cut.nodes().filter(|node| !self.is_protected(*node)).collect();
        let mut changed = false;
        let Ok(mut groups) = Dependences::of(self.graph, &self.cut).groups(self.graph) else { return false };
        for node in ids {
            if !self.has_fuel() {
                return false;
            }
            if self.needed_phase(node) > phase {
                continue;
            }
            match self.try_dissolve(node, &groups) {
                Ok((cut, after)) => {
                    (self.cut, groups) = (cut, after);
                    self.n_merges += 1;
                    changed = true;
                }
                Err(reason) => self.reasons[node] = reason,
            }
        }
        changed
    }

    /// Dissolves a value; where that alone is not legal, together with the values that go the same way.
    fn try_dissolve(&mut self, node: NodeId, before: &Groups) -> Result<(Cut, Groups), Barrier> {
        let mut cut = self.cut.clone();
        cut.dissolve(node);
        let after = match Dependences::of(self.graph, &cut).groups(self.graph) {
            Ok(after) => after,
            Err(reason) => {
                let siblings = self.siblings(node, before);
                if siblings.is_empty() {
                    return Err(reason);
                }
                for sibling in siblings {
                    cut.dissolve(sibling);
                }
                Dependences::of(self.graph, &cut).groups(self.graph).map_err(|_| reason)?
            }
        };
        let gone = self.seconds(&self.cut.clone(), before, (&cut, &after)).unwrap_or(f64::INFINITY);
        let come = self.seconds(&cut, &after, (&self.cut.clone(), before)).ok_or(Barrier::TargetLimit)?;
        let accepted = match &mut self.random {
            Some(random) => random.below(3) > 0,
            None => gone - come > LEAST_GAIN,
        };
        if accepted { Ok((cut, after)) } else { Err(self.why_not(node)) }
    }

    /// Other values of the same launch that go into the same stored values.
    fn siblings(&self, node: NodeId, groups: &Groups) -> Vec<NodeId> {
        let goes_into = |node: NodeId| -> Vec<NodeId> {
            self.uses(node).into_iter().filter(|user| self.cut.has(*user)).collect()
        };
        let own = goes_into(node);
        let group = groups.iter().find(|group| group.contains(&node));
        let others =
            group.into_iter().flatten().filter(|other| **other != node && !self.is_protected(**other));
        others.copied().filter(|other| goes_into(*other) == own).collect()
    }

    /// Seconds of the launches that the other side does not have just so.
    fn seconds(&mut self, cut: &Cut, groups: &Groups, other: (&Cut, &Groups)) -> Option<f64> {
        let mut seconds = 0.0;
        for roots in groups {
            let is_same = other.1.contains(roots) && {
                let (own, others) = (cut.cone(self.graph, roots), other.0.cone(self.graph, roots));
                own == others && cut.loads(self.graph, &own) == other.0.loads(self.graph, &others)
            };
            if !is_same {
                seconds += self.price.seconds(cut, roots)?;
            }
        }
        Some(seconds)
    }

    fn why_not(&self, node: NodeId) -> Barrier {
        let uses = self.uses(node);
        if uses.iter().filter(|user| self.cut.has(**user)).count() > 1 {
            return Barrier::SeveralReaders;
        }
        let folds = |user: &NodeId| self.graph.nodes[*user].op.is_fold();
        if uses.iter().any(folds) { Barrier::NeedsEveryRow } else { Barrier::OtherShape }
    }

    /// The phase in which all readers may take up a value.
    fn needed_phase(&self, node: NodeId) -> Phase {
        let of_use = |user: &NodeId| match self.graph.nodes[*user].op {
            Op::Reduce { .. } => Phase::Rows,
            Op::Contract { .. } | Op::Attend { .. } | Op::TopK { .. } | Op::Gather { .. } => Phase::Prologues,
            _ => Phase::Epilogues,
        };
        let uses = self.uses(node);
        let is_shared = uses.iter().filter(|user| self.cut.has(**user)).count() > 1;
        let least = if is_shared { Phase::Shared } else { Phase::Epilogues };
        uses.iter().map(of_use).fold(least, Phase::max)
    }

    /// What a value goes into without being stored in between, the kernels' stored values included.
    fn uses(&self, node: NodeId) -> Vec<NodeId> {
        let mut found = Vec::new();
        let mut pending = self.readers[node].clone();
        while let Some(user) = pending.pop() {
            if !found.contains(&user) {
                found.push(user);
                if !self.cut.has(user) {
                    pending.extend(&self.readers[user]);
                }
            }
        }
        found.sort();
        found
    }

    fn finish(self) -> Partition {
        let Self { graph, price, cut, reasons, n_merges, steering, .. } = self;
        let dependences = Dependences::of(graph, &cut);
        let groups = dependences.groups(graph).unwrap_or_default();
        let attends = |roots: &[NodeId]| {
            cut.cone(graph, roots).iter().any(|node| matches!(graph.nodes[*node].op, Op::Attend { .. }))
        };
        let widen = steering.fuel.is_none();
        let regions = dependences.widened(graph, groups, |a, b| {
            if !widen || a.len() + b.len() > MAX_ROOTS || attends(a) || attends(b) {
                return false;
            }
            let mut both = [a, b].concat();
            both.sort();
            let apart = price.seconds(&cut, a).zip(price.seconds(&cut, b));
            let together = price.seconds(&cut, &both);
            apart.zip(together).is_some_and(|((a, b), both)| both < a + b)
        });
        let barriers = cut.nodes().map(|node| (node, reasons[node])).collect();
        Partition { cut, regions, barriers, n_merges }
    }
}

/// Whether every element of the result comes from one element of each argument.
fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast(_))
}
