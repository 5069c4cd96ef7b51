//! RMSNorm: a vector is scaled to unit mean square, then by a learned weight per element.
//!
//! In: activations and the axis a vector runs along. Out: activations of the same axes.
//! The mean is not subtracted and there is no bias.
//! Every block starts both its halves with one; see `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::layers::scope::{Scope, fixed};

/// The norm whose weight has this name.
#[track_caller]
pub(crate) fn norm(m: &Scope, name: &str, x: &Tensor, over: &Dim) -> Tensor {
    rms_norm(x, &m.precise(name, &[over]), over, m.config.eps)
}

/// `x / √(mean x² + ε) · weight`
#[track_caller]
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, over: &Dim, eps: f32) -> Tensor {
    let mean = (x * x).sum(over) / fixed(over) as f32;
    x * (mean + eps).rsqrt() * weight
}
