//! The price of a launch, as fusion sees it.
//!
//! Fusion decides by price and knows nothing of loops; `kernel/price.rs` answers by lowering and counting, tests answer
//! with small tables.

use crate::fuse::cut::Cut;
use crate::graph::NodeId;

/// Estimates launches.
pub trait Price {
    /// Seconds of one launch that stores `roots` under `cut`; none where it exceeds the target's limits.
    fn seconds(&mut self, cut: &Cut, roots: &[NodeId]) -> Option<f64>;
}
