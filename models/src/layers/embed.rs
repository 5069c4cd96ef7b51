//! The two ends of a model: token embedding and output head.
//!
//! In: token ids `[t]`, later the residual stream `[t, d]`. Out: the residual stream, later logits `[v]` or the top k
//! of them. Most steps compute the logits of their last token only. With tied embeddings both ends use the same matrix.
//! A step may also start from embeddings, or end with hidden states.
//! The blocks in between are in `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_runtime::session::names::inputs;

use crate::config::network::Activation;
use crate::config::{Added, Pooler, Positions, Ranking};
use crate::layers::low_rank::{adapted, adapted_rows};
use crate::layers::mlp::{activate, sigmoid, soft_cap};
use crate::layers::norm::norm;
use crate::layers::scope::Scope;
use crate::layers::top_k::top_k;
use crate::naming::tensors::{BIAS, PROJECTIONS};

/// What a step starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Token ids, `tokens` `[t]`.
    Tokens,
    /// Embeddings, `x` `[t, d]`.
    Vectors,
}

/// What a step returns. In a step that scores every token, as in a batch, there are logits of every token: `[t, v]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    /// The logits of the last token, `[v]`.
    Last,
    /// The `k` largest logits of the last token, `[k]`, and their token ids, `ids` `[k]`.
    TopK(usize),
    /// Hidden states before the final norm, `[t, d]`.
    Unnormed,
    /// Hidden states after the final norm, which the head would read, `[t, d]`.
    Normed,
    /// The same after the projections of an embedding model, `[t, f]`.
    Embedded,
    /// Scores of the head that ranks texts, `[label]`.
    Ranked,
}

/// The residual stream before the first block.
pub fn entry(m: &Scope, entry: Entry) -> Tensor {
    match entry {
        Entry::Tokens => embed(m, &m.tokens()),
        Entry::Vectors => m.g.input(inputs::VECTORS, DType::F32, &[&m.t, &m.d]),
    }
}

/// Looks tokens up in the embedding matrix.
fn embed(m: &Scope, tokens: &Tensor) -> Tensor {
    let v = &vocabulary(m);
    let x = m.matrix("token_embd", &[v, &m.d]).gather(v, tokens).cast(DType::F32); // [t, d]
    let x = adapted_rows(m, "token_embd", x, v, tokens);
    let x = if m.config.embedding_scale == 1.0 { x } else { x * m.config.embedding_scale };
    let Added { positions, n_kinds, has_norm } = m.config.added;
    let x = positions.map_or(x.clone(), |Positions { rows, first }| {
        let row = &m.g.dim("row", rows);
        let table = m.matrix("position_embd", &[row, &m.d]);
        x + table.gather(row, &(&m.positions + m.g.integer(first as i32))).cast(DType::F32)
    });
    let kinds = match n_kinds {
        0 => None,
        1 => Some(m.g.integer(0)),
        _ => Some(m.kinds()),
    };
    let x = kinds.map_or(x.clone(), |kinds| {
        let kind = &m.g.dim("kind", n_kinds);
        x + m.matrix("token_types", &[kind, &m.d]).gather(kind, &kinds).cast(DType::F32)
    });
    if has_norm { norm(m, "token_embd_norm", &x, &m.d) } else { x }
}

/// The results of a step by name, given the residual stream after the last block.
pub fn head(m: &Scope, x: &Tensor, scored: Scored) -> Vec<(&'static str, Tensor)> {
    match scored {
        Scored::Last => vec![("logits", logits(m, &last(m, x)))],
        Scored::TopK(k) => {
            let (ids, values) = top_k(&logits(m, &last(m, x)), &vocabulary(m), k);
            vec![("logits", values), ("ids", ids)]
        }
        Scored::Unnormed => vec![("hidden", x.clone())],
        Scored::Normed => vec![("hidden", normed(m, x))],
        Scored::Embedded => vec![("hidden", projected(m, normed(m, x)))],
        Scored::Ranked => vec![("scores", ranked(m, &normed(m, x)))],
    }
}

/// The final norm, where there is one.
fn normed(m: &Scope, x: &Tensor) -> Tensor {
    if m.config.ends.has_norm { norm(m, "output_norm", x, &m.d) } else { x.clone() }
}

/// The projections of an embedding model, which have no biases. They are linear, so it does not matter that they come
/// before pooling.
fn projected(m: &Scope, x: Tensor) -> Tensor {
    let widths = m.config.ends.projections.iter().zip(PROJECTIONS.into_iter().zip(["f", "w"]));
    let start = (x, m.d.clone());
    let (y, _) = widths.fold(start, |(x, from), (width, (name, axis))| {
        let to = m.g.dim(axis, *width);
        (m.linear(&x, name, &[&to], [&from]), to)
    });
    y
}

/// The head that ranks texts.
fn ranked(m: &Scope, x: &Tensor) -> Tensor {
    let Some(Ranking { n_labels, reads_mean, pooler }) = m.config.ends.ranking else { return x.clone() };
    let (d, label, c) = (&m.d, &m.g.dim("label", n_labels), &m.g.dim("c", m.config.hidden));
    // Without a causal mask a text is one step, and its first token stands for it.
    let x = match (reads_mean, m.config.is_causal()) {
        (true, _) => x.sum(&m.t) / (m.last_slot() + m.g.integer(1)).cast(DType::F32),
        (false, true) => last(m, x),
        (false, false) => x.slice(&m.t, 0, 1).merge(&[&m.t, d], d),
    };
    let projected = || m.linear(&x, "cls", &[c], [d]).rename(c, d);
    let x = match pooler {
        Pooler::None => x,
        // `tanh y` is `2 sigmoid 2y - 1`.
        Pooler::Tanh => sigmoid(&(projected() * 2.0)) * 2.0 - 1.0,
        Pooler::GeluNormed => norm(m, "cls.norm", &activate(Activation::Gelu, &projected()), d),
    };
    m.linear(&x, "cls.output", &[label], [d])
}

/// Final norm and output head.
fn logits(m: &Scope, x: &Tensor) -> Tensor {
    let (d, v) = (&m.d, &vocabulary(m));
    let table = if m.config.tied { "token_embd" } else { "output" };
    let x = &normed(m, x);
    let y = adapted(m, "output", [x, &x.contract(&m.matrix(table, &[v, d]), [d])], [&[], &[v]], [d]);
    let bias = format!("output{BIAS}");
    let y = if m.config.biased.contains("output") { y + m.f32_weight(&bias, &[v]) } else { y };
    let y = if m.config.logit_scale == 1.0 { y } else { y * m.config.logit_scale };
    m.config.logit_cap.map_or(y.clone(), |cap| soft_cap(&y, cap))
}

/// The vocabulary axis.
fn vocabulary(m: &Scope) -> Dim {
    m.g.dim("v", m.config.vocab)
}

/// The hidden state of the last token, without the axis `t`; of every token where all are scored.
fn last(m: &Scope, x: &Tensor) -> Tensor {
    if m.is_scored {
        return x.clone();
    }
    x.slice(&m.t, m.t.size.clone() - 1, 1).merge(&[&m.t, &m.d], &m.d) // [d]
}
