//! `DeepSeek` V2 and GLM-4.7-Flash: latent attention, a dense first block, experts in all others.
//!
//! In: the residual stream `[t, d]`. Out: the same, one block later.
//! The two differ in sizes, in whether queries pass a latent too, and in how experts are chosen and weighed.
//! Read next: `layers/latent.rs` and `layers/experts.rs`.

use fusebox_compiler::graph::build::Tensor;
use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;

use crate::config::{Config, Experts, Family, Formats, Gate, Latent, Pairing, Rope, Scaling};
use crate::layers::experts::experts;
use crate::layers::latent::latent;
use crate::layers::mlp::mlp;
use crate::layers::norm::norm;
use crate::layers::scope::Scope;

/// One block.
pub fn block(m: &Scope, sizes: &Latent, layer: usize, x: &Tensor) -> Tensor {
    let x = x + latent(m, sizes, &norm(m, "attn_norm", x, &m.d));
    let h = norm(m, "ffn_norm", &x, &m.d);
    match m.config.experts_of(layer) {
        Some(sizes) => x + experts(m, sizes, &h),
        None => x + mlp(m, "", m.config.ff, &h),
    }
}

/// DeepSeek-V2-Lite.
pub fn deepseek_v2_lite() -> Config {
    Config {
        family: Family::DeepSeek(Latent {
            n_heads: 16,
            q_lora: None,
            kv_lora: 512,
            nope: 128,
            rope: 64,
            value: 128,
        }),
        hidden: 2048,
        n_layers: 27,
        vocab: 102_400,
        context: 4096,
        eps: 1e-6,
        rope: Rope {
            theta: 1e4,
            pairing: Pairing::Neighbours,
            scaling: Scaling::Yarn {
                factor: 40.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original: 4096.0,
                mscale: 0.707,
            },
        },
        ff: 10_944,
        experts: Some(Experts {
            n: 64,
            n_used: 6,
            n_shared: 2,
            ff: 1408,
            gate: Gate::Softmax,
            is_biased: false,
            renorm: false,
            scale: 1.0,
        }),
        n_dense: 1,
        tied: false,
        formats: Formats::Uniform(Format::Q8_0),
        cache: DType::F32,
    }
}

/// GLM-4.7-Flash.
pub fn glm_4_7_flash() -> Config {
    Config {
        family: Family::DeepSeek(Latent {
            n_heads: 20,
            q_lora: Some(768),
            kv_lora: 512,
            nope: 192,
            rope: 64,
            value: 256,
        }),
        n_layers: 47,
        vocab: 154_880,
        eps: 1e-5,
        rope: Rope { theta: 1e6, pairing: Pairing::Neighbours, scaling: Scaling::None },
        ff: 10_240,
        experts: Some(Experts {
            n: 64,
            n_used: 4,
            n_shared: 1,
            ff: 1536,
            gate: Gate::Sigmoid,
            is_biased: true,
            renorm: true,
            scale: 1.8,
        }),
        ..deepseek_v2_lite()
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::tensor::sym::Sym;

    use super::*;
    use crate::layers::latent::scale;

    #[test]
    fn scores_are_scaled_by_the_whole_key_and_sharpened_by_yarn() {
        let check = |config: &Config, expected: f64| {
            let m = Scope::new(config, &Sym::from(1));
            let Family::DeepSeek(sizes) = &config.family else { panic!("not latent") };
            assert!((scale(&m, sizes) - expected).abs() < 1e-6);
        };
        check(&deepseek_v2_lite(), 0.114_721);
        check(&glm_4_7_flash(), 0.0625);
    }
}
