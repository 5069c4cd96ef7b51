//! Groups stored values into launches, and orders the launches.
//!
//! In: a graph and a cut. Out: groups of roots in an order that obeys every dependence, or the reason why there is
//! none. A contraction or an attention is computed by one launch only, so all roots whose fan-in cones share one are
//! one group. No launch reads a state that it writes, and all readers of a state precede its next write.

use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::unionfind::UnionFind;

use crate::foundation::entity::List;
use crate::fuse::barrier::Barrier;
use crate::fuse::cut::Cut;
use crate::graph::op::Op;
use crate::graph::{Graph, NodeId};

/// The roots of each launch, in launch order.
pub(crate) type Groups = Vec<Vec<NodeId>>;

/// What must precede what.
pub(crate) struct Dependences {
    roots: Vec<NodeId>,
    /// For each root, the roots it must follow.
    before: Vec<Vec<usize>>,
    /// Roots that must share a launch.
    together: UnionFind<usize>,
    /// Whether a write is computed from the very state it changes.
    reads_own_state: bool,
}

impl Dependences {
    /// The dependences between the stored values of a cut.
    pub(crate) fn of(graph: &Graph, cut: &Cut) -> Self {
        let roots: Vec<NodeId> = cut.nodes().collect();
        let mut place: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
        for (index, root) in roots.iter().enumerate() {
            place[*root] = Some(index);
        }
        let mut before = vec![Vec::new(); roots.len()];
        let mut together = UnionFind::new(roots.len());
        let mut owner: List<NodeId, Option<usize>> = graph.nodes.ids().map(|_| None).collect();
        let mut readers: List<NodeId, Vec<usize>> = graph.nodes.ids().map(|_| Vec::new()).collect();
        for (index, root) in roots.iter().enumerate() {
            let cone = cut.cone(graph, &[*root]);
            for load in cut.loads(graph, &cone) {
                before[index].extend(place[load]);
                readers[load].push(index);
            }
            for node in cone.iter().filter(|node| is_never_recomputed(&graph.nodes[**node].op)) {
                let first = *owner[*node].get_or_insert(index);
                together.union(first, index);
            }
        }
        let mut reads_own_state = false;
        for (index, root) in roots.iter().enumerate() {
            if let Op::Write { .. } = graph.nodes[*root].op {
                let old = graph.nodes[*root].args[0];
                reads_own_state |= readers[old].contains(&index);
                before[index].extend(place[old]);
                before[index].extend(readers[old].iter().filter(|reader| **reader != index));
            }
        }
        Self { roots, before, together, reads_own_state }
    }

    /// The resulting launches, or why a value must be stored.
    pub(crate) fn groups(&self, graph: &Graph) -> Result<Groups, Barrier> {
        let labels = self.together.clone().into_labeling();
        let mut index_of: Vec<Option<usize>> = vec![None; self.roots.len()];
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (root, label) in labels.iter().enumerate() {
            let group = *index_of[*label].get_or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[group].push(root);
        }
        let group_of = self.places(&groups);
        if self.reads_own_state || groups.iter().any(|group| self.touches_own_state(graph, group)) {
            return Err(Barrier::StateWrite);
        }
        let order = self.order(&groups, &group_of).ok_or_else(|| self.why_cyclic(graph, &groups))?;
        Ok(order.iter().map(|group| self.named(&groups[*group])).collect())
    }

    /// The same, with independent launches merged where `pays` agrees (horizontal fusion).
    pub(crate) fn widened(
        &self,
        graph: &Graph,
        groups: &Groups,
        mut pays: impl FnMut(&[NodeId], &[NodeId]) -> bool,
    ) -> Groups {
        let index = |root: &NodeId| self.roots.binary_search(root).ok();
        let mut groups: Vec<Vec<usize>> =
            groups.iter().map(|group| group.iter().filter_map(index).collect()).collect();
        let mut first = 0;
        while first < groups.len() {
            let waits = self.waiting(&groups, first);
            let joined = |second: usize| {
                let mut roots = [groups[first].as_slice(), &groups[second]].concat();
                roots.sort_unstable();
                roots
            };
            let partner = (first + 1..groups.len()).find(|second| {
                !waits[*second]
                    && !self.touches_own_state(graph, &joined(*second))
                    && pays(&self.named(&groups[first]), &self.named(&groups[*second]))
            });
            let Some(second) = partner else {
                first += 1;
                continue;
            };
            groups[first] = joined(second);
            groups.remove(second);
            let order = self.order(&groups, &self.places(&groups));
            let order = order.expect("launches of which neither waits for the other can be one");
            groups = order.into_iter().map(|group| groups[group].clone()).collect();
        }
        groups.iter().map(|group| self.named(group)).collect()
    }

    fn named(&self, group: &[usize]) -> Vec<NodeId> {
        group.iter().map(|root| self.roots[*root]).collect()
    }

    /// The group of each root.
    fn places(&self, groups: &[Vec<usize>]) -> Vec<usize> {
        let mut places = vec![0; self.roots.len()];
        for (group, members) in groups.iter().enumerate() {
            for root in members {
                places[*root] = group;
            }
        }
        places
    }

    /// Of ordered groups, those that depend on one of them.
    fn waiting(&self, groups: &[Vec<usize>], first: usize) -> Vec<bool> {
        let places = self.places(groups);
        let mut waits = vec![false; groups.len()];
        for group in first + 1..groups.len() {
            let mut before = groups[group].iter().flat_map(|root| &self.before[*root]);
            waits[group] = before.any(|root| places[*root] == first || waits[places[*root]]);
        }
        waits
    }

    /// Groups in topological order, earlier roots first; nothing where dependences form a cycle.
    fn order(&self, groups: &[Vec<usize>], group_of: &[usize]) -> Option<Vec<usize>> {
        let mut waits: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
        let mut n_missing = vec![0usize; groups.len()];
        for (root, before) in self.before.iter().enumerate() {
            for earlier in before {
                let (from, to) = (group_of[*earlier], group_of[root]);
                if from == to {
                    return None;
                }
                waits[from].push(to);
                n_missing[to] += 1;
            }
        }
        let mut order = Vec::with_capacity(groups.len());
        let mut is_done = vec![false; groups.len()];
        let mut ready: std::collections::BTreeSet<(usize, usize)> = std::collections::BTreeSet::new();
        let key = |group: usize| (groups[group].first().copied().unwrap_or(0), group);
        ready.extend((0..groups.len()).filter(|group| n_missing[*group] == 0).map(key));
        while let Some((_, group)) = ready.pop_first() {
            is_done[group] = true;
            order.push(group);
            for next in &waits[group] {
                n_missing[*next] -= 1;
                if n_missing[*next] == 0 && !is_done[*next] {
                    ready.insert(key(*next));
                }
            }
        }
        (order.len() == groups.len()).then_some(order)
    }

    /// Whether a launch would read a state that it writes.
    fn touches_own_state(&self, graph: &Graph, group: &[usize]) -> bool {
        let writes =
            group.iter().filter(|root| matches!(graph.nodes[self.roots[**root]].op, Op::Write { .. }));
        writes.into_iter().any(|write| {
            let old = graph.nodes[self.roots[*write]].args[0];
            group.iter().any(|other| {
                let follows_write = self.before[*other].contains(write);
                let precedes = self.before[*write].contains(other) || self.roots[*other] == old;
                other != write && (follows_write || precedes)
            })
        })
    }

    /// A cycle through a write is a realize barrier; any other is a value that several launches need.
    fn why_cyclic(&self, graph: &Graph, groups: &[Vec<usize>]) -> Barrier {
        let mut launches: DiGraph<(), ()> = DiGraph::new();
        let nodes: Vec<NodeIndex> = groups.iter().map(|_| launches.add_node(())).collect();
        let group_of = self.places(groups);
        for (root, before) in self.before.iter().enumerate() {
            for earlier in before {
                launches.add_edge(nodes[group_of[*earlier]], nodes[group_of[root]], ());
            }
        }
        let cycles = petgraph::algo::tarjan_scc(&launches);
        let in_cycle = cycles.iter().filter(|cycle| cycle.len() > 1).flatten().map(|node| node.index());
        let writes = |group: usize| {
            let mut roots = groups[group].iter();
            roots.any(|root| matches!(graph.nodes[self.roots[*root]].op, Op::Write { .. }))
        };
        if in_cycle.into_iter().any(writes) { Barrier::StateWrite } else { Barrier::SeveralReaders }
    }
}

/// Whether an operation is too expensive to be computed by two launches: contractions and attention.
pub(crate) fn is_never_recomputed(op: &Op) -> bool {
    matches!(op, Op::Contract { .. } | Op::Attend { .. })
}
