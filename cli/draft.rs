//! `run --draft`: speculative decoding.
//!
//! In: how tokens are guessed. Out: a generator that verifies several in one step, and what that won, in words and as
//! JSON.

use std::path::Path;

use clap::Args;
use fusebox::drafts;
use fusebox::generate::{Generator, Timing};
use fusebox::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::model::ModelFlags;

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
        if !(1..=drafts::MOST).contains(&self.draft_max) {
            return Err(format!("--draft-max is {}, expected 1 to {}", self.draft_max, drafts::MOST));
        }
        let mut open = |name: &Path| flags.open_other(name, is_quiet);
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
