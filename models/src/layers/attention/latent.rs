//! Multi-head latent attention (MLA): one small latent vector per position is cached, and the keys and values of all
//! heads are up-projections of it.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! It is written as in the paper, with keys and values expanded for every position. Whether to expand them, or to
//! absorb the up-projection into the query, is the compiler's business.
//! The latent is normalised, and the shared RoPE key rotated, before they are cached.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::config::attention::Latent;
use crate::layers::attention::kv_cache::append;
use crate::layers::attention::rope::{mscale, rotate};
use crate::layers::attention::{Scoring, attend, note_attention};
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// Multi-head latent attention over cached latents.
pub fn latent(m: &Scope, sizes: &Latent, x: &Tensor) -> Tensor {
    let h = &m.g.dim("h", sizes.n_heads);
    let c = &m.g.dim("c", sizes.kv_lora);
    let key = &m.g.dim("e", sizes.nope + sizes.rope);
    let value = &key.sized(sizes.value);

    let q = query(m, sizes, &[h, key], x); // [t, h, e]
    let entry = entry(m, sizes, c, x); // [t, c]
    let (k_b, v_b) = up_projections(m, sizes, [h, key, c]);

    let (low, k_rope) = cached(m, sizes, c, &entry); // [p, r, c], [p, r, e], of a batch with t before
    let k_nope = low.contract(&k_b, [c]); // [p, r, h, e]
    let k = m.g.concat(key, &[&k_nope, &k_rope.expand(h)]); // [p, r, h, e]
    let v = low.contract(&v_b, [c]); // [p, r, h, e]
    let scoring = Scoring::plain(scale(sizes));
    note_attention(m, [&q, &k], key, &scoring, h);
    let y = attend(m, [&q, &k, &v], key, &scoring); // [t, h, e]
    m.linear(&y, "attn_output", &[&m.d], [h, value])
}

/// The up-projections `k_b` (no RoPE) and `v_b`.
fn up_projections(m: &Scope, sizes: &Latent, [h, e, c]: [&Dim; 3]) -> (Tensor, Tensor) {
    let (nope, value) = (&e.sized(sizes.nope), &e.sized(sizes.value));
    if sizes.is_joint {
        let both = m.matrix("attn_kv_b", &[h, &e.sized(sizes.nope + sizes.value), c]);
        return (both.slice(e, 0, sizes.nope), both.slice(e, sizes.nope, sizes.value));
    }
    (m.matrix("attn_k_b", &[h, c, nope]), m.matrix("attn_v_b", &[h, value, c]))
}

/// The factor on attention scores.
pub(crate) fn scale(sizes: &Latent) -> f64 {
    mscale(&sizes.turn).powi(2) / ((sizes.nope + sizes.rope) as f64).sqrt()
}

/// The queries, with RoPE on the last elements of each head.
fn query(m: &Scope, sizes: &Latent, [h, e]: &[&Dim; 2], x: &Tensor) -> Tensor {
    let q = if let Some(rank) = sizes.q_lora {
        let low = &m.g.dim("q", rank);
        let compressed = m.linear(x, "attn_q_a", &[low], [&m.d]); // [t, q]
        m.linear(&norm(m, "attn_q_a_norm", &compressed, low), "attn_q_b", &[h, e], [low])
    } else {
        m.linear(x, "attn_q", &[h, e], [&m.d])
    }; // [t, h, e]
    let q_nope = q.slice(*e, 0, sizes.nope);
    let q_rope = rotate(m, &sizes.turn, &q.slice(*e, sizes.nope, sizes.rope), &e.sized(sizes.rope));
    m.g.concat(*e, &[&q_nope, &q_rope])
}

/// The cached row of each token: its latent, followed by the shared RoPE key.
fn entry(m: &Scope, sizes: &Latent, c: &Dim, x: &Tensor) -> Tensor {
    let both = &c.sized(sizes.kv_lora + sizes.rope);
    let (low, k_rope) = parts(sizes, c, &m.linear(x, "attn_kv_a_mqa", &[both], [&m.d]));
    let low = norm(m, "attn_kv_a_norm", &low, c);
    let k_rope = rotate(m, &sizes.turn, &k_rope, &c.sized(sizes.rope));
    m.g.concat(c, &[&low, &k_rope])
}

/// The latents and shared RoPE keys of all tokens so far.
fn cached(m: &Scope, sizes: &Latent, c: &Dim, entry: &Tensor) -> (Tensor, Tensor) {
    let both = &c.sized(sizes.kv_lora + sizes.rope);
    let (low, k_rope) = parts(sizes, c, &append(m, "latent", &[&m.r, both], entry));
    (low, k_rope.rename(c, &m.g.dim("e", sizes.rope)))
}

/// Splits a cached row into latent and RoPE key.
fn parts(sizes: &Latent, c: &Dim, x: &Tensor) -> (Tensor, Tensor) {
    (x.slice(c, 0, sizes.kv_lora), x.slice(c, sizes.kv_lora, sizes.rope))
}
