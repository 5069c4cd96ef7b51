//! Grouped-query attention (GQA) with a causal mask and an optional window.
//!
//! In: normalised activations `[t, d]`. Out: what is added to the residual stream, `[t, d]`.
//! Query head `kv·G + g` reads key head `kv`; as both are axes of the query, keys and values are never repeated.
//! The mask hides tokens after the token's own; with a window, also those too far before it.
//! [`attend`] serves `latent.rs` (MLA) as well.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::config::attention::{Grouped, OutputGate, QkNorm, Temperature, Values, Window};
use crate::layers::attention::kv_cache::append;
use crate::layers::attention::rope::rotate;
use crate::layers::mlp::{sigmoid, soft_cap, softplus};
use crate::layers::norm::{bare, bare_norm, norm, norm_of_heads};
use crate::layers::scope::{Scope, static_size};
use crate::layers::softmax::{softmax, softmax_with_sink};

pub mod kv_cache;
pub mod latent;
pub mod rope;

/// What attention scores are made of besides queries and keys.
pub struct Scoring<'a> {
    /// Factor on scores.
    pub scale: f64,
    /// Their soft cap.
    pub cap: Option<f32>,
    /// Whether later positions are hidden.
    pub is_causal: bool,
    /// Which positions are seen.
    pub window: Option<Window>,
    /// The score of each head's sink.
    pub sinks: Option<&'a Tensor>,
    /// What is taken off a score for each position between query and key, of each head.
    pub slopes: Option<&'a Tensor>,
}

impl Scoring<'_> {
    /// A factor alone.
    pub fn plain(scale: f64) -> Self {
        Self { scale, cap: None, is_causal: true, window: None, sinks: None, slopes: None }
    }
}

/// Grouped-query attention over cached keys and values.
pub fn grouped(m: &Scope, heads: &Grouped, x: &Tensor) -> Tensor {
    let d = &m.d;
    let kv = &m.g.dim("kv", heads.n_kv);
    let group = &m.g.dim("g", heads.n_heads / heads.n_kv);
    let e = &m.g.dim("e", heads.head);

    let project = |name, rows: &[&Dim]| m.linear(x, name, rows, [d]);
    let (q, gate) = match heads.gate {
        None => (project("attn_q", &[kv, group, e]), None),
        Some(OutputGate::BesideQuery) => {
            let both = project("attn_q", &[kv, group, &e.sized(2 * heads.head)]);
            (both.slice(e, 0, heads.head), Some(sigmoid(&both.slice(e, heads.head, heads.head))))
        }
        Some(gate) => {
            let rows: &[&Dim] = match gate {
                OutputGate::Head | OutputGate::SoftplusHead => &[kv, group],
                _ => &[kv, group, e],
            };
            let y = project("attn_gate", rows);
            let is_softplus = matches!(gate, OutputGate::SoftplusElement | OutputGate::SoftplusHead);
            (project("attn_q", &[kv, group, e]), Some(if is_softplus { softplus(&y) } else { sigmoid(&y) }))
        }
    }; // [t, kv, g, e]
    let own = match heads.shares {
        None => Ok(keys_and_values(m, heads, x, [kv, e])),
        Some(from) => Err(from),
    };
    let q = placed(m, heads, "attn_q_norm", &q, &[kv, group, e]);
    let q = match &heads.temperature {
        Some(temperature) => q * query_factor(m, temperature),
        None => q,
    };

    let slopes = heads.alibi.map(|alibi| slopes(m, heads.n_heads, alibi, [kv, group]));
    let scoring = Scoring {
        scale: heads.scale.unwrap_or(1.0 / (heads.head as f64).sqrt()),
        cap: heads.cap,
        is_causal: heads.is_causal,
        window: heads.window,
        sinks: if heads.has_sinks { Some(&m.f32_weight("attn_sinks", &[kv, group])) } else { None },
        slopes: slopes.as_ref(),
    };
    let [k, v] = match own {
        Ok((k, v)) => {
            let k = placed(m, heads, "attn_k_norm", &k, &[kv, e]);
            let kept = [append(m, "k", &[kv, &m.r, e], &k), append(m, "v", &[kv, &m.r, e], &v)];
            m.keep(&kept);
            kept
        }
        Err(from) => m.kept(from),
    }; // [p, kv, r, e], of a batch [t, p, kv, r, e]
    note_attention(m, [&q, &k], e, &scoring, group);
    let y = attend(m, [&q, &k, &v], e, &scoring); // [t, kv, g, e]
    let y = gate.map_or(y.clone(), |gate| y * gate);
    let y = if heads.has_norm {
        let all = &m.g.dim("all", heads.n_heads * heads.head);
        norm(m, "attn_sub_norm", &y.merge(&[kv, group, e], all), all).split(all, &[kv, group, e])
    } else {
        y
    };
    m.linear(&y, "attn_output", &[d], [kv, group, e])
}

/// The keys, before norm and RoPE, and the values of this step's tokens, `[t, kv, e]`.
fn keys_and_values(m: &Scope, heads: &Grouped, x: &Tensor, [kv, e]: [&Dim; 2]) -> (Tensor, Tensor) {
    let k = m.linear(x, "attn_k", &[kv, e], [&m.d]);
    let v = match heads.values {
        Values::Projected => clamped(heads, m.linear(x, "attn_v", &[kv, e], [&m.d])),
        Values::Normalised => bare_norm(&m.linear(x, "attn_v", &[kv, e], [&m.d]), e, m.config.eps),
        Values::Keys => bare_norm(&k, e, m.config.eps),
    };
    (k, v)
}

/// QK norm and RoPE, in the order that the block has them.
fn placed(m: &Scope, heads: &Grouped, name: &str, x: &Tensor, dims: &[&Dim]) -> Tensor {
    let e = dims[dims.len() - 1];
    let rotate = |x: &Tensor| rotated(m, heads, &clamped(heads, x.clone()), e);
    match heads.qk_norm {
        None => rotate(x),
        Some(QkNorm::OwnHead) => rotate(&norm_of_heads(m, name, x, dims)),
        Some(QkNorm::Head) => rotate(&norm(m, name, x, e)),
        Some(QkNorm::HeadAfterRope) => norm(m, name, &rotate(x), e),
        Some(QkNorm::BareAfterRope) if heads.rope.is_none() => x.clone(),
        Some(QkNorm::BareAfterRope) => bare(m, &rotate(x), e),
        Some(QkNorm::Whole) => {
            let all = &m.g.dim("all", dims.iter().map(|dim| static_size(dim)).product::<usize>());
            rotate(&norm(m, name, &x.merge(dims, all), all).split(all, dims))
        }
    }
}

/// Within the bound, where there is one.
fn clamped(heads: &Grouped, x: Tensor) -> Tensor {
    let Some(bound) = heads.clamp else { return x };
    let most = x.builder().constant(bound);
    x.minimum(&most).maximum(&-most)
}

/// The slope of each head (`ALiBi`), `[kv, g]`: powers of a root of two, and between them for heads beyond a power of
/// two.
fn slopes(m: &Scope, n_heads: usize, alibi: f32, dims: [&Dim; 2]) -> Tensor {
    let whole = 1_usize << n_heads.ilog2();
    let slope = |head: usize| {
        let (n, power) = if head < whole { (whole, head + 1) } else { (2 * whole, 2 * (head - whole) + 1) };
        2_f64.powf(-f64::from(alibi) * power as f64 / n as f64) as f32
    };
    let h = &m.g.dim("h", n_heads);
    let slopes: Vec<f32> = (0..n_heads).map(slope).collect();
    m.g.table(h, &slopes).split(h, &dims)
}

/// RoPE on the first `rotary_dim` elements of each head.
fn rotated(m: &Scope, heads: &Grouped, x: &Tensor, e: &Dim) -> Tensor {
    let (Some(rope), n) = (&heads.rope, heads.rotary_dim) else { return x.clone() };
    if n == heads.head {
        return rotate(m, rope, x, e);
    }
    let first = rotate(m, rope, &x.slice(e, 0, n), &e.sized(n));
    m.g.concat(e, &[&first, &x.slice(e, n, heads.head - n)])
}

/// The factor on the query of each token, `[t]`.
fn query_factor(m: &Scope, by: &Temperature) -> Tensor {
    // A position is divided by counting the multiples of the length up to it.
    let n_multiples = (m.config.context + by.offset) / by.length;
    let multiple = &m.g.dim("multiple", n_multiples.max(1));
    let bound = (m.g.iota(multiple).cast(DType::F32) + 1.0) * by.length as f32;
    let position = m.positions.cast(DType::F32) + by.offset as f32;
    let n_below = m.g.select(&bound.le(&position), &m.g.constant(1.0), &m.g.constant(0.0)).sum(multiple);
    (n_below + 1.0).ln() * by.strength + 1.0
}

/// Scaled dot-product attention, `softmax(q·k · scale + mask) · v`, contracted over `e`.
pub fn attend(m: &Scope, [q, k, v]: [&Tensor; 3], e: &Dim, scoring: &Scoring<'_>) -> Tensor {
    let scores = scores(m, [q, k], e, scoring) + mask(m, scoring.is_causal, scoring.window);
    weights(m, &scores, scoring).contract(v, [&m.p, &m.r])
}

/// Attention scores before the mask.
fn scores(m: &Scope, [q, k]: [&Tensor; 2], e: &Dim, scoring: &Scoring<'_>) -> Tensor {
    let scores = q.contract(k, [e]) * scoring.scale as f32;
    let scores = scoring.cap.map_or(scores.clone(), |cap| soft_cap(&scores, cap));
    scoring.slopes.map_or(scores.clone(), |slopes| scores - distance(m) * slopes)
}

/// What masked scores weigh.
fn weights(m: &Scope, scores: &Tensor, scoring: &Scoring<'_>) -> Tensor {
    let over = &[&m.p, &m.r];
    match scoring.sinks {
        None => softmax(scores, over),
        Some(sinks) => softmax_with_sink(scores, sinks, over),
    }
}

/// Notes how much attention the rows of a causal block get from all tokens of this step, and from all heads along
/// `sharing`, which read the same rows.
fn note_attention(m: &Scope, [q, k]: [&Tensor; 2], e: &Dim, scoring: &Scoring<'_>, sharing: &Dim) {
    if m.wants_attention() {
        // Here scores are stored, and behind the end of a sequence they may be no number.
        let scores = m.g.select(
            &slots_of_rows(m).le(&m.slots()),
            &scores(m, [q, k], e, scoring),
            &m.g.constant(f32::NEG_INFINITY),
        );
        // [p, r, …]: the mask comes first.
        m.note_attention(weights(m, &scores, scoring).sum(&m.t).sum(sharing));
    }
}

/// The slot of each row of a sequence, `[p, r]`.
fn slots_of_rows(m: &Scope) -> Tensor {
    let rows = m.g.integer(m.config.cache.page_rows as i32);
    m.g.iota(&m.p) * rows + m.g.iota(&m.r)
}

/// How far each token is from each slot, either way, `[t, p, r]`.
fn distance(m: &Scope) -> Tensor {
    let slot = slots_of_rows(m).cast(DType::F32);
    let own = m.slots().cast(DType::F32);
    let apart = own - slot;
    apart.maximum(&-&apart)
}

/// The attention mask: 0 at visible slots, -∞ after the token's own, or after the last of the step, and outside of its
/// window.
pub fn mask(m: &Scope, is_causal: bool, window: Option<Window>) -> Tensor {
    let slot = &slots_of_rows(m); // [p, r]
    let own = &m.slots(); // [t]
    let masked = m.g.constant(f32::NEG_INFINITY);
    let last = if is_causal { own } else { &m.last_slot() };
    let causal = m.g.select(&slot.le(last), &m.g.constant(0.0), &masked); // [p, r, t]
    match window {
        None => causal,
        Some(Window::Around(size)) => {
            let size = m.g.integer(size as i32);
            let is_near = m.g.select(&own.le(&(slot + &size)), &causal, &masked);
            m.g.select(&slot.le(&(own + size)), &is_near, &masked)
        }
        Some(Window::Sliding(size)) => {
            m.g.select(&own.lt(&(slot + m.g.integer(size as i32))), &causal, &masked)
        }
        // Within the first chunk, both are the same.
        Some(Window::Chunk(size)) if m.config.context <= size => causal,
        Some(Window::Chunk(size)) => {
            let n_chunks = m.config.context.div_ceil(size);
            let chunk = &m.g.dim("chunk", n_chunks);
            let first = m.g.iota(chunk) * m.g.integer(size as i32);
            let of = |x: &Tensor| {
                let is_after = m.g.select(&first.le(x), &m.g.constant(1.0), &m.g.constant(0.0));
                is_after.sum(chunk)
            };
            m.g.select(&of(own).equals(&of(slot)), &causal, &masked)
        }
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::graph::Name;
    use fusebox_compiler::reference::{Bindings, evaluate};
    use fusebox_compiler::tensor::label::Label;
    use fusebox_compiler::tensor::sym::Sym;
    use fusebox_compiler::tensor::value::{Data, Value};
    use fusebox_runtime::session::names::{PAGES, inputs};

    use super::*;
    use crate::blocks::named;
    use crate::config::rope::{Pairing, Rope, Scaling};
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
            let config = named("llama-3.2-1b").unwrap().shrunk();
            let heads = Grouped { rotary_dim: n, rope: Some(rope), ..Grouped::new(1, 1, head) };
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
