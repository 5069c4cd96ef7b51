//! Where numbers of tokens become vectors, and the last vector becomes scores for the next token.
//!
//! In: token numbers `[t]`, later the residual stream `[t, d]`. Out: the residual stream, later logits `[v]`.
//! Most replays score their last token only. With tied weights both ends use the same table.
//! What lies between the two is in `families/`.

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;

use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// Which tokens of a replay are scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scored {
    /// The last.
    Last,
    /// All of them.
    All,
}

/// The table's rows of these tokens.
pub fn embed(m: &Scope, tokens: &Tensor) -> Tensor {
    let v = &m.g.dim("v", m.config.vocab);
    m.matrix("token_embd", &[v, &m.d]).gather(v, tokens).cast(DType::F32) // [t, d]
}

/// The score of every token to come: after the last, `[v]`, or after each, `[t, v]`.
pub fn head(m: &Scope, x: &Tensor, scored: Scored) -> Tensor {
    let (d, v) = (&m.d, &m.g.dim("v", m.config.vocab));
    let table = if m.config.tied { "token_embd" } else { "output" };
    let x = match scored {
        Scored::Last => &last(m, x),
        Scored::All => x,
    };
    norm(m, "output_norm", x, d).contract(&m.matrix(table, &[v, d]), [d])
}

/// The vector of the last token: one position of `t`, which then is no axis of its own.
fn last(m: &Scope, x: &Tensor) -> Tensor {
    x.slice(&m.t, m.t.size.clone() - 1, 1).merge(&[&m.t, &m.d], &m.d) // [d]
}
