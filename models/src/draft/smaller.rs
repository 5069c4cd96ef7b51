//! Guesses by a smaller model with the same tokens.
//!
//! In: a session of that model, which returns the best logit. Out: its likeliest tokens.
//! Of the tokens so far it is fed what it has not seen, so after a guess that was right little is left.

use fusebox_runtime::session::Session;

use crate::draft::Draft;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Guesses by a smaller model.
pub struct Smaller {
    session: Session,
    /// The tokens in its KV cache.
    cached: Vec<u32>,
}

impl Smaller {
    /// A session that selects the best logit; see [`Scored::TopK`](crate::layers::embed::Scored).
    ///
    /// # Errors
    /// Where a token of one model is another token of the other, or the smaller one cannot take guesses back.
    pub fn new(session: Session, own: &Tokenizer, of: &Tokenizer) -> Result<Self, Error> {
        let refused = |found: String| {
            let expected = "a model with the same tokens and a KV cache that can be cut".to_owned();
            Error::Setting { setting: "draft", expected, found }
        };
        let n_same = own.n_tokens().min(of.n_tokens()) as u32;
        if let Some(id) = (0..n_same).find(|id| own.token_bytes(*id) != of.token_bytes(*id)) {
            return Err(refused(format!("a model whose token {id} is another")));
        }
        if session.is_forward_only() {
            return Err(refused("a model with recurrent states".to_owned()));
        }
        Ok(Self { session, cached: Vec::new() })
    }
}

impl Draft for Smaller {
    fn guess(&mut self, tokens: &[u32], n: usize, guess: &mut Vec<u32>) -> Result<(), Error> {
        let context = self.session.context();
        let is_known = |token: &u32| (*token as usize) < self.session.n_vocab();
        if tokens.len() + n > context || !tokens.iter().all(is_known) {
            return Ok(());
        }
        let pairs = self.cached.iter().zip(tokens);
        // The last token is fed in any case: its logits are wanted.
        let n_same = pairs.take_while(|(a, b)| a == b).count().min(tokens.len().saturating_sub(1));
        self.session.truncate(n_same)?;
        self.cached.truncate(n_same);
        let first = guess.len();
        let mut next = &tokens[n_same..];
        while guess.len() < first + n {
            self.session.feed(next)?;
            self.cached.extend(next);
            let Some(best) = self.session.best().and_then(<[u32]>::first).copied() else { break };
            guess.push(best);
            next = std::slice::from_ref(guess.last().expect("it was just pushed"));
        }
        Ok(())
    }
}
