//! Extraction: chooses one node for each class, the cheapest, or any at random.
//!
//! In: a saturated e-graph. Out: [`Choices`] without cycles: the arguments of a chosen node were chosen before it. The
//! cheapest is found greedily, in the order of rising cost, with bills in which shared work is paid once; ties go to
//! the node found first. Random is for tests: every choice must mean the same. `emit.rs` turns choices into a graph.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use egg::Id;

use crate::foundation::random::Random;
use crate::rewrite::cost::{Arg, Bill, bill};
use crate::rewrite::facts::Facts;
use crate::rewrite::language::{EGraph, ENode};
use crate::target::Target;

/// A node for every class that can be computed.
pub(crate) struct Choices<'a> {
    /// Indexed by class.
    best: Vec<Option<Best<'a>>>,
}

/// The node chosen for a class, and what it costs with all it needs.
#[derive(Clone)]
pub(crate) struct Best<'a> {
    /// The node.
    pub(crate) node: &'a ENode,
    /// What it costs.
    pub(crate) bill: Bill,
}

impl<'a> Choices<'a> {
    /// The choice for a class.
    pub(crate) fn of(&self, class: Id) -> Option<&Best<'a>> {
        self.best.get(usize::from(class))?.as_ref()
    }

    /// Takes another node for a class, and returns the one there was.
    pub(crate) fn replace(&mut self, class: Id, best: Best<'a>) -> Option<Best<'a>> {
        self.best[usize::from(class)].replace(best)
    }

    /// The bill of a node whose arguments are chosen.
    pub(crate) fn bill(&self, egraph: &EGraph, target: &Target, class: Id, node: &ENode) -> Option<Bill> {
        let arg = |id: &Id| {
            let best = self.of(*id)?;
            let facts: &Facts = &egraph[*id].data;
            Some(Arg { value: usize::from(*id), facts, op: &best.node.op, bill: &best.bill })
        };
        let args: Vec<Arg<'_>> = node.args.iter().map(arg).collect::<Option<_>>()?;
        Some(bill(target, usize::from(class), &node.op, &egraph[class].data, &args))
    }

    /// Every class below the roots with its node, each once, arguments first; nothing where the choices go in circles.
    pub(crate) fn below(&self, roots: &[Id]) -> Option<Vec<(Id, &'a ENode)>> {
        let mut order = Vec::new();
        let mut state = vec![Visit::New; self.best.len()];
        for root in roots {
            self.visit(*root, &mut state, &mut order)?;
        }
        Some(order)
    }

    fn visit(&self, class: Id, state: &mut [Visit], order: &mut Vec<(Id, &'a ENode)>) -> Option<()> {
        match state[usize::from(class)] {
            Visit::Done => return Some(()),
            Visit::Begun => return None,
            Visit::New => state[usize::from(class)] = Visit::Begun,
        }
        let node = self.of(class)?.node;
        for arg in &node.args {
            self.visit(*arg, state, order)?;
        }
        state[usize::from(class)] = Visit::Done;
        order.push((class, node));
        Some(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Begun,
    Done,
}

/// The cheapest node of every class.
///
/// Classes settle in the order of their cost, as in Knuth's generalisation of Dijkstra's algorithm, so nearly every
/// node is priced once. A slice of a contraction may cost less than the contraction; that is why a class may be
/// settled again.
pub(crate) fn cheapest<'a>(egraph: &'a EGraph, target: &Target) -> Choices<'a> {
    let uses = Uses::of(egraph);
    let mut choices = Choices { best: vec![None; egraph.nodes().len()] };
    let mut queue = BinaryHeap::new();
    for at in uses.leaves() {
        consider(egraph, target, &uses.nodes[at], &mut choices, &mut queue);
    }
    while let Some(Reverse((cost, class))) = queue.pop() {
        let is_current = choices.of(class).is_some_and(|best| best.bill.total.to_bits() == cost);
        if is_current {
            for at in &uses.readers[usize::from(class)] {
                consider(egraph, target, &uses.nodes[*at], &mut choices, &mut queue);
            }
        }
    }
    choices
}

/// Costs are not negative, so their bits are in their order.
type Queue = BinaryHeap<Reverse<(u64, Id)>>;

fn consider<'a>(
    egraph: &'a EGraph,
    target: &Target,
    (class, node): &(Id, &'a ENode),
    choices: &mut Choices<'a>,
    queue: &mut Queue,
) {
    if node.args.contains(class) {
        return;
    }
    let Some(bill) = choices.bill(egraph, target, *class, node) else { return };
    let best = &mut choices.best[usize::from(*class)];
    if best.as_ref().is_none_or(|best| bill.total < best.bill.total) {
        queue.push(Reverse((bill.total.to_bits(), *class)));
        *best = Some(Best { node, bill });
    }
}

/// Any node of every class, such that what it needs was chosen before.
pub(crate) fn any(egraph: &EGraph, seed: u64) -> Choices<'_> {
    let uses = Uses::of(egraph);
    let mut choices = Choices { best: vec![None; egraph.nodes().len()] };
    let mut ready = uses.leaves();
    let mut random = Random::new(seed);
    while !ready.is_empty() {
        let at = ready.swap_remove(random.below(ready.len()));
        let (class, node) = uses.nodes[at];
        if choices.of(class).is_some() {
            continue;
        }
        choices.best[usize::from(class)] = Some(Best { node, bill: Bill::default() });
        let is_ready = |at: &&usize| uses.nodes[**at].1.args.iter().all(|arg| choices.of(*arg).is_some());
        ready.extend(uses.readers[usize::from(class)].iter().filter(is_ready).copied());
    }
    choices
}

/// Every node with its class, and which nodes read a class.
struct Uses<'a> {
    nodes: Vec<(Id, &'a ENode)>,
    readers: Vec<Vec<usize>>,
}

impl<'a> Uses<'a> {
    fn of(egraph: &'a EGraph) -> Self {
        let mut nodes: Vec<(Id, &ENode)> =
            egraph.classes().flat_map(|class| class.iter().map(|node| (class.id, node))).collect();
        nodes.sort_by_key(|(class, _)| *class);
        let mut readers = vec![Vec::new(); egraph.nodes().len()];
        for (at, (_, node)) in nodes.iter().enumerate() {
            let mut args = node.args.clone();
            args.sort_unstable();
            args.dedup();
            for arg in args {
                readers[usize::from(arg)].push(at);
            }
        }
        Self { nodes, readers }
    }

    fn leaves(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].1.args.is_empty()).collect()
    }
}
