//! The sizes of well-known models, for stories, benchmarks and tests.
//!
//! In: nothing. Out: configs, as the readers of their families make them from published files, with `Q8_0` matrices.
//! Their names are in `blocks.rs`.

use fusebox_compiler::tensor::quant::Format;

use crate::config::attention::{Grouped, Latent, OutputGate, QkNorm, Values, Window};
use crate::config::network::{Activation, Dense, Experts, Gate};
use crate::config::recurrent::{Delta, ShortConv, StateSpace};
use crate::config::rope::{Pairing, Rope, Scaling};
use crate::config::{Block, Config, Formats, Mixer, Network, Order};
use crate::families::deepseek::GLM_VOCAB;
use crate::layers::attention::rope::yarn_mscale;

/// A model of these blocks, with `Q8_0` matrices.
fn of_blocks(blocks: Vec<Block>, hidden: usize, vocab: usize) -> Config {
    Config { formats: Formats::Uniform(Format::Q8_0), ..Config::new(blocks, hidden, vocab, 4096) }
}

fn plain_rope(theta: f64) -> Rope {
    Rope { theta, pairing: Pairing::Halves, scaling: Scaling::None }
}

fn swiglu(ff: usize) -> Network {
    Network::Dense(Dense::swiglu(ff))
}

/// Routed experts with SwiGLU, and nothing else.
fn routed(n_routed: usize, top_k: usize, ff: usize) -> Experts {
    Experts {
        n_routed,
        top_k,
        shared_ff: 0,
        has_shared_gate: false,
        ff,
        activation: Activation::Silu,
        is_gated: true,
        has_biases: false,
        gate: Gate::Softmax,
        router_bias: false,
        renorm: true,
        scale: 1.0,
        cap: None,
        weighs_input: false,
        groups: None,
        is_joint: false,
    }
}

/// Llama-3.2-1B.
pub(crate) fn llama_3_2_1b() -> Config {
    let scaling = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
    let rope = Some(Rope { scaling, ..plain_rope(5e5) });
    let block = Block::new(Mixer::Grouped(Grouped { rope, ..Grouped::new(32, 8, 64) }), swiglu(8192));
    Config { eps: 1e-5, tied: true, ..of_blocks(vec![block; 16], 2048, 128_256) }
}

/// Mistral-7B-v0.1.
pub(crate) fn mistral_7b() -> Config {
    let window = Some(Window::Sliding(4096));
    let heads = Grouped { window, rope: Some(plain_rope(1e4)), ..Grouped::new(32, 8, 128) };
    let block = Block::new(Mixer::Grouped(heads), swiglu(14_336));
    Config { eps: 1e-5, ..of_blocks(vec![block; 32], 4096, 32_000) }.with_context(8192)
}

/// Qwen2.5-0.5B.
pub(crate) fn qwen2_5_0_5b() -> Config {
    let heads = Grouped { rope: Some(plain_rope(1e6)), ..Grouped::new(14, 2, 64) };
    let biased = ["attn_q", "attn_k", "attn_v"].map(str::to_owned).into();
    let block = Block::new(Mixer::Grouped(heads), swiglu(4864));
    Config { tied: true, biased, ..of_blocks(vec![block; 24], 896, 151_936) }
}

/// The attention of Qwen3.
fn qwen3_heads(n_heads: usize, n_kv: usize) -> Mixer {
    let (qk_norm, rope) = (Some(QkNorm::Head), Some(plain_rope(1e6)));
    Mixer::Grouped(Grouped { rope, qk_norm, ..Grouped::new(n_heads, n_kv, 128) })
}

/// Qwen3-0.6B.
pub(crate) fn qwen3_0_6b() -> Config {
    let block = Block::new(qwen3_heads(16, 8), swiglu(3072));
    Config { tied: true, ..of_blocks(vec![block; 28], 1024, 151_936) }
}

/// Qwen3-8B.
pub(crate) fn qwen3_8b() -> Config {
    of_blocks(vec![Block::new(qwen3_heads(32, 8), swiglu(12_288)); 36], 4096, 151_936)
}

/// Qwen3-30B-A3B: every block has experts.
pub(crate) fn qwen3_30b_a3b() -> Config {
    let block = Block::new(qwen3_heads(32, 4), Network::Sparse(routed(128, 8, 768)));
    of_blocks(vec![block; 48], 2048, 151_936)
}

/// A dense block, then blocks with experts.
fn dense_then(mixer: &Mixer, ff: usize, experts: Experts, n_layers: usize) -> Vec<Block> {
    let mut blocks = vec![Block::new(mixer.clone(), Network::Sparse(experts)); n_layers];
    blocks[0].network = swiglu(ff);
    blocks
}

/// DeepSeek-V2-Lite.
pub(crate) fn deepseek_v2_lite() -> Config {
    let scaling = Scaling::Yarn {
        factor: 40.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 4096.0,
        is_rounded: true,
        attention_factor: 1.0,
        mscale: yarn_mscale(40.0, 0.707),
    };
    let mixer = Mixer::Latent(Latent {
        n_heads: 16,
        q_lora: None,
        kv_lora: 512,
        nope: 128,
        rope: 64,
        value: 128,
        is_joint: false,
        turn: Rope { theta: 1e4, pairing: Pairing::Interleaved, scaling },
    });
    let experts = Experts { shared_ff: 2 * 1408, renorm: false, ..routed(64, 6, 1408) };
    of_blocks(dense_then(&mixer, 10_944, experts, 27), 2048, 102_400)
}

/// GLM-4.7-Flash.
pub(crate) fn glm_4_7_flash() -> Config {
    let mixer = Mixer::Latent(Latent {
        n_heads: 20,
        q_lora: Some(768),
        kv_lora: 512,
        nope: 192,
        rope: 64,
        value: 256,
        is_joint: false,
        turn: Rope { pairing: Pairing::Interleaved, ..plain_rope(1e6) },
    });
    let experts = Experts {
        shared_ff: 1536,
        gate: Gate::Sigmoid,
        router_bias: true,
        scale: 1.8,
        ..routed(64, 4, 1536)
    };
    Config { eps: 1e-5, ..of_blocks(dense_then(&mixer, 10_240, experts, 47), 2048, GLM_VOCAB) }
}

/// Gemma 4 E4B: every sixth block has full attention, the last 18 share KV caches.
pub(crate) fn gemma_4_e4b() -> Config {
    let (n_layers, n_own) = (42, 24);
    let is_full = |layer: usize| layer % 6 == 5;
    let block = |layer: usize| {
        let rope = if is_full(layer) {
            let divisors = (0..256).map(|pair| if pair < 64 { 1.0 } else { 1e30 }).collect();
            Rope { scaling: Scaling::Factors(divisors), ..plain_rope(1e6) }
        } else {
            plain_rope(1e4)
        };
        let heads = Grouped {
            rope: Some(rope),
            qk_norm: Some(QkNorm::Head),
            window: (!is_full(layer)).then_some(Window::Sliding(512)),
            scale: Some(1.0),
            values: Values::Normalised,
            shares: (layer >= n_own).then_some(if is_full(layer) { n_own - 1 } else { n_own - 2 }),
            ..Grouped::new(8, 2, if is_full(layer) { 512 } else { 256 })
        };
        let network = Network::Dense(Dense {
            ff: 10_240,
            activation: Activation::GeluTanh,
            is_gated: true,
            has_norm: false,
        });
        Block { order: Order::Around, has_output_scale: true, ..Block::new(Mixer::Grouped(heads), network) }
    };
    Config {
        per_layer: Some(256),
        embedding_scale: 2560_f32.sqrt(),
        logit_cap: Some(30.0),
        tied: true,
        ..of_blocks((0..n_layers).map(block).collect(), 2560, 262_144)
    }
}

/// gpt-oss-20b: every other block has a window.
pub(crate) fn gpt_oss_20b() -> Config {
    let scaling = Scaling::Yarn {
        factor: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 4096.0,
        is_rounded: false,
        attention_factor: yarn_mscale(32.0, 1.0),
        mscale: 1.0,
    };
    let rope = Rope { theta: 150_000.0, pairing: Pairing::Halves, scaling };
    let experts = Experts {
        activation: Activation::Clamped { alpha: 1.702, limit: 7.0 },
        has_biases: true,
        gate: Gate::SoftmaxAfterTopK,
        renorm: false,
        ..routed(32, 4, 2880)
    };
    let block = |layer: usize| {
        let window = layer.is_multiple_of(2).then_some(Window::Sliding(128));
        let rope = Some(rope.clone());
        let heads = Grouped { window, rope, has_sinks: true, ..Grouped::new(64, 8, 64) };
        Block::new(Mixer::Grouped(heads), Network::Sparse(experts.clone()))
    };
    let biased = ["attn_q", "attn_k", "attn_v", "attn_output"].map(str::to_owned).into();
    Config { eps: 1e-5, biased, ..of_blocks((0..24).map(block).collect(), 2880, 201_088) }
}

/// Qwen3.6-27B: every fourth block has attention, the others a gated delta rule.
pub(crate) fn qwen3_6_27b() -> Config {
    let heads = Grouped {
        rope: Some(plain_rope(1e7)),
        qk_norm: Some(QkNorm::Head),
        rotary_dim: 64,
        gate: Some(OutputGate::BesideQuery),
        ..Grouped::new(24, 4, 256)
    };
    let delta =
        Delta { n_key: 16, n_value: 48, key: 128, value: 128, kernel: 4, is_tiled: true, is_joint: false };
    let block = |layer: usize| {
        let mixer = if layer % 4 == 3 { Mixer::Grouped(heads.clone()) } else { Mixer::Delta(delta.clone()) };
        Block::new(mixer, swiglu(17_408))
    };
    of_blocks((0..64).map(block).collect(), 5120, 248_320)
}

/// LFM2.5-1.2B: six of 16 blocks have attention, the others a short convolution.
pub(crate) fn lfm2_5() -> Config {
    let heads =
        Grouped { rope: Some(plain_rope(1e6)), qk_norm: Some(QkNorm::Head), ..Grouped::new(32, 8, 64) };
    let block = |layer: usize| {
        let has_attention = [2, 5, 8, 10, 12, 14].contains(&layer);
        let short = Mixer::ShortConv(ShortConv { kernel: 3 });
        let mixer = if has_attention { Mixer::Grouped(heads.clone()) } else { short };
        Block::new(mixer, swiglu(8192))
    };
    Config { eps: 1e-5, tied: true, ..of_blocks((0..16).map(block).collect(), 2048, 65_536) }
}

/// Nemotron 3 Nano: blocks of a state space, of experts, and a few of attention.
pub(crate) fn nemotron_3_nano() -> Config {
    const PATTERN: &str = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
    let space = StateSpace::new(64, 64, 8, 128, 4);
    let experts = Experts {
        shared_ff: 3712,
        activation: Activation::SquaredRelu,
        is_gated: false,
        gate: Gate::Sigmoid,
        router_bias: true,
        scale: 2.5,
        ..routed(128, 6, 1856)
    };
    let block = |kind: char| match kind {
        'M' => Block::new(Mixer::StateSpace(space.clone()), Network::None),
        '*' => Block::new(Mixer::Grouped(Grouped::new(32, 2, 128)), Network::None),
        _ => Block::new(Mixer::None, Network::Sparse(experts.clone())),
    };
    let biased = ["ssm_conv1d".to_owned()].into();
    Config { eps: 1e-5, biased, ..of_blocks(PATTERN.chars().map(block).collect(), 2688, 131_072) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::attention::latent::scale;

    #[test]
    fn scores_are_scaled_by_the_head_dimension_and_yarns_mscale() {
        let check = |config: &Config, expected: f64| {
            let Mixer::Latent(sizes) = &config.blocks[1].mixer else { panic!("not latent") };
            assert!((scale(sizes) - expected).abs() < 1e-6);
        };
        check(&deepseek_v2_lite(), 0.114_721);
        check(&glm_4_7_flash(), 0.0625);
    }
}
