//! Numbers that false rules are false for: zeros, both signs, infinities, positions outside of an axis.
//!
//! In: usual bindings. Out: the same with other numbers in inputs, states and plain weights.

use std::collections::BTreeSet;

use crate::foundation::random::Random;
use crate::graph::op::Op;
use crate::graph::{Graph, Node, NodeId};
use crate::reference::{Bindings, Stored};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::value::{Data, Value};

/// What kind of numbers a graph is tried with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draw {
    /// From -1 to 1.
    Usual,
    /// The same, half of them zeros of both signs.
    Zeros,
    /// From -8 to 0; whole numbers on both sides of the axes they may be positions of.
    Negative,
    /// The usual ones, half of them -∞: what masks do.
    Masked,
    /// The usual ones, a quarter of them infinities or NaN.
    Special,
}

impl Draw {
    pub(super) const ALL: [Self; 5] = [Self::Usual, Self::Zeros, Self::Negative, Self::Masked, Self::Special];

    /// Puts such numbers into bindings.
    pub(super) fn put(self, graph: &Graph, seed: u64, bindings: &mut Bindings) {
        if self == Self::Usual {
            return;
        }
        let mut random = Random::new(seed);
        let places = places(graph);
        for (id, node) in graph.nodes.iter() {
            match &node.op {
                // Who writes promises that places differ; these stay as they are.
                Op::Input { .. } if places.contains(&id) => {}
                Op::Input { name, .. } => {
                    bindings.inputs.entry(name.clone()).and_modify(|value| self.fill(value, &mut random));
                }
                Op::State { name, format, .. } if format.plain().is_some() => {
                    bindings.states.entry(name.clone()).and_modify(|value| self.fill(value, &mut random));
                }
                Op::Weight { name, format: Format::F32, .. } => {
                    bindings
                        .weights
                        .entry(name.clone())
                        .and_modify(|stored| *stored = self.stored(stored, &mut random));
                }
                _ => {}
            }
        }
    }

    fn fill(self, value: &mut Value, random: &mut Random) {
        let dtype = value.dtype;
        match &mut value.data {
            Data::Float(data) => {
                for x in data {
                    *x = dtype.round(self.number(*x, random));
                }
            }
            Data::Int(data) if self == Self::Negative => {
                for x in data {
                    *x = random.below(24) as i32 - 8;
                }
            }
            Data::Int(_) => {}
        }
    }

    fn stored(self, stored: &Stored, random: &mut Random) -> Stored {
        let words = stored.bytes.as_chunks().0.iter();
        let bytes = words.flat_map(|word| self.number(f32::from_le_bytes(*word), random).to_le_bytes());
        Stored { format: stored.format, bytes: bytes.collect() }
    }

    fn number(self, usual: f32, random: &mut Random) -> f32 {
        match self {
            Self::Usual => usual,
            Self::Zeros => [0.0, -0.0, usual, usual][random.below(4)],
            Self::Negative => -8.0 * usual.abs(),
            Self::Masked => [f32::NEG_INFINITY, usual][random.below(2)],
            Self::Special => match random.below(12) {
                0 => f32::INFINITY,
                1 => f32::NEG_INFINITY,
                2 => f32::NAN,
                _ => usual,
            },
        }
    }
}

/// The nodes that say where the elements of a write go, and what these are made of.
fn places(graph: &Graph) -> BTreeSet<NodeId> {
    let written =
        |node: &Node| if matches!(node.op, Op::Write { .. }) { node.args[2..].to_vec() } else { Vec::new() };
    let mut pending: Vec<NodeId> = graph.nodes.values().flat_map(written).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if found.insert(id) {
            pending.extend(&graph.nodes[id].args);
        }
    }
    found
}

/// Whether any element of a value is NaN, or not finite.
pub(super) fn has(value: &Value, test: impl Fn(f32) -> bool) -> bool {
    value.dtype != DType::I32 && value.floats().iter().any(|x| test(*x))
}
