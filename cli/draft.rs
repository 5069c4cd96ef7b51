//! `run --draft`: speculative decoding.
//!
//! In: how tokens are guessed. Out: a generator that verifies several in one step, and what that won, in words and as
//! JSON.

use std::path::Path;

use clap::Args;
use fusebox::context::ContextRange;
use fusebox::draft::Draft;
use fusebox::draft::ngram::Ngram;
use fusebox::draft::smaller::Smaller;
use fusebox::generate::{Generator, Timing};
use fusebox::nn::embed::Scored;
use fusebox::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::model::ModelFlags;
use crate::progress::Progress;

/// The draft that needs no model.
const NGRAM: &str = "ngram";
/// The most tokens of a guess.
const MOST: usize = 64;

/// Speculative decoding.
#[derive(Args)]
pub(crate) struct DraftFlags {
    /// Guess tokens and verify several in one step (speculative decoding): a smaller model with the same tokens, or
    /// ngram, by earlier text. Fewer are guessed where that is slower.
    #[arg(long, value_name = "ngram|MODEL", alias = "model-draft")]
    draft: Option<String>,
    /// The most tokens that are guessed for one step.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "draft", alias = "draft-n")]
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
        (tokenizer, n_threads): (Option<&Tokenizer>, usize),
        is_quiet: bool,
    ) -> Result<(), String> {
        let Some(name) = &self.draft else { return Ok(()) };
        if !(1..=MOST).contains(&self.draft_max) {
            return Err(format!("--draft-max is {}, expected 1 to {MOST}", self.draft_max));
        }
        let draft: Box<dyn Draft> = if name == NGRAM {
            Box::<Ngram>::default()
        } else {
            if name.parse::<usize>().is_ok() {
                return Err(format!(
                    "--draft is {name}, expected {NGRAM} or a model; --draft-max is a number"
                ));
            }
            let Some(tokenizer) = tokenizer else {
                return Err(format!(
                    "--draft is a model, and this one has no tokens to compare; {NGRAM} needs none"
                ));
            };
            let mut opened = flags.open(Some(Path::new(name)), &mut Progress::new(1), is_quiet)?;
            let own = Tokenizer::open(opened.model.checkpoint()).map_err(|error| error.to_string())?;
            let context = generator.session().context().min(opened.model.config.context);
            let session = opened.session(n_threads, ContextRange::exactly(context), Scored::TopK(1))?;
            Box::new(Smaller::new(session, &own, tokenizer).map_err(|error| opened.in_model(error))?)
        };
        generator.set_draft(draft, self.draft_max).map_err(|error| error.to_string())
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
