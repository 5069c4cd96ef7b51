//! A transformer block, and the whole step through all blocks.
//!
//! In: a scope and the residual stream `[t, d]`. Out: the residual stream after one block, or the results of a whole
//! step.
//! Attention and the FFN each read the stream through an RMSNorm and add to it (pre-norm).
//! Models differ in the kind of attention, in which blocks have experts, and in sizes; `families/` has those.

use fusebox_compiler::graph::build::Tensor;

use crate::config::Attention;
use crate::layers::attention::grouped;
use crate::layers::embed::{Entry, Scored, entry, head};
use crate::layers::experts::experts;
use crate::layers::latent::latent;
use crate::layers::mlp::mlp;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// One block, with its weights and states named `blk.N.*`.
pub(crate) fn block(m: &Scope, layer: usize, x: &Tensor) -> Tensor {
    m.g.block(&format!("blk.{layer}"), |_| {
        let h = norm(m, "attn_norm", x, &m.d);
        let x = x + match &m.config.attention {
            Attention::Grouped(heads) => grouped(m, heads, layer, &h),
            Attention::Latent(sizes) => latent(m, sizes, &h),
        };
        let h = norm(m, "ffn_norm", &x, &m.d);
        &x + match m.config.experts_of(layer) {
            Some(sizes) => experts(m, sizes, &h),
            None => mlp(m, "", m.config.ff, &h),
        }
    })
}

/// A whole step, from token ids or embeddings to what `scored` selects.
pub(crate) fn step(m: &Scope, n_layers: usize, from: Entry, scored: Scored) -> Vec<(&'static str, Tensor)> {
    let x = (0..n_layers).fold(entry(m, from), |x, layer| block(m, layer, &x));
    head(m, &x, scored)
}
