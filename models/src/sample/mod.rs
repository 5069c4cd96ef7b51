//! Sampling: from logits to the next token.
//!
//! In: the logits of one position, or the largest of them, the tokens so far, and a seed. Out: a token id.
//! The chain is that of llama.cpp, and so is its order, which can be changed: penalties, DRY, top-n-sigma, top-k,
//! typical, top-p, min-p, XTC, temperature. Each step filters what the one before left, with probabilities
//! renormalised. Top-k comes before any rounding, so a device may do it without changing a draw.
//! The same seed draws the same tokens on every machine, ties go to the lower token id, and nothing is allocated per
//! token.

use fusebox_compiler::foundation::random::Random;

use crate::error::Error;
use crate::sample::candidates::{Candidates, are_below_infinity, first_of_largest, largest};
use crate::sample::penalties::{Agreements, Counts, Dry};

mod candidates;
pub mod penalties;
pub mod recommended;

/// Beyond this k, top-k on the device takes longer than copying all logits back.
const MAX_DEVICE_TOP_K: usize = 64;

/// A step of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Repeat, frequency and presence penalties.
    Penalties,
    /// Penalties of repeated passages.
    Dry,
    /// Top-n-sigma.
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling.
    Typical,
    /// Top-p (nucleus).
    TopP,
    /// Min-p.
    MinP,
    /// XTC: exclude top choices.
    Xtc,
    /// Temperature.
    Temperature,
}

impl Step {
    /// Every step, in the order of llama.cpp.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// The name in llama.cpp.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }

    /// The step of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.name() == name)
    }
}

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
    /// Locally typical sampling: keep tokens with nearly as much information as is expected, up to this total
    /// probability; 1 keeps all.
    pub typical_p: f32,
    /// Top-n-sigma: keep tokens with logits at most this many standard deviations below the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// XTC: the probability that the likeliest tokens are dropped; 0 is off.
    pub xtc_probability: f32,
    /// XTC: of the tokens that are at least this likely, only the least likely is kept; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Repeat penalty: divides positive logits of recent tokens and multiplies negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Frequency penalty: subtracted from the logit of a recent token for each of its uses; 0 is off.
    pub frequency_penalty: f32,
    /// Presence penalty: subtracted from the logit of every recent token; 0 is off.
    pub presence_penalty: f32,
    /// How many of the last tokens count as recent.
    pub repeat_last: usize,
    /// Penalties of repeated passages.
    pub dry: Dry,
    /// The steps, in their order.
    pub steps: Vec<Step>,
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
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last: 64,
            dry: Dry::default(),
            steps: Step::ALL.to_vec(),
            seed: 0,
        }
    }
}

impl Settings {
    /// How many of the largest logits suffice for these settings, so that top-k can run on the device; `None` where all
    /// logits may be needed.
    pub fn device_top_k(&self) -> Option<usize> {
        let is_penalty = |step: &Step| matches!(step, Step::Penalties | Step::Dry);
        let mut on = self.steps.iter().copied().filter(|step| self.is_on(*step));
        let n = if self.temperature == 0.0 {
            usize::from(!on.any(|step| is_penalty(&step)))
        } else if on.next() == Some(Step::TopK) && !on.any(|step| is_penalty(&step)) {
            self.top_k
        } else {
            0
        };
        (1..=MAX_DEVICE_TOP_K).contains(&n).then_some(n)
    }

    /// Whether a step does anything.
    fn is_on(&self, step: Step) -> bool {
        match step {
            Step::Penalties => {
                let is_any = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
                self.repeat_last > 0 && (is_any || self.repeat_penalty != 1.0)
            }
            Step::Dry => self.dry.is_on(),
            Step::TopNSigma => self.top_n_sigma > 0.0,
            Step::TopK => self.top_k > 0,
            Step::Typical => self.typical_p < 1.0,
            Step::TopP => self.top_p < 1.0,
            Step::MinP => self.min_p > 0.0,
            Step::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Step::Temperature => self.temperature != 1.0,
        }
    }

    /// Refuses values out of range.
    fn check(&self) -> Result<(), Error> {
        let any = |_: f32| true;
        let at_least_0 = |x: f32| x >= 0.0;
        let fraction = |x: f32| (0.0..=1.0).contains(&x);
        let positive_fraction = |x: f32| x > 0.0 && x <= 1.0;
        check("temperature", self.temperature, "a number of at least 0", at_least_0)?;
        check("top_p", self.top_p, "a number above 0 and at most 1", positive_fraction)?;
        check("min_p", self.min_p, "a number of at least 0 and below 1", |x| (0.0..1.0).contains(&x))?;
        check("typical_p", self.typical_p, "a number above 0 and at most 1", positive_fraction)?;
        check("top_n_sigma", self.top_n_sigma, "a number of at least 0", at_least_0)?;
        check("xtc_probability", self.xtc_probability, "a number from 0 to 1", fraction)?;
        check("xtc_threshold", self.xtc_threshold, "a number from 0 to 1", fraction)?;
        check("repeat_penalty", self.repeat_penalty, "a number above 0", |x| x > 0.0)?;
        check("frequency_penalty", self.frequency_penalty, "a number", any)?;
        check("presence_penalty", self.presence_penalty, "a number", any)?;
        check("dry_multiplier", self.dry.multiplier, "a number of at least 0", at_least_0)?;
        check("dry_base", self.dry.base, "a number of at least 1", |x| x >= 1.0)
    }
}

/// A sampler with its random state.
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Settings,
    random: Random,
    n_tokens: usize,
    candidates: Candidates,
    counts: Counts,
    agreements: Agreements,
}

impl Sampler {
    /// A sampler for a vocabulary of `n_tokens`.
    ///
    /// # Errors
    /// [`Error::Setting`] for a setting out of range.
    pub fn new(settings: Settings, n_tokens: usize) -> Result<Self, Error> {
        settings.check()?;
        Ok(Self {
            random: Random::new(settings.seed),
            settings,
            n_tokens,
            candidates: Candidates::new(n_tokens),
            counts: Counts::new(n_tokens),
            agreements: Agreements::default(),
        })
    }

    /// Samples the token that follows `before`, given the logits of all tokens.
    ///
    /// # Errors
    /// [`Error::Logits`] where their number is not the vocabulary's, or where one is NaN or positive infinity.
    pub fn next(&mut self, logits: &[f32], before: &[u32]) -> Result<u32, Error> {
        if logits.len() != self.n_tokens || logits.is_empty() {
            let expected = format!("{}, one for each token", self.n_tokens.max(1));
            return Err(Error::Logits { expected, found: logits.len().to_string() });
        }
        check_logits(logits)?;
        if self.settings.device_top_k() == Some(1) {
            return Ok(first_of_largest(logits));
        }
        self.candidates.fill(logits);
        Ok(self.choose(before))
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
        self.candidates.fill_sorted(ids, logits);
        Ok(self.choose(&[]))
    }

    /// Runs the chain on the candidates.
    fn choose(&mut self, before: &[u32]) -> u32 {
        let is_greedy = self.settings.temperature == 0.0;
        for place in 0..self.settings.steps.len() {
            let step = self.settings.steps[place];
            if self.settings.is_on(step) && (!is_greedy || matches!(step, Step::Penalties | Step::Dry)) {
                self.apply(step, before);
            }
        }
        if is_greedy { self.candidates.largest() } else { self.candidates.draw(unit(&mut self.random)) }
    }

    /// Applies one step of the chain.
    fn apply(&mut self, step: Step, before: &[u32]) {
        let Self { settings, candidates, .. } = self;
        match step {
            Step::Penalties => {
                let last = &before[before.len().saturating_sub(settings.repeat_last)..];
                let amounts =
                    [settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty];
                self.counts.apply(last, amounts, candidates);
            }
            Step::Dry => self.agreements.apply(before, &settings.dry, candidates),
            Step::TopNSigma => candidates.top_n_sigma(settings.top_n_sigma),
            Step::TopK => candidates.top_k(settings.top_k),
            Step::Typical => candidates.typical(settings.typical_p),
            Step::TopP => candidates.top_p(settings.top_p),
            Step::MinP => candidates.min_p(settings.min_p),
            Step::Xtc => {
                if unit(&mut self.random) <= f64::from(settings.xtc_probability) {
                    candidates.exclude_top_choices(settings.xtc_threshold);
                }
            }
            Step::Temperature => candidates.cool(settings.temperature),
        }
    }
}

/// A random number from 0 to below 1.
fn unit(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1u64 << 53) as f64
}

/// Refuses logits that cannot be sampled from.
///
/// # Errors
/// [`Error::Logits`] where one is NaN or positive infinity, or none is finite.
pub fn check_logits(logits: &[f32]) -> Result<(), Error> {
    let refused = |found: String| Err(Error::Logits { expected: "finite numbers".to_owned(), found });
    if !are_below_infinity(logits) {
        let id =
            logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY).unwrap_or_default();
        return refused(format!("{} for token {id}", logits[id]));
    }
    if largest(logits) == f32::NEG_INFINITY {
        return refused("negative infinity for every token".to_owned());
    }
    Ok(())
}

/// Refuses a setting that is not finite or out of range.
fn check(
    setting: &'static str,
    found: f32,
    expected: &str,
    is_valid: impl Fn(f32) -> bool,
) -> Result<(), Error> {
    if is_valid(found) && found.is_finite() {
        return Ok(());
    }
    Err(Error::Setting { setting, expected: expected.to_owned(), found: found.to_string() })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::sample::penalties::breakers;
    use crate::tokenizer::Tokenizer;

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
    fn any_chain_leaves_what_that_of_llama_cpp_leaves() {
        let story = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/story.gguf"));
        let tokenizer = Tokenizer::open(&fusebox_runtime::weights::Checkpoint::open(story).unwrap()).unwrap();
        let n_tokens = tokenizer.n_tokens();
        let texts = ["\n", ":", "\"", "*"].map(str::to_owned);
        let encode = |text: &str| tokenizer.encode(text, false).unwrap();
        let breakers = breakers(&texts, n_tokens, |id| tokenizer.token_bytes(id), encode);
        let cases: Vec<Value> =
            serde_json::from_str(include_str!("../../../tests/fixtures/samplers.json")).unwrap();
        for (number, case) in cases.iter().enumerate() {
            let given = |key: &str| case["settings"].get(key).and_then(Value::as_f64);
            let or = |key: &str, default: f32| given(key).map_or(default, |x| x as f32);
            let step = |name: &Value| Step::named(name.as_str().unwrap()).unwrap();
            let settings = Settings {
                temperature: or("temperature", 1.0),
                top_k: or("top_k", 0.0) as usize,
                top_p: or("top_p", 1.0),
                min_p: or("min_p", 0.0),
                typical_p: or("typical_p", 1.0),
                top_n_sigma: or("top_n_sigma", 0.0),
                xtc_probability: if given("xtc_threshold").is_some() { 1.0 } else { 0.0 },
                xtc_threshold: or("xtc_threshold", 0.1),
                repeat_penalty: or("repeat_penalty", 1.0),
                frequency_penalty: or("frequency_penalty", 0.0),
                presence_penalty: or("presence_penalty", 0.0),
                repeat_last: or("repeat_last", 64.0) as usize,
                dry: Dry {
                    multiplier: or("dry_multiplier", 0.0),
                    base: or("dry_base", 1.0),
                    allowed_length: or("dry_allowed_length", 1.0) as usize,
                    last: or("dry_last", 0.0) as usize,
                    breakers: breakers.clone(),
                },
                steps: case["steps"].as_array().unwrap().iter().map(step).collect(),
                seed: 0,
            };
            let mut logits = vec![case["floor"].as_f64().unwrap() as f32; n_tokens];
            let pairs: Vec<(usize, f32)> = serde_json::from_value(case["logits"].clone()).unwrap();
            for (id, logit) in pairs {
                logits[id] = logit;
            }
            let before: Vec<u32> = serde_json::from_value(case["before"].clone()).unwrap();
            let mut sampler = Sampler::new(settings, n_tokens).unwrap();
            sampler.next(&logits, &before).unwrap();
            let mut left = sampler.candidates.probabilities();
            left.retain(|(_, p)| *p > 0.0);
            left.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            assert_eq!(left.len() as u64, case["n_left"].as_u64().unwrap(), "case {number}: {case}");
            let expected: Vec<(u32, f64)> = serde_json::from_value(case["left"].clone()).unwrap();
            for ((id, p), (expected_id, expected_p)) in left.iter().zip(&expected) {
                assert!((p - expected_p).abs() < 1e-4 * expected_p, "case {number}: {id} {p} {expected_p}");
                assert!(id == expected_id || (p - expected_p).abs() < 1e-6, "case {number}: {id}");
            }
        }
    }
}
