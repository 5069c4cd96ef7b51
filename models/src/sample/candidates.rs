//! Candidates: the tokens that may come next, and what narrows them.
//!
//! In: tokens with their logits, and the value of one sampler. Out: fewer tokens, or other logits.
//! Each sampler is that of llama.cpp by the same name: it looks at what the one before left, with probabilities
//! renormalised. Passes over a whole vocabulary are loops over plain numbers, which the compiler turns into vectors;
//! tokens are sorted only as far as a sampler needs it, ties go to the lower id, and nothing is allocated per token
//! once the lists have their size.

use std::cmp::Ordering;

/// How many tokens top-p looks at first; if they do not suffice, eight times as many.
const FIRST_LOOK: usize = 256;
/// Numbers that are looked at together: a block is passed over where its largest, or its sum, is not enough.
const BLOCK: usize = 64;
/// Numbers that one operation of a loop may take.
const LANES: usize = 16;

/// A token and its logit.
type Candidate = (u32, f32);

/// The tokens still in play.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    /// The tokens; empty while all of the vocabulary are in play, in their order.
    ids: Vec<u32>,
    /// Their logits.
    logits: Vec<f32>,
    /// Unnormalised probabilities.
    weights: Vec<f32>,
    /// The sum of the probabilities of each block.
    sums: Vec<f64>,
    /// The best tokens, as far as a sampler wanted them.
    best: Vec<Candidate>,
    /// The largest logits of the blocks.
    tops: Vec<f32>,
    is_sorted: bool,
}

/// Larger logits first, then lower ids.
fn order(a: Candidate, b: Candidate) -> Ordering {
    // Adding 0 makes -0 equal to 0.
    (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0))
}

/// The largest of some numbers, of which none is NaN.
pub(super) fn largest(numbers: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let chunks = numbers.chunks_exact(LANES);
    let rest = chunks.remainder().iter().copied();
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    for chunk in chunks {
        most.iter_mut().zip(chunk).for_each(|(most, number)| *most = larger(*most, *number));
    }
    rest.chain(most).fold(f32::NEG_INFINITY, larger)
}

/// Where the largest of some numbers is, the first among equals.
pub(super) fn first_of_largest(numbers: &[f32]) -> u32 {
    let largest = largest(numbers);
    numbers.iter().position(|number| *number == largest).unwrap_or(0) as u32
}

/// Whether all numbers are below positive infinity, so that none is NaN either.
pub(super) fn are_below_infinity(numbers: &[f32]) -> bool {
    let mut are = [true; LANES];
    let chunks = numbers.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        are.iter_mut().zip(chunk).for_each(|(are, number)| *are &= *number < f32::INFINITY);
    }
    are == [true; LANES] && rest.iter().all(|number| *number < f32::INFINITY)
}

/// The sum of some numbers.
fn sum(numbers: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    for chunk in numbers.chunks(LANES) {
        sums.iter_mut().zip(chunk).for_each(|(sum, number)| *sum += f64::from(*number));
    }
    sums.iter().sum()
}

impl Candidates {
    /// Room for a vocabulary.
    pub(super) fn new(n_tokens: usize) -> Self {
        Self {
            ids: Vec::new(),
            logits: Vec::with_capacity(n_tokens),
            weights: Vec::with_capacity(n_tokens),
            sums: Vec::new(),
            best: Vec::new(),
            tops: Vec::new(),
            is_sorted: false,
        }
    }

    /// Starts again with all tokens.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.ids.clear();
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        self.is_sorted = false;
    }

    /// Starts again with some tokens, the best first.
    pub(super) fn fill_sorted(&mut self, ids: &[u32], logits: &[f32]) {
        self.fill(logits);
        self.ids.extend_from_slice(ids);
        self.is_sorted = true;
    }

    fn id(&self, at: usize) -> u32 {
        self.ids.get(at).copied().unwrap_or(at as u32)
    }

    fn all(&self) -> impl Iterator<Item = Candidate> {
        self.logits.iter().enumerate().map(|(at, logit)| (self.id(at), *logit))
    }

    /// Keeps these.
    fn set(&mut self, kept: impl Iterator<Item = Candidate>, is_sorted: bool) {
        self.ids.clear();
        self.logits.clear();
        for (id, logit) in kept {
            self.ids.push(id);
            self.logits.push(logit);
        }
        self.is_sorted = is_sorted;
    }

    /// Keeps the first `n` of the best.
    fn keep_best(&mut self, n: usize) {
        let best = std::mem::take(&mut self.best);
        self.set(best.iter().copied().take(n), true);
        self.best = best;
    }

    /// Keeps what was found, in the order that it had.
    fn keep_found(&mut self) {
        let is_sorted = self.is_sorted;
        self.keep_best(self.best.len());
        self.is_sorted = is_sorted;
    }

    /// Changes the logit of a token, if it is in play.
    pub(super) fn change(&mut self, id: u32, by: impl FnOnce(f32) -> f32) {
        let at = if self.ids.is_empty() {
            Some(id as usize)
        } else {
            self.ids.iter().position(|other| *other == id)
        };
        if let Some(logit) = at.and_then(|at| self.logits.get_mut(at)) {
            *logit = by(*logit);
            self.is_sorted = false;
        }
    }

    /// The token with the largest logit, the lowest id among equals.
    pub(super) fn largest(&self) -> u32 {
        // All of the vocabulary are in the order of their ids.
        if self.ids.is_empty() {
            return first_of_largest(&self.logits);
        }
        let largest = largest(&self.logits);
        let of_largest = self.ids.iter().zip(&self.logits).filter(|(_, logit)| **logit == largest);
        of_largest.map(|(id, _)| *id).min().unwrap_or(0)
    }

    fn largest_logit(&self) -> f32 {
        match self.logits.first() {
            Some(logit) if self.is_sorted => *logit,
            _ => largest(&self.logits),
        }
    }

    /// A bound that at least `n` logits reach, with few others: that of the largest logits of blocks.
    fn at_most_nth(&mut self, n: usize) -> f32 {
        self.tops.clear();
        self.tops.extend(self.logits.chunks(BLOCK).map(largest));
        if n > self.tops.len() {
            return f32::NEG_INFINITY;
        }
        *self.tops.select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a)).1
    }

    /// Finds the `n` best, sorted.
    fn find_best(&mut self, n: usize) {
        let n = n.min(self.logits.len());
        if self.is_sorted || n == 0 {
            let mut best = std::mem::take(&mut self.best);
            best.clear();
            best.extend(self.all().take(n));
            self.best = best;
            return;
        }
        let least = self.at_most_nth(n);
        self.find(|candidates| &candidates.logits, least);
        if n < self.best.len() {
            self.best.select_nth_unstable_by(n - 1, |a, b| order(*a, *b));
            self.best.truncate(n);
        }
        self.best.sort_unstable_by(|a, b| order(*a, *b));
    }

    /// Finds the tokens whose number among these is at least `least`.
    fn find(&mut self, numbers: impl Fn(&Self) -> &Vec<f32>, least: f32) {
        let mut best = std::mem::take(&mut self.best);
        best.clear();
        for (block, numbers) in numbers(self).chunks(BLOCK).enumerate() {
            if largest(numbers) >= least {
                let places =
                    (0..numbers.len()).filter(|at| numbers[*at] >= least).map(|at| block * BLOCK + at);
                best.extend(places.map(|at| (self.id(at), self.logits[at])));
            }
        }
        self.best = best;
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.find_best(self.logits.len());
            self.keep_best(self.logits.len());
        }
    }

    /// Fills in unnormalised probabilities, of which the largest is 1; returns their sum.
    fn weigh(&mut self) -> f64 {
        let largest = self.largest_logit();
        self.weights.clear();
        self.weights.extend(self.logits.iter().map(|logit| exp(*logit - largest)));
        self.sums.clear();
        self.sums.extend(self.weights.chunks(BLOCK).map(sum));
        self.sums.iter().sum()
    }

    /// Top-k: keeps the k most likely.
    pub(super) fn top_k(&mut self, k: usize) {
        self.find_best(k);
        self.keep_best(k);
    }

    /// Top-p: keeps the smallest set of most likely tokens with at least this probability.
    pub(super) fn top_p(&mut self, p: f32) {
        let total = self.weigh();
        let (wanted, largest) = (total * f64::from(p), self.largest_logit());
        let mut n_looked = if self.is_sorted { self.logits.len() } else { FIRST_LOOK };
        loop {
            self.find_best(n_looked);
            let mut sum = 0.0;
            let reached = self.best.iter().position(|(_, logit)| {
                sum += f64::from(exp(*logit - largest));
                sum >= wanted
            });
            if let Some(last) = reached {
                return self.keep_best(last + 1);
            }
            if n_looked >= self.logits.len() {
                return self.keep_best(n_looked);
            }
            n_looked = n_looked.saturating_mul(8);
        }
    }

    /// Min-p: keeps tokens at least this fraction as likely as the most likely one.
    pub(super) fn min_p(&mut self, p: f32) {
        self.weigh();
        // The largest has weight 1, so that one is always kept.
        self.find(|candidates| &candidates.weights, p);
        self.keep_found();
    }

    /// Locally typical sampling: keeps tokens whose information is closest to the entropy, up to this probability.
    pub(super) fn typical(&mut self, p: f32) {
        self.sort();
        let total = self.weigh();
        let probability = |weight: f32| f64::from(weight) / total;
        // The information of a token is ln Z - x and the entropy is ln Z - mean of x: ln Z cancels in the distance.
        let finite = |logit: f32| f64::from(logit.max(f32::MIN));
        let weighed = || self.all().zip(self.weights.iter().copied());
        let mean: f64 = weighed()
            .filter(|(_, weight)| *weight > 0.0)
            .map(|((_, logit), weight)| probability(weight) * finite(logit))
            .sum();
        let mut ranked: Vec<(f64, Candidate, f32)> = weighed()
            .map(|(candidate, weight)| ((finite(candidate.1) - mean).abs(), candidate, weight))
            .collect();
        ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let last = ranked.iter().position(|(_, _, weight)| {
            sum += probability(*weight);
            sum > f64::from(p)
        });
        let n_kept = last.map_or(ranked.len(), |last| last + 1);
        self.set(ranked.into_iter().take(n_kept).map(|(_, candidate, _)| candidate), false);
    }

    /// Top-n-sigma: drops logits that are more than `n` standard deviations below the largest.
    pub(super) fn top_n_sigma(&mut self, n: f32) {
        if self.logits.len() <= 1 {
            return;
        }
        let finite = || self.logits.iter().map(|logit| f64::from(*logit)).filter(|logit| logit.is_finite());
        let count = finite().count().max(1) as f64;
        let mean = finite().sum::<f64>() / count;
        let deviation = (finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f64>() / count).sqrt();
        let least = f64::from(self.largest_logit()) - f64::from(n) * deviation;
        self.find(|candidates| &candidates.logits, least as f32);
        self.keep_found();
    }

    /// XTC: drops all but the least likely of the tokens that are at least this likely.
    pub(super) fn exclude_top_choices(&mut self, threshold: f32) {
        if self.logits.len() < 2 {
            return;
        }
        self.sort();
        let total = self.weigh();
        let is_likely = |weight: &&f32| f64::from(**weight) / total >= f64::from(threshold);
        let n_likely = self.weights.iter().take_while(is_likely).count();
        if n_likely > 1 {
            self.ids.drain(..n_likely - 1);
            self.logits.drain(..n_likely - 1);
        }
    }

    /// Divides by the temperature; relative to the largest logit where that would overflow.
    pub(super) fn cool(&mut self, temperature: f32) {
        let largest = self.largest_logit();
        let from = if (largest / temperature).is_finite() { 0.0 } else { largest };
        for logit in &mut self.logits {
            *logit = (*logit - from) / temperature;
        }
    }

    /// Draws one of the candidates in proportion to their probabilities, given a number from 0 to below 1.
    pub(super) fn draw(&mut self, unit: f64) -> u32 {
        let mut left = unit * self.weigh();
        for (block, (weights, sum)) in self.weights.chunks(BLOCK).zip(&self.sums).enumerate() {
            if left >= *sum {
                left -= sum;
                continue;
            }
            for (at, weight) in weights.iter().enumerate() {
                left -= f64::from(*weight);
                if left < 0.0 {
                    return self.id(block * BLOCK + at);
                }
            }
        }
        self.largest()
    }

    /// The tokens and their probabilities.
    #[cfg(test)]
    pub(super) fn probabilities(&mut self) -> Vec<(u32, f64)> {
        let total = self.weigh();
        self.all().zip(&self.weights).map(|((id, _), weight)| (id, f64::from(*weight) / total)).collect()
    }
}

/// `e^x` for x ≤ 0 by additions and multiplications only: these round the same on every platform, a library's `exp`
/// does not. What is below the smallest normal number is 0.
fn exp(x: f32) -> f32 {
    /// The logarithm of the smallest normal number.
    const LEAST: f32 = -87.336_54;
    /// Adding it to a number that is not too large rounds that number to a whole one, in the last bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts: products of the first with whole powers are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let within = if x > LEAST { x } else { LEAST };
    let rounded = within * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = within - power * LN_2[0] - power * LN_2[1]; // at most half of ln 2 to either side
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let value = series.iter().fold(0.0, |sum, factor| sum * rest + factor);
    // A power of two from its exponent.
    let scale = f32::from_bits(rounded.to_bits().wrapping_add(127) << 23);
    if x > LEAST { value * scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_right_to_single_precision() {
        for x in (0..8600).map(|i| -(i as f32) / 100.0) {
            let right = f64::from(x).exp();
            assert!((f64::from(exp(x)) - right).abs() <= right * 3e-7, "{x}: {} instead of {right}", exp(x));
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-88.0)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn top_p_looks_further_where_the_first_look_does_not_suffice() {
        // All of 3000 tokens are equally likely, so that half of the probability is half of them.
        let mut flat = Candidates::new(3000);
        flat.fill(&[1.0; 3000]);
        flat.top_p(0.5);
        assert_eq!(flat.ids, (0..1500).collect::<Vec<u32>>());
    }

    #[test]
    fn the_best_of_many_are_those_of_a_sorted_list() {
        let logits: Vec<f32> =
            (0..5003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as f32 / 7.0).collect();
        let mut sorted: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
        sorted.sort_by(|a, b| order(*a, *b));
        let mut candidates = Candidates::new(logits.len());
        for n in [0, 1, 40, 78, 79, 80, 900, 5003, 6000] {
            candidates.fill(&logits);
            candidates.find_best(n);
            assert_eq!(candidates.best, sorted[..n.min(5003)]);
        }
        assert_eq!(candidates.largest(), sorted[0].0);
        assert!(are_below_infinity(&logits));
        for (at, bad) in [(3, f32::NAN), (5002, f32::INFINITY)] {
            let mut logits = logits.clone();
            logits[at] = bad;
            assert!(!are_below_infinity(&logits));
        }
    }

    #[test]
    fn what_is_drawn_follows_the_sums_of_blocks() {
        let logits: Vec<f32> =
            (0..200).map(|i| if i % 3 == 0 { f32::NEG_INFINITY } else { -0.01 * i as f32 }).collect();
        let mut candidates = Candidates::new(200);
        candidates.fill(&logits);
        let probabilities = candidates.probabilities();
        let mut sum = 0.0;
        for (id, probability) in probabilities {
            let middle = sum + probability / 2.0;
            sum += probability;
            if probability > 0.0 {
                assert_eq!(candidates.draw(middle), id);
            }
        }
    }
}
