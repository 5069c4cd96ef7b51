//! What a kernel fuses: operations of the graph, counted by kind.
//!
//! In: a graph and the values that a region computes. Out: their names, each with how often it is there, in the order
//! of the graph. Stories and tables print it; nothing is decided by it.

use std::fmt;

use crate::graph::{Graph, Name, NodeId};

/// The operations of a kernel, by the names they have in text forms.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Fused(pub Vec<(Name, usize)>);

impl Fused {
    /// The operations that make these values.
    pub fn of(graph: &Graph, values: &[NodeId]) -> Self {
        let mut kinds: Vec<(Name, usize)> = Vec::new();
        for op in values.iter().map(|value| graph.nodes[*value].op.name()) {
            match kinds.iter_mut().find(|(name, _)| &**name == op) {
                Some((_, n)) => *n += 1,
                None => kinds.push((op.into(), 1)),
            }
        }
        Self(kinds)
    }

    /// How many there are.
    pub fn n_ops(&self) -> usize {
        self.0.iter().map(|(_, n)| n).sum()
    }
}

impl fmt::Display for Fused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, n)) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name}")?;
            if *n > 1 {
                write!(f, " ×{n}")?;
            }
        }
        Ok(())
    }
}
