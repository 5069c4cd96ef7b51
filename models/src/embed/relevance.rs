//! Relevance: how well a document answers a query, as a number from 0 to 1.
//!
//! In: a model, its tokenizer, and both texts. Out: the tokens that the model reads, and the score of the row that it
//! returns for them.
//! An encoder with a head (a cross-encoder) reads both texts at once, joined as its tokenizer says, and the score is
//! the sigmoid of what the head returns. A decoder is asked in words, and the score is the probability of yes against
//! no; the two may be tokens, or the rows of a head (Qwen3-Reranker).

use crate::layers::embed::Scored;
use crate::load::Model;
use crate::tokenizer::{Pair, Tokenizer};

/// What Qwen3-Reranker was trained on: the text around a query and a document, and the default task.
const BEFORE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n",
);
const AFTER: &str = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
const TASK: &str = "Given a web search query, retrieve relevant passages that answer the query";

/// How a model says whether a document answers a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// By the one score of a head that reads both texts.
    Head,
    /// By the two scores of a decoder's head, for yes and for no.
    Answers,
    /// By the logits of these two tokens.
    Tokens {
        /// The token of yes.
        yes: u32,
        /// The token of no.
        no: u32,
    },
}

impl Relevance {
    /// How a model does it.
    ///
    /// # Errors
    /// Says what it lacks, as the end of a sentence.
    pub fn of(model: &Model, tokenizer: &Tokenizer) -> Result<Self, String> {
        let lacks = |what: &str| Err(format!("it cannot rank texts: expected {what}"));
        if model.generates() {
            let one = |text: &str| match tokenizer.encode(text, false).ok()?[..] {
                [id] => Some(id),
                _ => None,
            };
            return match (one("yes"), one("no")) {
                (Some(yes), Some(no)) => Ok(Self::Tokens { yes, no }),
                _ => lacks("the tokens `yes` and `no`, found none"),
            };
        }
        match (model.config.ends.ranking.map(|head| head.n_labels), model.config.is_causal()) {
            (None, _) => lacks("a head that scores them, found none"),
            (Some(2), true) => Ok(Self::Answers),
            (Some(1), false) if tokenizer.joins() => Ok(Self::Head),
            (Some(1), false) => lacks("a tokenizer that joins two texts, found none"),
            (Some(n), true) => lacks(&format!("a head with scores for yes and no, found {n}")),
            (Some(n), false) => lacks(&format!("a head with one score, found {n}")),
        }
    }

    /// What its sessions return.
    pub fn scored(self) -> Scored {
        match self {
            Self::Head | Self::Answers => Scored::Ranked,
            Self::Tokens { .. } => Scored::Last,
        }
    }

    /// What the model reads of a query and a document.
    ///
    /// # Errors
    /// Where the file's own rules fail on a text.
    pub fn input(self, tokenizer: &Tokenizer, [query, document]: [&str; 2]) -> Result<Pair, String> {
        let found = match self {
            Self::Head => tokenizer.encode_pair([query, document]),
            Self::Answers | Self::Tokens { .. } => {
                let text =
                    format!("{BEFORE}<Instruct>: {TASK}\n<Query>: {query}\n<Document>: {document}{AFTER}");
                tokenizer.encode(&text, false).map(|tokens| Some(Pair { tokens, kinds: Vec::new() }))
            }
        };
        let joins = "its tokenizer does not say how two texts are joined";
        found.map_err(|error| error.to_string())?.ok_or_else(|| joins.to_owned())
    }

    /// The score, from the row that a session returns last; of tokens logits or log-probabilities.
    pub fn score(self, row: &[f32]) -> f32 {
        let at = |index: usize| f64::from(row.get(index).copied().unwrap_or(f32::NAN));
        let score = match self {
            Self::Head => at(0),
            Self::Answers => at(0) - at(1),
            Self::Tokens { yes, no } => at(yes as usize) - at(no as usize),
        };
        (1.0 / (1.0 + (-score).exp())) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_a_probability() {
        let tokens = Relevance::Tokens { yes: 2, no: 0 };
        assert_eq!(tokens.score(&[1.5, 9.0, 1.5]), 0.5);
        assert!((Relevance::Answers.score(&[2.0, 0.0]) - 0.880_797_1).abs() < 1e-6);
        assert_eq!(Relevance::Head.score(&[2.0]), Relevance::Answers.score(&[2.0, 0.0]));
        assert_eq!([-1e3, 1e3].map(|score| Relevance::Head.score(&[score])), [0.0, 1.0]);
        assert!(tokens.score(&[0.0, 1.0]).is_nan() && Relevance::Head.score(&[f32::NAN]).is_nan());
    }
}
