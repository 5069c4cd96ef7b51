//! Qwen3: grouped attention with normed queries and keys, then a dense network or experts.
//!
//! In: the residual stream `[t, d]`. Out: the same, one block later.
//! The dense and the sparse models differ in nothing but the second half of a block.
//! Read next: `deepseek.rs`, which caches latents instead of keys and values.

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::error::Error;

use crate::config::{Config, Experts, Family, Formats, Gate, Grouped, Pairing, Rope, Scaling};
use crate::facts::Facts;
use crate::layers::attention::grouped;
use crate::layers::experts::experts;
use crate::layers::mlp::mlp;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;
use crate::naming::{CONTEXT, EPS, FF, HEAD, HEADS, HIDDEN, KV_HEADS, LAYERS, SCALING, THETA, TIED};

/// One block.
pub fn block(m: &Scope, heads: &Grouped, layer: usize, x: &Tensor) -> Tensor {
    let x = x + grouped(m, heads, &norm(m, "attn_norm", x, &m.d));
    let h = norm(m, "ffn_norm", &x, &m.d);
    match m.config.experts_of(layer) {
        Some(sizes) => x + experts(m, sizes, &h),
        None => x + mlp(m, "", m.config.ff, &h),
    }
}

/// The sizes of the model in a file.
///
/// # Errors
/// Names the fact that is missing or makes no sense.
pub fn read(facts: &Facts) -> Result<Config, Error> {
    let (n_heads, n_kv) = (facts.count(HEADS)?, facts.count(KV_HEADS)?);
    if n_heads % n_kv != 0 {
        let what = format!("expected a divisor of the {n_heads} query heads, found {n_kv}");
        return Err(facts.refused(KV_HEADS, what));
    }
    let hidden = facts.count(HIDDEN)?;
    let head = facts.count_if(HEAD)?.unwrap_or(hidden / n_heads);
    if head == 0 || head % 2 != 0 {
        return Err(facts.refused(HEAD, format!("expected an even number, found {head}")));
    }
    if let Some(scaling) = facts.word(SCALING).filter(|word| !["none", "default"].contains(word)) {
        return Err(facts.refused(SCALING, format!("expected none, found {scaling}")));
    }
    Ok(Config {
        family: Family::Qwen3(Grouped { n_heads, n_kv, head, qk_norm: true }),
        hidden,
        n_layers: facts.count(LAYERS)?,
        vocab: facts.vocab()?,
        context: facts.count(CONTEXT)?,
        eps: facts.number_if(EPS)?.unwrap_or(1e-6) as f32,
        rope: Rope { theta: facts.number_if(THETA)?.unwrap_or(1e6), ..qwen3_0_6b().rope },
        ff: facts.count(FF)?,
        experts: None,
        n_dense: 0,
        tied: facts.flag(TIED).unwrap_or(!facts.has("output")),
        formats: Formats::Uniform(Format::F32),
        cache: DType::F32,
    })
}

/// Qwen3-0.6B.
pub fn qwen3_0_6b() -> Config {
    Config {
        family: Family::Qwen3(Grouped { n_heads: 16, n_kv: 8, head: 128, qk_norm: true }),
        hidden: 1024,
        n_layers: 28,
        vocab: 151_936,
        context: 4096,
        eps: 1e-6,
        rope: Rope { theta: 1e6, pairing: Pairing::Halves, scaling: Scaling::None },
        ff: 3072,
        experts: None,
        n_dense: 0,
        tied: true,
        formats: Formats::Uniform(Format::Q8_0),
        cache: DType::F32,
    }
}

/// Qwen3-8B.
pub fn qwen3_8b() -> Config {
    Config {
        family: Family::Qwen3(Grouped { n_heads: 32, n_kv: 8, head: 128, qk_norm: true }),
        hidden: 4096,
        n_layers: 36,
        ff: 12_288,
        tied: false,
        ..qwen3_0_6b()
    }
}

/// Qwen3-30B-A3B: every block has experts.
pub fn qwen3_30b_a3b() -> Config {
    Config {
        family: Family::Qwen3(Grouped { n_heads: 32, n_kv: 4, head: 128, qk_norm: true }),
        hidden: 2048,
        n_layers: 48,
        ff: 6144,
        experts: Some(Experts {
            n: 128,
            n_used: 8,
            n_shared: 0,
            ff: 768,
            gate: Gate::Softmax,
            is_biased: false,
            renorm: true,
            scale: 1.0,
        }),
        tied: false,
        ..qwen3_0_6b()
    }
}
