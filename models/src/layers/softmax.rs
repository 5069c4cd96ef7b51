//! Softmax: turns scores into weights that sum to 1.
//!
//! In: a tensor and the axes to normalise over. Out: a tensor of the same axes.
//! The maximum is subtracted first, which changes nothing but keeps the exponentials finite.
//! Read next: `attention.rs` and `experts.rs`, which use it.

use fusebox_compiler::graph::build::{Dim, Tensor};

/// `e^x / Σ e^x` over all of some axes.
#[track_caller]
pub fn softmax(x: &Tensor, over: &[&Dim]) -> Tensor {
    let e = (x - most(x, over)).exp();
    &e / sum(&e, over)
}

/// The same with a sink: one more number, whose weight is left out.
#[track_caller]
pub fn softmax_with_sink(x: &Tensor, sink: &Tensor, over: &[&Dim]) -> Tensor {
    let most = &most(x, over).maximum(sink);
    let e = (x - most).exp();
    &e / (sum(&e, over) + (sink - most).exp())
}

#[track_caller]
fn most(x: &Tensor, over: &[&Dim]) -> Tensor {
    over.iter().rev().fold(x.clone(), |x, dim| x.max(*dim))
}

#[track_caller]
fn sum(x: &Tensor, over: &[&Dim]) -> Tensor {
    over.iter().rev().fold(x.clone(), |x, dim| x.sum(*dim))
}
