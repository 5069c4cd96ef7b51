//! The names of tensors. Graphs use those of GGUF without `.weight`; a bias keeps its ending.
//!
//! In: the name of a tensor in graphs. Out: the names of the tensors of a file that it may be, may be a part of, or
//! may be made of.
//! Read next: `binding/mod.rs`, which looks for them.

use fusebox_runtime::weights::Kind;

/// What stands behind the name of a bias.
pub const BIAS: &str = ".bias";

/// The parts of a block, here and in safetensors.
const PARTS: [(&str, &str); 29] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_gate_up_shexp", "mlp.shared_experts.gate_up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
];

/// The ends of a model, here and in safetensors.
const ENDS: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Tensors whose rows follow each other in one.
const JOINED: [(&str, &[&str]); 3] = [
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_gate_up", &["ffn_gate", "ffn_up"]),
    ("ffn_gate_up_shexp", &["ffn_gate_shexp", "ffn_up_shexp"]),
];

/// How the names of tensors end that some programs store: the speeds of pairs, which follow from the sizes.
const NEEDLESS: [&str; 2] = [".self_attn.rotary_emb.inv_freq", ".attn_rot_embd.weight"];

/// A tensor with rows of two for every head.
const HALVES: [&str; 3] = ["attn_kv_b", "attn_k_b", "attn_v_b"];

/// The names that a tensor may have in a file of this kind; the first is the one to ask its author for.
pub fn names(kind: Kind, name: &str) -> Vec<String> {
    match kind {
        Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => vec![ended(name)],
        Kind::Safetensors => {
            let whole = published(name);
            // A model without its head is published without this prefix, experts in one tensor without an ending.
            let bare = whole.strip_prefix("model.").unwrap_or(&whole).to_owned();
            let mixtral = in_mixtral(&whole);
            let spelt = |name: String| [ended(&name).replace("correction.bias", "correction_bias"), name];
            let mut names = [spelt(whole), spelt(bare)].concat();
            names.extend(mixtral.as_deref().map(ended));
            names.dedup();
            names
        }
    }
}

/// The tensor that may hold the rows of this one, and all whose rows it holds, in order.
pub fn joined(name: &str) -> Option<(String, Vec<String>)> {
    let (name, ending) = name.strip_suffix(BIAS).map_or((name, ""), |name| (name, BIAS));
    let (block, part) = name.rsplit_once('.')?;
    let (whole, parts) = JOINED.iter().find(|(_, parts)| parts.contains(&part))?;
    let full = |part: &str| format!("{block}.{part}{ending}");
    Some((full(whole), parts.iter().map(|part| full(part)).collect()))
}

/// The tensor that may hold this one's half of the rows of every head, and both halves.
pub fn halves(name: &str) -> Option<(String, [String; 2])> {
    let (block, part) = name.rsplit_once('.')?;
    let [whole, first, second] = HALVES;
    let full = |part: &str| format!("{block}.{part}");
    [first, second].contains(&part).then(|| (full(whole), [full(first), full(second)]))
}

/// The tensors that may stand for this one, or a part of it, in a block.
pub fn kin(name: &str) -> Vec<String> {
    let Some((block, own)) = name.rsplit_once('.') else { return Vec::new() };
    let joined = JOINED.iter().find(|(whole, parts)| *whole == own || parts.contains(&own));
    let joined = joined.map_or(Vec::new(), |(whole, parts)| [&[*whole], *parts].concat());
    let halves = if HALVES.contains(&own) { HALVES.to_vec() } else { Vec::new() };
    joined.into_iter().chain(halves).map(|part| format!("{block}.{part}")).collect()
}

/// The names that one expert's part of a tensor may have in files that keep experts apart.
pub fn expert(kind: Kind, name: &str, expert: usize) -> Vec<String> {
    let published = published(name);
    let Some((before, part)) = published.rsplit_once('.') else { return Vec::new() };
    if kind != Kind::Safetensors || !name.ends_with("_exps") {
        return Vec::new();
    }
    let own = format!("{before}.{expert}.{part}");
    let mixtral = in_mixtral(&own);
    [own].into_iter().chain(mixtral).map(|name| ended(&name)).collect()
}

/// The name that Mixtral has for a part of a block, where it has its own.
fn in_mixtral(published: &str) -> Option<String> {
    let (block, part) = published.split_once(".mlp.")?;
    let own = match part.strip_prefix("experts.").and_then(|part| part.split_once('.')) {
        None if part == "gate" => "gate".to_owned(),
        Some((expert, "gate_proj")) => format!("experts.{expert}.w1"),
        Some((expert, "down_proj")) => format!("experts.{expert}.w2"),
        Some((expert, "up_proj")) => format!("experts.{expert}.w3"),
        Some(_) | None => return None,
    };
    Some(format!("{block}.block_sparse_moe.{own}"))
}

/// The block that a tensor belongs to, by its name in graphs or in a file.
pub fn block_of(name: &str) -> Option<&str> {
    let beginnings = ["blk.", "model.layers.", "layers."];
    beginnings.iter().find_map(|beginning| name.strip_prefix(beginning))?.split('.').next()
}

/// Whether a tensor of a file says nothing that the model does not say otherwise.
pub fn is_needless(own: &str) -> bool {
    NEEDLESS.iter().any(|ending| own.ends_with(ending))
}

/// The parts of a block.
pub fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(own, _)| *own)
}

fn ended(name: &str) -> String {
    if name.ends_with(BIAS) { name.to_owned() } else { format!("{name}.weight") }
}

fn published(name: &str) -> String {
    let (name, ending) = name.strip_suffix(BIAS).map_or((name, ""), |name| (name, BIAS));
    let in_list = |list: &[(&str, &'static str)], own: &str| {
        list.iter().find(|(name, _)| *name == own).map(|(_, published)| *published)
    };
    match name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, part)) => {
            format!("model.layers.{layer}.{}{ending}", in_list(&PARTS, part).unwrap_or(part))
        }
        None => format!("{}{ending}", in_list(&ENDS, name).unwrap_or(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GGUF: Kind = Kind::Gguf { version: 3 };
    const FOLDER: Kind = Kind::Safetensors;

    #[test]
    fn each_kind_has_its_own_names() {
        assert_eq!(names(GGUF, "blk.7.attn_q"), ["blk.7.attn_q.weight"]);
        assert_eq!(names(GGUF, "blk.7.attn_q.bias"), ["blk.7.attn_q.bias"]);
        assert_eq!(names(FOLDER, "blk.7.attn_q")[0], "model.layers.7.self_attn.q_proj.weight");
        assert_eq!(names(FOLDER, "blk.7.attn_q.bias")[0], "model.layers.7.self_attn.q_proj.bias");
        assert_eq!(names(FOLDER, "output")[0], "lm_head.weight");
    }

    #[test]
    fn published_names_have_variants() {
        assert!(names(FOLDER, "blk.0.attn_norm").contains(&"layers.0.input_layernorm.weight".to_owned()));
        let down = "model.layers.0.mlp.experts.down_proj".to_owned();
        assert!(names(FOLDER, "blk.0.ffn_down_exps").contains(&down));
        assert_eq!(
            names(FOLDER, "blk.1.exp_probs_b.bias")[0],
            "model.layers.1.mlp.gate.e_score_correction_bias"
        );
        let one = expert(FOLDER, "blk.0.ffn_up_exps", 12);
        let mixtral = "model.layers.0.block_sparse_moe.experts.12.w3.weight";
        assert_eq!(one, ["model.layers.0.mlp.experts.12.up_proj.weight", mixtral]);
        assert!(expert(GGUF, "blk.0.ffn_up_exps", 0).is_empty());
        assert!(expert(FOLDER, "blk.0.ffn_up", 0).is_empty());
        let router = "model.layers.0.block_sparse_moe.gate.weight".to_owned();
        assert!(names(FOLDER, "blk.0.ffn_gate_inp").contains(&router));
    }

    #[test]
    fn rows_of_some_tensors_may_lie_in_another() {
        let (whole, parts) = joined("blk.3.attn_k.bias").unwrap();
        assert_eq!(whole, "blk.3.attn_qkv.bias");
        assert_eq!(parts, ["blk.3.attn_q.bias", "blk.3.attn_k.bias", "blk.3.attn_v.bias"]);
        assert_eq!(joined("blk.3.ffn_up").unwrap().0, "blk.3.ffn_gate_up");
        assert!(joined("output").is_none() && joined("blk.3.ffn_down").is_none());
    }
}
