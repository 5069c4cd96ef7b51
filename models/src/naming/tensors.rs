//! The names of tensors. Graphs use those of GGUF without `.weight`; a bias keeps its suffix.
//!
//! In: the name of a tensor in graphs. Out: the tensors of a file that it may be, may be a part of, or may be assembled
//! from. Most families share the names below; a family lists those that it has otherwise, and how they are stored.
//! Read next: `binding/mod.rs`, which looks for them.

use fusebox_runtime::weights::Kind;

/// The suffix of a bias.
pub const BIAS: &str = ".bias";

/// The suffix of the first matrix that an adapter adds to a projection, from its input.
pub const LORA_A: &str = ".lora_a";
/// The suffix of the second, to its output.
pub const LORA_B: &str = ".lora_b";

/// The same of adapters that a sequence chooses from.
pub const CHOICE_A: &str = ".choice_a";
/// The second of them.
pub const CHOICE_B: &str = ".choice_b";

/// What the names of matrices end in that all experts have together.
pub const EXPERTS: &str = "_exps";

/// What a control vector adds to the result of a block.
pub const DIRECTION: &str = "direction";

/// The tensors of a block, here and in safetensors.
const PARTS: [(&str, &str); 59] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sinks", "self_attn.sinks"),
    ("attn_gate", "self_attn.gate_proj"),
    ("attn_sub_norm", "self_attn.attn_sub_norm"),
    ("ffn_sub_norm", "mlp.ffn_sub_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_post_norm", "post_self_attn_layernorm"),
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("ssm_in", "mamba.in_proj"),
    ("ssm_gate", "linear_attn.in_proj_z"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_ba", "linear_attn.in_proj_ba"),
    ("ssm_conv1d", "mamba.conv1d"),
    ("ssm_dt", "mamba.dt"),
    ("ssm_a", "mamba.A_log"),
    ("ssm_d", "mamba.D"),
    ("ssm_norm", "mamba.norm"),
    ("ssm_out", "mamba.out_proj"),
    ("shortconv.conv", "conv.conv"),
    ("shortconv.in_proj", "conv.in_proj"),
    ("shortconv.out_proj", "conv.out_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_post_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_gate_up_shexp", "mlp.shared_experts.gate_up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_gate_up_exps", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("exp_probs_b", "mlp.gate.e_score_correction"),
    ("inp_gate", "per_layer_input_gate"),
    ("proj", "per_layer_projection"),
    ("post_norm", "post_per_layer_input_norm"),
    ("layer_output_scale", "layer_scalar"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
    ("ffn_gate_inp.scale", "router.scale"),
    ("ffn_down_exps.scale", "router.per_expert_scale"),
];

/// The tensors outside of blocks, here and in safetensors.
const ENDS: [(&str, &str); 7] = [
    ("token_embd", "model.embed_tokens"),
    ("token_embd_norm", "model.embeddings.norm"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    ("per_layer_token_embd", "model.embed_tokens_per_layer"),
    ("per_layer_model_proj", "model.per_layer_model_projection"),
    ("per_layer_proj_norm", "model.per_layer_projection_norm"),
];

/// The projections of an embedding model behind the final norm.
pub const PROJECTIONS: [&str; 2] = ["dense_2", "dense_3"];

/// What the names of encoders and of older decoders in safetensors begin with, and stands for the number of a block in
/// them.
const ENCODER_PREFIXES: [&str; 4] = ["", "bert.", "roberta.", "transformer."];
const LAYER: &str = "{}";
const OTHER_LAYERS: [&str; 3] = ["encoder.layer.", "h.", "blocks."];

/// What the names in safetensors begin with: with the head, without it, as the text part of a multimodal model in two
/// ways, in Nemotron-H, and in older decoders in two ways.
const PREFIXES: [&str; 7] = [
    "model.",
    "",
    "model.language_model.",
    "language_model.model.",
    "backbone.",
    "transformer.",
    "gpt_neox.",
];

/// Fused tensors, whose rows are those of several tensors.
const FUSED: [(&str, &[&str]); 3] = [
    ("attn_qkv", &["attn_q", "attn_k", "attn_v"]),
    ("ffn_gate_up", &["ffn_gate", "ffn_up"]),
    ("ffn_gate_up_shexp", &["ffn_gate_shexp", "ffn_up_shexp"]),
];

/// Suffixes of tensors that no graph has: RoPE frequencies and masks, which follow from the hyper-parameters, and the
/// numbers of an activation, which are hyper-parameters.
const REDUNDANT: [&str; 11] = [
    ".self_attn.rotary_emb.inv_freq",
    ".attention.rotary_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn_rot_embd.weight",
    ".mlp.act_fn.alpha_p",
    ".mlp.act_fn.alpha_n",
    ".mlp.act_fn.beta",
    ".mlp.act_fn.eps",
];

/// What the names of tensors end in that have no suffix in GGUF.
const BARE: [&str; 3] = [".ssm_a", ".ssm_d", ".scale"];

/// A fused tensor that has rows of two others for every head.
const FUSED_PER_HEAD: [&str; 3] = ["attn_kv_b", "attn_k_b", "attn_v_b"];

/// A tensor that a family names or stores otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Its name in graphs, without the block.
    pub own: &'static str,
    /// Its name in GGUF, if another; empty where GGUF has no such tensor.
    pub gguf: Option<&'static str>,
    /// Its name in safetensors, if another, below the block; without `model.` where it is of no block.
    pub folder: Option<&'static str>,
    /// How it is stored in safetensors.
    pub how: How,
}

/// How safetensors store a tensor that GGUF stores as graphs want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The same.
    Same,
    /// Less 1: norms of Gemma and Qwen3-Next.
    LessOne,
    /// As the logarithm of its negative: decays.
    LogOfNegative,
    /// Experts with inputs before outputs; of `of` interleaved or consecutive parts of the outputs, part `part`.
    Transposed {
        /// Which part.
        part: usize,
        /// Of how many.
        of: usize,
        /// Whether outputs of the parts alternate.
        is_interleaved: bool,
    },
    /// Rows of a matrix with parts for each key head, of Qwen3-Next: queries, keys, values or gates.
    PerKeyHead(Part),
    /// Rows of a matrix with the queries, the key and the value of each key head: these.
    Beside(Qkv),
    /// A matrix with inputs before outputs (GPT-2); of `of` parts of the outputs, part `part`.
    Columns {
        /// Which part.
        part: usize,
        /// Of how many.
        of: usize,
    },
}

/// What is interleaved by key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qkv {
    /// Its queries.
    Queries,
    /// Its key.
    Key,
    /// Its value.
    Value,
}

/// The parts that Qwen3-Next stores for each key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Queries, keys and values: all queries first.
    Mixed,
    /// Output gates.
    Gate,
}

/// A tensor that is named otherwise in both kinds of files.
pub const fn renamed(own: &'static str, gguf: &'static str, folder: &'static str) -> Renamed {
    Renamed { own, gguf: Some(gguf), folder: Some(folder), how: How::Same }
}

/// A tensor that is named otherwise in GGUF.
pub const fn in_gguf(own: &'static str, gguf: &'static str) -> Renamed {
    Renamed { own, gguf: Some(gguf), folder: None, how: How::Same }
}

/// A tensor that is named otherwise in safetensors.
pub const fn in_folder(own: &'static str, folder: &'static str) -> Renamed {
    Renamed { own, gguf: None, folder: Some(folder), how: How::Same }
}

impl Renamed {
    /// The same, stored in another way in safetensors.
    #[must_use]
    pub const fn how(self, how: How) -> Self {
        Self { how, ..self }
    }
}

/// The names of tensors in a kind of file, for a family.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The kind of file.
    pub kind: Kind,
    /// What the family has otherwise.
    pub renamed: &'static [&'static [Renamed]],
}

impl Names {
    /// The names that most families share.
    pub fn common(kind: Kind) -> Self {
        Self { kind, renamed: &[] }
    }

    /// The names of a tensor, in order of preference; errors quote the first.
    pub fn of(self, name: &str) -> Vec<String> {
        if self.kind == Kind::Safetensors {
            let mut names: Vec<String> = Vec::new();
            for whole in self.in_folder(name) {
                names.extend(spelt(&whole));
                names.extend(mixtral_name(&whole).into_iter().flat_map(|name| spelt(&name)));
            }
            return names;
        }
        let (block, part, ending) = split(name);
        let all: Vec<&str> = self.entries(part).filter_map(|entry| entry.gguf).collect();
        match &all[..] {
            [] => spelt(name),
            all => {
                let all = all.iter().filter(|own| !own.is_empty());
                all.flat_map(|own| spelt(&format!("{block}{own}{ending}"))).collect()
            }
        }
    }

    /// The name of a tensor in a new GGUF file; none where such a file has it as rows of a fused one.
    pub(crate) fn written(self, name: &str) -> Option<String> {
        let own = self.of(name).into_iter().next()?;
        let bare = own.strip_suffix(".weight").filter(|own| BARE.iter().any(|ending| own.ends_with(ending)));
        Some(bare.map_or_else(|| own.clone(), str::to_owned))
    }

    /// How the file stores a tensor.
    pub(crate) fn how(self, name: &str) -> How {
        let (_, part, ending) = split(name);
        // A bias is stored as it is, where only the numbers of a weight are other ones.
        let is_kept = |how: &How| ending == BIAS && matches!(how, How::LessOne | How::LogOfNegative);
        let mut hows = self.entries(part).map(|entry| entry.how).filter(|how| !is_kept(how));
        match self.kind {
            Kind::Safetensors => hows.find(|how| *how != How::Same).unwrap_or(How::Same),
            Kind::Gguf { .. } | Kind::Ajc1 | Kind::Qorus => How::Same,
        }
    }

    /// The names of this tensor's part for one expert, in files that store experts separately.
    pub fn expert(self, name: &str, expert: usize) -> Vec<String> {
        if self.kind != Kind::Safetensors || !name.ends_with(EXPERTS) {
            return Vec::new();
        }
        let one = |whole: String| {
            let (before, part) = whole.rsplit_once('.')?;
            let own = format!("{before}.{expert}.{part}");
            let mixtral = mixtral_name(&own);
            Some([own].into_iter().chain(mixtral).map(|name| with_suffix(&name)))
        };
        self.in_folder(name).into_iter().filter_map(one).flatten().collect()
    }

    fn entries(self, part: &str) -> impl Iterator<Item = &'static Renamed> + use<'_> {
        self.renamed.iter().copied().flatten().filter(move |entry| entry.own == part)
    }

    /// The names in safetensors without a suffix, with every prefix.
    fn in_folder(self, name: &str) -> Vec<String> {
        let (block, part, ending) = split(name);
        let entries: Vec<&'static str> = self.entries(part).filter_map(|entry| entry.folder).collect();
        if entries.first() == Some(&"") {
            return Vec::new();
        }
        let in_list = |list: &[(&'static str, &'static str)]| {
            list.iter().find(|(own, _)| *own == part).map(|(_, folder)| *folder)
        };
        if block.is_empty() {
            let common = in_list(&ENDS).map_or(part, |own| own.strip_prefix("model.").unwrap_or(own));
            let all = if entries.is_empty() { vec![common] } else { entries };
            let named = |own: &str| -> Vec<String> {
                let prefixes: Vec<&str> = match own {
                    // Heads are outside of the model.
                    "lm_head" => ["", "language_model."].into(),
                    _ if ["embeddings.", "pooler."].iter().any(|start| own.starts_with(start)) => {
                        ENCODER_PREFIXES.iter().chain(&PREFIXES).copied().collect()
                    }
                    _ => PREFIXES.into(),
                };
                prefixes.iter().map(|prefix| format!("{prefix}{own}{ending}")).collect()
            };
            return all.into_iter().flat_map(named).collect();
        }
        let layer = block.trim_start_matches("blk.").trim_end_matches('.');
        let whole: Vec<_> = entries.iter().filter(|own| own.contains(LAYER)).collect();
        if !whole.is_empty() {
            let named = |own: &&&str| {
                let own = own.replace(LAYER, layer);
                ENCODER_PREFIXES.map(|prefix| format!("{prefix}{own}{ending}"))
            };
            return whole.iter().flat_map(named).collect();
        }
        let own = entries.first().copied().or(in_list(&PARTS)).unwrap_or(part);
        // MLX has another name for all experts together.
        let mlx = own.contains("mlp.experts.").then(|| own.replace("mlp.experts.", "mlp.switch_mlp."));
        let all = [Some(own), mlx.as_deref()].into_iter().flatten();
        all.flat_map(|own| PREFIXES.map(|prefix| format!("{prefix}layers.{layer}.{own}{ending}"))).collect()
    }
}

/// A name in graphs as its block with a dot, the rest, and the suffix of a bias.
fn split(name: &str) -> (&str, &str, &str) {
    let (whole, ending) = name.strip_suffix(BIAS).map_or((name, ""), |name| (name, BIAS));
    let block =
        whole.strip_prefix("blk.").and_then(|rest| rest.find('.')).map_or(0, |at| "blk.".len() + at + 1);
    (&whole[..block], &whole[block..], ending)
}

/// With a suffix and without, as experts in one tensor have none, and some biases another.
fn spelt(name: &str) -> Vec<String> {
    match name.strip_suffix(BIAS) {
        Some(own) if own.ends_with("correction") => vec![format!("{own}_bias"), name.to_owned()],
        // GGUF of some families has no ending for this one.
        Some(own) if own.ends_with("exp_probs_b") => vec![name.to_owned(), own.to_owned()],
        Some(own) => vec![name.to_owned(), format!("{own}_bias")],
        None => vec![with_suffix(name), name.to_owned()],
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
    let graph = name.strip_prefix("blk.");
    let mut folder = PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix)?.strip_prefix("layers."));
    let mut other = ENCODER_PREFIXES
        .iter()
        .filter_map(|prefix| name.strip_prefix(prefix))
        .flat_map(|own| OTHER_LAYERS.iter().filter_map(move |layers| own.strip_prefix(layers)));
    graph.or_else(|| folder.next()).or_else(|| other.next())?.split('.').next()
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

#[cfg(test)]
mod tests {
    use super::*;

    const GGUF: Names = Names { kind: Kind::Gguf { version: 3 }, renamed: &[] };
    const FOLDER: Names = Names { kind: Kind::Safetensors, renamed: &[] };

    #[test]
    fn each_kind_has_its_own_names() {
        assert_eq!(GGUF.of("blk.7.attn_q")[0], "blk.7.attn_q.weight");
        assert!(GGUF.of("blk.7.attn_q.bias").contains(&"blk.7.attn_q.bias".to_owned()));
        assert_eq!(FOLDER.of("blk.7.attn_q")[0], "model.layers.7.self_attn.q_proj.weight");
        let bias = "model.layers.7.self_attn.q_proj.bias".to_owned();
        assert!(FOLDER.of("blk.7.attn_q.bias").contains(&bias));
        assert_eq!(FOLDER.of("output")[0], "lm_head.weight");
    }

    #[test]
    fn published_names_have_variants() {
        assert!(FOLDER.of("blk.0.attn_norm").contains(&"layers.0.input_layernorm.weight".to_owned()));
        let nested = "model.language_model.layers.0.input_layernorm.weight".to_owned();
        assert!(FOLDER.of("blk.0.attn_norm").contains(&nested));
        assert_eq!(block_of(&nested), Some("0"));
        let down = "model.layers.0.mlp.experts.down_proj".to_owned();
        assert!(FOLDER.of("blk.0.ffn_down_exps").contains(&down));
        assert_eq!(FOLDER.of("blk.1.exp_probs_b.bias")[0], "model.layers.1.mlp.gate.e_score_correction_bias");
        let one = FOLDER.expert("blk.0.ffn_up_exps", 12);
        let mixtral = "model.layers.0.block_sparse_moe.experts.12.w3.weight";
        assert_eq!(one[..2], ["model.layers.0.mlp.experts.12.up_proj.weight", mixtral]);
        assert!(GGUF.expert("blk.0.ffn_up_exps", 0).is_empty());
        assert!(FOLDER.expert("blk.0.ffn_up", 0).is_empty());
        let router = "model.layers.0.block_sparse_moe.gate.weight".to_owned();
        assert!(FOLDER.of("blk.0.ffn_gate_inp").contains(&router));
    }

    #[test]
    fn a_family_has_its_own_names_and_no_others() {
        const OWN: &[&[Renamed]] = &[&[
            renamed("ffn_norm", "post_attention_norm", "pre_feedforward_layernorm"),
            in_gguf("ffn_up", ""),
        ]];
        let gguf = Names { renamed: OWN, ..GGUF };
        assert_eq!(gguf.of("blk.3.ffn_norm")[0], "blk.3.post_attention_norm.weight");
        assert!(gguf.of("blk.3.ffn_up").is_empty() && !gguf.of("blk.3.ffn_down").is_empty());
        let folder = Names { renamed: OWN, ..FOLDER };
        assert_eq!(folder.of("blk.3.ffn_norm")[0], "model.layers.3.pre_feedforward_layernorm.weight");
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
