//! What the kinds of files call things.
//!
//! In: the kind of a checkpoint, and a key or a tensor by the name it has here. Out: the name it has there.
//! Graphs use the names of GGUF without their endings. Every name that a file has of its own stands in this file, and
//! nowhere else.

use fusebox_runtime::weights::Kind;

/// A fact about a model by its names.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// In GGUF, below the architecture.
    gguf: &'static str,
    /// In `config.json`, one of these.
    config: &'static [&'static str],
    /// In a qwen3.c checkpoint, where it has the fact.
    ajc1: Option<&'static str>,
}

const fn key(gguf: &'static str, config: &'static [&'static str], ajc1: Option<&'static str>) -> Key {
    Key { gguf, config, ajc1 }
}

/// The width of the residual stream.
pub const HIDDEN: Key = key("embedding_length", &["hidden_size"], Some("dim"));
/// How many blocks.
pub const LAYERS: Key = key("block_count", &["num_hidden_layers"], Some("n_layers"));
/// How many different tokens.
pub const VOCAB: Key = key("vocab_size", &["vocab_size"], Some("vocab_size"));
/// The most positions.
pub const CONTEXT: Key = key("context_length", &["max_position_embeddings"], Some("max_seq_len"));
/// Query heads.
pub const HEADS: Key = key("attention.head_count", &["num_attention_heads"], Some("n_heads"));
/// Key and value heads.
pub const KV_HEADS: Key = key("attention.head_count_kv", &["num_key_value_heads"], Some("n_kv_heads"));
/// The width of a head.
pub const HEAD: Key = key("attention.key_length", &["head_dim"], Some("head_dim"));
/// The inner width of a dense block.
pub const FF: Key = key("feed_forward_length", &["intermediate_size"], Some("hidden_dim"));
/// What keeps a norm from dividing by zero.
pub const EPS: Key = key("attention.layer_norm_rms_epsilon", &["rms_norm_eps"], None);
/// How much slower the slowest pair turns than the fastest.
pub const THETA: Key = key("rope.freq_base", &["rope_theta", "rope_parameters.rope_theta"], None);
/// How positions are stretched to longer texts.
pub const SCALING: Key = key(
    "rope.scaling.type",
    &["rope_scaling.rope_type", "rope_scaling.type", "rope_parameters.rope_type"],
    None,
);
/// Whether the head is the token table.
pub const TIED: Key = key("tie_word_embeddings", &["tie_word_embeddings"], None);

impl Key {
    /// The names that a file of this kind may have for it; the first is the one to ask its author for.
    pub fn names(self, kind: Kind, architecture: &str) -> Vec<String> {
        match kind {
            Kind::Gguf { .. } => vec![format!("{architecture}.{}", self.gguf)],
            Kind::Safetensors => self.config.iter().map(|name| (*name).to_owned()).collect(),
            Kind::Ajc1 => self.ajc1.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// The parts of a block, here and in safetensors.
const PARTS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The name of a tensor in a file of this kind.
pub fn tensor(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Gguf { .. } | Kind::Ajc1 => format!("{name}.weight"),
        Kind::Safetensors => format!("{}.weight", published(name)),
    }
}

fn published(name: &str) -> String {
    let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    if let Some((layer, part)) = block {
        let found = PARTS.iter().find(|(own, _)| *own == part);
        return format!("model.layers.{layer}.{}", found.map_or(part, |(_, published)| published));
    }
    match name {
        "token_embd" => "model.embed_tokens",
        "output_norm" => "model.norm",
        "output" => "lm_head",
        other => other,
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_names() {
        let gguf = Kind::Gguf { version: 3 };
        assert_eq!(tensor(gguf, "blk.7.attn_q"), "blk.7.attn_q.weight");
        assert_eq!(tensor(Kind::Safetensors, "blk.7.attn_q"), "model.layers.7.self_attn.q_proj.weight");
        assert_eq!(tensor(Kind::Safetensors, "output"), "lm_head.weight");
        assert_eq!(HIDDEN.names(gguf, "qwen3"), ["qwen3.embedding_length"]);
        assert_eq!(HIDDEN.names(Kind::Ajc1, "qwen3"), ["dim"]);
        assert!(EPS.names(Kind::Ajc1, "qwen3").is_empty());
    }
}
