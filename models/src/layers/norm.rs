//! RMSNorm: scales a vector to unit mean square, then by a learned weight per element.
//!
//! In: activations and the axis to normalise over. Out: activations of the same axes.
//! The mean is not subtracted and there is no bias.
//! Every block applies one before attention and one before the FFN; see `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::layers::scope::{Scope, static_size};

/// RMSNorm with the weight of this name.
#[track_caller]
pub(crate) fn norm(m: &Scope, name: &str, x: &Tensor, over: &Dim) -> Tensor {
    rms_norm(x, &m.f32_weight(name, &[over]), over, m.config.eps)
}

/// `x / √(mean x² + ε) · weight`
#[track_caller]
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, over: &Dim, eps: f32) -> Tensor {
    let mean = (x * x).sum(over) / static_size(over) as f32;
    x * (mean + eps).rsqrt() * weight
}
