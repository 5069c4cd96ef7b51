//! The feed-forward network (FFN) of a dense block.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! One projection gates another, `W_down (f(W_gate x) · W_up x)`, or there is none, `W_down f(W_up x)`.
//! Experts are many small ones of these; see `experts.rs`.

use std::f32::consts::FRAC_1_SQRT_2;

use fusebox_compiler::graph::build::Tensor;

use crate::config::network::{Activation, Dense};
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// `√(2/π)` and the cubic term of GELU's approximation.
const GELU: (f32, f32) = (0.797_884_6, 0.044_715);

/// The factor inside and the coefficients of an approximation of `erfc`.
const NORMAL_TAIL: (f32, [f32; 5]) =
    (0.327_591_1, [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152_1, 1.061_405_4]);

/// The FFN, with weight names that end in `suffix`.
pub fn mlp(m: &Scope, suffix: &str, sizes: &Dense, x: &Tensor) -> Tensor {
    let (d, f) = (&m.d, &m.g.dim("f", sizes.ff));
    let project = |name: &str| m.linear(x, &format!("{name}{suffix}"), &[f], [d]); // [t, f]
    let inner = if sizes.is_gated {
        let gate = project("ffn_gate");
        gated(sizes.activation, &gate, &project("ffn_up"))
    } else {
        activate(sizes.activation, &project("ffn_up"))
    };
    let inner = if sizes.has_norm { norm(m, "ffn_sub_norm", &inner, f) } else { inner };
    m.linear(&inner, &format!("ffn_down{suffix}"), &[d], [f])
}

/// `f(gate) · up`
#[track_caller]
pub fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Tensor {
    let Activation::Clamped { limit, .. } = activation else { return activate(activation, gate) * up };
    let most = up.builder().constant(limit);
    activate(activation, gate) * (up.minimum(&most).maximum(&-most) + 1.0)
}

/// `f(x)`
#[track_caller]
pub fn activate(activation: Activation, x: &Tensor) -> Tensor {
    match activation {
        Activation::Silu => silu(x),
        Activation::GeluTanh => {
            let (factor, cubic) = GELU;
            // `1 + tanh y` is `2 sigmoid 2y`.
            x * sigmoid(&((x + x * x * x * cubic) * (2.0 * factor)))
        }
        Activation::Gelu => {
            // The tail of the normal distribution beyond |x|, by the rational approximation 7.1.26 of Abramowitz and
            // Stegun: 7.5e-8 off.
            let size = x.maximum(&-x);
            let t = (&size * (NORMAL_TAIL.0 * FRAC_1_SQRT_2) + 1.0).recip();
            let terms = NORMAL_TAIL.1.iter().rev();
            let sum = terms.fold(x.builder().constant(0.0), |sum, term| (sum + *term) * &t);
            let tail = sum * (x * x * -0.5).exp() * 0.5;
            x.maximum(&x.builder().constant(0.0)) - size * tail
        }
        Activation::Xielu { positive, negative, beta } => {
            let zero = x.builder().constant(0.0);
            let (above, below) = (x.maximum(&zero), x.minimum(&zero));
            &above * &above * positive + (below.exp() - 1.0 - &below) * negative + x * beta
        }
        Activation::Relu => x.maximum(&x.builder().constant(0.0)),
        Activation::SquaredRelu => {
            let positive = x.maximum(&x.builder().constant(0.0));
            &positive * &positive
        }
        Activation::Clamped { alpha, limit } => {
            let x = x.minimum(&x.builder().constant(limit));
            &x * sigmoid(&(&x * alpha))
        }
    }
}

/// `x · sigmoid(x)`
#[track_caller]
pub fn silu(x: &Tensor) -> Tensor {
    x * sigmoid(x)
}

/// `1 / (1 + e^-x)`
#[track_caller]
pub fn sigmoid(x: &Tensor) -> Tensor {
    ((-x).exp() + 1.0).recip()
}

/// `cap · tanh(x / cap)`
#[track_caller]
pub fn soft_cap(x: &Tensor, cap: f32) -> Tensor {
    // `tanh y` is `1 - 2 / (e^2y + 1)`.
    (-((x * (2.0 / cap)).exp() + 1.0).recip() * 2.0 + 1.0) * cap
}

/// `ln(1 + e^x)`, stable for large x.
#[track_caller]
pub fn softplus(x: &Tensor) -> Tensor {
    let zero = x.builder().constant(0.0);
    let size = x.maximum(&-x);
    x.maximum(&zero) + ((-size).exp() + 1.0).ln()
}
