//! Attention: each token takes an average of earlier values, weighted by how well its query meets their keys.
//!
//! In: normed activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! Query head `kv·G + g` reads key head `kv`; as both are axes of the query, nothing is ever repeated.
//! A token never sees a position after its own; with a window, none far before it either.
//! [`attend`] serves `latent.rs` as well.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::config::Grouped;
use crate::layers::cache::remember;
use crate::layers::norm::norm;
use crate::layers::rope::rotate;
use crate::layers::scope::{Scope, Text};
use crate::layers::softmax::softmax;

/// Attention with grouped heads over cached keys and values.
pub fn grouped(m: &Scope, heads: &Grouped, layer: usize, x: &Tensor) -> Tensor {
    let d = &m.d;
    let kv = &m.g.dim("kv", heads.n_kv);
    let group = &m.g.dim("g", heads.n_heads / heads.n_kv);
    let e = &m.g.dim("e", heads.head);

    let q = m.linear(x, "attn_q", &[kv, group, e], [d]); // [t, kv, g, e]
    let k = m.linear(x, "attn_k", &[kv, e], [d]); // [t, kv, e]
    let v = m.linear(x, "attn_v", &[kv, e], [d]); // [t, kv, e]

    let normed = |name, x| if heads.qk_norm { norm(m, name, &x, e) } else { x };
    let q = rotate(m, &normed("attn_q_norm", q), e);
    let k = rotate(m, &normed("attn_k_norm", k), e);

    let scale = 1.0 / (heads.head as f64).sqrt();
    let y = m.each_text([&q, &k, &v], |text, [q, k, v]| {
        let k = remember(m, text, "k", &[kv, &text.s, e], k);
        let v = remember(m, text, "v", &[kv, &text.s, e], v);
        attend(m, text, [q, &k, &v], e, scale, heads.window_of(layer))
    }); // [t, kv, g, e]
    m.linear(&y, "attn_output", &[d], [kv, group, e])
}

/// `softmax(q·k · scale + mask) · v`, queries and keys contracted over `e`.
pub fn attend(
    m: &Scope,
    text: &Text,
    [q, k, v]: [&Tensor; 3],
    e: &Dim,
    scale: f64,
    window: Option<usize>,
) -> Tensor {
    let scores = q.contract(k, [e]) * scale as f32 + mask(m, text, window);
    softmax(&scores, &text.s).contract(v, [&text.s])
}

/// 0 where a token may look, -∞ where the position is after its own, or as far before it as the window is long.
fn mask(m: &Scope, text: &Text, window: Option<usize>) -> Tensor {
    let (position, own) = (m.g.iota(&text.s), text.positions(&m.g));
    let unseen = m.g.constant(f32::NEG_INFINITY);
    let causal = m.g.select(&position.le(&own), &m.g.constant(0.0), &unseen); // [s, t]
    match window {
        None => causal,
        Some(size) => m.g.select(&own.lt(&(position + m.g.integer(size as i32))), &causal, &unseen),
    }
}
