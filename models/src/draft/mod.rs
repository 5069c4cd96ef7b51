//! Speculative decoding: tokens are guessed and verified together, several in one step.
//!
//! In: the tokens so far. Out: a guess at those that follow, by a [`Draft`]: earlier text (`ngram.rs`) or a smaller
//! model (`smaller.rs`). `generate.rs` verifies it: each token is drawn from the logits of the model itself, as without
//! a draft, and a guess only saves the step that would have computed them. So a draft changes the speed of an answer
//! and not its distribution; it changes a draw only where the rounding of a longer step does.
//! `pace.rs` chooses how many tokens are guessed, none where that is slower.

use std::time::Instant;

use crate::draft::pace::Pace;
use crate::error::Error;

pub mod ngram;
pub mod pace;
pub mod smaller;

/// Guesses the tokens that follow others.
pub trait Draft {
    /// Appends up to `n` tokens to `guess` that may follow `tokens`, the whole sequence.
    ///
    /// # Errors
    /// Where a model that guesses fails.
    fn guess(&mut self, tokens: &[u32], n: usize, guess: &mut Vec<u32>) -> Result<(), Error>;
}

/// A draft, and what it guesses at the moment.
pub(crate) struct Speculation {
    draft: Box<dyn Draft>,
    pace: Pace,
    /// The tokens of the last step after its first one, which is certain.
    guess: Vec<u32>,
    /// How many of them came.
    n_right: usize,
    /// Seconds that the last step took, and its guess.
    seconds: Option<[f64; 2]>,
}

impl Speculation {
    /// Guesses of up to `most` tokens.
    pub(crate) fn new(draft: Box<dyn Draft>, most: usize) -> Self {
        let guess = Vec::with_capacity(most + 1);
        Self { draft, pace: Pace::new(most), guess, n_right: 0, seconds: None }
    }

    /// How many guessed tokens have not come.
    pub(crate) fn n_left(&self) -> usize {
        self.guess.len() - self.n_right
    }

    /// Whether a token that came was the one that was guessed.
    pub(crate) fn is_right(&mut self, token: u32) -> bool {
        let is_right = self.guess.get(self.n_right) == Some(&token);
        self.n_right += usize::from(is_right);
        is_right
    }

    /// Forgets a guess, and measures what it won.
    pub(crate) fn end(&mut self) {
        if let Some([step, guess]) = self.seconds.take() {
            self.pace.record((self.guess.len(), self.n_right), step, guess);
        }
        self.guess.clear();
        self.n_right = 0;
    }

    /// Guesses up to `most` tokens below `n_vocab` after `tokens`, and has `step` compute the last of these and the
    /// guess. Returns how many tokens were guessed.
    pub(crate) fn begin(
        &mut self,
        tokens: &[u32],
        (most, n_vocab): (usize, usize),
        step: &mut dyn FnMut(&[u32]) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        let start = Instant::now();
        let n = self.pace.choose().min(most);
        self.guess.extend(tokens.last());
        if n > 0 {
            self.draft.guess(tokens, n, &mut self.guess)?;
            let n_known = self.guess.iter().take_while(|token| (**token as usize) < n_vocab).count();
            self.guess.truncate(n_known.min(n + 1));
        }
        let guessed = start.elapsed();
        let start = Instant::now();
        step(&self.guess)?;
        self.seconds = Some([start.elapsed().as_secs_f64(), guessed.as_secs_f64()]);
        self.guess.remove(0);
        Ok(self.guess.len())
    }
}
