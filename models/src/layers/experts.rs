//! A mixture of experts: many feed-forward networks, of which each token listens to a few.
//!
//! In: normed activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! It is written as a sum over all experts, with weights that are zero for those not selected. That nobody computes
//! what is then multiplied by zero is the compiler's business.
//! A selection bias moves the choice of experts, never their weights.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::{Experts, Gate, Groups};
use crate::layers::mlp::{mlp, sigmoid, swiglu};
use crate::layers::scope::{Scope, fixed};
use crate::layers::softmax::softmax;
use crate::naming::tensors::BIAS;

/// The smallest sum that weights are divided by: the smallest normal number of half precision.
const LEAST_SUM: f32 = 6.103_515_6e-5;

/// `Σ_x weight_x · expert_x`, and the experts that every token uses.
pub(crate) fn experts(m: &Scope, sizes: &Experts, x: &Tensor) -> Tensor {
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
    let (gate, up) = if sizes.is_joint {
        let both = m.matrix("ffn_gate_up_exps", &[expert, &f.sized(2 * sizes.ff), d]);
        (both.slice(f, 0, sizes.ff), both.slice(f, sizes.ff, sizes.ff))
    } else {
        (m.matrix("ffn_gate_exps", &[expert, f, d]), m.matrix("ffn_up_exps", &[expert, f, d]))
    };
    let (gate, up) = (x.contract(&gate, [d]), x.contract(&up, [d])); // [t, x, f]
    swiglu(&gate, &up).contract(&m.matrix("ffn_down_exps", &[expert, d, f]), [f]) // [t, x, d]
}

/// How much each token listens to each expert.
fn route(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
    let k = &m.g.dim("k", sizes.n_used);
    let logits = x.contract(&m.precise("ffn_gate_inp", &[expert, &m.d]), [&m.d]);
    let probs = match sizes.gate {
        Gate::Softmax => softmax(&logits, expert),
        Gate::Sigmoid => sigmoid(&logits),
        Gate::SoftmaxOfSelected => logits,
        Gate::RootOfSoftplus => softplus(&logits).sqrt(),
    }; // [t, x]

    let bias = format!("exp_probs_b{BIAS}");
    let liking = if sizes.is_biased { &probs + m.precise(&bias, &[expert]) } else { probs.clone() };
    let liking = sizes.groups.map_or(liking.clone(), |groups| of_best(m, groups, expert, &liking));
    let selected = liking.top_k(expert, k); // [t, k]
    let weight = weigh(m, sizes, k, &probs.gather(expert, &selected)); // [t, k]
    let one_hot = selected.equals(&m.g.iota(expert)).cast(DType::F32); // [t, k, x]
    (one_hot * weight).sum(k) // [t, x]
}

/// The liking for the experts of the best groups, -∞ for all others.
fn of_best(m: &Scope, groups: Groups, expert: &Dim, liking: &Tensor) -> Tensor {
    let (group, rank) = (&m.g.dim("group", groups.n), &m.g.dim("r", groups.n_best));
    let (member, j) = (&m.g.dim("member", fixed(expert) / groups.n), &m.g.dim("j", groups.n_used));
    let liking = liking.split(expert, &[group, member]); // [t, group, member]
    let best = liking.gather(member, &liking.top_k(member, rank)).sum(rank); // [t, group]
    let is_best = best.top_k(group, j).equals(&m.g.iota(group)).cast(DType::F32).sum(j); // [t, group]
    let unseen = m.g.constant(f32::NEG_INFINITY);
    m.g.select(&m.g.constant(0.5).lt(&is_best), &liking, &unseen).merge(&[group, member], expert)
}

/// The weights of the selected, from their probabilities.
fn weigh(m: &Scope, sizes: &Experts, k: &Dim, probs: &Tensor) -> Tensor {
    let weight = if sizes.gate == Gate::SoftmaxOfSelected { softmax(probs, k) } else { probs.clone() };
    let total = || weight.sum(k).maximum(&m.g.constant(LEAST_SUM));
    let weight = if sizes.renorm { &weight / total() } else { weight.clone() };
    if sizes.scale == 1.0 { weight } else { weight * sizes.scale }
}

/// `ln(1 + e^x)`, with no exponential of a large number.
fn softplus(x: &Tensor) -> Tensor {
    let zero = x.builder().constant(0.0);
    let size = x.maximum(&-x);
    x.maximum(&zero) + ((-size).exp() + 1.0).ln()
}
