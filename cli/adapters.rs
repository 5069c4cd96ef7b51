//! The flags of what is added to a model: LoRA adapters and control vectors.
//!
//! In: flags as llama.cpp has them. Out: the files and their scales; the library opens them with the model.

use std::path::PathBuf;

use clap::Args;
use fusebox::adapters::Adapters;

/// LoRA adapters and control vectors.
#[derive(Args, Clone, Default)]
pub(crate) struct AdapterFlags {
    /// LoRA adapter to add to the model: a GGUF file or a folder of PEFT; repeatable.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    lora: Vec<PathBuf>,
    /// The same with a factor on what it changes; repeatable.
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',')]
    lora_scaled: Vec<String>,
    /// Control vector to add to the model, a GGUF file; repeatable.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    control_vector: Vec<PathBuf>,
    /// The same with a factor; repeatable.
    #[arg(long, value_name = "PATH:SCALE", value_delimiter = ',')]
    control_vector_scaled: Vec<String>,
    /// The first and the last block that control vectors change, from 1 on [default: all].
    #[arg(long, value_names = ["FIRST", "LAST"], num_args = 2)]
    control_vector_layer_range: Vec<usize>,
}

impl AdapterFlags {
    /// What they name.
    pub(crate) fn adapters(&self) -> Result<Adapters, String> {
        Ok(Adapters {
            loras: with_scales("--lora-scaled", &self.lora, &self.lora_scaled)?,
            control_vectors: with_scales(
                "--control-vector-scaled",
                &self.control_vector,
                &self.control_vector_scaled,
            )?,
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

/// Paths with the scale 1, then those with a scale of their own.
pub(crate) fn with_scales(
    flag: &str,
    plain: &[PathBuf],
    scaled: &[String],
) -> Result<Vec<(PathBuf, f32)>, String> {
    let own = scaled.iter().map(|text| {
        let (path, scale) = text.rsplit_once(':').unwrap_or((text, ""));
        let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite());
        let what = || format!("{flag} is `{}`, expected PATH:SCALE with a number", text.escape_debug());
        Ok((PathBuf::from(path), scale.ok_or_else(what)?))
    });
    plain.iter().map(|path| Ok((path.clone(), 1.0))).chain(own).collect()
}
