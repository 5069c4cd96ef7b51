//! Llama 3: grouped attention and a dense network, each behind a norm and added to the residual stream.
//!
//! In: the residual stream `[t, d]`. Out: the same, one block later.
//! Heads are paired by halves, as in the published weights; GGUF files hold them reordered to neighbours, and whoever
//! loads those sets `rope.pairing`.
//! Read next: `qwen3.rs`, which adds norms and experts.

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;

use crate::config::{Config, Family, Formats, Grouped, Pairing, Rope, Scaling};
use crate::layers::attention::grouped;
use crate::layers::mlp::mlp;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// One block.
pub fn block(m: &Scope, heads: &Grouped, x: &Tensor) -> Tensor {
    let x = x + grouped(m, heads, &norm(m, "attn_norm", x, &m.d));
    let h = norm(m, "ffn_norm", &x, &m.d);
    x + mlp(m, "", m.config.ff, &h)
}

/// Llama-3.2-1B.
pub fn llama_3_2_1b() -> Config {
    Config {
        family: Family::Llama(Grouped { n_heads: 32, n_kv: 8, head: 64, qk_norm: false }),
        hidden: 2048,
        n_layers: 16,
        vocab: 128_256,
        context: 4096,
        eps: 1e-5,
        rope: Rope {
            theta: 5e5,
            pairing: Pairing::Halves,
            scaling: Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 },
        },
        ff: 8192,
        experts: None,
        n_dense: 0,
        tied: true,
        formats: Formats::Uniform(Format::Q8_0),
        cache: DType::F32,
    }
}
