//! SwiGLU: the feed-forward network (FFN) of a dense block.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! One projection gates another: `W_down (silu(W_gate x) · W_up x)`.
//! Experts are many small ones of these; see `experts.rs`.

use fusebox_compiler::graph::build::Tensor;

use crate::layers::scope::Scope;

/// The FFN of width `ff`, with weight names that end in `suffix`.
pub(crate) fn mlp(m: &Scope, suffix: &str, ff: usize, x: &Tensor) -> Tensor {
    let (d, f) = (&m.d, &m.g.dim("f", ff));
    let gate = m.linear(x, &format!("ffn_gate{suffix}"), &[f], [d]); // [t, f]
    let up = m.linear(x, &format!("ffn_up{suffix}"), &[f], [d]); // [t, f]
    m.linear(&swiglu(&gate, &up), &format!("ffn_down{suffix}"), &[d], [f])
}

/// `silu(gate) · up`
#[track_caller]
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Tensor {
    gate * sigmoid(gate) * up
}

/// `1 / (1 + e^-x)`
#[track_caller]
pub(crate) fn sigmoid(x: &Tensor) -> Tensor {
    ((-x).exp() + 1.0).recip()
}
