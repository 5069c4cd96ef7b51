//! The names of tensors. Graphs use those of GGUF without `.weight`; a bias keeps its suffix.
//!
//! In: the name of a tensor in graphs. Out: the tensors of a file that it may be, may be a part of, or may be assembled
//! from.
//! Read next: `binding/mod.rs`, which looks for them.

use fusebox_runtime::weights::Kind;

/// The suffix of a bias.
pub const BIAS: &str = ".bias";

/// The tensors of a block, here and in safetensors.
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

/// The tensors outside of blocks, here and in safetensors.
const ENDS: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// Fused tensors, whose rows are those of several tensors.
const FUSED: [(&str, &[&str]); 3] = [
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_gate_up", &["ffn_gate", "ffn_up"]),
    ("ffn_gate_up_shexp", &["ffn_gate_shexp", "ffn_up_shexp"]),
];

/// Suffixes of tensors that some programs store although they follow from the hyper-parameters: the RoPE frequencies.
const REDUNDANT: [&str; 2] = [".self_attn.rotary_emb.inv_freq", ".attn_rot_embd.weight"];

/// A fused tensor that has rows of two others for every head.
const FUSED_PER_HEAD: [&str; 3] = ["attn_kv_b", "attn_k_b", "attn_v_b"];

/// The names of a tensor in a file of this kind, in order of preference; errors quote the first.
pub fn names(kind: Kind, name: &str) -> Vec<String> {
    match kind {
        Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => vec![with_suffix(name)],
        Kind::Safetensors => {
            let whole = safetensors_name(name);
            // A model without its head is published without this prefix, experts in one tensor without a suffix.
            let bare = whole.strip_prefix("model.").unwrap_or(&whole).to_owned();
            let mixtral = mixtral_name(&whole);
            let spelt =
                |name: String| [with_suffix(&name).replace("correction.bias", "correction_bias"), name];
            let mut names = [spelt(whole), spelt(bare)].concat();
            names.extend(mixtral.as_deref().map(with_suffix));
            names.dedup();
            names
        }
    }
}

/// The fused tensor that may hold the rows of this one, and all tensors whose rows it holds, in order.
pub fn fused(name: &str) -> Option<(String, Vec<String>)> {
    let (name, ending) = name.strip_suffix(BIAS).map_or((name, ""), |name| (name, BIAS));
    let (block, part) = name.rsplit_once('.')?;
    let (whole, parts) = FUSED.iter().find(|(_, parts)| parts.contains(&part))?;
    let full = |part: &str| format!("{block}.{part}{ending}");
    Some((full(whole), parts.iter().map(|part| full(part)).collect()))
}

/// The fused tensor that may hold this one's rows of every head, and the two tensors in it.
pub fn fused_per_head(name: &str) -> Option<(String, [String; 2])> {
    let (block, part) = name.rsplit_once('.')?;
    let [whole, first, second] = FUSED_PER_HEAD;
    let full = |part: &str| format!("{block}.{part}");
    [first, second].contains(&part).then(|| (full(whole), [full(first), full(second)]))
}

/// The tensors that may stand in for this one, or for a part of it, in a block.
pub fn alternatives(name: &str) -> Vec<String> {
    let Some((block, own)) = name.rsplit_once('.') else { return Vec::new() };
    let fused = FUSED.iter().find(|(whole, parts)| *whole == own || parts.contains(&own));
    let fused = fused.map_or(Vec::new(), |(whole, parts)| [&[*whole], *parts].concat());
    let fused_per_head = if FUSED_PER_HEAD.contains(&own) { FUSED_PER_HEAD.to_vec() } else { Vec::new() };
    fused.into_iter().chain(fused_per_head).map(|part| format!("{block}.{part}")).collect()
}

/// The names of this tensor's part for one expert, in files that store experts separately.
pub fn expert(kind: Kind, name: &str, expert: usize) -> Vec<String> {
    let safetensors_name = safetensors_name(name);
    let Some((before, part)) = safetensors_name.rsplit_once('.') else { return Vec::new() };
    if kind != Kind::Safetensors || !name.ends_with("_exps") {
        return Vec::new();
    }
    let own = format!("{before}.{expert}.{part}");
    let mixtral = mixtral_name(&own);
    [own].into_iter().chain(mixtral).map(|name| with_suffix(&name)).collect()
}

/// Mixtral's own name for a tensor of a block, where it has one.
fn mixtral_name(safetensors_name: &str) -> Option<String> {
    let (block, part) = safetensors_name.split_once(".mlp.")?;
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
    let prefixes = ["blk.", "model.layers.", "layers."];
    prefixes.iter().find_map(|prefix| name.strip_prefix(prefix))?.split('.').next()
}

/// Whether a tensor of a file can be ignored, as it follows from the hyper-parameters.
pub fn is_redundant(own: &str) -> bool {
    REDUNDANT.iter().any(|ending| own.ends_with(ending))
}

/// The tensors of a block.
pub fn parts() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|(own, _)| *own)
}

fn with_suffix(name: &str) -> String {
    if name.ends_with(BIAS) { name.to_owned() } else { format!("{name}.weight") }
}

fn safetensors_name(name: &str) -> String {
    let (name, ending) = name.strip_suffix(BIAS).map_or((name, ""), |name| (name, BIAS));
    let in_list = |list: &[(&str, &'static str)], own: &str| {
        list.iter().find(|(name, _)| *name == own).map(|(_, safetensors_name)| *safetensors_name)
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
    fn rows_of_some_tensors_may_be_fused_into_one() {
        let (whole, parts) = fused("blk.3.attn_k.bias").unwrap();
        assert_eq!(whole, "blk.3.attn_qkv.bias");
        assert_eq!(parts, ["blk.3.attn_q.bias", "blk.3.attn_k.bias", "blk.3.attn_v.bias"]);
        assert_eq!(fused("blk.3.ffn_up").unwrap().0, "blk.3.ffn_gate_up");
        assert!(fused("output").is_none() && fused("blk.3.ffn_down").is_none());
    }
}
