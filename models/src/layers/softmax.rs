//! Softmax: turns scores into weights that sum to 1.
//!
//! In: a tensor and the axis to normalise over. Out: a tensor of the same axes.
//! The maximum is subtracted first, which changes nothing but keeps the exponentials finite.
//! Read next: `attention.rs` and `experts.rs`, which use it.

use fusebox_compiler::graph::build::{Dim, Tensor};

/// `e^x / Σ e^x` over an axis.
#[track_caller]
pub(crate) fn softmax(x: &Tensor, over: &Dim) -> Tensor {
    let e = (x - x.max(over)).exp();
    &e / e.sum(over)
}
