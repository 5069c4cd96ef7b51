//! Prices kernels for fusion: lowers them and counts.
//!
//! In: a cut and the roots of one launch. Out: estimated seconds on the target. So the decision and the kernel can
//! never disagree about what is computed twice. Prices are cached: merging prices the same kernels again and again.

use indexmap::IndexMap;

use crate::fuse::cut::Cut;
use crate::fuse::price::Price;
use crate::graph::{Graph, NodeId};
use crate::kernel::lower::lower;
use crate::kernel::measure::measure;
use crate::target::{Target, Tuning};

/// Prices kernels of one graph on one target.
pub struct LoweredPrice<'a> {
    graph: &'a Graph,
    target: &'a Target,
    known: IndexMap<(Vec<NodeId>, Vec<NodeId>), Option<f64>>,
}

impl<'a> LoweredPrice<'a> {
    /// Prices nothing yet.
    pub fn new(graph: &'a Graph, target: &'a Target) -> Self {
        Self { graph, target, known: IndexMap::new() }
    }

    fn seconds_of(&self, cut: &Cut, roots: &[NodeId]) -> Option<f64> {
        // Splitting concatenated weights makes kernels cheaper, which is no reason to cut a kernel there.
        let tuning = Tuning { splits_joined_weights: false, ..self.target.tuning };
        let target = Target { tuning, ..*self.target };
        let kernels = lower(self.graph, cut, roots, &target).ok()?;
        let mut seconds = 0.0;
        for (kernel, _) in &kernels {
            let measure = measure(kernel);
            let fits = measure.tile_bytes <= self.target.capabilities.tile_bytes
                && kernel.params.len() <= self.target.capabilities.tensors_per_kernel;
            if !fits {
                return None;
            }
            seconds += measure.seconds(self.target);
        }
        Some(seconds)
    }
}

impl Price for LoweredPrice<'_> {
    fn seconds(&mut self, cut: &Cut, roots: &[NodeId]) -> Option<f64> {
        let cone = cut.cone(self.graph, roots);
        let key = (roots.to_vec(), cut.loads(self.graph, &cone));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let seconds = self.seconds_of(cut, roots);
        self.known.insert(key, seconds);
        seconds
    }
}
