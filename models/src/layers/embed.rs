//! The two ends of a model: token embedding and output head.
//!
//! In: token ids `[t]`, later the residual stream `[t, d]`. Out: the residual stream, later logits `[v]` or the top k
//! of them. Most steps compute the logits of their last token only. With tied embeddings both ends use the same matrix.
//! A step may also start from embeddings, or end with hidden states.
//! The blocks in between are in `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;
use fusebox_runtime::session::inputs;

use crate::layers::mlp::soft_cap;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;
use crate::layers::top_k::top_k;
use crate::naming::tensors::BIAS;

/// What a step starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Token ids, `tokens` `[t]`.
    Tokens,
    /// Embeddings, `x` `[t, d]`.
    Vectors,
}

/// What a step returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    /// The logits of the last token, `[v]`.
    Last,
    /// The `k` largest logits of the last token, `[k]`, and their token ids, `ids` `[k]`.
    TopK(usize),
    /// The logits of every token, `[t, v]`.
    All,
    /// Hidden states before the final norm, `[t, d]`.
    Unnormed,
    /// Hidden states after the final norm, which the head would read, `[t, d]`.
    Normed,
}

/// The residual stream before the first block.
pub(crate) fn entry(m: &Scope, entry: Entry) -> Tensor {
    match entry {
        Entry::Tokens => embed(m, &m.tokens()),
        Entry::Vectors => m.g.input(inputs::VECTORS, DType::F32, &[&m.t, &m.d]),
    }
}

/// Looks tokens up in the embedding matrix.
fn embed(m: &Scope, tokens: &Tensor) -> Tensor {
    let v = &vocabulary(m);
    let x = m.matrix("token_embd", &[v, &m.d]).gather(v, tokens).cast(DType::F32); // [t, d]
    if m.config.embedding_scale == 1.0 { x } else { x * m.config.embedding_scale }
}

/// The results of a step by name, given the residual stream after the last block.
pub(crate) fn head(m: &Scope, x: &Tensor, scored: Scored) -> Vec<(&'static str, Tensor)> {
    match scored {
        Scored::Last => vec![("logits", logits(m, &last(m, x)))],
        Scored::TopK(k) => {
            let (ids, values) = top_k(&logits(m, &last(m, x)), &vocabulary(m), k);
            vec![("logits", values), ("ids", ids)]
        }
        Scored::All => vec![("logits", logits(m, x))],
        Scored::Unnormed => vec![("hidden", x.clone())],
        Scored::Normed => vec![("hidden", norm(m, "output_norm", x, &m.d))],
    }
}

/// Final norm and output head.
fn logits(m: &Scope, x: &Tensor) -> Tensor {
    let (d, v) = (&m.d, &vocabulary(m));
    let table = if m.config.tied { "token_embd" } else { "output" };
    let y = norm(m, "output_norm", x, d).contract(&m.matrix(table, &[v, d]), [d]);
    let bias = format!("output{BIAS}");
    let y = if m.config.biased.contains("output") { y + m.f32_weight(&bias, &[v]) } else { y };
    let y = if m.config.logit_scale == 1.0 { y } else { y * m.config.logit_scale };
    m.config.logit_cap.map_or(y.clone(), |cap| soft_cap(&y, cap))
}

/// The vocabulary axis.
fn vocabulary(m: &Scope) -> Dim {
    m.g.dim("v", m.config.vocab)
}

/// The hidden state of the last token, without the axis `t`; of a batch, every token is the last of its sequence.
fn last(m: &Scope, x: &Tensor) -> Tensor {
    if m.is_batch {
        return x.clone();
    }
    x.slice(&m.t, m.t.size.clone() - 1, 1).merge(&[&m.t, &m.d], &m.d) // [d]
}
