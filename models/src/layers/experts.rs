//! Mixture of experts (MoE): a router selects the top-k of many FFNs for each token.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! It is written as a sum over all experts with zero weights for those not selected; that these are never computed is
//! the compiler's business.
//! A router bias affects the selection of experts, never their weights.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::network::{Dense, Experts, Gate, Groups};
use crate::layers::low_rank::adapted;
use crate::layers::mlp::{activate, gated, mlp, sigmoid, soft_cap, softplus};
use crate::layers::norm::{bare_norm, norm};
use crate::layers::scope::{Scope, static_size};
use crate::layers::softmax::softmax;
use crate::naming::tensors::BIAS;

/// The smallest divisor of normalised weights: the smallest normal f16.
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// `Σ_x weight_x · expert_x`, plus the shared experts.
pub fn experts(m: &Scope, sizes: &Experts, x: &Tensor) -> Tensor {
    let expert = &m.g.dim("x", sizes.n_routed);
    let logits = router_logits(m, sizes, expert, x);
    let (one_hot, weight, k) = routing(m, sizes, expert, &logits);
    let weight = (&one_hot * weight).sum(&k); // [t, x]
    let outputs = |x: &Tensor| expert_outputs(m, sizes, expert, x, &|| one_hot.sum(&k));
    let routed = if sizes.weighs_input {
        one_hot.sum(&k).contract(&outputs(&(x * weight)), [expert])
    } else {
        weight.contract(&outputs(x), [expert])
    }; // [t, d]
    if sizes.shared_ff == 0 {
        return routed;
    }
    let &Experts { shared_ff: ff, activation, is_gated, .. } = sizes;
    let shared = mlp(m, "_shexp", &Dense { ff, activation, is_gated, has_norm: false }, x);
    if sizes.has_shared_gate {
        let one = &m.g.dim("one", 1);
        let gate = x.contract(&m.f32_weight("ffn_gate_inp_shexp", &[one, &m.d]), [&m.d]).sum(one); // [t]
        return routed + shared * sigmoid(&gate);
    }
    routed + shared
}

/// The experts beside a dense FFN (Gemma 4): with a norm of their own, a router with a norm without weights and a
/// factor per element, and a factor per expert.
pub fn experts_beside(m: &Scope, sizes: &Experts, x: &Tensor) -> Tensor {
    let expert = &m.g.dim("x", sizes.n_routed);
    let h = norm(m, "pre_ffw_norm_2", x, &m.d);
    let factor = m.f32_weight("ffn_gate_inp.scale", &[&m.d]) * (static_size(&m.d) as f32).sqrt().recip();
    let logits = router_logits(m, sizes, expert, &(bare_norm(x, &m.d, m.config.eps) * factor));
    let (one_hot, weight, k) = routing(m, sizes, expert, &logits);
    let weight = (&one_hot * weight).sum(&k) * m.f32_weight("ffn_down_exps.scale", &[expert]);
    weight.contract(&expert_outputs(m, sizes, expert, &h, &|| one_hot.sum(&k)), [expert])
}

/// The output of every expert for every token, `[t, x, d]`; `selected` `[t, x]` is 1 for those that matter.
fn expert_outputs(
    m: &Scope,
    sizes: &Experts,
    expert: &Dim,
    x: &Tensor,
    selected: &dyn Fn() -> Tensor,
) -> Tensor {
    let (d, f) = (&m.d, &m.g.dim("f", sizes.ff));
    let biased = |y: Tensor, name: &str, rows: &Dim| {
        if sizes.has_biases { y + m.f32_weight(&format!("{name}{BIAS}"), &[expert, rows]) } else { y }
    };
    let project = |name: &str, matrix: &Tensor| {
        let y = adapted(m, name, [x, &x.contract(matrix, [d])], [&[expert], &[f]], [d]);
        biased(y, name, f)
    }; // [t, x, f]
    let separate = |name: &str| {
        m.observe_experts(name, x, selected);
        project(name, &m.matrix(name, &[expert, f, d]))
    };
    let inner = if !sizes.is_gated {
        activate(sizes.activation, &separate("ffn_up_exps"))
    } else if sizes.is_joint {
        m.observe_experts("ffn_gate_up_exps", x, selected);
        let both = m.matrix("ffn_gate_up_exps", &[expert, &f.sized(2 * sizes.ff), d]);
        let gate = project("ffn_gate_exps", &both.slice(f, 0, sizes.ff));
        gated(sizes.activation, &gate, &project("ffn_up_exps", &both.slice(f, sizes.ff, sizes.ff)))
    } else {
        let gate = separate("ffn_gate_exps");
        gated(sizes.activation, &gate, &separate("ffn_up_exps"))
    }; // [t, x, f]
    m.observe_experts("ffn_down_exps", &inner, selected);
    let y = inner.contract(&m.matrix("ffn_down_exps", &[expert, d, f]), [f]); // [t, x, d]
    let y = adapted(m, "ffn_down_exps", [&inner, &y], [&[expert], &[d]], [f]);
    biased(y, "ffn_down_exps", d)
}

/// The logit of every expert for every token, `[t, x]`.
fn router_logits(m: &Scope, sizes: &Experts, expert: &Dim, x: &Tensor) -> Tensor {
    let logits = x.contract(&m.f32_weight("ffn_gate_inp", &[expert, &m.d]), [&m.d]);
    let logits = adapted(m, "ffn_gate_inp", [x, &logits], [&[], &[expert]], [&m.d]);
    let bias = format!("ffn_gate_inp{BIAS}");
    let logits = if sizes.has_biases { logits + m.f32_weight(&bias, &[expert]) } else { logits };
    sizes.cap.map_or(logits.clone(), |cap| soft_cap(&logits, cap))
}

/// The selected experts of every token as 1 among 0, `[t, k, x]`, their routing weights, `[t, k]`, and the axis `k`.
fn routing(m: &Scope, sizes: &Experts, expert: &Dim, logits: &Tensor) -> (Tensor, Tensor, Dim) {
    let k = &m.g.dim("k", sizes.top_k);
    let scores = match sizes.gate {
        Gate::Softmax => softmax(logits, &[expert]),
        Gate::Sigmoid => sigmoid(logits),
        Gate::SoftmaxAfterTopK => logits.clone(),
        Gate::SqrtSoftplus => softplus(logits).sqrt(),
    }; // [t, x]

    let bias = format!("exp_probs_b{BIAS}");
    let selection = if sizes.router_bias { &scores + m.f32_weight(&bias, &[expert]) } else { scores.clone() };
    let selection =
        sizes.groups.map_or(selection.clone(), |groups| group_limited(m, groups, expert, &selection));
    let selected = selection.top_k(expert, k); // [t, k]
    let weight = selected_weights(m, sizes, k, &scores.gather(expert, &selected)); // [t, k]
    let one_hot = selected.equals(&m.g.iota(expert)).cast(DType::F32); // [t, k, x]
    (one_hot, weight, k.clone())
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
