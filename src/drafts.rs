//! Speculative decoding: which draft guesses for a generator.
//!
//! In: the name of a draft, `ngram` or a model. Out: a generator that guesses; how it works is in
//! [`draft`](fusebox_models::draft).

use std::path::Path;

use fusebox_models::draft::Draft;
use fusebox_models::draft::ngram::Ngram;
use fusebox_models::draft::smaller::Smaller;
use fusebox_models::generate::Generator;
use fusebox_models::layers::embed::Scored;
use fusebox_models::tokenizer::Tokenizer;

use crate::open::Opened;
use crate::open::context::ContextRange;

/// The draft that needs no model.
const NGRAM: &str = "ngram";
/// The most tokens of a guess.
pub const MOST: usize = 64;
/// How many tokens are guessed at most, unless something else is said.
pub const USUAL: usize = 8;

/// Has a generator guess up to `most` tokens at a time: by earlier text, or by a smaller model, which `open` opens. Its
/// session must have been made to score every token of a step.
///
/// # Errors
/// Where the model cannot be opened or has other tokens, or the generator's KV cache cannot be cut.
pub fn begin(
    generator: &mut Generator,
    (name, most): (&str, usize),
    (tokenizer, n_threads): (Option<&Tokenizer>, usize),
    open: &mut dyn FnMut(&Path) -> Result<Opened, String>,
) -> Result<(), String> {
    let draft: Box<dyn Draft> = if name == NGRAM {
        Box::<Ngram>::default()
    } else {
        let Some(tokenizer) = tokenizer else {
            return Err(format!(
                "a draft model needs a tokenizer to compare, found none; {NGRAM} needs none"
            ));
        };
        let mut opened = open(Path::new(name))?;
        let own = Tokenizer::open(opened.model.checkpoint()).map_err(|error| error.to_string())?;
        let context = generator.session().context().min(opened.model.config.context);
        let session = opened.session(n_threads, ContextRange::exactly(context), Scored::TopK(1))?;
        Box::new(Smaller::new(session, &own, tokenizer).map_err(|error| opened.in_model(error))?)
    };
    generator.set_draft(draft, most).map_err(|error| error.to_string())
}
