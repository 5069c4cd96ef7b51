//! Continuing texts, and making vectors of them.
//!
//! In: texts. Out: what follows them, or a vector for each.

use std::ops::ControlFlow;
use std::sync::Arc;

use fusebox_models::embed::Embedder as Embeds;
use fusebox_models::generate::{Answer, Generator};
use fusebox_models::tokenizer::Tokenizer;

use crate::error::Error;
use crate::open::context::ContextLimit;

/// Continues prompts.
pub struct Writer {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) generator: Generator,
    pub(crate) limit: ContextLimit,
}

/// Makes vectors of strings.
pub struct Embedder {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) inner: Embeds,
    pub(crate) limit: ContextLimit,
}

impl Embedder {
    /// The most tokens of a text.
    pub fn context(&self) -> usize {
        self.inner.session().context()
    }

    /// The size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.inner.session().n_vocab()
    }
}

impl Writer {
    /// What follows a text; `each` gets it in pieces as it comes, and may stop it.
    ///
    /// # Errors
    /// Where the text is empty or does not fit into the context.
    pub fn go_on(
        &mut self,
        text: &str,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        let tokens = self.limit.encode("the text has", &self.tokenizer, text, true)?;
        Ok(self.generator.answer(&tokens, &mut each)?)
    }
}

impl Embedder {
    /// The vector of a text, of length 1; of a model with a head that ranks texts, its scores.
    ///
    /// # Errors
    /// Where the text is empty or does not fit into the context.
    pub fn embed(&mut self, text: &str) -> Result<Vec<f32>, Error> {
        let tokens = self.limit.encode("the text has", &self.tokenizer, text, true)?;
        self.embed_tokens(&tokens)
    }

    /// The same, of a text that was tokenised.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub fn embed_tokens(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let vector = self.inner.embed(tokens)?;
        if vector.iter().any(|x| !x.is_finite()) || vector.iter().all(|x| *x == 0.0) {
            return Err(Error::from("the vectors of the text have no direction"));
        }
        Ok(vector)
    }
}
