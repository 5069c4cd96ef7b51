//! What belongs to a model: adapters, control vectors and importance matrices.

use std::fs;
use std::path::{Path, PathBuf};

use fusebox_compiler::foundation::random::Random;
use fusebox_models::adapters::{Adapters, Choice};
use fusebox_models::load::Model;
use fusebox_models::quantize::importance::Importance;
use serde_json::{Value, json};
use support::gguf::{F32, TEXT, text};

use crate::mutate::{self, chance};
use crate::targets::gguf::{Pair, Parts, Tensor};
use crate::targets::target::Target;

/// What varies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A LoRA adapter in GGUF.
    Lora,
    /// The configuration of one in a folder of PEFT.
    Peft,
    /// A control vector.
    Control,
    /// An importance matrix, of both kinds.
    Importance,
}

/// A model of two blocks, with a file beside it.
pub(crate) struct Beside {
    kind: Kind,
    folder: PathBuf,
    is_made: bool,
}

impl Beside {
    pub(crate) fn new(folder: &Path, kind: Kind) -> Self {
        Self { kind, folder: folder.to_owned(), is_made: false }
    }

    /// The file or the folder that varies.
    fn path(&self) -> PathBuf {
        self.folder.join(if self.kind == Kind::Peft { "adapter" } else { "beside.gguf" })
    }

    /// Writes what does not vary, once.
    fn make(&mut self) -> std::io::Result<()> {
        if self.is_made {
            return Ok(());
        }
        fs::write(self.folder.join("m.gguf"), model().writer(&mut |_, _, _| {}).bytes())?;
        if self.kind == Kind::Peft {
            fs::create_dir_all(self.path())?;
            fs::write(self.path().join("adapter_model.safetensors"), peft_weights())?;
        }
        self.is_made = true;
        Ok(())
    }
}

/// Control vectors change no first block, so the model has two.
fn model() -> Parts {
    let mut parts = Parts::of_model();
    let of_first = |(name, ..): &&Tensor| name.starts_with("blk.0.");
    let second: Vec<Tensor> = parts.tensors.iter().filter(of_first).cloned().collect();
    parts.tensors.extend(
        second.into_iter().map(|(name, sizes, kind)| (name.replace("blk.0.", "blk.1."), sizes, kind)),
    );
    for (key, _, value) in &mut parts.pairs {
        if key == "qwen3.block_count" {
            *value = 2u32.to_le_bytes().to_vec();
        }
    }
    parts
}

fn named(key: &str, value: &str) -> Pair {
    (key.to_owned(), TEXT, text(value))
}

fn plain(name: &str, sizes: &[u64]) -> Tensor {
    (name.to_owned(), sizes.to_vec(), 0)
}

fn lora() -> Parts {
    Parts {
        pairs: vec![
            named("general.architecture", "qwen3"),
            named("general.type", "adapter"),
            named("adapter.type", "lora"),
            ("adapter.lora.alpha".to_owned(), F32, 8f32.to_le_bytes().to_vec()),
        ],
        tensors: vec![
            plain("blk.0.attn_q.weight.lora_a", &[32, 4]),
            plain("blk.0.attn_q.weight.lora_b", &[4, 32]),
            plain("blk.1.ffn_down.weight.lora_a", &[64, 2]),
            plain("blk.1.ffn_down.weight.lora_b", &[2, 32]),
        ],
    }
}

fn control() -> Parts {
    Parts {
        pairs: vec![
            named("general.architecture", "controlvector"),
            named("controlvector.model_hint", "qwen3"),
        ],
        tensors: vec![plain("direction.1", &[32])],
    }
}

fn importance() -> Parts {
    Parts {
        pairs: vec![named("general.type", "imatrix")],
        tensors: vec![
            plain("blk.0.attn_q.weight.in_sum2", &[32]),
            plain("blk.0.attn_q.weight.counts", &[1]),
            plain("blk.0.ffn_down.weight.in_sum2", &[64, 2]),
            plain("blk.0.ffn_down.weight.counts", &[1, 2]),
        ],
    }
}

/// An importance matrix of the older kind: entries with a name, two counts and sums.
fn older_importance() -> Vec<u8> {
    let mut bytes = 2i32.to_le_bytes().to_vec();
    for name in ["blk.0.attn_q.weight", "blk.0.ffn_down.weight"] {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend([3i32, 4].map(i32::to_le_bytes).concat());
        bytes.extend([0.5f32; 4].map(f32::to_le_bytes).concat());
    }
    bytes
}

fn peft_config() -> Value {
    json!({
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": false, "use_dora": false, "bias": "none",
        "modules_to_save": null, "fan_in_fan_out": false, "target_modules": ["q_proj"],
        "alpha_pattern": {"layers.0.self_attn.q_proj": 16, "^model\\.layers\\.[0-9]+": 2.5},
        "rank_pattern": {}, "base_model_name_or_path": "m"
    })
}

/// Both matrices of a projection, in single precision.
fn peft_weights() -> Vec<u8> {
    let name = |side: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight");
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [4, 32], "data_offsets": [0, 512]},
        name("B"): {"dtype": "F32", "shape": [32, 4], "data_offsets": [512, 1024]},
    });
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 1024]].concat()
}

/// Names and values that mean something elsewhere.
const WORDS: [&str; 8] = [
    "(a+)+$",
    "((a{99}){99}){99}",
    "IA3",
    "rslora",
    "lora_B",
    "all",
    "target_parameters",
    "base_model.model.",
];

impl Target for Beside {
    fn input(&self, random: &mut Random) -> Vec<u8> {
        match self.kind {
            Kind::Lora => lora().spoilt(random),
            Kind::Control => control().spoilt(random),
            Kind::Importance if chance(random, 1, 2) => importance().spoilt(random),
            Kind::Importance => {
                let mut bytes = older_importance();
                mutate::bytes(random, &mut bytes);
                bytes
            }
            Kind::Peft => {
                let mut config = peft_config();
                mutate::json(random, &mut config, &WORDS);
                config.to_string().into_bytes()
            }
        }
    }

    fn run(&mut self, input: &[u8]) -> Result<bool, String> {
        self.make().map_err(|error| error.to_string())?;
        let path = self.path();
        let varied = if self.kind == Kind::Peft { path.join("adapter_config.json") } else { path.clone() };
        fs::write(varied, input).map_err(|error| error.to_string())?;
        if self.kind == Kind::Importance {
            return Ok(Importance::open(&path).is_ok());
        }
        let choice = Choice { name: "one".to_owned(), path: path.clone(), scale: 0.5 };
        let adapters = match self.kind {
            Kind::Control => vec![Adapters { control_vectors: vec![(path, 1.0)], ..Adapters::default() }],
            _ => vec![
                Adapters { loras: vec![(path, 1.0)], ..Adapters::default() },
                Adapters { choices: vec![choice], ..Adapters::default() },
            ],
        };
        let mut are_taken = true;
        for adapters in &adapters {
            let model = Model::open(&self.folder.join("m.gguf")).map_err(|error| error.to_string())?;
            are_taken &= model.with_adapters(adapters).is_ok();
        }
        Ok(are_taken)
    }
}
