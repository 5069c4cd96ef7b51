//! `--draft` of `run` and `serve`: speculative decoding.
//!
//! In: how tokens are guessed. Out: a generator that verifies several in one step, and what that won, in words and as
//! JSON.

use std::path::Path;

use clap::{Args, ValueEnum};
use fusebox::drafts;
use fusebox::generate::{Generator, Timing};
use fusebox::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::flags::model::ModelFlags;

/// Speculative decoding.
#[derive(Args)]
pub(crate) struct DraftFlags {
    /// Guess tokens and verify several in one step (speculative decoding): a smaller model with the same tokens, or
    /// ngram, by earlier text. Fewer are guessed where that is slower.
    #[arg(long, value_name = "ngram|MODEL", alias = "model-draft")]
    draft: Option<String>,
    /// The most tokens that are guessed for one step.
    #[arg(long, value_name = "N", default_value_t = drafts::USUAL, requires = "draft", alias = "draft-n")]
    draft_max: usize,
}

/// Speculative decoding of many sequences.
#[derive(Args)]
pub(crate) struct GuessFlags {
    /// Guess tokens of each sequence and verify several in one step (speculative decoding): ngram, by earlier text.
    /// Fewer are guessed where that is slower.
    #[arg(long, value_name = "BY")]
    draft: Option<Guess>,
    /// The most tokens that are guessed for a sequence in one step.
    #[arg(long, value_name = "N", default_value_t = drafts::USUAL, requires = "draft", alias = "draft-n")]
    draft_max: usize,
}

/// What guesses for many sequences.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Guess {
    /// Earlier text of the same sequence.
    Ngram,
}

#[cfg(feature = "serve")]
impl GuessFlags {
    /// The most tokens that are guessed for a sequence; 0 where none are.
    pub(crate) fn most(&self) -> Result<usize, String> {
        let Some(Guess::Ngram) = self.draft else { return Ok(0) };
        check_most(self.draft_max)?;
        Ok(self.draft_max)
    }
}

fn check_most(n: usize) -> Result<(), String> {
    let is_known = (1..=drafts::MOST).contains(&n);
    if is_known { Ok(()) } else { Err(format!("--draft-max is {n}, expected 1 to {}", drafts::MOST)) }
}

impl DraftFlags {
    /// Whether tokens are guessed.
    pub(crate) fn is_on(&self) -> bool {
        self.draft.is_some()
    }

    /// Has the generator guess, where that is wanted.
    pub(crate) fn begin(
        &self,
        generator: &mut Generator,
        flags: &ModelFlags,
        by: (Option<&Tokenizer>, usize),
        is_quiet: bool,
    ) -> Result<(), String> {
        let Some(name) = &self.draft else { return Ok(()) };
        if name.parse::<usize>().is_ok() {
            return Err(format!("--draft is {name}, expected ngram or a model; --draft-max is a number"));
        }
        check_most(self.draft_max)?;
        let mut open = |name: &Path| {
            let opened = flags.open_other(name, is_quiet);
            opened.map_err(|error| format!("--draft takes ngram or a model: {error}"))
        };
        drafts::begin(generator, (name, self.draft_max), by, &mut open)
    }

    /// What guessing won, in words: nothing where nothing was guessed.
    pub(crate) fn in_words(&self, timing: &Timing) -> String {
        let Timing { n_guessed, n_right, .. } = timing;
        if self.is_on() { format!("; {n_right} of {n_guessed} guessed tokens right") } else { String::new() }
    }

    /// The same as data.
    pub(crate) fn to_json(&self, timing: &Timing) -> Value {
        self.draft.as_ref().map_or(
            Value::Null,
            |name| json!({ "draft": name, "guessed": timing.n_guessed, "right": timing.n_right }),
        )
    }
}
