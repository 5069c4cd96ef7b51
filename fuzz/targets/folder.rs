//! Folders of safetensors: the weights, the configuration, the tokenizer, and the files beside it.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::random::Random;
use fusebox_models::load::Model;
use fusebox_runtime::weights::Checkpoint;
use serde_json::{Value, json};

use crate::mutate::{self, chance, one};
use crate::targets::target::{Target, is_sample, read_text_side};

/// Which file varies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Weights,
    Config,
    Tokenizer,
    /// `tokenizer_config.json` or `generation_config.json`, by the first byte of the input.
    Sidecar,
}

/// A folder.
pub(crate) struct Folder {
    part: Part,
    path: PathBuf,
    is_made: bool,
}

impl Folder {
    pub(crate) fn new(folder: &Path, part: Part) -> Self {
        Self { part, path: folder.join("model"), is_made: false }
    }

    /// Writes the files that do not vary.
    fn make(&mut self) -> std::io::Result<()> {
        fs::create_dir_all(&self.path)?;
        fs::write(self.path.join("model.safetensors"), weights(&header()))?;
        for (name, value) in [
            ("config.json", config()),
            ("tokenizer.json", tokenizer()),
            ("tokenizer_config.json", tokenizer_config()),
            ("generation_config.json", json!({"eos_token_id": [3]})),
        ] {
            fs::write(self.path.join(name), value.to_string())?;
        }
        self.is_made = true;
        Ok(())
    }
}

fn config() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 6,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": true,
        "hidden_act": "silu", "attention_bias": false, "eos_token_id": 3, "rope_scaling": null
    })
}

/// The description of the tensors, with their bytes one after another.
fn header() -> Value {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![6, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
        (layer("input_layernorm"), vec![8]),
        (layer("post_attention_layernorm"), vec![8]),
        (layer("self_attn.q_proj"), vec![8, 8]),
        (layer("self_attn.k_proj"), vec![4, 8]),
        (layer("self_attn.v_proj"), vec![4, 8]),
        (layer("self_attn.o_proj"), vec![8, 8]),
        (layer("self_attn.q_norm"), vec![4]),
        (layer("self_attn.k_norm"), vec![4]),
        (layer("mlp.gate_proj"), vec![16, 8]),
        (layer("mlp.up_proj"), vec![16, 8]),
        (layer("mlp.down_proj"), vec![8, 16]),
    ];
    let (mut all, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        all.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    Value::Object(all)
}

fn weights(header: &Value) -> Vec<u8> {
    let ends =
        header.as_object().into_iter().flatten().filter_map(|(_, one)| one["data_offsets"][1].as_u64());
    let n_data = ends.max().unwrap_or(0).min(1 << 16) as usize;
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &vec![0; n_data]].concat()
}

fn tokenizer() -> Value {
    json!({
        "added_tokens": [{"id": 3, "content": "<|im_end|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[0-9]{1,3}| ?[a-z]+| +(?! )"}, "behavior": "Isolated",
                "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {"x": {"id": "x", "ids": [3], "tokens": ["<|im_end|>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 4, "abab": 5}, "merges": ["a b", "ab ab"],
            "unk_token": null, "byte_fallback": false, "ignore_merges": false, "fuse_unk": false}
    })
}

fn tokenizer_config() -> Value {
    json!({"add_bos_token": true, "bos_token": "a", "eos_token": {"content": "<|im_end|>"},
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"})
}

/// Keys and values that mean something.
const WORDS: [&str; 46] = [
    "type",
    "Sequence",
    "Replace",
    "Prepend",
    "NFKD",
    "NFKC",
    "Lowercase",
    "BertNormalizer",
    "Precompiled",
    "precompiled_charsmap",
    "Metaspace",
    "Digits",
    "individual_digits",
    "Split",
    "Regex",
    "String",
    "(?>a+)+b",
    "(a|aa)+$",
    "\\s+(?!\\S)",
    "WordPiece",
    "Unigram",
    "##",
    "ByteFallback",
    "Fuse",
    "BertProcessing",
    "llama",
    "deepseek_v3",
    "gpt_oss",
    "gemma3_text",
    "qwen3_next",
    "bert",
    "quantization_config",
    "quant_method",
    "fp8",
    "gptq",
    "weight_block_size",
    "num_experts",
    "num_experts_per_tok",
    "layer_types",
    "sliding_window",
    "rope_type",
    "yarn",
    "F8_E4M3",
    "U8",
    "__metadata__",
    "model.layers.0.self_attn.q_proj.weight_scale_inv",
];

impl Target for Folder {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        let is_raw = chance(random, 1, 10);
        let mut tree = match self.part {
            Part::Weights => header(),
            Part::Config => config(),
            Part::Tokenizer => tokenizer(),
            Part::Sidecar => {
                if chance(random, 1, 2) {
                    tokenizer_config()
                } else {
                    json!({"eos_token_id": [3], "top_k": 20})
                }
            }
        };
        let kind = u8::from(tree.get("bos_token").is_some());
        if !is_raw {
            mutate::json(random, &mut tree, &WORDS);
        }
        let mut bytes = match self.part {
            Part::Weights => weights(&tree),
            Part::Sidecar => [&[kind][..], tree.to_string().as_bytes()].concat(),
            Part::Config | Part::Tokenizer => tree.to_string().into_bytes(),
        };
        if is_raw || chance(random, 1, 16) {
            mutate::bytes(random, &mut bytes);
        }
        // A key twice, which no tree has.
        if chance(random, 1, 32) && bytes.first() == Some(&b'{') {
            let key = one(random, &WORDS);
            bytes.splice(1..1, format!("\"{key}\":1,\"{key}\":{{}},").into_bytes());
        }
        bytes
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        let io = |error: std::io::Error| error.to_string();
        if !self.is_made {
            self.make().map_err(io)?;
        }
        let (name, bytes) = match (self.part, input) {
            (Part::Weights, _) => ("model.safetensors", input),
            (Part::Config, _) => ("config.json", input),
            (Part::Tokenizer, _) => ("tokenizer.json", input),
            (Part::Sidecar, [0, rest @ ..]) => ("generation_config.json", rest),
            (Part::Sidecar, [_, rest @ ..]) => ("tokenizer_config.json", rest),
            (Part::Sidecar, []) => return Ok(false),
        };
        if self.part == Part::Sidecar {
            // The other of the two files may be one of an earlier input.
            self.make().map_err(io)?;
        }
        fs::write(self.path.join(name), bytes).map_err(io)?;
        let Ok(checkpoint) = Checkpoint::open(&self.path) else { return Ok(false) };
        let reads_text = matches!(self.part, Part::Tokenizer | Part::Sidecar);
        let has_tokenizer = (reads_text || is_sample(input)) && read_text_side(&checkpoint);
        drop(checkpoint);
        Ok(match self.part {
            Part::Weights | Part::Config => Model::either(&self.path).is_ok(),
            Part::Tokenizer | Part::Sidecar => has_tokenizer,
        })
    }
}
