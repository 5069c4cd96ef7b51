//! RMSNorm and LayerNorm: a vector is scaled to unit mean square, then by a learned weight per element.
//!
//! In: activations and the axis to normalise over. Out: activations of the same axes.
//! LayerNorm subtracts the mean first. A bias is added where the model has one.
//! Where a block applies them is in `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::layers::scope::{Scope, static_size};
use crate::naming::tensors::BIAS;

/// The model's kind of norm, with the weight of this name.
#[track_caller]
pub fn norm(m: &Scope, name: &str, x: &Tensor, over: &Dim) -> Tensor {
    let y = bare(m, x, over);
    if !m.config.has_norm_weights {
        return y;
    }
    let y = y * m.f32_weight(name, &[over]);
    if m.config.biased.contains(name) { y + m.f32_weight(&format!("{name}{BIAS}"), &[over]) } else { y }
}

/// The model's kind of norm over the last of `dims`, with weights for each element of all of them.
#[track_caller]
pub fn norm_of_heads(m: &Scope, name: &str, x: &Tensor, dims: &[&Dim]) -> Tensor {
    bare(m, x, dims[dims.len() - 1]) * m.f32_weight(name, dims)
}

/// The model's kind of norm, without weights.
#[track_caller]
pub fn bare(m: &Scope, x: &Tensor, over: &Dim) -> Tensor {
    let centred = m.config.is_centred.then(|| x - x.sum(over) / static_size(over) as f32);
    bare_norm(centred.as_ref().unwrap_or(x), over, m.config.eps)
}

/// `x / √(mean x² + ε) · weight`
#[track_caller]
pub fn rms_norm(x: &Tensor, weight: &Tensor, over: &Dim, eps: f32) -> Tensor {
    bare_norm(x, over, eps) * weight
}

/// `x / √(mean x² + ε)`
#[track_caller]
pub fn bare_norm(x: &Tensor, over: &Dim, eps: f32) -> Tensor {
    let mean = (x * x).sum(over) / static_size(over) as f32;
    x * (mean + eps).rsqrt()
}
