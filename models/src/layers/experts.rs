//! A mixture of experts: many feed-forward networks, of which each token listens to a few.
//!
//! In: normed activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! It is written as a sum over all experts, with weights that are zero for those not selected. That nobody computes
//! what is then multiplied by zero is the compiler's business.
//! A selection bias moves the choice of experts, never their weights.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::{Experts, Gate};
use crate::layers::mlp::{mlp, sigmoid, swiglu};
use crate::layers::scope::Scope;
use crate::layers::softmax::softmax;

/// The smallest sum that weights are divided by: the smallest normal number of half precision.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// `Σ_x weight_x · expert_x`, and the experts that every token uses.
pub fn experts(m: &Scope, sizes: &Experts, x: &Tensor) -> Tensor {
    let expert = &m.g.dim("x", sizes.n);
    let routed = route(m, sizes, expert, x).contract(&each(m, sizes, expert, x), [expert]); // [t, d]
    match sizes.n_shared {
        0 => routed,
        n_shared => routed + mlp(m, "_shexp", n_shared * sizes.ff, x),
    }
}

/// What each expert says to each token.
fn each(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
    let (d, f) = (&m.d, &m.g.dim("f", sizes.ff));
    let gate = x.contract(&m.matrix("ffn_gate_exps", &[expert, f, d]), [d]); // [t, x, f]
    let up = x.contract(&m.matrix("ffn_up_exps", &[expert, f, d]), [d]); // [t, x, f]
    swiglu(&gate, &up).contract(&m.matrix("ffn_down_exps", &[expert, d, f]), [f]) // [t, x, d]
}

/// How much each token listens to each expert.
fn route(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
    let k = &m.g.dim("k", sizes.n_used);
    let logits = x.contract(&m.precise("ffn_gate_inp", &[expert, &m.d]), [&m.d]);
    let probs = match sizes.gate {
        Gate::Softmax => softmax(&logits, expert),
        Gate::Sigmoid => sigmoid(&logits),
    }; // [t, x]

    let liking = if sizes.is_biased { &probs + m.precise("exp_probs_b", &[expert]) } else { probs.clone() };
    let selected = liking.top_k(expert, k); // [t, k]
    let weight = weigh(m, sizes, k, &probs.gather(expert, &selected)); // [t, k]
    let one_hot = selected.equals(&m.g.iota(expert)).cast(DType::F32); // [t, k, x]
    (one_hot * weight).sum(k) // [t, x]
}

/// The weights of the selected, from their probabilities.
fn weigh(m: &Scope, sizes: &Experts, k: &Dim, probs: &Tensor) -> Tensor {
    let total = || probs.sum(k).maximum(&m.g.constant(LEAST_SUM));
    let weight = if sizes.renorm { probs / total() } else { probs.clone() };
    if sizes.scale == 1.0 { weight } else { weight * sizes.scale }
}
