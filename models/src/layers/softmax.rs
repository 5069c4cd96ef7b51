//! Softmax: turns scores into weights that sum to 1.
//!
//! In: a tensor and the axes to normalise over. Out: a tensor of the same axes.
//! The maximum is subtracted first, which changes nothing but keeps the exponentials finite.
//! Read next: `attention.rs` and `experts.rs`, which use it.

use fusebox_compiler::graph::build::{Dim, Tensor};

/// `e^x / Σ e^x` over all of some axes.
#[track_caller]
pub(crate) fn softmax(x: &Tensor, over: &[&Dim]) -> Tensor {
    let (_, e, sum) = parts(x, over);
    &e / sum
}

/// `ln Σ e^x` over all of some axes.
#[track_caller]
pub(crate) fn log_sum_exp(x: &Tensor, over: &[&Dim]) -> Tensor {
    let (most, _, sum) = parts(x, over);
    sum.ln() + most
}

/// The maximum, the exponentials, and their sum.
#[track_caller]
fn parts(x: &Tensor, over: &[&Dim]) -> (Tensor, Tensor, Tensor) {
    let most = over.iter().rev().fold(x.clone(), |x, dim| x.max(*dim));
    let e = (x - &most).exp();
    let sum = over.iter().rev().fold(e.clone(), |e, dim| e.sum(*dim));
    (most, e, sum)
}
