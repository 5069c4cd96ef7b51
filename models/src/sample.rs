//! Sampling: from logits to the next token.
//!
//! In: the logits of one position, or the largest of them, the tokens so far, and a seed. Out: a token id.
//! The chain is that of llama.cpp's classic sampler and of Transformers: repeat penalty, top-k, temperature, top-p,
//! min-p. Each step filters what the one before left, with probabilities renormalised. Top-k comes before any rounding,
//! so a device may do it without changing a draw.
//! The same seed draws the same tokens on every machine, ties go to the lower token id, and nothing is allocated per
//! token.

use fusebox_compiler::foundation::random::Random;

use crate::error::Error;

/// Beyond this k, top-k on the device takes longer than copying all logits back.
const MAX_DEVICE_TOP_K: usize = 64;

/// Sampling settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Temperature; 0 is greedy decoding.
    pub temperature: f32,
    /// Top-k: keep this many of the most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Top-p (nucleus): keep the smallest set of most likely tokens with at least this total probability; 1 keeps all.
    pub top_p: f32,
    /// Min-p: keep tokens at least this fraction as likely as the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Repeat penalty: divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// How many of the last tokens the repeat penalty looks at; 0 for all.
    pub repeat_last: usize,
    /// Seed of the random number generator.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            repeat_last: 64,
            seed: 0,
        }
    }
}

impl Settings {
    /// How many of the largest logits suffice for these settings, so that top-k can run on the device; `None` where all
    /// logits may be needed.
    pub fn device_top_k(&self) -> Option<usize> {
        let n = if self.temperature == 0.0 { 1 } else { self.top_k };
        (self.repeat_penalty == 1.0 && (1..=MAX_DEVICE_TOP_K).contains(&n)).then_some(n)
    }
}

/// A sampler with its random state.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    random: Random,
    /// The tokens still in play: with their logits first, with unnormalised probabilities later.
    candidates: Vec<(u32, f32)>,
    /// Marks recent tokens while the repeat penalty is applied; all false in between.
    seen: Vec<bool>,
}

impl Sampler {
    /// A sampler for a vocabulary of `n_tokens`.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting out of range.
    pub fn new(settings: Settings, n_tokens: usize) -> Result<Self, Error> {
        let Settings { temperature, top_p, min_p, repeat_penalty, top_k: _, repeat_last: _, seed } = settings;
        check("temperature", temperature, "a number of at least 0", temperature >= 0.0)?;
        check("top_p", top_p, "a number above 0 and at most 1", top_p > 0.0 && top_p <= 1.0)?;
        check("min_p", min_p, "a number of at least 0 and below 1", (0.0..1.0).contains(&min_p))?;
        check("repeat_penalty", repeat_penalty, "a number above 0", repeat_penalty > 0.0)?;
        let candidates = Vec::with_capacity(n_tokens);
        Ok(Self { settings, random: Random::new(seed), candidates, seen: vec![false; n_tokens] })
    }

    /// Samples the token that follows `before`, given the logits of all tokens.
    ///
    /// # Errors
    /// [`Error::Logits`] where their number is not the vocabulary's, or where one is NaN or positive infinity.
    pub fn next(&mut self, logits: &[f32], before: &[u32]) -> Result<u32, Error> {
        if logits.len() != self.seen.len() || logits.is_empty() {
            let expected = format!("{}, one for each token", self.seen.len().max(1));
            return Err(Error::Logits { expected, found: logits.len().to_string() });
        }
        check_logits(logits)?;
        self.candidates.clear();
        self.candidates.extend((0..).zip(logits.iter().copied()));
        self.apply_repeat_penalty(before);
        Ok(self.choose())
    }

    /// Samples a token from the largest logits: sorted, ties by token id, and at least [`Settings::device_top_k`] of
    /// them.
    ///
    /// # Errors
    /// As [`Sampler::next`].
    pub fn next_of_top_k(&mut self, ids: &[u32], logits: &[f32]) -> Result<u32, Error> {
        let first = logits.first().copied().unwrap_or(f32::NAN);
        if !first.is_finite() {
            let expected = "finite numbers".to_owned();
            let found = if first == f32::NEG_INFINITY {
                "negative infinity for every token".to_owned()
            } else {
                format!("{first} for token {}", ids.first().copied().unwrap_or_default())
            };
            return Err(Error::Logits { expected, found });
        }
        self.candidates.clear();
        self.candidates.extend(ids.iter().copied().zip(logits.iter().copied()));
        Ok(self.choose())
    }

    /// Runs the chain on the candidates.
    fn choose(&mut self) -> u32 {
        if self.settings.temperature == 0.0 {
            return argmax(&self.candidates);
        }
        self.apply_top_k();
        self.apply_temperature();
        self.apply_top_p_min_p();
        self.draw()
    }

    /// Makes recent tokens less likely.
    fn apply_repeat_penalty(&mut self, before: &[u32]) {
        let Settings { repeat_penalty, repeat_last, .. } = self.settings;
        if repeat_penalty == 1.0 {
            return;
        }
        let last =
            if repeat_last == 0 { before } else { &before[before.len().saturating_sub(repeat_last)..] };
        for id in last {
            let idx = *id as usize;
            if let Some((_, logit)) = self.candidates.get_mut(idx).filter(|_| !self.seen[idx]) {
                self.seen[idx] = true;
                let less = if *logit > 0.0 { *logit / repeat_penalty } else { *logit * repeat_penalty };
                // An extreme penalty must not make a logit infinite.
                *logit = less.min(f32::MAX);
            }
        }
        for id in last {
            if let Some(seen) = self.seen.get_mut(*id as usize) {
                *seen = false;
            }
        }
    }

    /// Divides by the temperature, relative to the largest logit so that nothing overflows.
    fn apply_temperature(&mut self) {
        let largest = self.candidates.first().map_or(0.0, |(_, logit)| *logit);
        for (_, logit) in &mut self.candidates {
            *logit = (*logit - largest) / self.settings.temperature;
        }
    }

    /// Keeps the top k, sorted.
    fn apply_top_k(&mut self) {
        let top_k = self.settings.top_k;
        // Adding 0 makes -0 equal to 0.
        let order = |a: &(u32, f32), b: &(u32, f32)| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)).then(a.0.cmp(&b.0));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, order);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(order);
    }

    /// Turns logits into unnormalised probabilities, and keeps what top-p and min-p allow.
    fn apply_top_p_min_p(&mut self) {
        let Settings { top_p, min_p, .. } = self.settings;
        for (_, weight) in &mut self.candidates {
            *weight = exp(*weight);
        }
        if top_p < 1.0 {
            let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
            let wanted = total * f64::from(top_p);
            let mut sum = 0.0;
            let n_kept = self.candidates.iter().take_while(|(_, weight)| {
                let is_wanted = sum < wanted;
                sum += f64::from(*weight);
                is_wanted
            });
            let n_kept = n_kept.count().max(1);
            self.candidates.truncate(n_kept);
        }
        // The most likely token has weight 1.
        let n_kept = self.candidates.iter().take_while(|(_, weight)| *weight >= min_p).count().max(1);
        self.candidates.truncate(n_kept);
    }

    /// Draws one of the candidates in proportion to their weights.
    fn draw(&mut self) -> u32 {
        let total: f64 = self.candidates.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let unit = (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
        let mut left = unit * total;
        for (id, weight) in &self.candidates {
            left -= f64::from(*weight);
            if left < 0.0 {
                return *id;
            }
        }
        argmax(&self.candidates)
    }
}

/// Refuses logits that cannot be sampled from.
///
/// # Errors
/// [`Error::Logits`] where one is NaN or positive infinity, or none is finite.
pub fn check_logits(logits: &[f32]) -> Result<(), Error> {
    let refused = |found: String| Err(Error::Logits { expected: "finite numbers".to_owned(), found });
    if let Some(id) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return refused(format!("{} for token {id}", logits[id]));
    }
    if logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
        return refused("negative infinity for every token".to_owned());
    }
    Ok(())
}

/// The token with the largest logit, the lowest id among equals.
fn argmax(candidates: &[(u32, f32)]) -> u32 {
    let larger = |a: (u32, f32), b: &(u32, f32)| if b.1 > a.1 { *b } else { a };
    candidates.iter().fold((0, f32::NEG_INFINITY), larger).0
}

/// `e^x` for x ≤ 0 by additions and multiplications only: these round the same on every platform, a library's `exp`
/// does not.
fn exp(x: f32) -> f32 {
    /// Below this the result is 0 in single precision.
    const LEAST: f64 = -110.0;
    let x = f64::from(x);
    if x < LEAST {
        return 0.0;
    }
    let halvings = (-x / std::f64::consts::LN_2).floor();
    let rest = x + halvings * std::f64::consts::LN_2; // above -ln 2, at most 0
    let series = (1..=16).rev().fold(1.0, |sum, n| 1.0 + rest / f64::from(n) * sum);
    let halved = (0..halvings as u32).fold(series, |value, _| value * 0.5);
    halved as f32
}

/// Refuses a setting that is not finite or out of range.
fn check(setting: &'static str, found: f32, expected: &str, is_valid: bool) -> Result<(), Error> {
    if is_valid && found.is_finite() {
        return Ok(());
    }
    Err(Error::Setting { setting, expected: expected.to_owned(), found: found.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, 2.0, 3.0, -1.0];

    fn settings(temperature: f32) -> Settings {
        Settings { temperature, seed: 11, ..Settings::default() }
    }

    /// The fraction of 20,000 draws that went to each token.
    fn shares(settings: Settings, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(settings, logits.len()).unwrap();
        let mut counts = vec![0.0; logits.len()];
        for _ in 0..20_000 {
            counts[sampler.next(logits, &[]).unwrap() as usize] += 1.0 / 20_000.0;
        }
        counts
    }

    fn close(found: &[f64], expected: &[f64]) {
        let far = found.iter().zip(expected).any(|(a, b)| (a - b).abs() > 0.015);
        assert!(!far, "{found:?} instead of {expected:?}");
    }

    #[test]
    fn temperature_0_takes_the_lowest_id_of_the_largest_logits() {
        let mut sampler = Sampler::new(settings(0.0), 5).unwrap();
        assert_eq!(sampler.next(&LOGITS, &[]).unwrap(), 1);
        let penalty = Settings { repeat_penalty: 2.0, ..settings(0.0) };
        let mut sampler = Sampler::new(penalty, 5).unwrap();
        assert_eq!(sampler.next(&LOGITS, &[1, 1, 9]).unwrap(), 3);
        assert_eq!(sampler.next(&LOGITS, &[1, 3]).unwrap(), 2);
        assert_eq!(sampler.next(&LOGITS, &[]).unwrap(), 1);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        close(&shares(settings(1.0), &logits), &[0.5, 0.25, 0.125, 0.125]);
        let squares = [0.25, 0.0625, 0.015_625, 0.015_625].map(|p| p / 0.343_75);
        close(&shares(settings(0.5), &logits), &squares);
    }

    #[test]
    fn each_limit_keeps_what_it_says() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let base = settings(1.0);
        let thirds = [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0];
        close(&shares(Settings { top_k: 2, ..base.clone() }, &logits), &thirds);
        close(&shares(Settings { top_p: 0.7, ..base.clone() }, &logits), &thirds);
        close(&shares(Settings { min_p: 0.4, ..base.clone() }, &logits), &thirds);
        close(
            &shares(Settings { top_k: 3, ..base.clone() }, &logits),
            &[4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0, 0.0],
        );
        // After top-k 3 the first two have 6/7 of the probability.
        close(&shares(Settings { top_k: 3, top_p: 0.8, ..base.clone() }, &logits), &thirds);
        close(&shares(Settings { top_p: 1e-6, ..base }, &logits), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_another_seed_others() {
        let draw = |seed| {
            let mut sampler = Sampler::new(Settings { seed, ..settings(1.0) }, 5).unwrap();
            (0..12).map(|_| sampler.next(&LOGITS, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn the_top_logits_draw_what_all_logits_draw() {
        let logits: Vec<f32> = (0..200).map(|i| (i * 37 % 50) as f32 / 9.0 - 2.0).collect();
        let mut ids: Vec<u32> = (0..200).collect();
        ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        for (temperature, top_k) in [(0.0, 0), (0.7, 1), (1.3, 40), (1e-9, 3)] {
            let settings = Settings { top_k, top_p: 0.9, ..settings(temperature) };
            let device_top_k = settings.device_top_k().unwrap();
            let best: Vec<f32> = ids[..device_top_k].iter().map(|id| logits[*id as usize]).collect();
            let [mut by_all, mut by_top_k] = [0, 1].map(|_| Sampler::new(settings.clone(), 200).unwrap());
            for _ in 0..100 {
                assert_eq!(
                    by_top_k.next_of_top_k(&ids[..device_top_k], &best).unwrap(),
                    by_all.next(&logits, &[]).unwrap()
                );
            }
        }
        assert_eq!(settings(1.0).device_top_k(), None);
        assert_eq!(Settings { repeat_penalty: 1.1, ..settings(0.0) }.device_top_k(), None);
        assert_eq!(Settings { top_k: MAX_DEVICE_TOP_K + 1, ..settings(1.0) }.device_top_k(), None);
    }

    #[test]
    fn senseless_settings_and_logits_are_sentences() {
        let base = Settings::default();
        let refused = |settings: Settings| Sampler::new(settings, 5).err().unwrap().to_string();
        let sentence = refused(Settings { temperature: -1.0, ..base.clone() });
        assert_eq!(sentence, "temperature: expected a number of at least 0, found -1");
        for top_p in [0.0, 1.5, -0.1, f32::NAN] {
            assert!(refused(Settings { top_p, ..base.clone() }).starts_with("top_p: "));
        }
        refused(Settings { temperature: f32::INFINITY, ..base.clone() });
        refused(Settings { min_p: 1.0, ..base.clone() });
        refused(Settings { repeat_penalty: 0.0, ..base.clone() });

        let mut sampler = Sampler::new(base, 3).unwrap();
        let sentence = sampler.next(&[0.0, f32::NAN, 1.0], &[]).unwrap_err().to_string();
        assert_eq!(sentence, "logits: expected finite numbers, found NaN for token 1");
        assert!(sampler.next(&[0.0, f32::INFINITY, 1.0], &[]).is_err());
        assert!(sampler.next(&[f32::NEG_INFINITY; 3], &[]).is_err());
        let sentence = sampler.next(&[0.0], &[]).unwrap_err().to_string();
        assert_eq!(sentence, "logits: expected 3, one for each token, found 1");
        assert_eq!(sampler.next(&[f32::NEG_INFINITY, -3.0, f32::NEG_INFINITY], &[]).unwrap(), 1);
        let sentence = sampler.next_of_top_k(&[1], &[f32::NAN]).unwrap_err().to_string();
        assert_eq!(sentence, "logits: expected finite numbers, found NaN for token 1");
        assert!(sampler.next_of_top_k(&[0], &[f32::NEG_INFINITY]).is_err());
    }

    #[test]
    fn extreme_penalties_draw_one_of_the_tokens() {
        for repeat_penalty in [1e-45, 1e38] {
            for temperature in [0.0, 1.0] {
                let penalty = Settings { repeat_penalty, ..settings(temperature) };
                let mut sampler = Sampler::new(penalty, 5).unwrap();
                let drawn = sampler.next(&LOGITS, &[0, 1]).unwrap();
                let expected: &[u32] = if repeat_penalty < 1.0 { &[0, 1] } else { &[3] };
                assert!(expected.contains(&drawn), "{repeat_penalty}, {temperature}: {drawn}");
            }
        }
    }

    #[test]
    fn extreme_logits_and_temperatures_draw_the_argmax() {
        let mut sampler = Sampler::new(settings(1e-30), 3).unwrap();
        assert_eq!(sampler.next(&[-3e38, 3e38, 0.0], &[]).unwrap(), 1);
    }

    #[test]
    fn the_exponential_is_right_to_single_precision() {
        for x in [0.0, -1e-6, -0.3, -0.7, -1.0, -5.5, -20.0, -80.0, -100.0] {
            assert!((exp(x) - x.exp()).abs() <= x.exp() * 3e-7 + 1e-44, "{x}");
        }
        assert_eq!((exp(f32::NEG_INFINITY), exp(-200.0)), (0.0, 0.0));
    }
}
