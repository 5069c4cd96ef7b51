//! The table of families: what each has otherwise than Llama, and which parts others lack.
//!
//! In: nothing. Out: rows. A family of known parts is one row, with the names of its tensors where they differ
//! (`names.rs`).
//! Where a folder and GGUF store a tensor in different ways, the row says how (`naming/tensors.rs`).

use crate::config::Order;
use crate::config::attention::{OutputGate, QkNorm};
use crate::config::network::{Activation, Gate};
use crate::families::family::{Family, LLAMA, LocalRope, Nope, Pairs, Windows};
use crate::families::{apertus, deepseek, encoder, gemma4, hybrid, scaled};
use crate::naming::tensors::in_folder;

mod names;
mod older;

use names::{
    AFMOE, BAICHUAN, BERT, BLOOM, DBRX, DECAY, FALCON, FEED_FORWARD, GEMMA4, GLM4, GPT, GPT_NEOX, GPT_OSS,
    GPT2, GRANITE_MOE, HUNYUAN, HUNYUAN_SHARED, JOINT_GATE_UP, LAGUNA, LESS_ONE, LFM2, LINEAR_ATTENTION,
    LLAMA4, MODERN_BERT, MPT, NEMOTRON_H, NORMS_AROUND, ONE_SHARED_EXPERT, PHI2, POST_ATTENTION_NORM,
    QK_LAYERNORM, QWEN3_NEXT, ROUTER_GATE,
};

/// All families. Of two with the same name the first counts.
pub(super) const FAMILIES: &[Family] = &[
    Family { pairs: Pairs::Reordered, is_expert_ff_shared: true, ..LLAMA },
    Family {
        folder: &["mistral", "mixtral"],
        pairs: Pairs::Reordered,
        windows: Windows::All,
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "mistral3",
        folder: &["ministral3"],
        pairs: Pairs::Reordered,
        windows: Windows::All,
        has_temperature: true,
        ..LLAMA
    },
    Family {
        gguf: "llama4",
        folder: &["llama4_text"],
        names: &[LLAMA4],
        pairs: Pairs::Interleaved,
        nope: Nope::LastOf(4),
        qk_norm: Some(QkNorm::BareAfterRope),
        windows: Windows::Chunks,
        has_temperature: true,
        gate: Gate::Sigmoid,
        renorm: [false, false],
        is_expert_ff_shared: true,
        weighs_input: true,
        ..LLAMA
    },
    Family { gguf: "deci", folder: &[], pairs: Pairs::Interleaved, ..LLAMA },
    Family {
        gguf: "baichuan",
        folder: &["baichuan"],
        names: &[BAICHUAN],
        pairs: Pairs::Reordered,
        alibi: Some(8.0),
        ..LLAMA
    },
    Family { gguf: "refact", folder: &[], alibi: Some(8.0), ..LLAMA },
    Family {
        gguf: "minicpm",
        folder: &["minicpm"],
        read: scaled::minicpm,
        pairs: Pairs::Reordered,
        divides_logits: true,
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family { folder: &["cwm"], windows: Windows::Listed, ..LLAMA },
    Family { folder: &["ministral"], windows: Windows::Listed, ..LLAMA },
    Family { gguf: "qwen2", folder: &["qwen2"], windows: Windows::From(28), ..LLAMA },
    Family {
        gguf: "qwen2vl",
        folder: &["qwen2_vl_text", "qwen2_5_vl_text"],
        windows: Windows::From(28),
        ..LLAMA
    },
    Family {
        gguf: "qwen2moe",
        folder: &["qwen2_moe"],
        names: &[ONE_SHARED_EXPERT],
        windows: Windows::From(28),
        renorm: [false, false],
        ..LLAMA
    },
    Family {
        gguf: "qwen3",
        folder: &["qwen3"],
        qk_norm: Some(QkNorm::Head),
        windows: Windows::From(28),
        ..LLAMA
    },
    Family { gguf: "qwen3vl", folder: &["qwen3_vl_text"], qk_norm: Some(QkNorm::Head), ..LLAMA },
    Family {
        gguf: "qwen3moe",
        folder: &["qwen3_moe"],
        qk_norm: Some(QkNorm::Head),
        windows: Windows::From(0),
        renorm: [false, true],
        ..LLAMA
    },
    Family { gguf: "qwen3vlmoe", folder: &[], qk_norm: Some(QkNorm::Head), ..LLAMA },
    Family {
        gguf: "qwen3next",
        folder: &["qwen3_next"],
        names: &[QWEN3_NEXT, LINEAR_ATTENTION, ONE_SHARED_EXPERT, LESS_ONE],
        qk_norm: Some(QkNorm::Head),
        output_gate: Some(OutputGate::BesideQuery),
        recurrent: Some(hybrid::delta),
        ..LLAMA
    },
    Family {
        gguf: "qwen35",
        folder: &["qwen3_5_text"],
        names: &[LINEAR_ATTENTION, LESS_ONE],
        qk_norm: Some(QkNorm::Head),
        output_gate: Some(OutputGate::BesideQuery),
        recurrent: Some(hybrid::delta),
        ..LLAMA
    },
    Family {
        gguf: "qwen35moe",
        folder: &["qwen3_5_moe_text"],
        names: &[LINEAR_ATTENTION, ONE_SHARED_EXPERT, LESS_ONE],
        qk_norm: Some(QkNorm::Head),
        output_gate: Some(OutputGate::BesideQuery),
        recurrent: Some(hybrid::delta),
        ..LLAMA
    },
    Family {
        gguf: "gemma",
        folder: &["gemma"],
        names: &[LESS_ONE],
        scales_embedding: true,
        activation: Activation::GeluTanh,
        ..LLAMA
    },
    Family {
        gguf: "gemma2",
        folder: &["gemma2"],
        names: &[NORMS_AROUND, LESS_ONE],
        order: Order::Around,
        scales_embedding: true,
        activation: Activation::GeluTanh,
        windows: Windows::AllButLastOf(2),
        ..LLAMA
    },
    // Gemma 2 without norms behind the halves.
    Family {
        gguf: "gemma2",
        folder: &["vaultgemma"],
        names: &[NORMS_AROUND, LESS_ONE],
        scales_embedding: true,
        activation: Activation::GeluTanh,
        windows: Windows::AllButLastOf(2),
        ..LLAMA
    },
    Family {
        gguf: "gemma3",
        folder: &["gemma3_text"],
        names: &[NORMS_AROUND, LESS_ONE],
        order: Order::Around,
        scales_embedding: true,
        activation: Activation::GeluTanh,
        qk_norm: Some(QkNorm::Head),
        windows: Windows::AllButLastOf(6),
        local_rope: LocalRope::Base(1e4),
        ..LLAMA
    },
    Family {
        gguf: "gemma-embedding",
        folder: &[],
        names: &[NORMS_AROUND, LESS_ONE],
        order: Order::Around,
        scales_embedding: true,
        activation: Activation::GeluTanh,
        qk_norm: Some(QkNorm::Head),
        windows: Windows::AllButLastOf(6),
        is_causal: false,
        local_rope: LocalRope::Base(1e4),
        ..LLAMA
    },
    Family { gguf: "llama-embed", folder: &[], pairs: Pairs::Interleaved, is_causal: false, ..LLAMA },
    Family { gguf: "eurobert", folder: &["eurobert"], is_causal: false, ..LLAMA },
    Family {
        gguf: "bert",
        folder: &["bert", "roberta", "xlm-roberta", "camembert"],
        names: &[BERT],
        read: encoder::read,
        is_causal: false,
        order: Order::Post,
        is_centred: true,
        activation: Activation::Gelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "nomic-bert",
        folder: &[],
        names: &[BERT],
        read: encoder::read,
        is_causal: false,
        order: Order::Post,
        is_centred: true,
        ..LLAMA
    },
    Family {
        gguf: "modern-bert",
        folder: &["modernbert"],
        names: &[JOINT_GATE_UP, MODERN_BERT],
        read: encoder::read,
        is_causal: false,
        is_centred: true,
        activation: Activation::Gelu,
        windows: Windows::AllButFirstOf(3),
        local_rope: LocalRope::Base(1e4),
        ..LLAMA
    },
    Family {
        gguf: "gemma4",
        folder: &["gemma4_text"],
        names: &[GEMMA4, NORMS_AROUND],
        read: gemma4::read,
        order: Order::Around,
        scales_embedding: true,
        activation: Activation::GeluTanh,
        qk_norm: Some(QkNorm::Head),
        windows: Windows::AllButLastOf(6),
        local_rope: LocalRope::Base(1e4),
        ..LLAMA
    },
    Family {
        gguf: "gpt-oss",
        folder: &["gpt_oss"],
        names: &[GPT_OSS],
        windows: Windows::AllButLastOf(2),
        has_sinks: true,
        activation: Activation::Clamped { alpha: 1.702, limit: 7.0 },
        gate: Gate::SoftmaxAfterTopK,
        renorm: [false, false],
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family { gguf: "phi3", folder: &["phi3"], names: &[JOINT_GATE_UP], windows: Windows::All, ..LLAMA },
    Family {
        gguf: "glm4",
        folder: &["glm4"],
        names: &[JOINT_GATE_UP, GLM4],
        pairs: Pairs::Interleaved,
        order: Order::Around,
        ..LLAMA
    },
    Family { gguf: "chatglm", folder: &["glm"], names: &[JOINT_GATE_UP], pairs: Pairs::Interleaved, ..LLAMA },
    Family {
        gguf: "glm4moe",
        folder: &["glm4_moe", "solar_open"],
        names: &[POST_ATTENTION_NORM],
        qk_norm: Some(QkNorm::Head),
        is_qk_norm_optional: true,
        gate: Gate::Sigmoid,
        ..LLAMA
    },
    Family { gguf: "bailingmoe2", folder: &[], qk_norm: Some(QkNorm::Head), gate: Gate::Sigmoid, ..LLAMA },
    Family {
        gguf: "hy_v3",
        folder: &["hy_v3"],
        names: &[ROUTER_GATE, HUNYUAN_SHARED],
        qk_norm: Some(QkNorm::Head),
        gate: Gate::Sigmoid,
        ..LLAMA
    },
    Family {
        gguf: "mellum",
        folder: &["mellum"],
        qk_norm: Some(QkNorm::Head),
        windows: Windows::AllButLastOf(4),
        local_rope: LocalRope::Unscaled,
        ..LLAMA
    },
    Family {
        gguf: "laguna",
        folder: &["laguna"],
        names: &[LAGUNA, ONE_SHARED_EXPERT],
        read: scaled::laguna,
        qk_norm: Some(QkNorm::Head),
        windows: Windows::Listed,
        local_rope: LocalRope::Unscaled,
        gate: Gate::Sigmoid,
        ..LLAMA
    },
    Family {
        gguf: "afmoe",
        folder: &["afmoe"],
        names: &[AFMOE, ROUTER_GATE],
        qk_norm: Some(QkNorm::Head),
        order: Order::Around,
        scales_embedding: true,
        output_gate: Some(OutputGate::Element),
        windows: Windows::AllButLastOf(4),
        nope: Nope::FullAttention,
        gate: Gate::Sigmoid,
        renorm: [true, false],
        ..LLAMA
    },
    Family {
        gguf: "exaone-moe",
        folder: &["exaone_moe"],
        names: &[&[in_folder("exp_probs_b", "mlp.e_score_correction")]],
        qk_norm: Some(QkNorm::Head),
        windows: Windows::AllButLastOf(4),
        nope: Nope::FullAttention,
        gate: Gate::Sigmoid,
        ..LLAMA
    },
    Family {
        gguf: "dots1",
        folder: &["dots1"],
        windows: Windows::Listed,
        qk_norm: Some(QkNorm::Head),
        gate: Gate::Sigmoid,
        renorm: [false, false],
        ..LLAMA
    },
    Family {
        gguf: "lfm2",
        folder: &["lfm2"],
        names: &[LFM2],
        read: hybrid::stored_width,
        qk_norm: Some(QkNorm::Head),
        recurrent: Some(hybrid::short_conv),
        ..LLAMA
    },
    Family {
        gguf: "lfm2moe",
        folder: &["lfm2_moe"],
        names: &[LFM2],
        read: hybrid::stored_width,
        qk_norm: Some(QkNorm::Head),
        gate: Gate::Sigmoid,
        recurrent: Some(hybrid::short_conv),
        ..LLAMA
    },
    Family { gguf: "granite", folder: &["granite"], pairs: Pairs::Reordered, divides_logits: true, ..LLAMA },
    Family {
        gguf: "granitemoe",
        folder: &["granitemoe", "granitemoeshared"],
        names: &[GRANITE_MOE],
        pairs: Pairs::Reordered,
        divides_logits: true,
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "granitehybrid",
        folder: &["granitemoehybrid"],
        names: &[GRANITE_MOE, DECAY],
        pairs: Pairs::Reordered,
        divides_logits: true,
        read: hybrid::stored_width,
        recurrent: Some(hybrid::state_space),
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "falcon-h1",
        folder: &["falcon_h1"],
        names: &[FEED_FORWARD, DECAY],
        read: hybrid::falcon_h1,
        ..LLAMA
    },
    Family {
        folder: &["bamba"],
        names: &[FEED_FORWARD, DECAY],
        recurrent: Some(hybrid::state_space),
        ..LLAMA
    },
    Family {
        gguf: "mamba2",
        folder: &["mamba2"],
        names: &[NEMOTRON_H, DECAY],
        read: hybrid::mamba2,
        ..LLAMA
    },
    Family {
        gguf: "nemotron_h_moe",
        folder: &[],
        names: &[NEMOTRON_H, DECAY],
        read: hybrid::nemotron_h,
        activation: Activation::SquaredRelu,
        is_gated: false,
        gate: Gate::Sigmoid,
        recurrent: Some(hybrid::state_space),
        ..LLAMA
    },
    Family {
        gguf: "nemotron_h",
        folder: &["nemotron_h"],
        names: &[NEMOTRON_H, DECAY],
        read: hybrid::nemotron_h,
        activation: Activation::SquaredRelu,
        is_gated: false,
        gate: Gate::Sigmoid,
        recurrent: Some(hybrid::state_space),
        ..LLAMA
    },
    Family {
        gguf: "nemotron",
        folder: &["nemotron"],
        names: &[LESS_ONE],
        is_centred: true,
        activation: Activation::SquaredRelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "minimax-m2",
        folder: &["minimax_m2"],
        names: &[&[in_folder("exp_probs_b", "block_sparse_moe.e_score_correction")]],
        qk_norm: Some(QkNorm::Whole),
        gate: Gate::Sigmoid,
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "olmo2",
        folder: &["olmo2", "olmo3"],
        names: &[NORMS_AROUND],
        qk_norm: Some(QkNorm::Whole),
        order: Order::After,
        windows: Windows::AllButLastOf(4),
        local_rope: LocalRope::Unscaled,
        ..LLAMA
    },
    Family {
        folder: &["flex_olmo"],
        names: &[NORMS_AROUND],
        qk_norm: Some(QkNorm::Whole),
        order: Order::After,
        renorm: [false, false],
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "olmo",
        folder: &["olmo"],
        pairs: Pairs::Reordered,
        is_centred: true,
        has_norm_weights: false,
        ..LLAMA
    },
    Family {
        gguf: "dbrx",
        folder: &["dbrx"],
        names: &[DBRX],
        is_centred: true,
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family { gguf: "openelm", folder: &[], qk_norm: Some(QkNorm::Head), ..LLAMA },
    Family { gguf: "bitnet", folder: &["bitnet"], has_inner_norms: true, ..LLAMA },
    Family {
        gguf: "maincoder",
        folder: &[],
        pairs: Pairs::Interleaved,
        qk_norm: Some(QkNorm::HeadAfterRope),
        ..LLAMA
    },
    Family { gguf: "plamo", folder: &[], order: Order::Parallel, ..LLAMA },
    Family {
        gguf: "plamo3",
        folder: &[],
        names: &[JOINT_GATE_UP, NORMS_AROUND],
        qk_norm: Some(QkNorm::Head),
        order: Order::Around,
        windows: Windows::AllButLastOf(8),
        local_rope: LocalRope::Unscaled,
        ..LLAMA
    },
    Family {
        gguf: "olmoe",
        folder: &["olmoe"],
        qk_norm: Some(QkNorm::Whole),
        renorm: [false, false],
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "smollm3",
        folder: &["smollm3"],
        pairs: Pairs::Reordered,
        nope: Nope::LastOf(4),
        windows: Windows::From(0),
        ..LLAMA
    },
    Family { folder: &["helium"], pairs: Pairs::Interleaved, ..LLAMA },
    Family { folder: &["iquestcoder"], ..LLAMA },
    Family {
        folder: &["hyperclovax"],
        names: &[&[in_folder("attn_post_norm", "post_norm1"), in_folder("ffn_post_norm", "post_norm2")]],
        order: Order::Around,
        ..LLAMA
    },
    Family { gguf: "seed_oss", folder: &["seed_oss"], names: &[POST_ATTENTION_NORM], ..LLAMA },
    Family { gguf: "paddleocr", folder: &["paddleocr_vl_text"], ..LLAMA },
    Family {
        gguf: "hunyuan_vl",
        folder: &["hunyuan_vl_text"],
        names: &[HUNYUAN],
        qk_norm: Some(QkNorm::HeadAfterRope),
        ..LLAMA
    },
    Family { gguf: "ernie4_5", folder: &["ernie4_5"], pairs: Pairs::Interleaved, ..LLAMA },
    Family {
        gguf: "ernie4_5-moe",
        folder: &["ernie4_5_moe"],
        names: &[&[in_folder("exp_probs_b", "mlp.moe_statics.e_score_correction")]],
        pairs: Pairs::Interleaved,
        ..LLAMA
    },
    Family {
        gguf: "hunyuan-dense",
        folder: &["hunyuan_v1_dense"],
        names: &[HUNYUAN],
        qk_norm: Some(QkNorm::HeadAfterRope),
        ..LLAMA
    },
    Family {
        gguf: "exaone4",
        folder: &["exaone4"],
        names: &[NORMS_AROUND],
        qk_norm: Some(QkNorm::Head),
        order: Order::After,
        windows: Windows::AllButLastOf(4),
        nope: Nope::FullAttention,
        ..LLAMA
    },
    Family {
        gguf: "cohere2",
        folder: &["cohere2"],
        pairs: Pairs::Interleaved,
        order: Order::Parallel,
        is_centred: true,
        windows: Windows::AllButLastOf(4),
        nope: Nope::FullAttention,
        ..LLAMA
    },
    Family {
        gguf: "cohere2moe",
        folder: &["cohere2_moe"],
        read: scaled::cohere2_moe,
        pairs: Pairs::Interleaved,
        order: Order::Parallel,
        is_centred: true,
        windows: Windows::AllButLastOf(4),
        nope: Nope::FullAttention,
        gate: Gate::Sigmoid,
        renorm: [true, false],
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "command-r",
        folder: &["cohere"],
        pairs: Pairs::Interleaved,
        qk_norm: Some(QkNorm::OwnHead),
        is_qk_norm_optional: true,
        order: Order::Parallel,
        is_centred: true,
        ..LLAMA
    },
    Family {
        gguf: "starcoder2",
        folder: &["starcoder2"],
        names: &[&[in_folder("ffn_up", "mlp.c_fc"), in_folder("ffn_down", "mlp.c_proj")]],
        is_centred: true,
        activation: Activation::GeluTanh,
        is_gated: false,
        windows: Windows::All,
        ..LLAMA
    },
    Family {
        gguf: "phi2",
        folder: &["phi"],
        names: &[PHI2, QK_LAYERNORM],
        qk_norm: Some(QkNorm::Head),
        is_qk_norm_optional: true,
        order: Order::Parallel,
        is_centred: true,
        activation: Activation::GeluTanh,
        is_gated: false,
        ..LLAMA
    },
    Family { gguf: "internlm2", folder: &[], pairs: Pairs::Reordered, ..LLAMA },
    Family { folder: &["internlm3"], pairs: Pairs::Reordered, ..LLAMA },
    Family {
        gguf: "apertus",
        folder: &["apertus"],
        names: &[&[
            in_folder("attn_norm", "attention_layernorm"),
            in_folder("ffn_norm", "feedforward_layernorm"),
        ]],
        read: apertus::read,
        qk_norm: Some(QkNorm::Head),
        activation: apertus::XIELU,
        is_gated: false,
        ..LLAMA
    },
    Family { gguf: "xverse", folder: &[], pairs: Pairs::Interleaved, ..LLAMA },
    Family { gguf: "exaone", folder: &[], ..LLAMA },
    Family { gguf: "pangu-embedded", folder: &[], ..LLAMA },
    Family { gguf: "orion", folder: &[], is_centred: true, ..LLAMA },
    Family {
        gguf: "stablelm",
        folder: &["stablelm"],
        names: &[QK_LAYERNORM],
        read: encoder::parallel_where_one_norm,
        qk_norm: Some(QkNorm::OwnHead),
        is_qk_norm_optional: true,
        is_centred: true,
        ..LLAMA
    },
    Family { gguf: "qwen", folder: &[], read: hybrid::stored_width, ..LLAMA },
    Family { gguf: "deepseek", folder: &[], pairs: Pairs::Interleaved, renorm: [false, false], ..LLAMA },
    Family { gguf: "bailingmoe", folder: &[], pairs: Pairs::Interleaved, renorm: [false, false], ..LLAMA },
    Family {
        gguf: "hunyuan-moe",
        folder: &["hunyuan_v1_moe"],
        names: &[HUNYUAN, HUNYUAN_SHARED, &[in_folder("ffn_gate_inp", "mlp.gate.wg")]],
        qk_norm: Some(QkNorm::HeadAfterRope),
        is_expert_ff_shared: true,
        ..LLAMA
    },
    Family {
        gguf: "codeshell",
        folder: &[],
        is_centred: true,
        activation: Activation::GeluTanh,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "jais2",
        folder: &[],
        is_centred: true,
        activation: Activation::SquaredRelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "falcon",
        folder: &["falcon"],
        names: &[FALCON, BLOOM],
        read: older::falcon,
        order: Order::ParallelNorms,
        is_centred: true,
        activation: Activation::Gelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "gptneox",
        folder: &["gpt_neox"],
        names: &[GPT_NEOX],
        read: encoder::parallel_unless_stated,
        is_centred: true,
        activation: Activation::Gelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "bloom",
        folder: &["bloom"],
        names: &[BLOOM],
        read: encoder::read,
        is_centred: true,
        alibi: Some(8.0),
        activation: Activation::GeluTanh,
        is_gated: false,
        ..LLAMA
    },
    // Positions are a table, or it says how scores fall.
    Family {
        gguf: "mpt",
        folder: &["mpt"],
        names: &[MPT],
        read: older::mpt,
        qk_norm: Some(QkNorm::Whole),
        is_qk_norm_optional: true,
        is_centred: true,
        alibi: Some(0.0),
        activation: Activation::Gelu,
        is_gated: false,
        ..LLAMA
    },
    Family { gguf: "jais", folder: &[], is_centred: true, alibi: Some(8.0), ..LLAMA },
    // Positions are a table.
    Family {
        gguf: "gpt2",
        folder: &["gpt2"],
        names: &[GPT2, GPT],
        read: encoder::read,
        is_centred: true,
        activation: Activation::GeluTanh,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "starcoder",
        folder: &["gpt_bigcode"],
        names: &[GPT],
        read: older::starcoder,
        is_centred: true,
        activation: Activation::GeluTanh,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "arcee",
        folder: &["arcee"],
        pairs: Pairs::Reordered,
        activation: Activation::SquaredRelu,
        is_gated: false,
        ..LLAMA
    },
    Family {
        gguf: "deepseek2",
        folder: &["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "youtu", "youtu_llm", "kimi_k2"],
        read: deepseek::read,
        pairs: Pairs::Interleaved,
        ..LLAMA
    },
    // Before it was `deepseek2` in GGUF.
    Family { gguf: "youtu", folder: &[], read: deepseek::read, pairs: Pairs::Interleaved, ..LLAMA },
    Family { gguf: "minicpm3", folder: &["minicpm3"], read: scaled::minicpm3, ..LLAMA },
    Family {
        gguf: "plm",
        folder: &[],
        read: deepseek::read,
        pairs: Pairs::Interleaved,
        activation: Activation::SquaredRelu,
        is_gated: false,
        ..LLAMA
    },
    Family { gguf: "deepseek2-ocr", folder: &[], pairs: Pairs::Interleaved, renorm: [false, false], ..LLAMA },
];

/// Architectures that lack a part here, with its name.
pub(super) const MISSING: &[(&[&str], &str)] = &[
    (
        &["deepseek32", "deepseek_v32", "glm-dsa", "glm_moe_dsa", "minimax-m3", "qwen4exp", "qwen4_exp"],
        "an indexer, which selects the positions that attention sees",
    ),
    (&["deepseek4", "deepseek_v4", "hy_v4"], "a compressed KV cache, an indexer and hyper-connections"),
    (&["gemma3n", "gemma3n_text"], "AltUp, LAuReL and activation sparsity"),
    (&["kimi-linear", "kimi_linear"], "a delta rule with a decay per element"),
    (&["mamba", "jamba", "falcon_mamba"], "a state space with a decay for each channel"),
    (&["zamba2"], "a block that is used more than once"),
    (&["rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7", "rwkv"], "the recurrence of RWKV"),
    (&["recurrent_gemma"], "a gated linear recurrence"),
    (&["phimoe"], "routing by SparseMixer"),
    (
        &["jina-bert-v2", "jina-bert-v3", "nomic-bert-moe", "neo-bert", "nomic_bert"],
        "the parts of an encoder other than BERT, nomic-BERT and ModernBERT",
    ),
    (
        &["gemma4-assistant", "gemma4_assistant", "eagle3", "dflash"],
        "the hidden states of the model that it drafts for",
    ),
    (&["qwen3tts", "pockettts", "wavtokenizer-dec"], "the parts of a speech model"),
    (
        &["bailingmoe3", "bailing_hybrid", "minimax-01", "dots3note", "kimi-k3", "glm5-next"],
        "linear attention of another kind",
    ),
    (&["t5", "t5encoder"], "an encoder with relative position biases"),
    (&["minimax"], "lightning attention"),
    (&["gptj", "codegen"], "the names of its tensors"),
    (&["gpt_bigcode"], "the names of its folders; GGUF runs"),
    (&["grovemoe"], "experts that several experts share"),
    (&["dream", "llada", "llada-moe", "rnd1", "diffusion-gemma"], "generation by diffusion"),
    (&["smallthinker"], "a router that reads before attention"),
    (&["arctic"], "a dense network beside experts with one residual stream each"),
    (&["cogvlm", "chameleon"], "experts of pictures"),
    (&["plamo2"], "a state space of another kind"),
    (&["mimo2", "mimo_v2_flash"], "values of another width than keys"),
    (&["step35"], "clamped experts, and heads that differ by the kind of block"),
    (&["grok"], "a dense network beside experts, scaled together"),
    (&["mistral4", "mistral_large4"], "latent attention whose scores grow with the position"),
    (&["granite_swa", "granitemoe_swa"], "a RoPE base of each block"),
    (
        &["graniteswitch", "nanbeige", "talkie", "muse-glimmer", "spark2_5", "maple", "hrm_text"],
        "blocks of another kind",
    ),
];
