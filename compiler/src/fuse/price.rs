//! The question fusion asks of kernels: what would this launch cost?
//!
//! Fusion decides by price and knows nothing of loops; `kernel/price.rs` answers by lowering and counting, and tests
//! answer with small tables.

use crate::fuse::cut::Cut;
use crate::graph::NodeId;

/// Answers what a launch costs.
pub trait Price {
    /// Seconds for one launch that stores `roots` under `cut`; nothing where the target cannot hold it.
    fn seconds(&mut self, cut: &Cut, roots: &[NodeId]) -> Option<f64>;
}
