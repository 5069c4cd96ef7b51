//! What is lowered: a graph, what of it is stored, and for which target.
//!
//! In: what [`lower`](super::lower) is given. Out: a value that every step takes along; the steps are its methods, in
//! the files beside this one.

use crate::fuse::cut::Cut;
use crate::graph::{Graph, NodeId};
use crate::target::Target;

/// A graph, its cut, and the target.
#[derive(Clone, Copy)]
pub(super) struct Lowering<'a> {
    pub(super) graph: &'a Graph,
    pub(super) cut: &'a Cut,
    pub(super) target: &'a Target,
}

impl Lowering<'_> {
    /// Whether a value can be loaded from memory.
    pub(super) fn is_loadable(self, node: NodeId) -> bool {
        self.cut.is_loadable(self.graph, node)
    }
}
