//! Candidates: the tokens that may come next, and what narrows them.
//!
//! In: tokens with their logits, and the value of one sampler. Out: fewer tokens, or other logits.
//! Each sampler is that of llama.cpp by the same name: it looks at what the one before left, with probabilities
//! renormalised. Tokens are sorted only as far as a sampler needs it, ties go to the lower id, and nothing is
//! allocated per token once the lists have their size.

use std::cmp::Ordering;

/// How many tokens top-p looks at first; if they do not suffice, eight times as many.
const FIRST_LOOK: usize = 256;

/// A token and its logit.
pub(super) type Candidate = (u32, f32);

/// The tokens still in play.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    all: Vec<Candidate>,
    /// Unnormalised probabilities, or distances: scratch of one sampler.
    weights: Vec<f32>,
    is_sorted: bool,
}

/// Larger logits first, then lower ids.
fn order(a: Candidate, b: Candidate) -> Ordering {
    // Adding 0 makes -0 equal to 0.
    (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
}

impl Candidates {
    /// Room for a vocabulary.
    pub(super) fn new(n_tokens: usize) -> Self {
        Self { all: Vec::with_capacity(n_tokens), weights: Vec::with_capacity(n_tokens), is_sorted: false }
    }

    /// Starts again with these tokens.
    pub(super) fn fill(&mut self, all: impl Iterator<Item = Candidate>, is_sorted: bool) {
        self.all.clear();
        self.all.extend(all);
        self.is_sorted = is_sorted;
    }

    /// All candidates, to change their logits; they count as unsorted from then on.
    pub(super) fn changed(&mut self) -> &mut [Candidate] {
        self.is_sorted = false;
        &mut self.all
    }

    /// The token with the largest logit, the lowest id among equals.
    pub(super) fn largest(&self) -> u32 {
        self.all.iter().copied().min_by(|a, b| order(*a, *b)).map_or(0, |(id, _)| id)
    }

    fn largest_logit(&self) -> f32 {
        match self.all.first() {
            Some((_, logit)) if self.is_sorted => *logit,
            _ => self.all.iter().fold(f32::NEG_INFINITY, |most, (_, logit)| most.max(*logit)),
        }
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.all.sort_unstable_by(|a, b| order(*a, *b));
            self.is_sorted = true;
        }
    }

    /// Moves the `n` best to the front, sorted.
    fn sort_first(&mut self, n: usize) {
        if self.is_sorted || n == 0 {
            return;
        }
        if n < self.all.len() {
            self.all.select_nth_unstable_by(n - 1, |a, b| order(*a, *b));
        }
        let n = n.min(self.all.len());
        self.all[..n].sort_unstable_by(|a, b| order(*a, *b));
        self.is_sorted = n == self.all.len();
    }

    /// Fills in unnormalised probabilities, of which the largest is 1; returns their sum.
    fn weigh(&mut self) -> f64 {
        let largest = self.largest_logit();
        self.weights.clear();
        self.weights.extend(self.all.iter().map(|(_, logit)| exp(*logit - largest)));
        self.weights.iter().map(|weight| f64::from(*weight)).sum()
    }

    /// Top-k: keeps the k most likely.
    pub(super) fn top_k(&mut self, k: usize) {
        self.sort_first(k);
        self.all.truncate(k);
        self.is_sorted = true;
    }

    /// Top-p: keeps the smallest set of most likely tokens with at least this probability.
    pub(super) fn top_p(&mut self, p: f32) {
        let total = self.weigh();
        let (wanted, largest) = (total * f64::from(p), self.largest_logit());
        let mut n_sorted = if self.is_sorted { self.all.len() } else { FIRST_LOOK };
        loop {
            self.sort_first(n_sorted);
            let mut sum = 0.0;
            let reached = self.all.iter().take(n_sorted).position(|(_, logit)| {
                sum += f64::from(exp(*logit - largest));
                sum >= wanted
            });
            if let Some(last) = reached {
                self.all.truncate(last + 1);
                break;
            }
            if n_sorted >= self.all.len() {
                break;
            }
            n_sorted = n_sorted.saturating_mul(8);
        }
        self.is_sorted = true;
    }

    /// Min-p: keeps tokens at least this fraction as likely as the most likely one.
    pub(super) fn min_p(&mut self, p: f32) {
        let largest = self.largest_logit();
        // The largest has weight 1, so that one is always kept.
        self.all.retain(|(_, logit)| exp(*logit - largest) >= p);
    }

    /// Locally typical sampling: keeps tokens whose information is closest to the entropy, up to this probability.
    pub(super) fn typical(&mut self, p: f32) {
        self.sort();
        let total = self.weigh();
        let probability = |weight: f32| f64::from(weight) / total;
        // The information of a token is ln Z - x and the entropy is ln Z - mean of x: ln Z cancels in the distance.
        let finite = |logit: f32| f64::from(logit.max(f32::MIN));
        let mean: f64 = self
            .all
            .iter()
            .zip(&self.weights)
            .filter(|(_, weight)| **weight > 0.0)
            .map(|((_, logit), weight)| probability(*weight) * finite(*logit))
            .sum();
        let mut ranked: Vec<(f64, Candidate, f32)> = self
            .all
            .iter()
            .zip(&self.weights)
            .map(|(candidate, weight)| ((finite(candidate.1) - mean).abs(), *candidate, *weight))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let last = ranked.iter().position(|(_, _, weight)| {
            sum += probability(*weight);
            sum > f64::from(p)
        });
        let n_kept = last.map_or(ranked.len(), |last| last + 1);
        self.fill(ranked.into_iter().take(n_kept).map(|(_, candidate, _)| candidate), false);
    }

    /// Top-n-sigma: drops logits that are more than `n` standard deviations below the largest.
    pub(super) fn top_n_sigma(&mut self, n: f32) {
        if self.all.len() <= 1 {
            return;
        }
        let finite = || self.all.iter().map(|(_, logit)| f64::from(*logit)).filter(|logit| logit.is_finite());
        let count = finite().count().max(1) as f64;
        let mean = finite().sum::<f64>() / count;
        let deviation = (finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count).sqrt();
        let least = f64::from(self.largest_logit()) - f64::from(n) * deviation;
        self.all.retain(|(_, logit)| f64::from(*logit) >= least);
    }

    /// XTC: drops all but the least likely of the tokens that are at least this likely.
    pub(super) fn exclude_top_choices(&mut self, threshold: f32) {
        if self.all.len() < 2 {
            return;
        }
        self.sort();
        let total = self.weigh();
        let is_likely = |weight: &&f32| f64::from(**weight) / total >= f64::from(threshold);
        let n_likely = self.weights.iter().take_while(is_likely).count();
        if n_likely > 1 {
            self.all.drain(..n_likely - 1);
        }
    }

    /// Divides by the temperature; relative to the largest logit where that would overflow.
    pub(super) fn cool(&mut self, temperature: f32) {
        let largest = self.largest_logit();
        let from = if (largest / temperature).is_finite() { 0.0 } else { largest };
        for (_, logit) in &mut self.all {
            *logit = (*logit - from) / temperature;
        }
    }

    /// Draws one of the candidates in proportion to their probabilities, given a number from 0 to below 1.
    pub(super) fn draw(&mut self, unit: f64) -> u32 {
        let mut left = unit * self.weigh();
        for ((id, _), weight) in self.all.iter().zip(&self.weights) {
            left -= f64::from(*weight);
            if left < 0.0 {
                return *id;
            }
        }
        self.largest()
    }

    /// The tokens and their probabilities.
    #[cfg(test)]
    pub(super) fn probabilities(&mut self) -> Vec<(u32, f64)> {
        let total = self.weigh();
        self.all
            .iter()
            .zip(&self.weights)
            .map(|((id, _), weight)| (*id, f64::from(*weight) / total))
            .collect()
    }
}

/// `e^x` for x ≤ 0 by additions and multiplications only: these round the same on every platform, a library's `exp`
/// does not.
fn exp(x: f32) -> f32 {
    /// Below this the result is 0 in single precision.
    const LEAST: f32 = -110.0;
    /// Adding it to a number that is not too large and subtracting it again rounds that number to a whole one.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    if x < LEAST {
        return 0.0;
    }
    let x = f64::from(x);
    let power = (x * std::f64::consts::LOG2_E + ROUND) - ROUND;
    let rest = x - power * std::f64::consts::LN_2; // at most half of ln 2 to either side
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let value = series.iter().fold(0.0, |sum, factor| sum * rest + factor);
    // A power of two from its exponent.
    let scale = f64::from_bits(((power as i64 + 1023) as u64) << 52);
    (value * scale) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_single_precision() {
        for x in [0.0, -1e-6, -0.3, -0.7, -1.0, -5.5, -20.0, -80.0, -100.0] {
            assert!((exp(x) - x.exp()).abs() <= x.exp() * 3e-7 + 1e-44, "{x}");
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-200.0)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn top_p_looks_further_where_the_first_look_does_not_suffice() {
        // All of 3000 tokens are equally likely, so that half of the probability is half of them.
        let mut flat = Candidates::new(3000);
        flat.fill((0..3000).map(|id| (id, 1.0)), false);
        flat.top_p(0.5);
        let ids: Vec<u32> = flat.all.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, (0..1500).collect::<Vec<u32>>());
    }
}
