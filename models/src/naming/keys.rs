//! The names of facts: in GGUF below the architecture, in `config.json`, in the header of a qwen3.c checkpoint
//! or of a Qorus file.
//!
//! In: a [`Key`] and the kind of a file. Out: the names that the fact may have there, none where it has no such fact;
//! and what `config.json` means where it does not say.
//! What a fact means, and what is accepted, is up to who asks for it: `facts.rs` and `families/`.

use fusebox_runtime::weights::Kind;
use fusebox_runtime::weights::value::Value;

/// A fact about a model by its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    /// In GGUF, below the architecture, where it has the fact.
    gguf: Option<&'static str>,
    /// In old GGUF files, where it had another name.
    old: Option<&'static str>,
    /// In `config.json`, one of these.
    config: &'static [&'static str],
    /// In a qwen3.c checkpoint, where it has the fact.
    ajc1: Option<&'static str>,
    /// In a Qorus file, where it has the fact.
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

    /// The names that a file of this kind may have for it; the first is the one that counts, and to ask its author for.
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

/// The width of the residual stream.
pub(crate) const HIDDEN: Key = key("embedding_length", &["hidden_size"]).ajc1("dim").qorus("dim");
/// How many blocks.
pub(crate) const LAYERS: Key = key("block_count", &["num_hidden_layers"]).ajc1("n_layers").qorus("n_layers");
/// How many of the blocks in the count predict further tokens; they are not used.
pub(crate) const EXTRA_LAYERS: Key = key("nextn_predict_layers", &[]);
/// How many blocks behind those in the count predict further tokens; they are not used.
pub(crate) const MORE_LAYERS: Key = config(&["num_nextn_predict_layers"]);
/// How many different tokens.
pub(crate) const VOCAB: Key = key("vocab_size", &["vocab_size"]).ajc1("vocab_size").qorus("vocab_size");
/// The most positions.
pub(crate) const CONTEXT: Key =
    key("context_length", &["max_position_embeddings"]).ajc1("max_seq_len").qorus("max_seq_len");
/// The inner width of a dense block.
pub(crate) const FF: Key =
    key("feed_forward_length", &["intermediate_size"]).ajc1("hidden_dim").qorus("hidden_dim");
/// What keeps a norm from dividing by zero.
pub(crate) const EPS: Key = key("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]).qorus("rms_norm_eps");
/// Whether the head is the token table.
pub(crate) const TIED: Key = config(&["tie_word_embeddings"]);
/// The function of a feed-forward network.
pub(crate) const ACTIVATION: Key = config(&["hidden_act", "hidden_activation"]);

/// Query heads.
pub(crate) const HEADS: Key =
    key("attention.head_count", &["num_attention_heads"]).ajc1("n_heads").qorus("n_heads");
/// Key and value heads.
pub(crate) const KV_HEADS: Key =
    key("attention.head_count_kv", &["num_key_value_heads"]).ajc1("n_kv_heads").qorus("n_kv_heads");
/// The width of a head.
pub(crate) const HEAD: Key = key("attention.key_length", &["head_dim"]).ajc1("head_dim");
/// The width of a value.
pub(crate) const VALUE: Key = key("attention.value_length", &[]);
/// How many positions a token sees, its own included.
pub(crate) const WINDOW: Key = key("attention.sliding_window", &["sliding_window"]);
/// Whether it has such a window at all.
pub(crate) const WINDOW_USED: Key = config(&["use_sliding_window"]);
/// How many blocks at the start have none.
pub(crate) const WINDOW_FROM: Key = config(&["max_window_layers"]);
/// Whether no token sees what follows it.
pub(crate) const CAUSAL: Key = key("attention.causal", &["is_causal"]);
/// How much sharper scores get with the position.
pub(crate) const TEMPERATURE: Key = key("attention.temperature_scale", &[]);
/// Which blocks have one: a truth for each, or after how many blocks the next has none.
pub(crate) const WINDOW_PATTERN: Key = key("attention.sliding_window_pattern", &[]);
/// What each block sees.
pub(crate) const LAYER_TYPES: Key = config(&["layer_types"]);

/// The width queries are squeezed through.
pub(crate) const Q_LORA: Key = key("attention.q_lora_rank", &["q_lora_rank"]);
/// The width keys and values are squeezed through.
pub(crate) const KV_LORA: Key = key("attention.kv_lora_rank", &["kv_lora_rank"]);
/// The width of a key, in files that also tell that of the latent.
pub(crate) const KEY_MLA: Key = key("attention.key_length_mla", &[]);
/// The width of a value, in files that also tell that of the latent.
pub(crate) const VALUE_MLA: Key = key("attention.value_length_mla", &["v_head_dim"]);
/// The part of a key that does not know its position.
pub(crate) const NOPE: Key = config(&["qk_nope_head_dim"]);
/// The elements of a head that are turned.
pub(crate) const TURNED: Key = key("rope.dimension_count", &["qk_rope_head_dim"]);
/// The part of a head that is turned.
pub(crate) const TURNED_PART: Key =
    config(&["rope_parameters.partial_rotary_factor", "partial_rotary_factor"]);
/// Whether neighbours are turned together.
pub(crate) const INTERLEAVED: Key = config(&["rope_interleave"]);

/// How much slower the slowest pair turns than the fastest.
pub(crate) const THETA: Key =
    key("rope.freq_base", &["rope_scaling.rope_theta", "rope_parameters.rope_theta", "rope_theta"])
        .qorus("rope_freq_base");
/// How positions are stretched to longer texts.
pub(crate) const SCALING: Key = key(
    "rope.scaling.type",
    &["rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type", "rope_parameters.type"],
);
/// The object with all that; where there are two, they say the same.
pub(crate) const SCALING_ITSELF: Key = config(&["rope_scaling", "rope_parameters"]);
/// How much longer.
pub(crate) const STRETCH: Key =
    key("rope.scaling.factor", &["rope_scaling.factor", "rope_parameters.factor"]).old("rope.scale_linear");
/// The length first trained on.
pub(crate) const ORIGINAL: Key = key(
    "rope.scaling.original_context_length",
    &[
        "rope_scaling.original_max_position_embeddings",
        "rope_parameters.original_max_position_embeddings",
        "original_max_position_embeddings",
    ],
);
/// Pairs with fewer turns in an original text are slow.
pub(crate) const LOW: Key = config(&["rope_scaling.low_freq_factor", "rope_parameters.low_freq_factor"]);
/// Pairs with more are fast.
pub(crate) const HIGH: Key = config(&["rope_scaling.high_freq_factor", "rope_parameters.high_freq_factor"]);
/// Pairs with more turns in an original text are fast.
pub(crate) const BETA_FAST: Key =
    key("rope.scaling.yarn_beta_fast", &["rope_scaling.beta_fast", "rope_parameters.beta_fast"]);
/// Pairs with fewer are slow.
pub(crate) const BETA_SLOW: Key =
    key("rope.scaling.yarn_beta_slow", &["rope_scaling.beta_slow", "rope_parameters.beta_slow"]);
/// Whether the first and the last of the pairs between are whole numbers.
pub(crate) const TRUNCATE: Key = config(&["rope_scaling.truncate", "rope_parameters.truncate"]);
/// What turned queries and keys are multiplied by.
pub(crate) const MAGNITUDE: Key =
    key("rope.scaling.attn_factor", &["rope_scaling.attention_factor", "rope_parameters.attention_factor"]);
/// How strongly turned queries and keys are magnified.
pub(crate) const MSCALE: Key = config(&["rope_scaling.mscale", "rope_parameters.mscale"]);
/// How strongly scores are sharpened; GGUF has a tenth of it.
pub(crate) const MSCALE_ALL: Key = key(
    "rope.scaling.yarn_log_multiplier",
    &["rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"],
);

/// How many experts a block has.
pub(crate) const EXPERTS: Key =
    key("expert_count", &["num_experts", "n_routed_experts", "num_local_experts"]);
/// How many of them a token uses.
pub(crate) const EXPERTS_USED: Key = key("expert_used_count", &["num_experts_per_tok"]);
/// How many more every token uses.
pub(crate) const EXPERTS_SHARED: Key = key("expert_shared_count", &["n_shared_experts"]);
/// The inner width of one.
pub(crate) const EXPERT_FF: Key = key("expert_feed_forward_length", &["moe_intermediate_size"]);
/// How many groups they come in.
pub(crate) const GROUPS: Key = key("expert_group_count", &["n_group"]);
/// Of how many groups a token uses experts.
pub(crate) const GROUPS_USED: Key = key("expert_group_used_count", &["topk_group"]);
/// How experts are selected.
pub(crate) const SELECTION: Key = config(&["topk_method"]);
/// How a router's outputs become weights.
pub(crate) const GATE: Key = key("expert_gating_func", &["scoring_func"]);
/// Whether the weights of the selected add up to one.
pub(crate) const RENORM: Key = key("expert_weights_norm", &["norm_topk_prob"]);
/// What the weights are multiplied by in the end.
pub(crate) const WEIGHT_SCALE: Key = key("expert_weights_scale", &["routed_scaling_factor"]);

/// What `config.json` of an architecture means where it does not have a name, not even with null; all others have one
/// meaning everywhere.
static DEFAULTS: [(&str, &str, Value); 13] = [
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
];

/// What `config.json` of an architecture means where it has none of these names.
pub(crate) fn default(architecture: &str, names: &[String]) -> Option<&'static Value> {
    let is_meant = |own: &str, name: &str| own == architecture && names.iter().any(|known| known == name);
    DEFAULTS.iter().find(|(own, name, _)| is_meant(own, name)).map(|(.., value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_names() {
        let gguf = Kind::Gguf { version: 3 };
        assert_eq!(HIDDEN.names(gguf, "qwen3"), ["qwen3.embedding_length"]);
        assert_eq!(HIDDEN.names(Kind::Ajc1, "qwen3"), ["dim"]);
        assert_eq!(EXPERTS.names(Kind::Safetensors, "qwen3_moe").len(), 3);
        assert!(EPS.names(Kind::Ajc1, "qwen3").is_empty());
        assert_eq!(THETA.names(Kind::Qorus, "llama"), ["rope_freq_base"]);
        assert!(TIED.names(gguf, "llama").is_empty());
    }
}
