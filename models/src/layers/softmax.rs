//! Softmax: numbers become weights that add up to one.
//!
//! In: a tensor and the axis whose elements compete. Out: a tensor of the same axes.
//! The largest is subtracted first, which changes nothing but keeps the exponentials finite.
//! Read next: `attention.rs` and `experts.rs`, which use it.

use fusebox_compiler::graph::build::{Dim, Tensor};

/// `e^x / Σ e^x` over an axis.
#[track_caller]
pub(crate) fn softmax(x: &Tensor, over: &Dim) -> Tensor {
    let e = (x - x.max(over)).exp();
    &e / e.sum(over)
}
