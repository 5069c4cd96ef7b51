//! Embedding and ranking: from the tokens of a text to one vector, or to a score.
//!
//! In: a session that returns hidden states, and tokens. Out: a vector of length 1, pooled as the model's file says; of
//! a model with a head that ranks, its scores. How well a document answers a query is in `relevance.rs`.

use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;

use crate::embed::pooling::{Pooling, normalised};
use crate::layers::embed::Scored;
use crate::load::Model;
use crate::tokenizer::Pair;

pub mod pooling;
pub mod relevance;

/// How a model pools: by its head, by what the caller wants, or by its file; none where nothing says it.
///
/// # Errors
/// As [`Pooling::of`].
pub fn pooling_of(model: &Model, wanted: Option<Pooling>) -> Result<Option<Pooling>, Error> {
    if wanted.is_some() {
        return Ok(wanted);
    }
    if model.config.ends.ranking.is_some() {
        return Ok(Some(Pooling::Rank));
    }
    Ok(Pooling::of(model.checkpoint())?.filter(|stated| *stated != Pooling::Rank))
}

/// What the sessions of an [`Embedder`] return.
pub fn scored(pooling: Pooling) -> Scored {
    match pooling {
        Pooling::Rank => Scored::Ranked,
        Pooling::Mean | Pooling::First | Pooling::Last => Scored::Embedded,
    }
}

/// Makes vectors of texts.
pub struct Embedder {
    session: Session,
    pooling: Pooling,
    /// Whether the model tells kinds of tokens apart.
    has_kinds: bool,
}

impl Embedder {
    /// Over a session of a model that returns what [`scored`] says.
    pub fn new(model: &Model, session: Session, pooling: Pooling) -> Self {
        Self { session, pooling, has_kinds: model.config.added.n_kinds > 1 }
    }

    /// The vector of a text, of length 1; with [`Pooling::Rank`] the scores of the text.
    ///
    /// # Errors
    /// Where there are no tokens, one is unknown, or they do not fit into the context.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.pooled(|session, each| session.score(tokens, each))
    }

    /// The same of two texts that were joined.
    ///
    /// # Errors
    /// As [`Embedder::embed`], and where the model has fewer kinds of tokens.
    pub fn embed_pair(&mut self, Pair { tokens, kinds }: &Pair) -> Result<Vec<f32>, Error> {
        if !self.has_kinds || kinds.is_empty() {
            return self.embed(tokens);
        }
        self.pooled(|session, each| session.score_joined(tokens, kinds, each))
    }

    fn pooled(
        &mut self,
        score: impl FnOnce(&mut Session, &mut dyn FnMut(&[f32])) -> Result<(), Error>,
    ) -> Result<Vec<f32>, Error> {
        self.session.truncate(0)?;
        let (mut rows, width) = (Vec::new(), self.session.width());
        score(&mut self.session, &mut |row| rows.extend_from_slice(row))?;
        let vector = self.pooling.pooled(&rows, width);
        Ok(if self.pooling == Pooling::Rank { vector } else { normalised(&vector) })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How it pools.
    pub fn pooling(&self) -> Pooling {
        self.pooling
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_head_that_ranks_returns_scores() {
        assert_eq!(scored(Pooling::Rank), Scored::Ranked);
        assert!(
            [Pooling::Mean, Pooling::First, Pooling::Last].iter().all(|own| scored(*own) == Scored::Embedded)
        );
    }
}
