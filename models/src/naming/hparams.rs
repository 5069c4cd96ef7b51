//! The names of hyper-parameters: in GGUF (below the architecture), in `config.json`, in the header of a qwen3.c
//! checkpoint or of a Qorus file.
//!
//! In: a [`Key`] and the kind of a file. Out: the names that the hyper-parameter may have there, none where that kind
//! has no such thing; and the defaults of `config.json`.
//! How a value is read and checked is in `hparams.rs` and `families/`.

use fusebox_runtime::weights::Kind;
use fusebox_runtime::weights::value::Value;

/// A hyper-parameter by its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// In GGUF, below the architecture, if it has one.
    gguf: Option<&'static str>,
    /// Its former name in GGUF.
    old: Option<&'static str>,
    /// In `config.json`, one of these.
    config: &'static [&'static str],
    /// In a qwen3.c checkpoint, if it has one.
    ajc1: Option<&'static str>,
    /// In a Qorus file, if it has one.
    qorus: Option<&'static str>,
}

const fn key(gguf: &'static str, config: &'static [&'static str]) -> Key {
    Key { gguf: Some(gguf), old: None, config, ajc1: None, qorus: None }
}

const fn config(config: &'static [&'static str]) -> Key {
    Key { gguf: None, old: None, config, ajc1: None, qorus: None }
}

impl Key {
    const fn old(self, name: &'static str) -> Self {
        Self { old: Some(name), ..self }
    }

    const fn ajc1(self, name: &'static str) -> Self {
        Self { ajc1: Some(name), ..self }
    }

    const fn qorus(self, name: &'static str) -> Self {
        Self { qorus: Some(name), ..self }
    }

    /// The names in a file of this kind, in order of preference; errors quote the first.
    pub(crate) fn names(self, kind: Kind, architecture: &str) -> Vec<String> {
        match kind {
            Kind::Gguf { .. } => {
                let names = self.gguf.into_iter().chain(self.old);
                names.map(|name| format!("{architecture}.{name}")).collect()
            }
            Kind::Safetensors => self.config.iter().map(|name| (*name).to_owned()).collect(),
            Kind::Ajc1 => self.ajc1.into_iter().map(str::to_owned).collect(),
            Kind::Qorus => self.qorus.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// Hidden size.
pub(crate) const HIDDEN: Key =
    key("embedding_length", &["hidden_size", "n_embd", "n_embed", "d_model"]).ajc1("dim").qorus("dim");
/// Number of blocks.
pub(crate) const LAYERS: Key =
    key("block_count", &["num_hidden_layers", "n_layer", "n_layers"]).ajc1("n_layers").qorus("n_layers");
/// How many blocks of the count are multi-token prediction (MTP) heads; they are not used.
pub(crate) const EXTRA_LAYERS: Key = key("nextn_predict_layers", &[]);
/// How many MTP blocks follow those of the count; they are not used.
pub(crate) const MORE_LAYERS: Key = config(&["num_nextn_predict_layers"]);
/// Vocabulary size.
pub(crate) const VOCAB: Key = key("vocab_size", &["vocab_size"]).ajc1("vocab_size").qorus("vocab_size");
/// Context length.
pub(crate) const CONTEXT: Key =
    key("context_length", &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"])
        .ajc1("max_seq_len")
        .qorus("max_seq_len");
/// FFN width of a dense block.
pub(crate) const FF: Key = key(
    "feed_forward_length",
    &["intermediate_size", "n_inner", "ffn_hidden_size", "ffn_config.ffn_hidden_size"],
)
.ajc1("hidden_dim")
.qorus("hidden_dim");
/// Epsilon of RMSNorm.
pub(crate) const EPS: Key =
    key("attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps", "layer_norm_epsilon"])
        .qorus("rms_norm_eps");
/// Whether embeddings are tied.
pub(crate) const TIED: Key = config(&["tie_word_embeddings"]);
/// Activation function of the FFN.
pub(crate) const ACTIVATION: Key =
    config(&["hidden_activation", "hidden_act", "mlp_hidden_act", "activation_function", "activation"]);

/// Query heads.
pub(crate) const HEADS: Key = key("attention.head_count", &["num_attention_heads", "n_head", "n_heads"])
    .ajc1("n_heads")
    .qorus("n_heads");
/// Key and value heads.
pub(crate) const KV_HEADS: Key =
    key("attention.head_count_kv", &["num_key_value_heads", "num_kv_heads", "attn_config.kv_n_heads"])
        .ajc1("n_kv_heads")
        .qorus("n_kv_heads");
/// Whether all query heads share a key and value head, in older decoders.
pub(crate) const MULTI_QUERY: Key = config(&["multi_query"]);
/// Whether Falcon has groups of heads, and a norm for each half of a block.
pub(crate) const NEW_DECODER: Key = config(&["new_decoder_architecture"]);
/// Whether the halves of a block of Falcon read the same.
pub(crate) const PARALLEL_ATTENTION: Key = config(&["parallel_attn"]);
/// Head dimension.
pub(crate) const HEAD: Key = key("attention.key_length", &["head_dim"]).ajc1("head_dim");
/// Head dimension of values.
pub(crate) const VALUE: Key = key("attention.value_length", &[]);
/// Sliding window size, the token's own position included.
pub(crate) const WINDOW: Key = key("attention.sliding_window", &["sliding_window", "local_attention"]);
/// Whether the sliding window is used at all.
pub(crate) const WINDOW_USED: Key = config(&["use_sliding_window"]);
/// How many blocks at the start have full attention.
pub(crate) const WINDOW_FROM: Key = config(&["max_window_layers"]);
/// Whether attention is causal.
pub(crate) const CAUSAL: Key = key("attention.causal", &["is_causal"]);
/// The classes that Transformers has for a model, one for each kind of head.
pub(crate) const ARCHITECTURES: Key = config(&["architectures"]);
/// Whether the head that scores a text reads the first hidden state or the mean of all, in `ModernBERT`.
pub(crate) const HEAD_POOLING: Key = config(&["classifier_pooling"]);
/// The activation in that head.
pub(crate) const HEAD_ACTIVATION: Key = config(&["classifier_activation"]);
/// Whether attention sees all of a text, in Gemma.
pub(crate) const BIDIRECTIONAL: Key = config(&["use_bidirectional_attention"]);
/// Every so many blocks have full attention, the first among them.
pub(crate) const FULL_PERIOD: Key = config(&["global_attn_every_n_layers"]);
/// Attention temperature that grows with the position.
pub(crate) const TEMPERATURE: Key = key(
    "attention.temperature_scale",
    &["rope_parameters.llama_4_scaling_beta", "rope_scaling.llama_4_scaling_beta"],
);
/// Which blocks have a sliding window: a boolean each, or the period after which a block has none.
pub(crate) const WINDOW_PATTERN: Key = key("attention.sliding_window_pattern", &[]);
/// The attention type of each block.
pub(crate) const LAYER_TYPES: Key = config(&["layer_types", "layers_block_type"]);

/// Rank of the query projection of MLA.
pub(crate) const Q_LORA: Key = key("attention.q_lora_rank", &["q_lora_rank"]);
/// Rank of the key and value projection of MLA.
pub(crate) const KV_LORA: Key = key("attention.kv_lora_rank", &["kv_lora_rank"]);
/// Head dimension of keys, in files where `key_length` is that of the latent.
pub(crate) const KEY_MLA: Key = key("attention.key_length_mla", &[]);
/// Head dimension of values, in files where `value_length` is that of the latent.
pub(crate) const VALUE_MLA: Key = key("attention.value_length_mla", &["v_head_dim"]);
/// Key dimensions without RoPE.
pub(crate) const NOPE: Key = config(&["qk_nope_head_dim"]);
/// Rotary dimension.
pub(crate) const ROTARY_DIM: Key = key("rope.dimension_count", &["qk_rope_head_dim", "rotary_dim"]);
/// Rotary dimension as a fraction of the head dimension.
pub(crate) const ROTARY_FACTOR: Key =
    config(&["rope_parameters.partial_rotary_factor", "partial_rotary_factor", "rotary_pct"]);
/// Whether RoPE pairs are interleaved.
pub(crate) const INTERLEAVED: Key = config(&["rope_interleave"]);

/// RoPE base.
pub(crate) const THETA: Key = key(
    "rope.freq_base",
    &[
        "rope_scaling.rope_theta",
        "rope_parameters.rope_theta",
        "rope_theta",
        "global_rope_theta",
        "rotary_emb_base",
        "attn_config.rope_theta",
    ],
)
.qorus("rope_freq_base");
/// The pairs of each kind of position of a multimodal model; of text all are the same.
pub(crate) const SECTIONS: Key =
    key("rope.dimension_sections", &["rope_parameters.mrope_section", "rope_scaling.mrope_section"]);
/// RoPE scaling type.
pub(crate) const SCALING_TYPE: Key = key(
    "rope.scaling.type",
    &["rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type", "rope_parameters.type"],
);
/// The object with all of these; where there are two, they must agree.
pub(crate) const SCALING_OBJECT: Key = config(&["rope_scaling", "rope_parameters"]);
/// Context extension factor.
pub(crate) const SCALING_FACTOR: Key =
    key("rope.scaling.factor", &["rope_scaling.factor", "rope_parameters.factor"]).old("rope.scale_linear");
/// Original context length.
pub(crate) const ORIGINAL_CONTEXT: Key = key(
    "rope.scaling.original_context_length",
    &[
        "rope_scaling.original_max_position_embeddings",
        "rope_parameters.original_max_position_embeddings",
        "original_max_position_embeddings",
    ],
);
/// Llama 3: pairs with fewer rotations in the original context are low-frequency.
pub(crate) const LOW_FREQ: Key = config(&["rope_scaling.low_freq_factor", "rope_parameters.low_freq_factor"]);
/// Llama 3: pairs with more are high-frequency.
pub(crate) const HIGH_FREQ: Key =
    config(&["rope_scaling.high_freq_factor", "rope_parameters.high_freq_factor"]);
/// YaRN: pairs with more rotations in the original context keep their frequency.
pub(crate) const BETA_FAST: Key =
    key("rope.scaling.yarn_beta_fast", &["rope_scaling.beta_fast", "rope_parameters.beta_fast"]);
/// YaRN: pairs with fewer have it divided by the factor.
pub(crate) const BETA_SLOW: Key =
    key("rope.scaling.yarn_beta_slow", &["rope_scaling.beta_slow", "rope_parameters.beta_slow"]);
/// YaRN: whether the ends of the ramp are rounded to whole pairs.
pub(crate) const TRUNCATE: Key = config(&["rope_scaling.truncate", "rope_parameters.truncate"]);
/// YaRN: factor on rotated queries and keys.
pub(crate) const ATTENTION_FACTOR: Key =
    key("rope.scaling.attn_factor", &["rope_scaling.attention_factor", "rope_parameters.attention_factor"]);
/// YaRN: strength of that factor.
pub(crate) const MSCALE: Key = config(&["rope_scaling.mscale", "rope_parameters.mscale"]);
/// YaRN: strength of the factor on attention scores; GGUF has a tenth of it.
pub(crate) const MSCALE_ALL: Key = key(
    "rope.scaling.yarn_log_multiplier",
    &["rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"],
);

/// Routed experts.
pub(crate) const EXPERTS: Key = key(
    "expert_count",
    &[
        "num_experts",
        "n_routed_experts",
        "num_local_experts",
        "moe_num_experts",
        "ffn_config.moe_num_experts",
    ],
);
/// Routed experts per token.
pub(crate) const EXPERTS_USED: Key = key(
    "expert_used_count",
    &["num_experts_per_tok", "moe_k", "top_k_experts", "moe_topk", "moe_top_k", "ffn_config.moe_top_k"],
);
/// Shared experts.
pub(crate) const EXPERTS_SHARED: Key = key(
    "expert_shared_count",
    &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"],
);
/// FFN width of one expert.
pub(crate) const EXPERT_FF: Key = key("expert_feed_forward_length", &["moe_intermediate_size"]);
/// Groups of experts.
pub(crate) const GROUPS: Key = key("expert_group_count", &["n_group"]);
/// Groups per token.
pub(crate) const GROUPS_USED: Key = key("expert_group_used_count", &["topk_group"]);
/// How experts are selected.
pub(crate) const SELECTION: Key = config(&["topk_method"]);
/// Scoring function of the router.
pub(crate) const GATE: Key = key("expert_gating_func", &["scoring_func", "expert_selection_fn"]);
/// Whether routing weights are normalised.
pub(crate) const RENORM: Key = key("expert_weights_norm", &["norm_topk_prob"]);
/// Factor on routing weights.
pub(crate) const WEIGHT_SCALE: Key = key(
    "expert_weights_scale",
    &["routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor"],
);
/// Soft cap of the router's logits.
pub(crate) const ROUTER_CAP: Key = key("router_logit_softcapping", &["moe_router_logit_softcapping"]);

/// FFN width of all shared experts together.
pub(crate) const SHARED_FF: Key = key(
    "expert_shared_feed_forward_length",
    &["shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size"],
);
/// FFN width of a dense block, where experts have another of the same name (Llama 4).
pub(crate) const DENSE_FF: Key = config(&["intermediate_size_mlp", "prefix_dense_intermediate_size"]);
/// Epsilon of LayerNorm.
pub(crate) const CENTRED_EPS: Key = key(
    "attention.layer_norm_epsilon",
    &["layer_norm_eps", "norm_epsilon", "layer_norm_epsilon", "norm_eps"],
);
/// Factor on embeddings.
pub(crate) const EMBEDDING_SCALE: Key = key("embedding_scale", &["embedding_multiplier", "scale_emb"]);
/// Factor on what each half of a block adds.
pub(crate) const RESIDUAL_SCALE: Key = key("residual_scale", &["residual_multiplier"]);
/// Factor on logits, or divisor.
pub(crate) const LOGIT_SCALE: Key =
    key("logit_scale", &["logit_scale", "logits_scaling", "lm_head_multiplier"]);
/// Factor on attention scores.
pub(crate) const ATTENTION_SCALE: Key = key("attention.scale", &["attention_multiplier"]);
/// The width whose root divides attention scores.
pub(crate) const SCALE_WIDTH: Key = config(&["query_pre_attn_scalar"]);
/// Whether embeddings are multiplied by the root of the hidden size.
pub(crate) const SCALED_EMBEDDING: Key = config(&["mup_enabled"]);
/// Whether both halves of a block read the same.
pub(crate) const PARALLEL: Key = key("use_parallel_residual", &["use_parallel_residual"]);
/// The factor on all residuals together (`MiniCPM`).
pub(crate) const DEPTH_SCALE: Key = config(&["scale_depth"]);
/// The width for which logits are not scaled (`MiniCPM`).
pub(crate) const BASE_WIDTH: Key = config(&["dim_model_base"]);
/// How routed and shared experts are combined.
pub(crate) const EXPERT_MEAN: Key = config(&["shared_expert_combination_strategy"]);
/// Bound of queries, keys and values.
pub(crate) const CLAMP: Key = key("attention.clamp_kqv", &["clip_qkv", "attn_config.clip_qkv"]);
/// `ALiBi`: the power of two that divides it for the last head.
pub(crate) const ALIBI: Key = key("attention.max_alibi_bias", &["attn_config.alibi_bias_max"]);
/// Whether there is `ALiBi`.
pub(crate) const ALIBI_USED: Key = config(&["alibi", "attn_config.alibi"]);
/// Whether queries and keys are normalised.
pub(crate) const QK_NORM_USED: Key = config(&["use_qk_norm", "qk_layernorm"]);
/// Query heads of each block.
pub(crate) const LAYER_HEADS: Key = config(&["num_attention_heads_per_layer"]);
/// Whether the output of a state space is normalised before its gate.
pub(crate) const NORM_BEFORE_GATE: Key = config(&["mamba_norm_before_gate"]);
/// Factors of Falcon-H1: on the parts of the first projection of a state space.
pub(crate) const SPACE_FACTORS: Key = config(&["ssm_multipliers"]);
/// On what a state space reads.
pub(crate) const SPACE_INPUT_FACTOR: Key = config(&["ssm_in_multiplier"]);
/// On what it adds.
pub(crate) const SPACE_OUTPUT_FACTOR: Key = config(&["ssm_out_multiplier"]);
/// On what attention reads.
pub(crate) const ATTENTION_INPUT_FACTOR: Key = config(&["attention_in_multiplier"]);
/// On what it adds.
pub(crate) const ATTENTION_OUTPUT_FACTOR: Key = config(&["attention_out_multiplier"]);
/// On keys.
pub(crate) const KEY_FACTOR: Key = config(&["key_multiplier"]);
/// On the gate and on the output of FFNs.
pub(crate) const NETWORK_FACTORS: Key = config(&["mlp_multipliers"]);
/// Soft cap of logits.
pub(crate) const LOGIT_CAP: Key = key("final_logit_softcapping", &["final_logit_softcapping"]);
/// Soft cap of attention scores.
pub(crate) const ATTENTION_CAP: Key = key("attn_logit_softcapping", &["attn_logit_softcapping"]);
/// RoPE base of blocks with a window.
pub(crate) const LOCAL_THETA: Key = key("rope.freq_base_swa", &["rope_local_base_freq", "local_rope_theta"]);
/// Rotary dimension of blocks with a window.
pub(crate) const LOCAL_ROTARY_DIM: Key = key("rope.dimension_count_swa", &[]);
/// Head dimension of blocks with a window.
pub(crate) const LOCAL_HEAD: Key = key("attention.key_length_swa", &[]);
/// Head dimension of blocks with full attention.
pub(crate) const GLOBAL_HEAD: Key = config(&["global_head_dim"]);
/// Key and value heads of blocks with full attention.
pub(crate) const GLOBAL_KV_HEADS: Key = config(&["num_global_key_value_heads"]);
/// How many blocks at the end share the KV cache of earlier ones.
pub(crate) const SHARING: Key = key("attention.shared_kv_layers", &["num_kv_shared_layers"]);
/// Whether blocks that share have an FFN of twice the width.
pub(crate) const DOUBLE_WIDE: Key = config(&["use_double_wide_mlp"]);
/// Width of the per-layer embeddings.
pub(crate) const PER_LAYER: Key = key("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]);
/// Which blocks have RoPE.
pub(crate) const WITH_ROPE: Key = config(&["no_rope_layers"]);
/// Whether there is RoPE at all.
pub(crate) const POSITIONS: Key = config(&["position_embedding_type"]);
/// Whether RoPE is used, in hybrids.
pub(crate) const ROPE_USED: Key = key("rope.scaling.finetuned", &[]);
/// Whether attention scores grow with the position, and how (Llama 4).
pub(crate) const TUNING: Key = config(&["attn_temperature_tuning"]);
/// How fast they grow.
pub(crate) const TUNING_SCALE: Key = config(&["attn_scale"]);
/// After how many positions.
pub(crate) const TUNING_LENGTH: Key = config(&["floor_scale"]);
/// Length of the chunks of attention.
pub(crate) const CHUNK: Key = key("attention.chunk_size", &["attention_chunk_size"]);
/// Factor on the frequency of a pair, for short sequences and for long ones.
pub(crate) const SHORT_FACTORS: Key = config(&["rope_parameters.short_factor", "rope_scaling.short_factor"]);
/// The same for long ones.
pub(crate) const LONG_FACTORS: Key = config(&["rope_parameters.long_factor", "rope_scaling.long_factor"]);
/// Strength of NTK scaling by a constant.
pub(crate) const ALPHA: Key = key("rope.scaling.alpha", &["rope_parameters.alpha", "rope_scaling.alpha"]);
/// Which blocks carry a state instead of attention.
pub(crate) const RECURRENT_LAYERS: Key = key("attention.recurrent_layers", &[]);
/// Every so many blocks have attention, where the others carry a state.
pub(crate) const ATTENTION_INTERVAL: Key = key("full_attention_interval", &["full_attention_interval"]);
/// Tokens that the short convolution of a recurrent mixer sees.
pub(crate) const KERNEL: Key =
    key("ssm.conv_kernel", &["linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"]);
/// Key heads of a delta rule, groups of a state space.
pub(crate) const STATE_GROUPS: Key =
    key("ssm.group_count", &["linear_num_key_heads", "mamba_n_groups", "n_groups"]);
/// Value heads of a delta rule, heads of a state space.
pub(crate) const STATE_HEADS: Key =
    key("ssm.time_step_rank", &["linear_num_value_heads", "mamba_n_heads", "mamba_num_heads", "num_heads"]);
/// Head dimension of the keys of a delta rule, state dimension of a state space.
pub(crate) const STATE: Key =
    key("ssm.state_size", &["linear_key_head_dim", "mamba_d_state", "ssm_state_size", "state_size"]);
/// Head dimension of the values of a delta rule, of a state space.
pub(crate) const STATE_HEAD: Key = config(&["linear_value_head_dim", "mamba_d_head", "mamba_head_dim"]);
/// The least step of time of a state space.
pub(crate) const LEAST_STEP: Key = config(&["time_step_min"]);
/// Head dimension times heads.
pub(crate) const STATE_INNER: Key = key("ssm.inner_size", &[]);
/// Tokens that the short convolution of LFM2 sees.
pub(crate) const SHORT_KERNEL: Key = key("shortconv.l_cache", &["conv_L_cache"]);

/// The defaults of `config.json` that depend on the architecture: they hold where a name is absent, not where it is
/// null. All other defaults are the same for every architecture.
static DEFAULTS: [(&str, &str, Value); 30] = [
    ("mistral", "sliding_window", Value::Unsigned(4096)),
    ("qwen2", "sliding_window", Value::Unsigned(4096)),
    ("qwen3", "sliding_window", Value::Unsigned(4096)),
    ("qwen3_moe", "sliding_window", Value::Unsigned(4096)),
    ("qwen3", "head_dim", Value::Unsigned(128)),
    ("glm4_moe_lite", "rms_norm_eps", Value::Float(1e-5)),
    ("glm4_moe_lite", "routed_scaling_factor", Value::Float(1.8)),
    ("glm4_moe_lite", "n_shared_experts", Value::Unsigned(1)),
    ("deepseek_v2", "n_shared_experts", Value::Unsigned(2)),
    ("deepseek_v3", "n_shared_experts", Value::Unsigned(1)),
    ("deepseek_v3", "routed_scaling_factor", Value::Float(2.5)),
    ("deepseek_v3", "n_group", Value::Unsigned(8)),
    ("deepseek_v3", "topk_group", Value::Unsigned(4)),
    ("glm", "partial_rotary_factor", Value::Float(0.5)),
    ("glm4", "partial_rotary_factor", Value::Float(0.5)),
    ("glm4_moe", "partial_rotary_factor", Value::Float(0.5)),
    ("phi", "partial_rotary_factor", Value::Float(0.5)),
    ("nemotron", "partial_rotary_factor", Value::Float(0.5)),
    ("stablelm", "partial_rotary_factor", Value::Float(0.25)),
    ("gpt_neox", "rotary_pct", Value::Float(0.25)),
    ("falcon", "multi_query", Value::Bool(true)),
    ("falcon", "max_position_embeddings", Value::Unsigned(2048)),
    ("gpt_bigcode", "multi_query", Value::Bool(true)),
    ("mpt", "attn_config.alibi_bias_max", Value::Float(8.0)),
    ("dbrx", "attn_config.kv_n_heads", Value::Unsigned(1)),
    ("dbrx", "ffn_config.moe_num_experts", Value::Unsigned(4)),
    ("dbrx", "ffn_config.moe_top_k", Value::Unsigned(1)),
    // With ALiBi there is no longest sequence; these are the lengths of training.
    ("mpt", "max_seq_len", Value::Unsigned(2048)),
    ("bloom", "seq_length", Value::Unsigned(2048)),
    // A state space has no longest sequence.
    ("mamba2", "max_position_embeddings", Value::Unsigned(1 << 20)),
];

/// The default of a hyper-parameter in `config.json`, given its names.
pub(crate) fn default(architecture: &str, names: &[String]) -> Option<&'static Value> {
    let matches = |own: &str, name: &str| own == architecture && names.iter().any(|known| known == name);
    DEFAULTS.iter().find(|(own, name, _)| matches(own, name)).map(|(.., value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_names() {
        let gguf = Kind::Gguf { version: 3 };
        assert_eq!(HIDDEN.names(gguf, "qwen3"), ["qwen3.embedding_length"]);
        assert_eq!(HIDDEN.names(Kind::Ajc1, "qwen3"), ["dim"]);
        assert_eq!(EXPERTS.names(Kind::Safetensors, "qwen3_moe").len(), 5);
        assert!(EPS.names(Kind::Ajc1, "qwen3").is_empty());
        assert_eq!(THETA.names(Kind::Qorus, "llama"), ["rope_freq_base"]);
        assert!(TIED.names(gguf, "llama").is_empty());
    }
}
