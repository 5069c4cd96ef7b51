//! Where numbers of tokens become vectors, and the last vector becomes scores for the next token.
//!
//! In: token numbers `[t]`, later the residual stream `[t, d]`. Out: the residual stream, later logits `[v]`.
//! Only the last token of a replay is scored. With tied weights both ends use the same table.
//! What lies between the two is in `families/`.

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// The table's rows of these tokens.
pub fn embed(m: &Scope, tokens: &Tensor) -> Tensor {
    let v = &m.g.dim("v", m.config.vocab);
    m.matrix("token_embd", &[v, &m.d]).gather(v, tokens).cast(DType::F32) // [t, d]
}

/// The score of every token to come after the last.
pub fn head(m: &Scope, x: &Tensor) -> Tensor {
    let (d, v) = (&m.d, &m.g.dim("v", m.config.vocab));
    let table = if m.config.tied { "token_embd" } else { "output" };
    norm(m, "output_norm", &last(m, x), d).contract(&m.matrix(table, &[v, d]), [d]) // [v]
}

/// The vector of the last token: one position of `t`, which then is no axis of its own.
fn last(m: &Scope, x: &Tensor) -> Tensor {
    x.slice(&m.t, m.t.size.clone() - 1, 1).merge(&[&m.t, &m.d], &m.d) // [d]
}
