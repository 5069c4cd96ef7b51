//! What a model is asked about: a text, a file that holds one, or tokens.
//!
//! In: flags. Out: a [`Prompt`], and its tokens, if there is room for them.
//! The file `-` is standard input. The end of a file's last line is no part of the text: editors put it there.

use std::path::{Path, PathBuf};

use clap::Args;
use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::files;
use fusebox_runtime::weights::Checkpoint;

use crate::room::Room;

/// The longest text that is read from a file.
const MAX_BYTES: usize = 16 << 20;

/// A text in one of the ways to say it.
#[derive(Args)]
pub(crate) struct Asked {
    /// The text that is asked about.
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"], allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file with the text; - for standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// The text by the numbers of its tokens.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = number, allow_hyphen_values = true)]
    tokens: Option<Vec<u32>>,
}

/// What a model is asked about.
pub(crate) enum Prompt {
    Tokens(Vec<u32>),
    Text(String),
}

impl Asked {
    /// What was said, if anything was.
    pub(crate) fn prompt(&self) -> Result<Option<Prompt>, String> {
        Ok(match (&self.tokens, &self.prompt, &self.file) {
            (Some(tokens), ..) => Some(Prompt::Tokens(tokens.clone())),
            (None, Some(text), _) => Some(Prompt::Text(text.clone())),
            (None, None, Some(path)) => Some(Prompt::Text(read(path)?)),
            (None, None, None) => None,
        })
    }
}

impl Prompt {
    /// Its tokens, if there are any and there is room for them.
    pub(crate) fn tokens(
        &self,
        what: &str,
        tokenizer: Option<&Tokenizer>,
        room: Room,
    ) -> Result<Vec<u32>, String> {
        let what_has = format!("{what} has");
        let tokens = match self {
            Self::Tokens(tokens) => room.check(&what_has, tokens.len()).map(|()| tokens.clone())?,
            Self::Text(text) => {
                let tokenizer = tokenizer.ok_or("words need a tokenizer, which this model has not")?;
                room.tokens(&what_has, (tokenizer, text, true))?
            }
        };
        if tokens.is_empty() {
            return Err(format!("{what} has no tokens; at least one is needed"));
        }
        Ok(tokens)
    }
}

/// The words of a model; where only numbers of tokens are asked about, it need have none.
pub(crate) fn words(checkpoint: &Checkpoint, are_needed: bool) -> Result<Option<Tokenizer>, String> {
    match Tokenizer::open(checkpoint) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(_) if !are_needed => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// A number in a list, as it may have been copied from one.
fn number(text: &str) -> Result<u32, std::num::ParseIntError> {
    text.trim_matches(|c: char| c.is_whitespace() || c == '[' || c == ']').parse()
}

fn read(path: &Path) -> Result<String, String> {
    let text =
        if path == Path::new("-") { files::standard_input(MAX_BYTES) } else { files::text(path, MAX_BYTES) };
    let mut text = text.map_err(|error| error.to_string())?;
    let n_kept =
        text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
    text.truncate(n_kept);
    Ok(text)
}
