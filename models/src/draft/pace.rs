//! How many tokens to guess: as many as make answers fastest, none where guessing is slower.
//!
//! In: how long steps took, and how much of each guess was right. Out: the length of the next guess of each sequence.
//! With `p` the share of guessed tokens of a sequence that are right where all before them were, a guess of `n` gives
//! `p + p² + … + pⁿ` tokens on average besides the one that is certain. A step takes the guesses of all its sequences;
//! its time depends on how many tokens it has, whoever they are of. So of all tokens that could be guessed next the
//! likeliest is taken first, and as many are as make the most tokens a second: one sequence fills no machine and
//! guesses much, a crowd fills it and guesses little.
//! For whom nothing is guessed, guessing pauses, for longer and longer, and is tried again with two tokens.
//! What a step without a guess takes is measured first, and again from time to time, as it grows with the sequences.

/// The weight of a new measurement.
const WEIGHT: f64 = 0.2;
/// The share of right guesses before there was any.
const FIRST_SHARE: f64 = 0.7;
/// The shortest and the longest pause, in steps.
const PAUSES: [usize; 2] = [16, 256];
/// The length of the guess after a pause.
const N_PROBE: usize = 2;
/// How much faster answers must come with guesses than without, by what was measured.
const LEAST_GAIN: f64 = 1.05;
/// Steps with a guess before one without is measured again.
const N_BETWEEN: usize = 64;

/// How often guesses for one sequence are right, and whether there are any at the moment.
#[derive(Clone, Debug)]
pub struct Luck {
    /// The share of right guesses.
    share: f64,
    /// The most tokens of a guess.
    most: usize,
    /// Steps until the next guess, and of the last pause.
    left: usize,
    pause: usize,
}

/// Chooses lengths of guesses, for all sequences of a step.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// Seconds of a step by the number of its tokens, as far as it was measured; [`Self::seconds`] has the rest.
    steps: Vec<Option<f64>>,
    /// Seconds to guess a token.
    draft: f64,
    /// Steps since the last one without a guess.
    n_since: usize,
}

impl Luck {
    /// For guesses of at most `most` tokens.
    pub fn new(most: usize) -> Self {
        Self { share: FIRST_SHARE, most, left: 0, pause: PAUSES[0] }
    }

    /// Takes in how many tokens were guessed, and how many of them were right.
    pub fn record(&mut self, n_guessed: usize, n_right: usize) {
        for _ in 0..n_right {
            self.share = mean(self.share, 1.0);
        }
        if n_right < n_guessed {
            self.share = mean(self.share, 0.0);
        }
    }
}

fn mean(old: f64, new: f64) -> f64 {
    old + WEIGHT * (new - old)
}

impl Pace {
    /// How many tokens to guess next for one sequence.
    pub fn choose_one(&mut self, luck: &mut Luck) -> usize {
        let mut length = [0];
        self.choose(1, &mut [luck], usize::MAX, &mut length);
        length[0]
    }

    /// The same for some of the `n` sequences of a step, `most` tokens in all.
    pub fn choose(&mut self, n: usize, lucks: &mut [&mut Luck], most: usize, lengths: &mut [usize]) {
        lengths.fill(0);
        let is_measured = self.steps.get(n).copied().flatten().is_some() && self.n_since < N_BETWEEN;
        let (mut n_guessed, mut tokens) = (0, n as f64);
        for (luck, length) in lucks.iter_mut().zip(&mut *lengths) {
            if luck.left > 0 {
                luck.left -= 1;
                if luck.left == 0 {
                    *length = luck.most.min(N_PROBE).min(most - n_guessed);
                    n_guessed += *length;
                    tokens += (1..=*length as i32).map(|i| luck.share.powi(i)).sum::<f64>();
                }
            }
        }
        if !is_measured {
            return;
        }
        // Those that neither pause nor have just ended a pause are free to guess.
        let is_free = |luck: &Luck, length: usize| luck.left == 0 && length == 0;
        let free: Vec<usize> = (0..lucks.len()).filter(|at| is_free(&*lucks[*at], lengths[*at])).collect();
        let rate = |tokens: f64, n_guessed: usize| {
            tokens / (self.seconds(n + n_guessed) + self.draft * n_guessed as f64)
        };
        let mut best = (LEAST_GAIN * rate(tokens, n_guessed), 0);
        let mut order = Vec::new();
        let mut longer = lengths.to_vec();
        while n_guessed < most {
            let gain = |at: &usize| lucks[*at].share.powi(longer[*at] as i32 + 1);
            let open = free.iter().copied().filter(|at| longer[*at] < lucks[*at].most);
            let Some(at) = open.max_by(|a, b| gain(a).total_cmp(&gain(b))) else { break };
            tokens += gain(&at);
            n_guessed += 1;
            longer[at] += 1;
            order.push(at);
            let now = rate(tokens, n_guessed);
            if now > best.0 {
                best = (now, order.len());
            }
        }
        order[..best.1].iter().for_each(|at| lengths[*at] += 1);
        for at in free {
            let luck = &mut *lucks[at];
            if lengths[at] > 0 {
                luck.pause = PAUSES[0];
            } else if luck.most > 0 {
                luck.left = luck.pause;
                luck.pause = (2 * luck.pause).min(PAUSES[1]);
            }
        }
    }

    /// Seconds of a step of `n` tokens: as measured, or between the nearest that were. A step longer than all of these
    /// takes as long as the longest, so that it is tried.
    fn seconds(&self, n: usize) -> f64 {
        let known = |i: usize| self.steps.get(i).copied().flatten().map(|seconds| (i, seconds));
        let below = (0..=n.min(self.steps.len())).rev().find_map(known);
        let above = (n..self.steps.len()).find_map(known);
        match (below, above) {
            (Some((i, low)), Some((j, high))) if i < j => {
                low + (high - low) * (n - i) as f64 / (j - i) as f64
            }
            (Some((_, seconds)), _) | (None, Some((_, seconds))) => seconds,
            (None, None) => 1.0,
        }
    }

    /// Takes the measurements of a step: how many sequences it had and how many tokens were guessed for them, its
    /// seconds, and those of guessing.
    pub fn record(&mut self, n_sequences: usize, n_guessed: usize, step: f64, draft: f64) {
        let n = n_sequences + n_guessed;
        if self.steps.len() <= n {
            self.steps.resize(n + 1, None);
        }
        let seconds = &mut self.steps[n];
        *seconds = Some(seconds.map_or(step, |old| mean(old, step)));
        if n_guessed == 0 {
            self.n_since = 0;
            return;
        }
        self.n_since += 1;
        self.draft = mean(self.draft, draft / n_guessed as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean lengths of guesses for sequences of a thousand steps that take `step` and are right with these shares
    /// in ten.
    fn mean_lengths(step: impl Fn(usize) -> f64, draft: f64, right: &[usize]) -> Vec<f64> {
        let mut pace = Pace::default();
        let mut lucks: Vec<Luck> = right.iter().map(|_| Luck::new(8)).collect();
        let mut lengths = vec![0; right.len()];
        let mut sums = vec![0; right.len()];
        for number in 0..1000 {
            pace.choose(right.len(), &mut lucks.iter_mut().collect::<Vec<_>>(), 100, &mut lengths);
            let n: usize = lengths.iter().sum();
            assert!(n <= 100);
            for (at, luck) in lucks.iter_mut().enumerate() {
                let is_right = |i: &usize| (number * 7 + i * 3) % 10 < right[at];
                luck.record(lengths[at], (0..lengths[at]).take_while(is_right).count());
                sums[at] += lengths[at];
            }
            pace.record(right.len(), n, step(right.len() + n), draft * n as f64);
        }
        sums.into_iter().map(|sum| f64::from(sum as u32) / 1000.0).collect()
    }

    #[test]
    fn guesses_are_long_where_they_are_right_and_steps_cheap() {
        let cheap = |n: usize| 1.0 + 0.05 * n as f64;
        let mean_length = |step: &dyn Fn(usize) -> f64, draft, right| mean_lengths(step, draft, &[right])[0];
        assert!(mean_length(&cheap, 0.0, 10) > 7.5);
        assert!(mean_length(&cheap, 0.0, 9) > 3.0);
        assert!(mean_length(&cheap, 0.0, 0) < 0.2);
        // A step as long as its tokens: nothing is won.
        assert!(mean_length(&|n| 1.1 * n as f64, 0.0, 9) < 0.2);
        // A guess as long as a step.
        assert!(mean_length(&cheap, 1.1, 9) < 0.2);
    }

    #[test]
    fn a_crowd_that_fills_the_machine_guesses_little_and_for_the_lucky() {
        // Up to eight tokens cost as much as one, more as much as they are.
        let step = |n: usize| n.max(8) as f64;
        assert!(mean_lengths(step, 0.0, &[9])[0] > 5.0);
        let crowd = mean_lengths(step, 0.0, &[9; 8]);
        assert!(crowd.iter().all(|length| *length < 0.5), "{crowd:?}");
        let mixed = mean_lengths(step, 0.0, &[9, 0, 0, 0]);
        assert!(mixed[0] > 3.0 && mixed[1..].iter().all(|length| *length < 0.2), "{mixed:?}");
    }

    #[test]
    fn no_more_is_guessed_than_there_is_room_for() {
        let mut pace = Pace::default();
        let mut lucks = vec![Luck::new(8); 3];
        let mut lengths = [0; 3];
        pace.record(3, 0, 1.0, 0.0);
        for most in [0, 1, 5, 24, 30] {
            pace.choose(3, &mut lucks.iter_mut().collect::<Vec<_>>(), most, &mut lengths);
            assert_eq!(lengths.iter().sum::<usize>(), most.min(24));
            lucks = vec![Luck::new(8); 3];
        }
    }

    #[test]
    fn guessing_comes_back_when_it_pays_again() {
        let (mut pace, mut luck) = (Pace::default(), Luck::new(4));
        for _ in 0..200 {
            let n = pace.choose_one(&mut luck);
            luck.record(n, 0);
            pace.record(1, n, 1.0 + 0.1 * n as f64, 0.0);
        }
        let mut n_all = 0;
        for _ in 0..2000 {
            let n = pace.choose_one(&mut luck);
            luck.record(n, n);
            pace.record(1, n, 1.0 + 0.1 * n as f64, 0.0);
            n_all += n;
        }
        assert!(n_all > 2000, "{n_all}");
    }
}
