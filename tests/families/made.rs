//! Small models with random weights, written as files of either kind.
//!
//! In: a config. Out: its tensors by their names in graphs, which a test may fuse, split or damage, and a GGUF file or
//! a folder of safetensors with them. The hyper-parameters in the file follow from the config.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use fusebox_compiler::graph::Name;
use fusebox_compiler::graph::op::Op;
use fusebox_compiler::reference::random::Numbers;
use fusebox_compiler::reference::{Bindings, Stored};
use fusebox_compiler::tensor::quant::Format;
use fusebox_compiler::tensor::sym::Sym;
use fusebox_models::blocks::model;
use fusebox_models::config::Config;
use fusebox_models::config::network::{Experts, Gate};
use fusebox_models::config::rope::{Pairing, Scaling};
use fusebox_models::naming::tensors::{BIAS, Names};
use fusebox_runtime::weights::Kind;
use serde_json::{Map, Value as Json, json};
use support::gguf::{BOOL, F32, LIST, TEXT, U32, Writer, pair, tensor, text};
use support::plain::{Attention, Plain, Window};

/// A model to write.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) config: Plain,
    pub(crate) tensors: BTreeMap<String, Tensor>,
    /// Hyper-parameters that the file has in addition or instead; null removes one.
    pub(crate) facts: Map<String, Json>,
}

/// A stored tensor.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) shape: Vec<usize>,
    pub(crate) format: Format,
    pub(crate) bytes: Vec<u8>,
}

impl Made {
    /// Random weights for the whole graph.
    pub(crate) fn new(config: &Plain) -> Self {
        let tensors = random_tensors(&config.config());
        Self { config: config.clone(), tensors, facts: Map::new() }
    }

    /// The weights as bindings of the reference evaluator.
    pub(crate) fn bindings(&self) -> Bindings {
        let stored = |tensor: &Tensor| Stored { format: tensor.format, bytes: Arc::from(&tensor.bytes[..]) };
        let weights = self.tensors.iter().map(|(name, tensor)| (Name::from(&name[..]), stored(tensor)));
        Bindings { weights: weights.collect(), ..Bindings::default() }
    }

    /// Fuses tensors into one that has their rows.
    pub(crate) fn join(&mut self, parts: &[String], whole: &str) {
        let parts: Vec<Tensor> = parts.iter().map(|part| self.tensors.remove(part).unwrap()).collect();
        let mut joint = parts[0].clone();
        let rows = joint.shape.len().saturating_sub(2);
        joint.shape[rows] = parts.iter().map(|part| part.shape[rows]).sum();
        // Where an axis precedes the rows, parts alternate along it.
        let n_runs: usize = joint.shape[..rows].iter().product();
        joint.bytes = Vec::new();
        for run in 0..n_runs {
            for part in &parts {
                let n_bytes = part.bytes.len() / n_runs;
                joint.bytes.extend_from_slice(&part.bytes[run * n_bytes..][..n_bytes]);
            }
        }
        self.tensors.insert(whole.to_owned(), joint);
    }

    /// Writes a GGUF file of this architecture.
    pub(crate) fn gguf(&self, path: &Path, architecture: &str) {
        let mut facts = gguf_facts(&self.config);
        facts.extend(self.facts.clone());
        let mut writer = Writer::good();
        writer.pairs = vec![pair("general.architecture", TEXT, text(architecture))];
        for (key, value) in facts.iter().filter(|(_, value)| !value.is_null()) {
            let key = format!("{architecture}.{key}");
            writer.pairs.push(match value {
                Json::Bool(value) => pair(&key, BOOL, [u8::from(*value)]),
                Json::String(value) => pair(&key, TEXT, text(value)),
                Json::Number(n) if n.is_u64() => pair(&key, U32, (n.as_u64().unwrap() as u32).to_le_bytes()),
                Json::Array(list) => pair(&key, LIST, list_of(list)),
                number => pair(&key, F32, (number.as_f64().unwrap() as f32).to_le_bytes()),
            });
        }
        write(path, writer, &self.tensors);
    }

    /// Writes a folder with `config.json` and safetensors.
    pub(crate) fn folder(&self, path: &Path, model_type: &str) {
        self.folder_of(path, model_type, self.published());
    }

    /// The tensors of a folder. Experts are separate tensors, unless their gate and up projections are fused.
    pub(crate) fn published(&self) -> Vec<(String, Tensor)> {
        let mut pieces: Vec<(String, Tensor)> = Vec::new();
        for (name, own) in &self.tensors {
            let is_joint = self.config.experts.as_ref().is_some_and(|experts| experts.is_joint);
            if is_joint || !name.ends_with("_exps") {
                pieces.push((Names::common(Kind::Safetensors).of(name).remove(0), own.clone()));
                continue;
            }
            for (idx, bytes) in own.bytes.chunks(own.bytes.len() / own.shape[0]).enumerate() {
                let name = Names::common(Kind::Safetensors).expert(name, idx).remove(0);
                pieces.push((name, Tensor { shape: own.shape[1..].to_vec(), bytes: bytes.to_vec(), ..*own }));
            }
        }
        pieces
    }

    /// The tensors of a folder with Mixtral's names; all blocks have experts.
    pub(crate) fn published_as_mixtral(&self) -> Vec<(String, Tensor)> {
        let renamed = |name: String| {
            let own =
                [("mlp.", "block_sparse_moe."), ("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")];
            own.iter().fold(name, |name, (from, to)| name.replace(from, to))
        };
        self.published().into_iter().map(|(name, own)| (renamed(name), own)).collect()
    }

    /// Writes a folder with these tensors.
    pub(crate) fn folder_of(&self, path: &Path, model_type: &str, pieces: Vec<(String, Tensor)>) {
        let dtype = |own: &Tensor| own.format.name().to_uppercase();
        let pieces = pieces.into_iter().map(|(name, own)| (name, dtype(&own), own.shape, own.bytes));
        self.folder_with(path, model_type, pieces.collect());
    }

    /// The same with names, types, shapes and bytes.
    pub(crate) fn folder_with(
        &self,
        path: &Path,
        model_type: &str,
        pieces: Vec<(String, String, Vec<usize>, Vec<u8>)>,
    ) {
        let mut facts = published_facts(&self.config);
        facts.insert("model_type".to_owned(), json!(model_type));
        facts.extend(self.facts.clone());
        facts.retain(|key, _| self.facts.get(key) != Some(&Json::Null));
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in pieces {
            let offsets = [data.len(), data.len() + bytes.len()];
            header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
            data.extend(bytes);
        }
        let header = Json::Object(header).to_string();
        let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("model.safetensors"), whole).unwrap();
        fs::write(path.join("config.json"), Json::Object(facts).to_string()).unwrap();
    }
}

/// The bytes of a list of booleans or of whole numbers.
fn list_of(list: &[Json]) -> Vec<u8> {
    let (kind, n) = (if list[0].is_boolean() { BOOL } else { U32 }, list.len() as u64);
    let mut bytes = [&kind.to_le_bytes()[..], &n.to_le_bytes()].concat();
    for value in list {
        match value {
            Json::Bool(truth) => bytes.push(u8::from(*truth)),
            number => bytes.extend((number.as_u64().unwrap() as u32).to_le_bytes()),
        }
    }
    bytes
}

/// The shape in files: rows and columns, after the number of matrices.
fn merged(name: &str, sizes: &[usize]) -> Vec<usize> {
    let n_matrices = usize::from(name.ends_with("_exps") || name.ends_with("k_b") || name.ends_with("v_b"));
    match sizes {
        _ if name.ends_with(BIAS) => vec![sizes.iter().product()],
        _ if name.ends_with("attn_output") => vec![sizes[0], sizes[1..].iter().product()],
        [_] => sizes.to_vec(),
        _ if name.ends_with("kv_b") => vec![sizes[..2].iter().product(), sizes[2]],
        [rows @ .., columns] => {
            [&rows[..n_matrices], &[rows[n_matrices..].iter().product(), *columns]].concat()
        }
        [] => Vec::new(),
    }
}

fn object(json: Json) -> Map<String, Json> {
    let Json::Object(object) = json else { panic!("{json} is no object") };
    object
}

/// Random weights for the whole graph of a config, by their names.
pub(crate) fn random_tensors(config: &Config) -> BTreeMap<String, Tensor> {
    let graph = model(config, &Sym::from(1), config.n_layers()).unwrap();
    let mut tensors = BTreeMap::new();
    for node in graph.nodes.values() {
        let Op::Weight { name, shape, format } = &node.op else { continue };
        let bytes = Numbers::of(5, name).stored(*format, shape).bytes.to_vec();
        let sizes: Vec<usize> = shape.iter().map(|(_, size)| size.most() as usize).collect();
        tensors.insert(name.to_string(), Tensor { shape: merged(name, &sizes), format: *format, bytes });
    }
    tensors
}

/// Writes a GGUF file of these tensors, whatever else it has.
pub(crate) fn write(path: &Path, mut writer: Writer, tensors: &BTreeMap<String, Tensor>) {
    (writer.tensors, writer.data) = (Vec::new(), Vec::new());
    for (name, own) in tensors {
        let sizes: Vec<u64> = own.shape.iter().rev().map(|size| *size as u64).collect();
        let name = Names::common(Kind::Gguf { version: 3 }).of(name).remove(0);
        writer.tensors.push(tensor(&name, &sizes, own.format.ggml().unwrap(), writer.data.len() as u64));
        writer.data.extend(&own.bytes);
        writer.data.resize(writer.data.len().next_multiple_of(32), 0);
    }
    fs::write(path, writer.bytes()).unwrap();
}

fn gguf_facts(config: &Plain) -> Map<String, Json> {
    let mut facts = object(json!({
        "embedding_length": config.hidden, "block_count": config.n_layers, "vocab_size": config.vocab,
        "context_length": config.context, "feed_forward_length": config.ff, "rope.freq_base": config.rope.theta,
        "attention.layer_norm_rms_epsilon": config.eps,
    }));
    facts.extend(object(match &config.attention {
        Attention::Grouped(own) => json!({
            "attention.head_count": own.n_heads, "attention.head_count_kv": own.n_kv,
            "attention.key_length": own.head, "rope.dimension_count": own.rotary_dim,
            "attention.sliding_window": own.window.as_ref().map(|window| window.size),
        }),
        Attention::Latent(own) if own.is_joint => json!({
            "attention.head_count": own.n_heads, "attention.q_lora_rank": own.q_lora,
            "attention.kv_lora_rank": own.kv_lora, "attention.key_length": own.nope + own.rope,
            "attention.value_length": own.value, "rope.dimension_count": own.rope,
        }),
        Attention::Latent(own) => json!({
            "attention.head_count": own.n_heads, "attention.q_lora_rank": own.q_lora.unwrap_or(0),
            "attention.kv_lora_rank": own.kv_lora, "attention.key_length": own.kv_lora + own.rope,
            "attention.value_length": own.kv_lora, "attention.key_length_mla": own.nope + own.rope,
            "attention.value_length_mla": own.value, "rope.dimension_count": own.rope,
        }),
    }));
    if let Some(own) = &config.experts {
        let gate = match own.gate {
            Gate::Softmax => 1,
            Gate::Sigmoid => 2,
            Gate::SoftmaxAfterTopK => 3,
            Gate::SqrtSoftplus => 4,
        };
        let groups = own.groups.map_or((1, 1), |groups| (groups.n_groups, groups.top_k));
        facts.extend(object(json!({
            "expert_count": own.n_routed, "expert_used_count": own.top_k, "expert_shared_count": own.shared_ff / own.ff,
            "expert_feed_forward_length": own.ff, "expert_gating_func": gate, "expert_weights_norm": own.renorm,
            "expert_weights_scale": own.scale, "expert_group_count": groups.0,
            "expert_group_used_count": groups.1, "leading_dense_block_count": config.dense.len(),
        })));
    }
    facts
}

fn published_facts(config: &Plain) -> Map<String, Json> {
    let scaling = match &config.rope.scaling {
        Scaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        _ => Json::Null,
    };
    let mut facts = object(json!({
        "hidden_size": config.hidden, "num_hidden_layers": config.n_layers, "vocab_size": config.vocab,
        "max_position_embeddings": config.context, "intermediate_size": config.ff,
        "rope_theta": config.rope.theta, "rms_norm_eps": config.eps, "tie_word_embeddings": config.tied,
        "hidden_act": "silu", "rope_scaling": scaling,
        "rope_interleave": config.rope.pairing == Pairing::Interleaved,
    }));
    facts.extend(object(match &config.attention {
        Attention::Grouped(own) => json!({
            "num_attention_heads": own.n_heads, "num_key_value_heads": own.n_kv, "head_dim": own.head,
            "partial_rotary_factor": own.rotary_dim as f64 / own.head as f64,
            "sliding_window": own.window.as_ref().map(|window| window.size), "use_sliding_window": own.window.is_some(),
            "layer_types": own.window.as_ref().map(|window| layer_types(config, window)),
        }),
        Attention::Latent(own) => json!({
            "num_attention_heads": own.n_heads, "q_lora_rank": own.q_lora, "kv_lora_rank": own.kv_lora,
            "qk_nope_head_dim": own.nope, "qk_rope_head_dim": own.rope, "v_head_dim": own.value,
        }),
    }));
    if let Some(own) = &config.experts {
        facts.extend(object(published_experts(own)));
        facts.insert("mlp_only_layers".to_owned(), json!(config.dense));
    }
    facts
}

fn layer_types(config: &Plain, window: &Window) -> Vec<&'static str> {
    let is_full = |layer| window.full.contains(&layer);
    (0..config.n_layers)
        .map(|layer| if is_full(layer) { "full_attention" } else { "sliding_attention" })
        .collect()
}

fn published_experts(own: &Experts) -> Json {
    let gate = if own.gate == Gate::Softmax { "softmax" } else { "sigmoid" };
    let method =
        own.groups.map(|groups| if groups.score_top_k == 1 { "group_limited_greedy" } else { "noaux_tc" });
    json!({
        "num_experts": own.n_routed, "num_experts_per_tok": own.top_k, "n_shared_experts": own.shared_ff / own.ff,
        "moe_intermediate_size": own.ff, "scoring_func": gate, "norm_topk_prob": own.renorm,
        "routed_scaling_factor": own.scale, "n_group": own.groups.map(|groups| groups.n_groups),
        "topk_group": own.groups.map(|groups| groups.top_k), "topk_method": method,
    })
}
