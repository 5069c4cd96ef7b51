//! How many tokens to guess: as many as make an answer fastest, none where guessing is slower.
//!
//! In: how long steps took, and how much of each guess was right. Out: the length of the next guess.
//! With `p` the share of guessed tokens that are right where all before them were, a guess of `n` gives
//! `1 + p + p² + … + pⁿ` tokens on average, for the time of a step of `n + 1` tokens and of the guess itself.
//! Where that does not pay, guessing pauses, for longer and longer, and is tried again with two tokens.
//! What a step without a guess takes is measured first, and again from time to time, as it grows with the sequence.

/// The weight of a new measurement.
const WEIGHT: f64 = 0.2;
/// The share of right guesses before there was any.
const FIRST_SHARE: f64 = 0.7;
/// The shortest and the longest pause, in steps.
const PAUSES: [usize; 2] = [16, 256];
/// The length of the guess after a pause.
const N_PROBE: usize = 2;
/// Steps with a guess before one without is measured again.
const N_BETWEEN: usize = 64;

/// Chooses lengths of guesses.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Seconds of a step by the number of its tokens, as far as it was measured; [`Self::seconds`] has the rest.
    steps: Vec<Option<f64>>,
    /// Seconds to guess a token.
    draft: f64,
    /// The share of right guesses.
    share: f64,
    /// Steps until the next guess, and of the last pause.
    left: usize,
    pause: usize,
    /// Steps since the last one without a guess.
    n_since: usize,
}

impl Pace {
    /// For guesses of at most `most` tokens.
    pub fn new(most: usize) -> Self {
        let [pause, _] = PAUSES;
        Self { steps: vec![None; most + 1], draft: 0.0, share: FIRST_SHARE, left: 0, pause, n_since: 0 }
    }

    /// How many tokens to guess next.
    pub fn choose(&mut self) -> usize {
        let most = self.steps.len() - 1;
        if self.left > 0 {
            self.left -= 1;
            return if self.left == 0 { most.min(N_PROBE) } else { 0 };
        }
        if self.steps[0].is_none() || self.n_since >= N_BETWEEN {
            return 0;
        }
        let rate = |n: &usize| {
            let tokens: f64 = (0..=*n as i32).map(|i| self.share.powi(i)).sum();
            tokens / (self.seconds(*n) + self.draft * *n as f64)
        };
        let best = (0..=most).max_by(|a, b| rate(a).total_cmp(&rate(b))).unwrap_or(0);
        if best == 0 && most > 0 {
            self.left = self.pause;
            self.pause = (2 * self.pause).min(PAUSES[1]);
        } else {
            self.pause = PAUSES[0];
        }
        best
    }

    /// Seconds of a step with `n` guessed tokens: as measured, or between the nearest that were. A step longer than all
    /// of these takes as long as the longest, so that it is tried.
    fn seconds(&self, n: usize) -> f64 {
        let known = |i: usize| self.steps[i].map(|seconds| (i, seconds));
        let below = (0..=n).rev().find_map(known);
        let above = (n..self.steps.len()).find_map(known);
        match (below, above) {
            (Some((i, low)), Some((j, high))) if i < j => {
                low + (high - low) * (n - i) as f64 / (j - i) as f64
            }
            (Some((_, seconds)), _) | (None, Some((_, seconds))) => seconds,
            (None, None) => 1.0,
        }
    }

    /// Takes the measurements of a step: how many tokens were guessed and how many of them right, the seconds of the
    /// step, and those of guessing.
    pub fn record(&mut self, (n_guessed, n_right): (usize, usize), step: f64, draft: f64) {
        let mean = |old: f64, new: f64| old + WEIGHT * (new - old);
        let seconds = &mut self.steps[n_guessed];
        *seconds = Some(seconds.map_or(step, |old| mean(old, step)));
        if n_guessed == 0 {
            self.n_since = 0;
            return;
        }
        self.n_since += 1;
        self.draft = mean(self.draft, draft / n_guessed as f64);
        for _ in 0..n_right {
            self.share = mean(self.share, 1.0);
        }
        if n_right < n_guessed {
            self.share = mean(self.share, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean length of guesses in a thousand steps that take `step` and are right with a share of `right` in ten.
    fn mean_length(step: impl Fn(usize) -> f64, draft: f64, right: usize) -> f64 {
        let mut pace = Pace::new(8);
        let mut n_all = 0;
        for number in 0..1000 {
            let n = pace.choose();
            let n_right = (0..n).take_while(|i| (number * 7 + i * 3) % 10 < right).count();
            pace.record((n, n_right), step(n), draft * n as f64);
            n_all += n;
        }
        n_all as f64 / 1000.0
    }

    #[test]
    fn guesses_are_long_where_they_are_right_and_steps_cheap() {
        let cheap = |n: usize| 1.0 + 0.05 * n as f64;
        assert!(mean_length(cheap, 0.0, 10) > 7.5);
        assert!(mean_length(cheap, 0.0, 9) > 3.0);
        assert!(mean_length(cheap, 0.0, 0) < 0.2);
        // A step as long as its tokens: nothing is won.
        assert!(mean_length(|n| 1.0 + 1.1 * n as f64, 0.0, 9) < 0.2);
        // A guess as long as a step.
        assert!(mean_length(cheap, 1.1, 9) < 0.2);
    }

    #[test]
    fn guessing_comes_back_when_it_pays_again() {
        let mut pace = Pace::new(4);
        for _ in 0..200 {
            let n = pace.choose();
            pace.record((n, 0), 1.0 + 0.1 * n as f64, 0.0);
        }
        let mut n_all = 0;
        for _ in 0..2000 {
            let n = pace.choose();
            pace.record((n, n), 1.0 + 0.1 * n as f64, 0.0);
            n_all += n;
        }
        assert!(n_all > 2000, "{n_all}");
    }
}
