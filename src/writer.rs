//! Continuing texts, making vectors of them, and ranking them.
//!
//! In: texts. Out: what follows them, a vector for each, or a score for each.

use std::ops::ControlFlow;
use std::sync::Arc;

use fusebox_models::embed::Embedder as Embeds;
use fusebox_models::embed::pooling::Pooling;
use fusebox_models::embed::relevance::Relevance;
use fusebox_models::generate::{Answer, Generator};
use fusebox_models::tokenizer::{Pair, Tokenizer};

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

/// Scores how well documents answer a query.
pub struct Ranker {
    pub(crate) relevance: Relevance,
    pub(crate) embedder: Embedder,
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
        self.checked(vector)
    }

    /// The same, of two texts that were joined.
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    pub fn embed_pair(&mut self, pair: &Pair) -> Result<Vec<f32>, Error> {
        let vector = self.inner.embed_pair(pair)?;
        self.checked(vector)
    }

    fn checked(&self, vector: Vec<f32>) -> Result<Vec<f32>, Error> {
        if vector.iter().any(|x| !x.is_finite()) {
            return Err(Error::from("what the model makes of the text is no number"));
        }
        if self.inner.pooling() != Pooling::Rank && vector.iter().all(|x| *x == 0.0) {
            return Err(Error::from("the vector of the text has no direction"));
        }
        Ok(vector)
    }
}

impl Ranker {
    /// How well a document answers a query, from 0 to 1.
    ///
    /// # Errors
    /// Where both together do not fit into the context.
    pub fn rank(&mut self, query: &str, document: &str) -> Result<f32, Error> {
        let Embedder { tokenizer, limit, .. } = &self.embedder;
        let pair = limit.encode_pair(
            "the query and the document have",
            tokenizer,
            self.relevance,
            [query, document],
        )?;
        Ok(self.relevance.score(&self.embedder.embed_pair(&pair)?))
    }
}
