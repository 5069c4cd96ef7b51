//! Grouped-query attention (GQA) with a causal mask and an optional sliding window.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! Query head `kv·G + g` reads key head `kv`; as both are axes of the query, keys and values are never repeated.
//! The mask hides tokens after the token's own; with a window, also those too far before it.
//! [`attend`] serves `latent.rs` (MLA) as well.

use fusebox_compiler::graph::build::{Dim, Tensor};

use crate::config::Grouped;
use crate::layers::kv_cache::append;
use crate::layers::norm::norm;
use crate::layers::rope::rotate;
use crate::layers::scope::Scope;
use crate::layers::softmax::softmax;

/// Grouped-query attention over cached keys and values.
pub(crate) fn grouped(m: &Scope, heads: &Grouped, layer: usize, x: &Tensor) -> Tensor {
    let d = &m.d;
    let kv = &m.g.dim("kv", heads.n_kv);
    let group = &m.g.dim("g", heads.n_heads / heads.n_kv);
    let e = &m.g.dim("e", heads.head);

    let q = m.linear(x, "attn_q", &[kv, group, e], [d]); // [t, kv, g, e]
    let k = m.linear(x, "attn_k", &[kv, e], [d]); // [t, kv, e]
    let v = m.linear(x, "attn_v", &[kv, e], [d]); // [t, kv, e]

    let normed = |name, x| if heads.qk_norm { norm(m, name, &x, e) } else { x };
    let q = rotated(m, heads, &normed("attn_q_norm", q), e);
    let k = rotated(m, heads, &normed("attn_k_norm", k), e);

    let scale = 1.0 / (heads.head as f64).sqrt();
    let k = append(m, "k", &[kv, &m.r, e], &k); // [p, kv, r, e], of a batch [t, p, kv, r, e]
    let v = append(m, "v", &[kv, &m.r, e], &v);
    let y = attend(m, [&q, &k, &v], e, scale, heads.window_of(layer)); // [t, kv, g, e]
    m.linear(&y, "attn_output", &[d], [kv, group, e])
}

/// RoPE on the first `rotary_dim` elements of each head.
fn rotated(m: &Scope, heads: &Grouped, x: &Tensor, e: &Dim) -> Tensor {
    let n = heads.rotary_dim;
    if n == heads.head {
        return rotate(m, x, e);
    }
    let first = rotate(m, &x.slice(e, 0, n), &e.sized(n));
    m.g.concat(e, &[&first, &x.slice(e, n, heads.head - n)])
}

/// Scaled dot-product attention, `softmax(q·k · scale + mask) · v`, contracted over `e`.
pub(crate) fn attend(
    m: &Scope,
    [q, k, v]: [&Tensor; 3],
    e: &Dim,
    scale: f64,
    window: Option<usize>,
) -> Tensor {
    let scores = q.contract(k, [e]) * scale as f32 + mask(m, window);
    softmax(&scores, &[&m.p, &m.r]).contract(v, [&m.p, &m.r])
}

/// The attention mask: 0 at visible slots, -∞ after the token's own and before its window.
fn mask(m: &Scope, window: Option<usize>) -> Tensor {
    let rows = m.g.integer(m.config.cache.page_rows as i32);
    let slot = m.g.iota(&m.p) * rows + m.g.iota(&m.r); // [p, r]
    let own = &m.slots(); // [t]
    let masked = m.g.constant(f32::NEG_INFINITY);
    let causal = m.g.select(&slot.le(own), &m.g.constant(0.0), &masked); // [p, r, t]
    match window {
        None => causal,
        Some(size) => m.g.select(&own.lt(&(slot + m.g.integer(size as i32))), &causal, &masked),
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::graph::Name;
    use fusebox_compiler::reference::{Bindings, evaluate};
    use fusebox_compiler::tensor::dtype::DType;
    use fusebox_compiler::tensor::label::Label;
    use fusebox_compiler::tensor::sym::Sym;
    use fusebox_compiler::tensor::value::{Data, Value};
    use fusebox_runtime::session::{PAGES, inputs};

    use super::*;
    use crate::blocks::named;
    use crate::config::{Config, Pairing, Rope, Scaling};
    use crate::layers::step::Step;

    /// Tokens, first position, head dimension, rotary dimension.
    const SIZES: [usize; 4] = [3, 5, 12, 8];

    /// By the formula, element by element.
    fn expected(x: &[f32], pairing: Pairing) -> Vec<f32> {
        let [_, start, head, n] = SIZES;
        let mut y = x.to_vec();
        for (token, (x, y)) in x.chunks(head).zip(y.chunks_mut(head)).enumerate() {
            for pair in 0..n / 2 {
                let (i, j) = match pairing {
                    Pairing::Halves => (pair, pair + n / 2),
                    Pairing::Interleaved => (2 * pair, 2 * pair + 1),
                };
                let angle = (start + token) as f64 * 1e4_f64.powf(-2.0 * pair as f64 / n as f64);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (f64::from(x[i]), f64::from(x[j]));
                y[pair] = (a * cos - b * sin) as f32;
                y[pair + n / 2] = (b * cos + a * sin) as f32;
            }
        }
        y
    }

    #[test]
    fn the_first_elements_of_a_head_are_rotated_and_the_others_stay() {
        let [n_tokens, start, head, n] = SIZES;
        for pairing in [Pairing::Halves, Pairing::Interleaved] {
            let rope = Rope { theta: 1e4, pairing, scaling: Scaling::None };
            let config = Config { rope, ..named("llama-3.2-1b").unwrap().shrunk() };
            let heads = Grouped { rotary_dim: n, ..Grouped::new(1, 1, head) };
            let m = Scope::new(&config, &Step::Run(Sym::from(n_tokens as i64)));
            let e = &m.g.dim("e", head);
            let y = rotated(&m, &heads, &m.g.input("x", DType::F32, &[&m.t, e]), e);
            let graph = m.g.finish(&[("y", &y)]).unwrap();
            let x: Vec<f32> = (0..n_tokens * head).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let axes = vec![(m.t.axis, n_tokens), (e.axis, head)];
            let mut bindings = Bindings::default();
            bindings.symbols.insert(Label::new(PAGES).unwrap(), 1);
            // Nothing is cached here.
            for (name, axes) in [
                (inputs::SLOT, vec![]),
                (inputs::PAGE, vec![(m.t.axis, n_tokens)]),
                (inputs::ROW, vec![(m.t.axis, n_tokens)]),
                (inputs::TABLE, vec![(m.p.axis, 1)]),
            ] {
                let n = axes.iter().map(|(_, size)| size).product();
                bindings.inputs.insert(Name::from(name), Value::int(axes, vec![0; n]));
            }
            let positions = (start..start + n_tokens).map(|position| position as i32).collect();
            bindings
                .inputs
                .insert(Name::from(inputs::POSITIONS), Value::int(vec![(m.t.axis, n_tokens)], positions));
            bindings.inputs.insert(Name::from("x"), Value::float(DType::F32, axes, x.clone()));
            let results = evaluate(&graph, &bindings).unwrap();
            let Data::Float(found) = &results.outputs["y"].data else { panic!("floats") };
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
            assert!(found.iter().zip(&expected(&x, pairing)).all(near), "{pairing:?}: {found:?}");
        }
    }
}
