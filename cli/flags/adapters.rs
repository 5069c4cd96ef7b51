//! The flags of what is added to a model: LoRA adapters and control vectors.
//!
//! In: flags as llama.cpp has them. Out: the files and their scales; the library opens them with the model.
//! An adapter with a name is one that requests of `fusebox serve` choose; all others are those of every answer.

use std::path::{Path, PathBuf};

use clap::Args;
use fusebox::adapters::{Adapters, Choice};

use crate::flags::given::Given;

/// What is accepted as a LoRA adapter.
pub(crate) const ADAPTER: &str = "a GGUF file or a folder of PEFT";

/// LoRA adapters and control vectors.
#[derive(Args, Clone, Default)]
pub(crate) struct AdapterFlags {
    /// LoRA adapter to add to the model: a GGUF file or a folder of PEFT; NAME=PATH is one that requests of `serve`
    /// choose; repeatable.
    #[arg(long, value_name = "[NAME=]PATH", value_delimiter = ',')]
    lora: Vec<String>,
    /// The same with a factor on what it changes; repeatable.
    #[arg(long, value_name = "[NAME=]PATH:SCALE", value_delimiter = ',')]
    lora_scaled: Vec<String>,
    /// Control vector to add to the model, a GGUF file; repeatable.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    control_vector: Vec<String>,
    /// The same with a factor; repeatable.
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',')]
    control_vector_scaled: Vec<String>,
    /// The first and the last block that control vectors change, from 1 on [default: all].
    #[arg(long, value_names = ["FIRST", "LAST"], num_args = 2)]
    control_vector_layer_range: Vec<usize>,
}

impl AdapterFlags {
    /// What they name, for one answer after another: adapters without names.
    pub(crate) fn adapters(&self) -> Result<Adapters, String> {
        let adapters = self.served()?;
        if let Some(Choice { name, path, .. }) = adapters.choices.first() {
            let path = path.display();
            return Err(format!(
                "--lora is `{name}={path}`, a name for requests of `fusebox serve`; expected a path"
            ));
        }
        Ok(adapters)
    }

    /// What they name, for a server.
    pub(crate) fn served(&self) -> Result<Adapters, String> {
        let all = with_scales("--lora-scaled", &self.lora, &self.lora_scaled)?;
        let (mut loras, mut choices): (Vec<(PathBuf, f32)>, Vec<Choice>) = (Vec::new(), Vec::new());
        for (text, scale) in all {
            match named(&text) {
                None => loras.push((text.into(), scale)),
                Some((name, _)) if choices.iter().any(|own| own.name == name) => {
                    return Err(format!("two adapters have the name {name}"));
                }
                Some((name, path)) => {
                    choices.push(Choice { name: name.to_owned(), path: path.into(), scale });
                }
            }
        }
        let vectors =
            with_scales("--control-vector-scaled", &self.control_vector, &self.control_vector_scaled)?;
        for path in loras.iter().map(|(path, _)| path).chain(choices.iter().map(|own| &own.path)) {
            Given::new("--lora", path).check_there(ADAPTER)?;
        }
        for (path, _) in &vectors {
            Given::new("--control-vector", Path::new(path)).check_file("a GGUF file")?;
        }
        Ok(Adapters {
            loras,
            choices,
            control_vectors: vectors.into_iter().map(|(path, scale)| (path.into(), scale)).collect(),
            control_layers: match self.control_vector_layer_range[..] {
                [first, last] if first > last => {
                    return Err(format!(
                        "--control-vector-layer-range is {first} to {last}, expected the first block first"
                    ));
                }
                [first, last] => Some([first, last]),
                _ => None,
            },
        })
    }
}

/// The name and the path in `NAME=PATH`, which is no path itself.
pub(crate) fn named(text: &str) -> Option<(&str, &str)> {
    let (name, path) = text.split_once('=')?;
    (!name.is_empty() && !name.contains(['/', '\\']) && !Path::new(text).exists()).then_some((name, path))
}

/// Paths with the scale 1, then those with a scale of their own.
pub(crate) fn with_scales(
    flag: &str,
    plain: &[String],
    scaled: &[String],
) -> Result<Vec<(String, f32)>, String> {
    let own = scaled.iter().map(|text| {
        let (path, scale) = text.rsplit_once(':').unwrap_or((text, ""));
        let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
        let what = || format!("{flag} is `{}`, expected PATH:SCALE with a number", text.escape_debug());
        Ok((path.to_owned(), scale.ok_or_else(what)?))
    });
    plain.iter().map(|path| Ok((path.clone(), 1.0))).chain(own).collect()
}
