//! The folder of a LoRA adapter that PEFT wrote.
//!
//! In: its path. Out: the path of the weights, and what `adapter_config.json` says of scales. Whatever changes a model
//! otherwise than by two matrices and a scale is refused by name.

use std::path::{Path, PathBuf};

use fancy_regex::Regex;
use fusebox_runtime::error::{Error, Place};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::adapters::adapted::refused;
use crate::sidecar;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What names begin with: the model inside of the adapted one.
const PREFIX: &str = "base_model.model.";
/// The endings of names: whether it is A, and whether rows of A are looked up.
const ENDINGS: [(&str, bool, bool); 4] = [
    (".lora_A.weight", true, false),
    (".lora_B.weight", false, false),
    (".lora_embedding_A", true, true),
    (".lora_embedding_B", false, true),
];
/// Settings that ask for something else than two matrices, and the values that do not.
const REFUSED: [(&str, &[&str]); 9] = [
    ("use_dora", &["null", "false"]),
    ("bias", &["null", "\"none\""]),
    ("lora_bias", &["null", "false"]),
    ("modules_to_save", &["null", "[]"]),
    ("fan_in_fan_out", &["null", "false"]),
    ("layer_replication", &["null", "[]"]),
    ("target_parameters", &["null", "[]"]),
    ("alora_invocation_tokens", &["null", "[]"]),
    ("use_qalora", &["null", "false"]),
];

/// What the configuration says.
#[derive(Deserialize)]
struct Config {
    peft_type: Option<String>,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: Option<bool>,
    #[serde(default)]
    alpha_pattern: Option<Map<String, Json>>,
    #[serde(flatten)]
    rest: Map<String, Json>,
}

/// The scales of an adapter.
pub(super) struct Peft {
    alpha: f64,
    has_root: bool,
    patterns: Vec<(Regex, f64)>,
}

/// The weights and the configuration of a folder, or of the file with its weights; nothing where it is neither.
pub(super) fn folder(path: &Path) -> Result<Option<(PathBuf, Peft)>, Error> {
    let is_weights = path.file_name().is_some_and(|name| name == WEIGHTS);
    let folder = match path.parent() {
        Some(parent) if is_weights => parent,
        _ if path.is_dir() => path,
        _ => return Ok(None),
    };
    let (config, weights) = (folder.join(CONFIG), folder.join(WEIGHTS));
    let Some(found) = sidecar::read_json::<Config>(&config)? else {
        return Err(refused(
            &config,
            Place::Whole,
            "expected the configuration of an adapter, found no file",
        ));
    };
    if !weights.is_file() {
        return Err(refused(&weights, Place::Whole, "expected the weights of an adapter, found no file"));
    }
    Ok(Some((weights, Peft::new(&config, &found)?)))
}

/// The weight that a tensor is for, whether it is A, and whether rows of A are looked up.
pub(super) fn part(name: &str) -> Option<(&str, bool, bool)> {
    let name = name.strip_prefix(PREFIX)?;
    ENDINGS.iter().find_map(|(ending, is_first, is_embedding)| {
        Some((name.strip_suffix(ending)?, *is_first, *is_embedding))
    })
}

impl Peft {
    fn new(path: &Path, config: &Config) -> Result<Self, Error> {
        let refused_key = |key: &str, what: String| refused(path, Place::Key(key.to_owned()), what);
        if config.peft_type.as_deref() != Some("LORA") {
            let found = config.peft_type.as_deref().unwrap_or("none");
            return Err(refused_key("peft_type", format!("expected LORA, found {found}")));
        }
        for (key, usual) in REFUSED {
            let found = config.rest.get(key).map_or("null".to_owned(), Json::to_string);
            if !usual.contains(&found.as_str()) {
                let what = format!("expected {}, found {found}: not supported", usual[usual.len() - 1]);
                return Err(refused_key(key, what));
            }
        }
        let pattern = |(key, alpha): (&String, &Json)| {
            // As PEFT does it: the whole name, or what follows one of its dots.
            let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$"));
            let found = regex.ok().zip(alpha.as_f64().filter(|alpha| alpha.is_finite()));
            let what = format!("expected a pattern of names and a number, found {key} and {alpha}");
            found.ok_or_else(|| refused_key("alpha_pattern", what))
        };
        let patterns = config.alpha_pattern.iter().flatten().map(pattern);
        if !config.lora_alpha.is_finite() {
            return Err(refused_key("lora_alpha", "expected a finite number".to_owned()));
        }
        Ok(Self {
            alpha: config.lora_alpha,
            has_root: config.use_rslora.unwrap_or(false),
            patterns: patterns.collect::<Result<_, _>>()?,
        })
    }

    /// The factor on the product for a module of this name.
    pub(super) fn factor(&self, name: &str, rank: usize) -> f32 {
        let own = self.patterns.iter().find(|(regex, _)| regex.is_match(name).unwrap_or(false));
        let alpha = own.map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f64;
        (alpha / if self.has_root { rank.sqrt() } else { rank }) as f32
    }
}
