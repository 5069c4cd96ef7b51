//! Tokens that are guessed, so that a replay verifies several of a sequence (speculative decoding).
//!
//! In: the sequences that decode. Out: for each the tokens that may follow, where that pays; after the replay, how many
//! of them came. Each token is drawn as without guesses, from the model's own logits, so masks, penalties and seeds
//! mean what they do without.
//! A replay that computes prompts guesses nothing: it is long in any case, and its time says nothing of guesses.

use std::time::{Duration, Instant};

use fusebox::draft::pace::Pace;
use fusebox::draft::{Guesser, MOST_IN_STEP};

use crate::engine::{Capacity, Engine};
use crate::scheduler::{Entry, Part, Scheduler};

/// How long guesses are.
#[derive(Default)]
pub(super) struct Guesses {
    pace: Pace,
    /// How long the last ones took.
    took: Duration,
}

impl Entry {
    /// What guesses for it, once it has a token of its own.
    fn guesser(&mut self) -> Option<&mut Guesser> {
        let is_decoding = self.n_generated() > 0;
        self.guesser.as_mut().filter(|_| is_decoding)
    }

    /// The most tokens that may be guessed: the last one of an answer is drawn in any case.
    fn most_guessed(&self, engine: &dyn Engine, capacity: &Capacity) -> usize {
        let n_left = self.job.max_tokens.saturating_sub(self.n_generated() + 1);
        let room = capacity.longest.saturating_sub(self.tokens.len() + 1);
        let sequence = self.sequence.expect("a running entry has a sequence");
        // Tokens are dropped where a page begins, so a guess ends there: they go when they would without it.
        let in_page =
            if capacity.slides() { capacity.page - self.n_done % capacity.page } else { usize::MAX };
        let most = n_left.min(room).min(in_page - 1).min(MOST_IN_STEP);
        engine.takes(sequence, 1 + most).saturating_sub(1)
    }
}

impl Scheduler {
    /// Guesses tokens for the sequences of a batch.
    pub(super) fn guess(&mut self, engine: &dyn Engine, batch: &mut [Part]) {
        let start = Instant::now();
        let capacity = engine.capacity();
        let most = self.limits.batch_tokens.saturating_sub(batch.len()).min(MOST_IN_STEP);
        let is_decode = batch.iter().all(|part| part.n == 1);
        if !is_decode || most == 0 || self.running.iter().all(|entry| entry.guesser.is_none()) {
            return;
        }
        let mut guessers: Vec<(usize, &mut Guesser)> = Vec::new();
        for (at, entry) in self.running.iter_mut().enumerate() {
            let number = batch.iter().position(|part| part.at == at);
            guessers.extend(number.zip(entry.guesser()));
        }
        let mut lengths = vec![0; guessers.len()];
        let numbers: Vec<usize> = guessers.iter().map(|(number, _)| *number).collect();
        let mut lucks: Vec<_> = guessers.into_iter().map(|(_, guesser)| &mut guesser.luck).collect();
        self.guesses.pace.choose(batch.len(), &mut lucks, most, &mut lengths);
        for (number, n) in numbers.into_iter().zip(lengths) {
            let Part { at, guess, .. } = &mut batch[number];
            let entry = &mut self.running[*at];
            let n = n.min(entry.most_guessed(engine, &capacity));
            if let Some(guesser) = &mut entry.guesser
                && guesser.guess(&entry.tokens, (n, capacity.vocab), guess).is_err()
            {
                guess.clear();
            }
        }
        self.guesses.took = start.elapsed();
    }

    /// Notes how long a batch took.
    pub(super) fn note_pace(&mut self, batch: &[Part], took: Duration) {
        let n_guessed = batch.iter().map(|part| part.guess.len()).sum();
        if batch.iter().all(|part| part.n == 1) {
            let seconds = [took, self.guesses.took].map(|time| time.as_secs_f64());
            self.guesses.pace.record(batch.len(), n_guessed, seconds[0], seconds[1]);
        }
    }

    /// Notes how many of the tokens that were guessed for an entry came.
    pub(super) fn note_luck(&mut self, at: usize, n_guessed: usize, n_right: usize) {
        self.report.guessed += n_guessed;
        self.report.right += n_right;
        if let Some(guesser) = &mut self.running[at].guesser {
            guesser.luck.record(n_guessed, n_right);
        }
    }
}

/// Drops the guesses of a batch; says whether there were any.
pub(super) fn drop_guesses(batch: &mut [Part]) -> bool {
    let has_any = batch.iter().any(|part| !part.guess.is_empty());
    for part in batch {
        part.guess.clear();
    }
    has_any
}
