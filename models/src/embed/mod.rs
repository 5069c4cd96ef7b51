//! Embedding and ranking: from the tokens of a text to one vector, or to a score.
//!
//! In: a session that returns hidden states, and tokens. Out: a vector of length 1, pooled as the model's file says; of
//! a model with a head that ranks, its scores. A decoder can rank as well ([`Judge`]): it is asked whether a document
//! answers a query, and the score is the probability of yes against no.

use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;

use crate::embed::pooling::{Pooling, normalised};
use crate::layers::embed::Scored;
use crate::load::Model;
use crate::tokenizer::Tokenizer;

pub mod pooling;

/// What Qwen3-Reranker was trained on: the text around a query and a document, and the default task.
const BEFORE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
);
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";

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
    /// Whether the last token has seen all others.
    is_causal: bool,
}

impl Embedder {
    /// Over a session of a model that returns what [`scored`] says.
    pub fn new(model: &Model, session: Session, pooling: Pooling) -> Self {
        Self { session, pooling, is_causal: model.config.is_causal() }
    }

    /// The vector of a text, of length 1; with [`Pooling::Rank`] the scores of the text.
    ///
    /// # Errors
    /// Where there are no tokens, one is unknown, or they do not fit into the context.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        self.session.truncate(0)?;
        let (mut rows, width) = (Vec::new(), self.session.width());
        self.session.score(tokens, &mut |row| rows.extend_from_slice(row))?;
        Ok(match self.pooling {
            // The head reads the token that stands for the whole text.
            Pooling::Rank if !self.is_causal => Pooling::First.pooled(&rows, width),
            Pooling::Rank => Pooling::Last.pooled(&rows, width),
            pooling => normalised(&pooling.pooled(&rows, width)),
        })
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

/// A decoder that says whether a document answers a query, as Qwen3-Reranker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judge {
    yes: u32,
    no: u32,
}

impl Judge {
    /// Of a tokenizer that has the tokens `yes` and `no`.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let one = |text: &str| match tokenizer.encode(text, false).ok()?[..] {
            [id] => Some(id),
            _ => None,
        };
        Some(Self { yes: one("yes")?, no: one("no")? })
    }

    /// The text whose next token is the answer.
    pub fn question(query: &str, document: &str) -> String {
        format!("{BEFORE}<Instruct>: {TASK}\n<Query>: {query}\n<Document>: {document}{AFTER}")
    }

    /// The tokens of yes and of no.
    pub fn answers(self) -> [u32; 2] {
        [self.yes, self.no]
    }

    /// The probability of yes against no, from the logits or log-probabilities of both.
    pub fn score([yes, no]: [f32; 2]) -> f32 {
        (1.0 / (1.0 + (f64::from(no) - f64::from(yes)).exp())) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_a_probability_of_two_answers() {
        assert_eq!(Judge::score([1.5, 1.5]), 0.5);
        assert!((Judge::score([2.0, 0.0]) - 0.880_797_1).abs() < 1e-6);
        assert_eq!([Judge::score([1e3, -1e3]), Judge::score([-1e3, 1e3])], [1.0, 0.0]);
        assert!(Judge::score([f32::NAN, 0.0]).is_nan());
    }

    #[test]
    fn only_a_head_that_ranks_returns_scores() {
        assert_eq!(scored(Pooling::Rank), Scored::Ranked);
        assert!(
            [Pooling::Mean, Pooling::First, Pooling::Last].iter().all(|own| scored(*own) == Scored::Embedded)
        );
    }
}
