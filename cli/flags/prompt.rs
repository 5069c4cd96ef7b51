//! The prompt flags: text, a text file, or token ids.
//!
//! In: flags. Out: a [`Prompt`], and its token ids, if they fit into the context.
//! The file `-` is standard input. A newline at the end of a file is dropped: editors put it there.

#[cfg(unix)]
use std::fs::File;
use std::io::{IsTerminal, stdin};
#[cfg(unix)]
use std::os::fd::AsFd;
#[cfg(unix)]
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::Args;
use fusebox::open::context::ContextLimit;
use fusebox::tokenizer::Tokenizer;
use fusebox::weights::Checkpoint;

use crate::flags::given::Given;

/// The largest text file that is read.
const MAX_BYTES: usize = 16 << 20;

/// The prompt, in one of three forms.
#[derive(Args)]
pub(crate) struct PromptFlags {
    /// The prompt.
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"], allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file; - is standard input.
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    file: Option<PathBuf>,
    /// The prompt as token ids.
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id, allow_hyphen_values = true)]
    tokens: Option<Vec<u32>>,
}

/// A prompt before it is tokenised.
pub(crate) enum Prompt {
    Tokens(Vec<u32>),
    Text(String),
}

impl PromptFlags {
    /// The prompt given by the flags, if any; reads its file.
    pub(crate) fn read(&self) -> Result<Option<Prompt>, String> {
        Ok(match (&self.tokens, &self.prompt, &self.file) {
            (Some(tokens), ..) => Some(Prompt::Tokens(tokens.clone())),
            (None, Some(text), _) => Some(Prompt::Text(text.clone())),
            (None, None, Some(path)) => Some(Prompt::Text(read_file("--file", path)?)),
            (None, None, None) => None,
        })
    }
}

impl Prompt {
    /// The token ids of the prompt: at least one, and no more than fit into the context.
    pub(crate) fn tokens(
        &self,
        tokenizer: Option<&Tokenizer>,
        limit: ContextLimit,
    ) -> Result<Vec<u32>, String> {
        let tokens = match self {
            Self::Tokens(tokens) => limit.check("the prompt has", tokens.len()).map(|()| tokens.clone())?,
            Self::Text(text) => {
                let tokenizer =
                    tokenizer.ok_or("this model has no tokenizer; give the prompt as --tokens 1,2,3")?;
                limit.encode("the prompt has", tokenizer, text, true)?
            }
        };
        if tokens.is_empty() {
            return Err("the prompt is empty; at least one token is needed".to_owned());
        }
        Ok(tokens)
    }
}

/// The tokenizer of a model; it may be missing where the prompt is given as token ids.
pub(crate) fn open_tokenizer(
    checkpoint: &Checkpoint,
    is_required: bool,
) -> Result<Option<Tokenizer>, String> {
    match Tokenizer::open(checkpoint) {
        Ok(tokenizer) => Ok(Some(tokenizer)),
        Err(_) if !is_required => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// One id in a list of token ids; blanks and brackets around it are dropped, so that printed lists can be pasted.
fn token_id(text: &str) -> Result<u32, std::num::ParseIntError> {
    text.trim_matches(|c: char| c.is_whitespace() || c == '[' || c == ']').parse()
}

/// The text of standard input, where that is a pipe or a file, and not empty. Beside words it is read only where it
/// surely is one: who starts a command often leaves another kind of input open for ever.
pub(crate) fn piped(is_beside_words: bool) -> Result<Option<String>, String> {
    if stdin().is_terminal() || (is_beside_words && !is_pipe_or_file()) {
        return Ok(None);
    }
    Ok(Some(read_file("standard input", Path::new("-"))?).filter(|text| !text.trim().is_empty()))
}

#[cfg(unix)]
fn is_pipe_or_file() -> bool {
    let input = stdin().as_fd().try_clone_to_owned().map(File::from);
    let about = input.and_then(|input| input.metadata());
    about.is_ok_and(|about| about.file_type().is_fifo() || about.is_file())
}

#[cfg(not(unix))]
fn is_pipe_or_file() -> bool {
    true
}

fn read_file(flag: &str, path: &Path) -> Result<String, String> {
    let mut text = Given::new(flag, path).text(MAX_BYTES)?;
    let n_kept =
        text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
    text.truncate(n_kept);
    Ok(text)
}
