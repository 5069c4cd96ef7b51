//! Sampling of one sequence: bias, penalties and a mask before the sampler of the models, log-probabilities beside it.
//!
//! In: a row of logits and the tokens so far. Out: a token with its score.
//! Log-probabilities are those of the model: before bias, penalties and temperature.

use std::collections::BTreeMap;

use fusebox::sample::{Sampler, Settings, Step, check_logits};

/// The order of the steps: temperature comes before what looks at probabilities, as at OpenAI and in vLLM.
const STEPS: [Step; 8] = [
    Step::Penalties,
    Step::TopNSigma,
    Step::Temperature,
    Step::TopK,
    Step::Typical,
    Step::TopP,
    Step::MinP,
    Step::Xtc,
];

/// Takes the logits of tokens that may not follow down to negative infinity.
pub(crate) type Ban<'a> = dyn Fn(&mut [f32]) + 'a;

/// How a request wants its tokens drawn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sampling {
    /// Temperature, top-k, top-p, min-p, repeat penalty, seed.
    pub(crate) chain: Settings,
    /// Taken from a logit for each time its token was generated.
    pub(crate) frequency: f32,
    /// Taken from a logit once its token was generated.
    pub(crate) presence: f32,
    /// Added to logits.
    pub(crate) bias: Vec<(u32, f32)>,
    /// How many of the likeliest tokens are reported beside the drawn one; none for no report.
    pub(crate) logprobs: Option<usize>,
    /// Tokens that are reported after them in any case.
    pub(crate) reported: Vec<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        let chain = Settings {
            temperature: 1.0,
            repeat_last: usize::MAX,
            steps: STEPS.to_vec(),
            ..Settings::default()
        };
        let (bias, reported) = (Vec::new(), Vec::new());
        Self { chain, frequency: 0.0, presence: 0.0, bias, logprobs: None, reported }
    }
}

/// A token with its log-probability and those of the likeliest.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Scored {
    pub(crate) id: u32,
    /// None where nobody asked, and for the first token of a prompt.
    pub(crate) logprob: Option<f32>,
    /// The likeliest tokens, best first, then those that are reported in any case.
    pub(crate) top: Vec<(u32, f32)>,
}

/// Draws the tokens of one sequence.
#[derive(Debug)]
pub(crate) struct Drawer {
    sampling: Sampling,
    sampler: Sampler,
    counts: BTreeMap<u32, u32>,
    row: Vec<f32>,
}

/// The log-probability of a token, and those of the `n` likeliest tokens and of some others.
pub(crate) fn score(logits: &[f32], id: u32, n: usize, others: &[u32]) -> Scored {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let log_sum = f64::from(largest) + sum.ln();
    let of = |id: u32| (f64::from(logits[id as usize]) - log_sum).max(-9999.0) as f32;
    let mut best: Vec<u32> = Vec::new();
    if n > 0 {
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let rank = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let n = n.min(order.len());
        if n < order.len() {
            order.select_nth_unstable_by(n - 1, rank);
            order.truncate(n);
        }
        order.sort_unstable_by(rank);
        best = order;
    }
    best.extend_from_slice(others);
    Scored { id, logprob: Some(of(id)), top: best.into_iter().map(|id| (id, of(id))).collect() }
}

impl Drawer {
    /// # Errors
    /// A sentence for a setting out of range.
    pub(crate) fn new(sampling: Sampling, n_vocab: usize) -> Result<Self, String> {
        let sampler = Sampler::new(sampling.chain.clone(), n_vocab).map_err(|error| error.to_string())?;
        Ok(Self { sampling, sampler, counts: BTreeMap::new(), row: Vec::new() })
    }

    /// Draws a token. `before` is the prompt and all tokens so far.
    ///
    /// # Errors
    /// A sentence where the logits are no numbers, or nothing is allowed.
    pub(crate) fn draw(
        &mut self,
        logits: &[f32],
        before: &[u32],
        ban: Option<&Ban<'_>>,
    ) -> Result<Scored, String> {
        let Sampling { frequency, presence, bias, logprobs, reported, .. } = &self.sampling;
        let has_penalty = (*frequency != 0.0 || *presence != 0.0) && !self.counts.is_empty();
        let id = if ban.is_none() && bias.is_empty() && !has_penalty {
            self.sampler.next(logits, before)
        } else {
            check_logits(logits).map_err(|error| error.to_string())?;
            self.row.clear();
            self.row.extend_from_slice(logits);
            for (id, amount) in bias {
                if let Some(logit) = self.row.get_mut(*id as usize) {
                    *logit = if *amount <= -100.0 { f32::NEG_INFINITY } else { *logit + amount };
                }
            }
            if has_penalty {
                for (id, n) in &self.counts {
                    self.row[*id as usize] -= frequency * *n as f32 + presence;
                }
            }
            if let Some(ban) = ban {
                ban(&mut self.row);
            }
            self.sampler.next(&self.row, before)
        };
        let id = id.map_err(|error| error.to_string())?;
        *self.counts.entry(id).or_default() += 1;
        Ok(match logprobs {
            Some(n) => score(logits, id, *n, reported),
            None => Scored { id, ..Scored::default() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(sampling: Sampling) -> Drawer {
        let chain = Settings { temperature: 0.0, ..sampling.chain };
        Drawer::new(Sampling { chain, ..sampling }, 4).unwrap()
    }

    #[test]
    fn penalties_count_generated_tokens_only() {
        let mut drawer = greedy(Sampling { frequency: 1.0, presence: 0.5, ..Sampling::default() });
        let logits = [0.0, 3.0, 2.0, 1.0];
        let drawn: Vec<u32> = (0..4).map(|_| drawer.draw(&logits, &[1, 1, 1], None).unwrap().id).collect();
        assert_eq!(drawn, [1, 2, 1, 3]);
    }

    #[test]
    fn a_bias_of_minus_100_bans_and_a_mask_is_kept() {
        let mut drawer = greedy(Sampling { bias: vec![(1, -100.0), (9, 5.0)], ..Sampling::default() });
        assert_eq!(drawer.draw(&[0.0, 1e9, 2.0, 1.0], &[], None).unwrap().id, 2);
        assert_eq!(
            drawer
                .draw(&[0.0, 1e9, 2.0, 1.0], &[], Some(&|row| row[..3].fill(f32::NEG_INFINITY)))
                .unwrap()
                .id,
            3
        );
        assert!(drawer.draw(&[0.0; 4], &[], Some(&|row| row.fill(f32::NEG_INFINITY))).is_err());
        assert!(drawer.draw(&[f32::NAN; 4], &[], None).is_err());
    }

    #[test]
    fn log_probabilities_are_of_the_model_and_sorted() {
        let row = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let scored = score(&row, 2, 2, &[3]);
        assert!((scored.logprob.unwrap() - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(scored.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 3]);
        let all: f32 = score(&row, 0, 9, &[]).top.iter().map(|(_, p)| p.exp()).sum();
        assert!((all - 1.0).abs() < 1e-6);
    }
}
