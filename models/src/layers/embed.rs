//! Where numbers of tokens become vectors, and the last vector becomes scores for the next token.
//!
//! In: token numbers `[t]`, later the residual stream `[t, d]`. Out: the residual stream, later logits `[v]` or some of
//! the best. Most replays score their last token only. With tied weights both ends use the same table. A model may also
//! be run without an end: from vectors, or to vectors.
//! What lies between the two is in `block.rs`.

use fusebox_compiler::graph::build::{Dim, Tensor};
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::best::best;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// What a replay starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Numbers of tokens, `tokens` `[t]`.
    Tokens,
    /// Vectors in place of the table's, `x` `[t, d]`.
    Vectors,
}

/// What a replay gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    /// The scores behind the last token, `[v]`.
    Last,
    /// So many of the likeliest tokens behind the last, `ids` `[k]`, and their scores, `[k]`.
    Best(usize),
    /// The scores behind every token, `[t, v]`.
    All,
    /// No scores: the residual stream behind the last block, `[t, d]`.
    Unnormed,
    /// No scores: what scores are made of, `[t, d]`.
    Normed,
}

/// The residual stream before the first block.
pub(crate) fn entry(m: &Scope, entry: Entry) -> Tensor {
    match entry {
        Entry::Tokens => embed(m, &m.g.input("tokens", DType::I32, &[&m.t])),
        Entry::Vectors => m.g.input("x", DType::F32, &[&m.t, &m.d]),
    }
}

/// The table's rows of these tokens.
fn embed(m: &Scope, tokens: &Tensor) -> Tensor {
    let v = &vocabulary(m);
    m.matrix("token_embd", &[v, &m.d]).gather(v, tokens).cast(DType::F32) // [t, d]
}

/// What comes of the residual stream behind the last block, by name.
pub(crate) fn head(m: &Scope, x: &Tensor, scored: Scored) -> Vec<(&'static str, Tensor)> {
    match scored {
        Scored::Last => vec![("logits", scores(m, &last(m, x)))],
        Scored::Best(k) => {
            let (ids, numbers) = best(&scores(m, &last(m, x)), &vocabulary(m), k);
            vec![("logits", numbers), ("ids", ids)]
        }
        Scored::All => vec![("logits", scores(m, x))],
        Scored::Unnormed => vec![("hidden", x.clone())],
        Scored::Normed => vec![("hidden", norm(m, "output_norm", x, &m.d))],
    }
}

/// The score of every token to come.
fn scores(m: &Scope, x: &Tensor) -> Tensor {
    let (d, v) = (&m.d, &vocabulary(m));
    let table = if m.config.tied { "token_embd" } else { "output" };
    norm(m, "output_norm", x, d).contract(&m.matrix(table, &[v, d]), [d])
}

/// The axis of all tokens there are.
fn vocabulary(m: &Scope) -> Dim {
    m.g.dim("v", m.config.vocab)
}

/// The vector of the last token: one position of `t`, which then is no axis of its own.
fn last(m: &Scope, x: &Tensor) -> Tensor {
    x.slice(&m.t, m.t.size.clone() - 1, 1).merge(&[&m.t, &m.d], &m.d) // [d]
}
