//! A gated delta rule: each head carries a matrix from token to token, which decays, forgets what its key returned
//! before, and learns what it shall return.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! `S' = a S + k (b (v - (a S)ᵀ k))ᵀ` and `o = S'ᵀ q`, written down for all tokens of a step at once: how they correct
//! each other is a triangular system, whose inverse is a product of powers.
//! Queries, keys and values come from a short convolution.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::recurrent::Delta;
use crate::layers::mlp::{sigmoid, silu, softplus};
use crate::layers::norm::rms_norm;
use crate::layers::recurrent::{Carried, Decay, convolved, over_time};
use crate::layers::scope::Scope;
use crate::naming::tensors::BIAS;

/// Epsilon of the normalisation of queries and keys.
const EPS: f32 = 1e-6;

/// The whole mixer.
pub fn delta(m: &Scope, sizes: &Delta, x: &Tensor) -> Tensor {
    let d = &m.d;
    let (h, r) = (&m.g.dim("h", sizes.n_key), &m.g.dim("r", sizes.n_value / sizes.n_key));
    let (e, w) = (&m.g.dim("e", sizes.key), &m.g.dim("w", sizes.value));
    let (keys, values) = (sizes.n_key * sizes.key, sizes.n_value * sizes.value);
    let c = &m.g.dim("c", 2 * keys + values);
    // Value heads in the order of the file.
    let [a, b] = if sizes.is_tiled { [r, h] } else { [h, r] };

    let mixed = m.linear(x, "ssm_in", &[c], [d]); // [t, c]
    let gate = m.linear(x, "ssm_gate", &[a, b, w], [d]); // [t, h, r, w]
    let (strength, step) = if sizes.is_joint {
        let n = sizes.n_value / sizes.n_key;
        let both = m.linear(x, "ssm_ba", &[h, &r.sized(2 * n)], [d]);
        (both.slice(r, 0, n), both.slice(r, n, n))
    } else {
        (m.linear(x, "ssm_beta", &[a, b], [d]), m.linear(x, "ssm_alpha", &[a, b], [d]))
    }; // [t, h, r]
    let step = step + m.f32_weight(&format!("ssm_dt{BIAS}"), &[a, b]);
    let decay = softplus(&step) * m.f32_weight("ssm_a", &[a, b]);

    let y = over_time(m, [&mixed, &sigmoid(&strength), &decay], |t, [mixed, strength, decay]| {
        let mixed = silu(&convolved(m, "ssm_conv1d", sizes.kernel, [t, c], mixed));
        let part = |at, n, dims: &[&Dim]| mixed.slice(c, at, n).split(c, dims);
        let q = unit(&part(0, keys, &[h, e]), e) * (sizes.key as f32).sqrt().recip();
        let k = unit(&part(keys, keys, &[h, e]), e);
        let v = part(2 * keys, values, &[a, b, w]);
        rule(m, [t, h, r, e, w], [&q, &k, &v, strength, decay])
    }); // [t, h, r, w]
    let y = rms_norm(&y, &m.f32_weight("ssm_norm", &[w]), w, m.config.eps) * silu(&gate);
    m.linear(&y, "ssm_out", &[d], [a, b, w])
}

fn unit(x: &Tensor, over: &Dim) -> Tensor {
    x * ((x * x).sum(over) + EPS).rsqrt()
}

/// What each query reads from the matrix of its token.
fn rule(m: &Scope, [t, h, r, e, w]: [&Dim; 5], [q, k, v, strength, decay]: [&Tensor; 5]) -> Tensor {
    let g = &m.g;
    let u = &g.dim("u", t.size.clone());
    let state = Carried::new(m, "delta", &[h, r, e, w]);
    let old = &state.before;
    let left = Decay::new(m, [t, u], decay);
    let earlier = |x: &Tensor| x.rename(t, u);

    let wanted = (v - old.contract(k, [e]) * &left.at) * strength; // [t, h, r, w]
    let overlap = k.contract(&earlier(k), [e]) * strength * &left.between; // [t, u, h, r]
    let is_before = g.iota(u).lt(&g.iota(t));
    let corrections = g.select(&is_before, &-overlap, &g.constant(0.0));
    let learnt = match inverse(m, corrections, [t, u]) {
        None => wanted,
        Some(inverse) => inverse.contract(&earlier(&wanted), [u]),
    };
    let seen = q.contract(&earlier(k), [e]) * &left.between;
    let y = old.contract(q, [e]) * &left.at + seen.contract(&earlier(&learnt), [u]);

    state.write(&(old * &left.whole + k.contract(&(learnt * &left.after), [t])));
    y
}

/// `1 / (1 - x)` of a strictly triangular matrix, `(1 + x)(1 + x²)(1 + x⁴)…`; none for a single row, where it is 1.
fn inverse(m: &Scope, x: Tensor, [t, u]: [&Dim; 2]) -> Option<Tensor> {
    let n = t.size.most();
    if n <= 1 {
        return None;
    }
    let by = &m.g.dim("m", t.size.clone());
    let times = |a: &Tensor, b: &Tensor| a.rename(u, by).contract(&b.rename(t, by), [by]);
    let diagonal = m.g.iota(t).equals(&m.g.iota(u)).cast(DType::F32);
    let (mut product, mut power, mut done) = (diagonal + &x, x, 2);
    while done < n {
        power = times(&power, &power);
        product = &product + times(&product, &power);
        done *= 2;
    }
    Some(product)
}
