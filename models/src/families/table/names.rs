//! Names of tensors that families have otherwise than Llama.
//!
//! In: nothing. Out: lists for rows of the table. Where a folder and GGUF store a tensor in different ways, its entry
//! says how.

use crate::naming::tensors::{How, Part, Qkv, Renamed, in_folder, in_gguf, renamed};

/// Norms that a folder stores less 1.
pub(super) const LESS_ONE: &[Renamed] = &[
    less_one("attn_norm", "input_layernorm"),
    less_one("attn_post_norm", "post_attention_layernorm"),
    less_one("ffn_norm", "post_attention_layernorm"),
    less_one("ffn_post_norm", "post_feedforward_layernorm"),
    less_one("attn_q_norm", "self_attn.q_norm"),
    less_one("attn_k_norm", "self_attn.k_norm"),
    less_one("output_norm", "norm"),
];

const fn less_one(own: &'static str, folder: &'static str) -> Renamed {
    in_folder(own, folder).how(How::LessOne)
}

/// Norms before and after each half, as Gemma and OLMo name them.
pub(super) const NORMS_AROUND: &[Renamed] = &[
    renamed("attn_post_norm", "post_attention_norm", "post_attention_layernorm"),
    renamed("ffn_norm", "ffn_norm", "pre_feedforward_layernorm"),
    renamed("ffn_post_norm", "post_ffw_norm", "post_feedforward_layernorm"),
];

/// GGUF names the norm before the FFN after the attention.
pub(super) const POST_ATTENTION_NORM: &[Renamed] = &[in_gguf("ffn_norm", "post_attention_norm")];

/// Gate and up projection are one matrix, which GGUF calls `ffn_up`.
pub(super) const JOINT_GATE_UP: &[Renamed] =
    &[in_gguf("ffn_gate_up", "ffn_up"), in_gguf("ffn_up", ""), in_gguf("ffn_gate", "")];

/// A folder names the shared experts as one.
pub(super) const ONE_SHARED_EXPERT: &[Renamed] = &[
    in_folder("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
    in_folder("ffn_up_shexp", "mlp.shared_expert.up_proj"),
    in_folder("ffn_down_shexp", "mlp.shared_expert.down_proj"),
];

/// Decays are stored as logarithms in a folder.
pub(super) const DECAY: &[Renamed] = &[in_folder("ssm_a", "mamba.A_log").how(How::LogOfNegative)];

pub(super) const LINEAR_ATTENTION: &[Renamed] = &[
    in_gguf("ffn_norm", "post_attention_norm").how(How::LessOne),
    renamed("ssm_in", "attn_qkv", "linear_attn.in_proj_qkv"),
    renamed("ssm_gate", "attn_gate", "linear_attn.in_proj_z"),
    in_folder("ssm_conv1d", "linear_attn.conv1d"),
    in_folder("ssm_dt", "linear_attn.dt"),
    in_folder("ssm_a", "linear_attn.A_log").how(How::LogOfNegative),
    in_folder("ssm_norm", "linear_attn.norm"),
    in_folder("ssm_out", "linear_attn.out_proj"),
];

pub(super) const QWEN3_NEXT: &[Renamed] = &[
    renamed("ssm_in", "attn_qkv", "linear_attn.in_proj_qkvz").how(How::PerKeyHead(Part::Mixed)),
    renamed("ssm_gate", "attn_gate", "linear_attn.in_proj_qkvz").how(How::PerKeyHead(Part::Gate)),
];

pub(super) const GEMMA4: &[Renamed] = &[
    in_folder("ffn_gate_inp", "router.proj"),
    in_folder("ffn_gate_up_exps", "experts.gate_up_proj"),
    in_folder("ffn_down_exps", "experts.down_proj"),
];

pub(super) const GLM4: &[Renamed] = &[
    in_gguf("attn_post_norm", "post_attention_norm"),
    renamed("ffn_post_norm", "post_ffw_norm", "post_mlp_layernorm"),
];

/// Of one half the norm follows the addition to the stream.
pub(super) const BERT: &[Renamed] = &[
    in_folder("token_embd", "embeddings.word_embeddings"),
    in_folder("position_embd", "embeddings.position_embeddings"),
    in_folder("token_types", "embeddings.token_type_embeddings"),
    in_folder("token_embd_norm", "embeddings.LayerNorm"),
    in_folder("cls", "classifier.dense"),
    in_folder("cls", "pooler.dense"),
    in_folder("cls.output", "classifier"),
    in_folder("cls.output", "classifier.out_proj"),
    in_folder("attn_q", "encoder.layer.{}.attention.self.query"),
    in_folder("attn_k", "encoder.layer.{}.attention.self.key"),
    in_folder("attn_v", "encoder.layer.{}.attention.self.value"),
    in_folder("attn_output", "encoder.layer.{}.attention.output.dense"),
    renamed("attn_post_norm", "attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"),
    in_folder("ffn_up", "encoder.layer.{}.intermediate.dense"),
    in_folder("ffn_down", "encoder.layer.{}.output.dense"),
    renamed("ffn_post_norm", "layer_output_norm", "encoder.layer.{}.output.LayerNorm"),
];

pub(super) const MODERN_BERT: &[Renamed] = &[
    in_folder("token_embd", "embeddings.tok_embeddings"),
    in_folder("output_norm", "final_norm"),
    in_folder("cls", "head.dense"),
    in_folder("cls.norm", "head.norm"),
    in_folder("cls.output", "classifier"),
    in_folder("attn_norm", "attn_norm"),
    in_folder("attn_qkv", "attn.Wqkv"),
    in_folder("attn_output", "attn.Wo"),
    in_folder("ffn_norm", "mlp_norm"),
    in_folder("ffn_gate_up", "mlp.Wi"),
    in_folder("ffn_down", "mlp.Wo"),
];

pub(super) const GPT_OSS: &[Renamed] = &[
    in_gguf("ffn_norm", "post_attention_norm"),
    in_folder("ffn_gate_inp", "mlp.router"),
    in_folder("ffn_gate_exps", "mlp.experts.gate_up_proj").how(transposed(0, 2, true)),
    in_folder("ffn_up_exps", "mlp.experts.gate_up_proj").how(transposed(1, 2, true)),
    in_folder("ffn_gate_up_exps", ""),
    in_folder("ffn_down_exps", "mlp.experts.down_proj").how(transposed(0, 1, false)),
];

pub(super) const LLAMA4: &[Renamed] = &[
    in_folder("ffn_gate", "feed_forward.gate_proj"),
    in_folder("ffn_up", "feed_forward.up_proj"),
    in_folder("ffn_down", "feed_forward.down_proj"),
    in_folder("ffn_gate_inp", "feed_forward.router"),
    in_folder("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
    in_folder("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
    in_folder("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    in_folder("ffn_gate_exps", "feed_forward.experts.gate_up_proj").how(transposed(0, 2, false)),
    in_folder("ffn_up_exps", "feed_forward.experts.gate_up_proj").how(transposed(1, 2, false)),
    in_folder("ffn_gate_up_exps", ""),
    in_folder("ffn_down_exps", "feed_forward.experts.down_proj").how(transposed(0, 1, false)),
];

const fn transposed(part: usize, of: usize, is_interleaved: bool) -> How {
    How::Transposed { part, of, is_interleaved }
}

pub(super) const LFM2: &[Renamed] = &[
    in_folder("ffn_gate_inp", "feed_forward.gate"),
    // With the ending of a bias.
    in_folder("exp_probs_b", "feed_forward.expert"),
    in_folder("ffn_gate_exps", "feed_forward.experts.w1"),
    in_folder("ffn_up_exps", "feed_forward.experts.w3"),
    in_folder("ffn_down_exps", "feed_forward.experts.w2"),
    renamed("output_norm", "token_embd_norm", "embedding_norm"),
    in_folder("attn_norm", "operator_norm"),
    in_folder("ffn_norm", "ffn_norm"),
    in_folder("attn_q_norm", "self_attn.q_layernorm"),
    in_folder("attn_k_norm", "self_attn.k_layernorm"),
    in_folder("attn_output", "self_attn.out_proj"),
    in_folder("ffn_gate", "feed_forward.w1"),
    in_folder("ffn_up", "feed_forward.w3"),
    in_folder("ffn_down", "feed_forward.w2"),
];

pub(super) const GRANITE_MOE: &[Renamed] = &[
    in_folder("ffn_gate_inp", "block_sparse_moe.router.layer"),
    in_folder("ffn_gate_up_exps", "block_sparse_moe.input_linear"),
    in_folder("ffn_down_exps", "block_sparse_moe.output_linear"),
    in_folder("ffn_gate_up_shexp", "shared_mlp.input_linear"),
    in_folder("ffn_down_shexp", "shared_mlp.output_linear"),
    in_folder("ffn_gate_up", "shared_mlp.input_linear"),
    in_folder("ffn_down", "shared_mlp.output_linear"),
];

/// Every block has one half, with one norm.
pub(super) const NEMOTRON_H: &[Renamed] = &[
    in_folder("token_embd", "embeddings"),
    in_folder("output_norm", "norm_f"),
    in_folder("attn_norm", "norm"),
    renamed("ffn_norm", "attn_norm", "norm"),
    in_folder("attn_q", "mixer.q_proj"),
    in_folder("attn_k", "mixer.k_proj"),
    in_folder("attn_v", "mixer.v_proj"),
    in_folder("attn_output", "mixer.o_proj"),
    in_folder("ssm_in", "mixer.in_proj"),
    in_folder("ssm_conv1d", "mixer.conv1d"),
    in_folder("ssm_dt", "mixer.dt"),
    in_folder("ssm_a", "mixer.A_log").how(How::LogOfNegative),
    in_folder("ssm_d", "mixer.D"),
    in_folder("ssm_norm", "mixer.norm"),
    in_folder("ssm_out", "mixer.out_proj"),
    in_folder("ffn_up", "mixer.up_proj"),
    in_folder("ffn_down", "mixer.down_proj"),
    in_folder("ffn_gate_inp", "mixer.gate"),
    in_folder("exp_probs_b", "mixer.gate.e_score_correction"),
    in_folder("ffn_up_exps", "mixer.experts.up_proj"),
    in_folder("ffn_down_exps", "mixer.experts.down_proj"),
    in_folder("ffn_up_shexp", "mixer.shared_experts.up_proj"),
    in_folder("ffn_down_shexp", "mixer.shared_experts.down_proj"),
];

/// Halves as Falcon-H1 names them.
pub(super) const FEED_FORWARD: &[Renamed] = &[
    in_folder("output_norm", "final_layernorm"),
    in_folder("ffn_norm", "pre_ff_layernorm"),
    in_folder("ffn_gate", "feed_forward.gate_proj"),
    in_folder("ffn_up", "feed_forward.up_proj"),
    in_folder("ffn_down", "feed_forward.down_proj"),
];

pub(super) const QK_LAYERNORM: &[Renamed] =
    &[in_folder("attn_q_norm", "self_attn.q_layernorm"), in_folder("attn_k_norm", "self_attn.k_layernorm")];

pub(super) const HUNYUAN_SHARED: &[Renamed] = &[
    in_folder("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    in_folder("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    in_folder("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

/// The last has the ending of a bias.
pub(super) const ROUTER_GATE: &[Renamed] =
    &[in_folder("ffn_gate_inp", "mlp.router.gate"), in_folder("exp_probs_b", "mlp.expert")];

pub(super) const AFMOE: &[Renamed] = &[
    renamed("attn_post_norm", "post_attention_norm", "post_attention_layernorm"),
    in_folder("ffn_norm", "pre_mlp_layernorm"),
    renamed("ffn_post_norm", "post_ffw_norm", "post_mlp_layernorm"),
];

pub(super) const LAGUNA: &[Renamed] =
    &[in_folder("attn_gate", "self_attn.g_proj"), in_folder("exp_probs_b", "mlp.experts.e_score_correction")];

/// Attention has a norm of its own in newer models; else both halves share one, or the second follows the first.
pub(super) const FALCON: &[Renamed] = &[
    in_gguf("attn_norm", "attn_norm_2"),
    in_gguf("attn_norm", "attn_norm"),
    in_gguf("ffn_norm", "attn_norm"),
    in_folder("attn_norm", "h.{}.ln_attn"),
    in_folder("attn_norm", "h.{}.input_layernorm"),
    in_folder("ffn_norm", "h.{}.ln_mlp"),
    in_folder("ffn_norm", "h.{}.post_attention_layernorm"),
    in_folder("ffn_norm", "h.{}.input_layernorm"),
];

/// The queries, the key and the value of a head lie beside each other.
pub(super) const BLOOM: &[Renamed] = &[
    in_folder("token_embd", "word_embeddings"),
    in_folder("token_embd_norm", "word_embeddings_layernorm"),
    in_folder("output_norm", "ln_f"),
    in_folder("attn_norm", "h.{}.input_layernorm"),
    in_folder("attn_q", "h.{}.self_attention.query_key_value").how(How::Beside(Qkv::Queries)),
    in_folder("attn_k", "h.{}.self_attention.query_key_value").how(How::Beside(Qkv::Key)),
    in_folder("attn_v", "h.{}.self_attention.query_key_value").how(How::Beside(Qkv::Value)),
    in_folder("attn_output", "h.{}.self_attention.dense"),
    in_folder("ffn_norm", "h.{}.post_attention_layernorm"),
    in_folder("ffn_up", "h.{}.mlp.dense_h_to_4h"),
    in_folder("ffn_down", "h.{}.mlp.dense_4h_to_h"),
];

pub(super) const GPT_NEOX: &[Renamed] = &[
    in_folder("token_embd", "embed_in"),
    in_folder("output", "embed_out"),
    in_folder("output_norm", "final_layer_norm"),
    in_folder("attn_q", "attention.query_key_value").how(How::Beside(Qkv::Queries)),
    in_folder("attn_k", "attention.query_key_value").how(How::Beside(Qkv::Key)),
    in_folder("attn_v", "attention.query_key_value").how(How::Beside(Qkv::Value)),
    in_folder("attn_output", "attention.dense"),
    in_folder("ffn_up", "mlp.dense_h_to_4h"),
    in_folder("ffn_down", "mlp.dense_4h_to_h"),
];

/// Names of GPT-2 and of `StarCoder`.
pub(super) const GPT: &[Renamed] = &[
    in_folder("token_embd", "wte"),
    in_folder("position_embd", "wpe"),
    in_folder("output_norm", "ln_f"),
    in_folder("attn_norm", "h.{}.ln_1"),
    in_folder("attn_qkv", "h.{}.attn.c_attn"),
    in_folder("attn_output", "h.{}.attn.c_proj"),
    in_folder("ffn_norm", "h.{}.ln_2"),
    in_folder("ffn_up", "h.{}.mlp.c_fc"),
    in_folder("ffn_down", "h.{}.mlp.c_proj"),
];

/// Matrices of GPT-2 have inputs before outputs.
pub(super) const GPT2: &[Renamed] = &[
    in_folder("attn_q", "h.{}.attn.c_attn").how(How::Columns { part: 0, of: 3 }),
    in_folder("attn_k", "h.{}.attn.c_attn").how(How::Columns { part: 1, of: 3 }),
    in_folder("attn_v", "h.{}.attn.c_attn").how(How::Columns { part: 2, of: 3 }),
    in_folder("attn_qkv", ""),
    in_folder("attn_output", "h.{}.attn.c_proj").how(How::Columns { part: 0, of: 1 }),
    in_folder("ffn_up", "h.{}.mlp.c_fc").how(How::Columns { part: 0, of: 1 }),
    in_folder("ffn_down", "h.{}.mlp.c_proj").how(How::Columns { part: 0, of: 1 }),
];

pub(super) const MPT: &[Renamed] = &[
    in_folder("token_embd", "wte"),
    in_folder("position_embd", "wpe"),
    in_folder("output_norm", "norm_f"),
    in_folder("attn_norm", "blocks.{}.norm_1"),
    in_folder("attn_qkv", "blocks.{}.attn.Wqkv"),
    in_folder("attn_q_norm", "blocks.{}.attn.q_ln"),
    in_folder("attn_k_norm", "blocks.{}.attn.k_ln"),
    in_folder("attn_output", "blocks.{}.attn.out_proj"),
    in_folder("ffn_norm", "blocks.{}.norm_2"),
    in_folder("ffn_up", "blocks.{}.ffn.up_proj"),
    in_folder("ffn_down", "blocks.{}.ffn.down_proj"),
];

pub(super) const DBRX: &[Renamed] = &[
    in_folder("token_embd", "wte"),
    in_folder("output_norm", "norm_f"),
    in_folder("attn_norm", "blocks.{}.norm_attn_norm.norm_1"),
    in_folder("attn_qkv", "blocks.{}.norm_attn_norm.attn.Wqkv"),
    in_folder("attn_output", "blocks.{}.norm_attn_norm.attn.out_proj"),
    renamed("ffn_norm", "attn_output_norm", "blocks.{}.norm_attn_norm.norm_2"),
    in_folder("ffn_gate_inp", "blocks.{}.ffn.router.layer"),
    in_folder("ffn_gate_exps", "blocks.{}.ffn.experts.mlp.w1"),
    in_folder("ffn_up_exps", "blocks.{}.ffn.experts.mlp.v1"),
    in_folder("ffn_gate_up_exps", ""),
    in_folder("ffn_down_exps", "blocks.{}.ffn.experts.mlp.w2").how(transposed(0, 1, false)),
];

pub(super) const BAICHUAN: &[Renamed] = &[in_folder("attn_qkv", "self_attn.W_pack")];

pub(super) const HUNYUAN: &[Renamed] = &[
    in_folder("attn_q_norm", "self_attn.query_layernorm"),
    in_folder("attn_k_norm", "self_attn.key_layernorm"),
];

pub(super) const PHI2: &[Renamed] = &[
    in_folder("attn_output", "self_attn.dense"),
    in_folder("ffn_up", "mlp.fc1"),
    in_folder("ffn_down", "mlp.fc2"),
    in_folder("output_norm", "final_layernorm"),
];
