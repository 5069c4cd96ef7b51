//! Mixture of experts (MoE): a router selects the top-k of many FFNs for each token.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! It is written as a sum over all experts with zero weights for those not selected; that these are never computed is
//! the compiler's business.
//! A router bias affects the selection of experts, never their weights.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::{Experts, Gate, Groups};
use crate::layers::mlp::{mlp, sigmoid, swiglu};
use crate::layers::scope::{Scope, static_size};
use crate::layers::softmax::softmax;
use crate::naming::tensors::BIAS;

/// The smallest divisor of normalised weights: the smallest normal f16.
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// `Σ_x weight_x · expert_x`, plus the shared experts.
pub(crate) fn experts(m: &Scope, sizes: &Experts, x: &Tensor) -> Tensor {
    let expert = &m.g.dim("x", sizes.n_routed);
    let routed =
        routing_weights(m, sizes, expert, x).contract(&expert_outputs(m, sizes, expert, x), [expert]); // [t, d]
    match sizes.n_shared {
        0 => routed,
        n_shared => routed + mlp(m, "_shexp", n_shared * sizes.ff, x),
    }
}

/// The output of every expert for every token, `[t, x, d]`.
fn expert_outputs(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
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

/// The routing weight of every expert for every token, 0 for those not selected, `[t, x]`.
fn routing_weights(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
    let k = &m.g.dim("k", sizes.top_k);
    let logits = x.contract(&m.f32_weight("ffn_gate_inp", &[expert, &m.d]), [&m.d]);
    let scores = match sizes.gate {
        Gate::Softmax => softmax(&logits, &[expert]),
        Gate::Sigmoid => sigmoid(&logits),
        Gate::SoftmaxAfterTopK => logits,
        Gate::SqrtSoftplus => softplus(&logits).sqrt(),
    }; // [t, x]

    let bias = format!("exp_probs_b{BIAS}");
    let selection = if sizes.router_bias { &scores + m.f32_weight(&bias, &[expert]) } else { scores.clone() };
    let selection =
        sizes.groups.map_or(selection.clone(), |groups| group_limited(m, groups, expert, &selection));
    let selected = selection.top_k(expert, k); // [t, k]
    let weight = selected_weights(m, sizes, k, &scores.gather(expert, &selected)); // [t, k]
    let one_hot = selected.equals(&m.g.iota(expert)).cast(DType::F32); // [t, k, x]
    (one_hot * weight).sum(k) // [t, x]
}

/// Group-limited routing: keeps the scores of experts in the best groups, -∞ for all others.
fn group_limited(m: &Scope, groups: Groups, expert: &Dim, selection: &Tensor) -> Tensor {
    let (group, rank) = (&m.g.dim("group", groups.n_groups), &m.g.dim("r", groups.score_top_k));
    let (member, j) =
        (&m.g.dim("member", static_size(expert) / groups.n_groups), &m.g.dim("j", groups.top_k));
    let selection = selection.split(expert, &[group, member]); // [t, group, member]
    let best = selection.gather(member, &selection.top_k(member, rank)).sum(rank); // [t, group]
    let is_best = best.top_k(group, j).equals(&m.g.iota(group)).cast(DType::F32).sum(j); // [t, group]
    let masked = m.g.constant(f32::NEG_INFINITY);
    m.g.select(&m.g.constant(0.5).lt(&is_best), &selection, &masked).merge(&[group, member], expert)
}

/// Routing weights of the selected experts, from their scores.
fn selected_weights(m: &Scope, sizes: &Experts, k: &Dim, scores: &Tensor) -> Tensor {
    let weight = if sizes.gate == Gate::SoftmaxAfterTopK { softmax(scores, &[k]) } else { scores.clone() };
    let total = || weight.sum(k).maximum(&m.g.constant(MIN_WEIGHT_SUM));
    let weight = if sizes.renorm { &weight / total() } else { weight.clone() };
    if sizes.scale == 1.0 { weight } else { weight * sizes.scale }
}

/// `ln(1 + e^x)`, stable for large x.
fn softplus(x: &Tensor) -> Tensor {
    let zero = x.builder().constant(0.0);
    let size = x.maximum(&-x);
    x.maximum(&zero) + ((-size).exp() + 1.0).ln()
}
