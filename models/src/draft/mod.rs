//! Speculative decoding: tokens are guessed and verified together, several in one step.
//!
//! In: the tokens so far. Out: a guess at those that follow, by a [`Draft`]: earlier text (`ngram.rs`) or a smaller
//! model (`smaller.rs`). `generate.rs` verifies it: each token is drawn from the logits of the model itself, as without
//! a draft, and a guess only saves the step that would have computed them. So a draft changes the speed of an answer
//! and not its distribution; it changes a draw only where the rounding of a longer step does.
//! `pace.rs` chooses how many tokens are guessed, none where that is slower.

use std::time::Instant;

use crate::draft::pace::{Luck, Pace};
use crate::error::Error;

pub mod ngram;
pub mod pace;
pub mod smaller;

/// The most tokens that are guessed for all sequences of a step together.
pub const MOST_IN_STEP: usize = 64;

/// Guesses the tokens that follow others.
pub trait Draft: Send {
    /// Appends up to `n` tokens to `guess` that may follow `tokens`, the whole sequence.
    ///
    /// # Errors
    /// Where a model that guesses fails.
    fn guess(&mut self, tokens: &[u32], n: usize, guess: &mut Vec<u32>) -> Result<(), Error>;
}

/// Guesses for one sequence, of which it is known how often they are right.
pub struct Guesser {
    draft: Box<dyn Draft>,
    /// How often its guesses are right.
    pub luck: Luck,
}

impl Guesser {
    /// Guesses of up to `most` tokens.
    pub fn new(draft: Box<dyn Draft>, most: usize) -> Self {
        Self { draft, luck: Luck::new(most) }
    }

    /// Appends up to `n` tokens below `n_vocab` to `guess` that may follow `tokens`, the whole sequence.
    ///
    /// # Errors
    /// As [`Draft::guess`].
    pub fn guess(
        &mut self,
        tokens: &[u32],
        (n, n_vocab): (usize, usize),
        guess: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let first = guess.len();
        if n > 0 {
            self.draft.guess(tokens, n, guess)?;
            let n_known = guess[first..].iter().take_while(|token| (**token as usize) < n_vocab).count();
            guess.truncate(first + n_known.min(n));
        }
        Ok(())
    }
}

/// A draft of one sequence, and what it guesses at the moment.
pub(crate) struct Speculation {
    guesser: Guesser,
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
        let guesser = Guesser::new(draft, most);
        Self { guesser, pace: Pace::default(), guess, n_right: 0, seconds: None }
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
            self.guesser.luck.record(self.guess.len(), self.n_right);
            self.pace.record(1, self.guess.len(), step, guess);
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
        let n = self.pace.choose_one(&mut self.guesser.luck).min(most);
        self.guess.extend(tokens.last());
        self.guesser.guess(tokens, (n, n_vocab), &mut self.guess)?;
        let guessed = start.elapsed();
        let start = Instant::now();
        step(&self.guess)?;
        self.seconds = Some([start.elapsed().as_secs_f64(), guessed.as_secs_f64()]);
        self.guess.remove(0);
        Ok(self.guess.len())
    }
}
