//! A state space with one decay per head (Mamba-2): each head carries a matrix from token to token.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! `S' = a S + s (x Bᵀ)` and `y = S' C + D x`, written down for all tokens of a step at once, as attention whose scores
//! decay. The vectors `B` and `C` are shared by the heads of a group.
//! Inputs come from a short convolution; the output is gated and normalised in each group.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::config::recurrent::{SpaceNorm, StateSpace};
use crate::layers::mlp::{silu, softplus};
use crate::layers::norm::rms_norm;
use crate::layers::recurrent::{Carried, Decay, convolved, over_time};
use crate::layers::scope::Scope;
use crate::naming::tensors::BIAS;

/// The whole mixer.
pub fn state_space(m: &Scope, sizes: &StateSpace, x: &Tensor) -> Tensor {
    let d = &m.d;
    let (n, r) = (&m.g.dim("n", sizes.n_groups), &m.g.dim("r", sizes.n_heads / sizes.n_groups));
    let (e, w) = (&m.g.dim("e", sizes.head), &m.g.dim("w", sizes.state));
    let (inner, shared) = (sizes.n_heads * sizes.head, sizes.n_groups * sizes.state);
    let c = &m.g.dim("c", inner + 2 * shared);

    let all = &c.sized(2 * inner + 2 * shared + sizes.n_heads);
    let all = m.linear(x, "ssm_in", &[all], [d]); // gate, then what is convolved, then time steps
    let [of_gate, of_input, of_b, of_c, of_step] = sizes.factors;
    let times = |x: Tensor, factor: f32| if factor == 1.0 { x } else { x * factor };
    let gate = times(all.slice(c, 0, inner).split(c, &[n, r, e]), of_gate); // [t, n, r, e]
    let mixed = all.slice(c, inner, inner + 2 * shared); // [t, c]
    let mixed = if [of_input, of_b, of_c] == [1.0; 3] {
        mixed
    } else {
        let each = [(of_input, inner), (of_b, shared), (of_c, shared)];
        let factors: Vec<f32> = each.into_iter().flat_map(|(factor, n)| vec![factor; n]).collect();
        mixed * m.g.table(c, &factors)
    };
    let step = times(all.slice(c, 2 * inner + 2 * shared, sizes.n_heads).split(c, &[n, r]), of_step);
    let step = softplus(&(step + m.f32_weight(&format!("ssm_dt{BIAS}"), &[n, r]))); // [t, n, r]
    let step = if sizes.least_step > 0.0 { step.maximum(&m.g.constant(sizes.least_step)) } else { step };
    let decay = &step * m.f32_weight("ssm_a", &[n, r]);
    let skip = m.f32_weight("ssm_d", &[n, r]);

    let y = over_time(m, [&mixed, &step, &decay], |t, [mixed, step, decay]| {
        let mixed = silu(&convolved(m, "ssm_conv1d", sizes.kernel, [t, c], mixed));
        let part = |at, len, dims: &[&Dim]| mixed.slice(c, at, len).split(c, dims);
        let x = part(0, inner, &[n, r, e]);
        let (b, c) = (part(inner, shared, &[n, w]), part(inner + shared, shared, &[n, w]));
        scan(m, [t, n, r, e, w], [&(&x * step), &b, &c, decay]) + x * &skip
    }); // [t, n, r, e]
    let group = &m.g.dim("group", sizes.n_heads / sizes.n_groups * sizes.head);
    let normed = |y: &Tensor| {
        let weight = m.f32_weight("ssm_norm", &[n, group]);
        rms_norm(&y.merge(&[r, e], group), &weight, group, m.config.eps).split(group, &[r, e])
    };
    let y = match sizes.norm {
        SpaceNorm::AfterGate => normed(&(y * silu(&gate))),
        SpaceNorm::BeforeGate => normed(&y) * silu(&gate),
        SpaceNorm::None => y * silu(&gate),
    };
    m.linear(&y, "ssm_out", &[d], [n, r, e])
}

/// What each token reads from its state.
fn scan(m: &Scope, [t, n, r, e, w]: [&Dim; 5], [x, b, c, decay]: [&Tensor; 4]) -> Tensor {
    let u = &m.g.dim("u", t.size.clone());
    let state = Carried::new(m, "space", &[n, r, e, w]);
    let old = &state.before;
    let left = Decay::new(m, [t, u], decay);
    let seen = c.contract(&b.rename(t, u), [w]) * &left.between; // [t, u, n, r]
    let y = old.contract(c, [w]) * &left.at + seen.contract(&x.rename(t, u), [u]);
    state.write(&(old * &left.whole + b.contract(&(x * &left.after), [t])));
    y
}
