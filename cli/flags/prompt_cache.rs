//! `--prompt-cache`: the KV cache of a prompt in a file, so that the next start need not compute it.
//!
//! In: a file, a generator, and a prompt. Out: the generator with what the file holds of the prompt, and the file with
//! the prompt. Only what follows their longest common prefix is computed.

use std::path::PathBuf;

use clap::Args;
use fusebox::generate::Generator;

use crate::flags::given::Given;

/// Where the KV cache of a prompt is kept.
#[derive(Args)]
pub(crate) struct PromptCache {
    /// File with the KV cache of a prompt: read if it is there, and written after the prompt.
    #[arg(long = "prompt-cache", value_name = "FILE")]
    path: Option<PathBuf>,
    /// Write the answer to the prompt cache, too.
    #[arg(long = "prompt-cache-all", requires = "path")]
    is_all: bool,
    /// Read the prompt cache and leave it as it is.
    #[arg(long = "prompt-cache-ro", requires = "path", conflicts_with = "is_all")]
    is_read_only: bool,
}

impl PromptCache {
    /// Reads the file, if it is there; computes the prompt and writes it, unless the answer is wanted with it.
    pub(crate) fn begin(&self, generator: &mut Generator, prompt: Option<&[u32]>) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let Some(prompt) = prompt else {
            let sentence = "--prompt-cache is for one prompt; in a chat /save and /load keep the messages";
            return Err(sentence.to_owned());
        };
        let given = Given::new("--prompt-cache", path);
        if self.is_read_only || path.exists() {
            given.check_file("a file that an earlier --prompt-cache wrote")?;
            generator.restore(path).map_err(|error| error.to_string())?;
        }
        if self.is_read_only {
            return Ok(());
        }
        given.check_target()?;
        if self.is_all {
            return Ok(());
        }
        generator.prefill(prompt).and_then(|()| generator.save(path)).map_err(|error| error.to_string())
    }

    /// Writes the prompt with its answer, where that is wanted.
    pub(crate) fn write_all(&self, generator: &mut Generator) -> Result<(), String> {
        let Some(path) = self.path.as_ref().filter(|_| self.is_all) else { return Ok(()) };
        generator.save(path).map_err(|error| error.to_string())
    }
}
