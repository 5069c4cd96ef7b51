//! Penalties: what makes tokens less likely that were there before.
//!
//! In: the tokens so far and the candidates. Out: smaller logits. Repeat, frequency and presence penalties and DRY are
//! those of llama.cpp: a prompt counts as much as an answer.
//! DRY ("don't repeat yourself") looks at the end of the text: a token that would make it longer in agreement with an
//! earlier place is made less likely, the more the longer the agreement is. Breakers, such as a new line, end one.

use std::collections::BTreeMap;

use super::candidates::Candidates;

/// Breakers are cut to this many bytes, and what follows the first token of one to this many tokens.
const MAX_BREAKER: [usize; 2] = [40, 20];
/// The largest exponent of a base `b` is this over ln b: `b^n` stays below the largest number in single precision.
const LN_LARGEST: f32 = 88.722_84;

/// Texts that end an agreement, as tokens: what may follow each first token, which is nothing where the token holds a
/// whole breaker.
pub type Breakers = BTreeMap<u32, Vec<Vec<u32>>>;

/// Settings of DRY.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The penalty of an agreement of the allowed length; 0 switches DRY off.
    pub multiplier: f32,
    /// What the penalty is multiplied with for each further token.
    pub base: f32,
    /// The longest agreement without a penalty.
    pub allowed_length: usize,
    /// How many of the last tokens count.
    pub last: usize,
    /// What ends an agreement.
    pub breakers: Breakers,
}

impl Default for Dry {
    fn default() -> Self {
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last: usize::MAX, breakers: Breakers::new() }
    }
}

impl Dry {
    /// Whether there can be a penalty.
    pub(super) fn is_on(&self) -> bool {
        self.multiplier != 0.0 && self.base >= 1.0 && self.last > 0
    }
}

/// The breakers of a vocabulary: every token that holds one of the texts, or ends in the beginning of one, then with
/// the tokens of its rest. `bytes` are those of a token, `encode` makes tokens of a text.
pub fn breakers<'t>(
    texts: &[String],
    n_tokens: usize,
    bytes: impl Fn(u32) -> &'t [u8],
    encode: impl Fn(&str) -> Vec<u32>,
) -> Breakers {
    let mut all = Breakers::new();
    let [max_bytes, max_tokens] = MAX_BREAKER;
    for text in texts.iter().filter(|text| !text.is_empty()) {
        let cut = (0..=max_bytes.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let text = &text[..cut];
        for id in 0..n_tokens as u32 {
            let word = bytes(id);
            let tails = || all_tails(word, text);
            let found: Vec<Vec<u32>> = if word.windows(text.len()).any(|window| window == text.as_bytes()) {
                vec![Vec::new()]
            } else {
                tails().map(|tail| encode(tail).into_iter().take(max_tokens).collect()).collect()
            };
            for tail in found {
                let known = all.entry(id).or_default();
                if !known.contains(&tail) {
                    known.push(tail);
                }
            }
        }
    }
    all
}

/// What is left of a text after each of its beginnings that a word ends in.
fn all_tails<'t>(word: &[u8], text: &'t str) -> impl Iterator<Item = &'t str> {
    let lengths = (1..text.len().min(word.len() + 1)).rev();
    lengths.filter(|n| word.ends_with(&text.as_bytes()[..*n])).filter_map(|n| text.get(n..))
}

/// Penalties of tokens by how often they were there.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    /// Uses of each token among the last ones while penalties are applied; all 0 in between.
    n_uses: Vec<u32>,
}

impl Counts {
    pub(super) fn new(n_tokens: usize) -> Self {
        Self { n_uses: vec![0; n_tokens] }
    }

    /// Makes the tokens of `last` less likely.
    pub(super) fn apply(
        &mut self,
        last: &[u32],
        [repeat, frequency, presence]: [f32; 3],
        on: &mut Candidates,
    ) {
        for id in last {
            if let Some(n_uses) = self.n_uses.get_mut(*id as usize) {
                *n_uses += 1;
            }
        }
        for id in last {
            // A token that is there again was changed the first time.
            let n_uses = self.n_uses.get_mut(*id as usize).map_or(0, std::mem::take);
            if n_uses == 0 {
                continue;
            }
            on.change(*id, |logit| {
                let less = if logit > 0.0 { logit / repeat } else { logit * repeat };
                let less = less - n_uses as f32 * frequency - presence;
                // An extreme penalty must not make a logit infinite, nor that of every token.
                if logit.is_finite() { less.clamp(f32::MIN, f32::MAX) } else { logit }
            });
        }
    }
}

/// The search for agreements.
#[derive(Clone, Debug, Default)]
pub(super) struct Agreements {
    /// For each place, counted from the end: how long the text before it agrees with the end.
    lengths: Vec<usize>,
    /// The longest agreement that each token would lengthen, sorted by token.
    longest: Vec<(u32, usize)>,
}

impl Agreements {
    /// Makes tokens less likely that would lengthen an agreement.
    pub(super) fn apply(&mut self, before: &[u32], dry: &Dry, on: &mut Candidates) {
        let last = &before[before.len().saturating_sub(dry.last)..];
        if last.len() <= dry.allowed_length {
            return;
        }
        let limit = until_breaker(last, &dry.breakers);
        if limit < dry.allowed_length {
            return;
        }
        self.measure(last);
        self.longest.clear();
        for (distance, length) in self.lengths.iter().enumerate().skip(1) {
            let length = (*length).min(limit);
            // Where nothing has to agree, every token that was there before is meant.
            if length >= dry.allowed_length {
                self.longest.push((last[last.len() - distance], length));
            }
        }
        // The longest of each token comes first among its own.
        self.longest.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        self.longest.dedup_by_key(|(token, _)| *token);
        let max_exponent = if dry.base > 1.000_001 { (LN_LARGEST / dry.base.ln()) as usize } else { 0 };
        for (id, length) in &self.longest {
            if dry.breakers.get(id).is_some_and(|tails| tails.iter().any(Vec::is_empty)) {
                continue;
            }
            let exponent = length - dry.allowed_length;
            let exponent = if max_exponent > 0 { exponent.min(max_exponent) } else { exponent };
            let power = if max_exponent > 0 {
                (0..exponent).fold(1.0, |power: f32, _| power * dry.base)
            } else {
                1.0
            };
            let amount = dry.multiplier * power;
            on.change(*id, |logit| {
                if logit.is_finite() { (logit - amount).clamp(f32::MIN, f32::MAX) } else { logit }
            });
        }
    }

    /// Fills in the lengths, by the Z algorithm on the text read backwards: each token is compared once.
    fn measure(&mut self, last: &[u32]) {
        let n = last.len();
        let at = |distance: usize| last[n - 1 - distance];
        self.lengths.clear();
        self.lengths.resize(n, 0);
        // The stretch that agrees with the end and reaches furthest.
        let (mut from, mut to) = (0, 0);
        for distance in 1..n {
            let known = if distance < to { self.lengths[distance - from].min(to - distance) } else { 0 };
            let mut length = known;
            while distance + length < n && at(length) == at(distance + length) {
                length += 1;
            }
            if distance + length > to {
                (from, to) = (distance, distance + length);
            }
            self.lengths[distance] = length;
        }
    }
}

/// How many tokens there are after the last breaker.
fn until_breaker(last: &[u32], breakers: &Breakers) -> usize {
    for (distance, token) in last.iter().rev().enumerate() {
        let Some(tails) = breakers.get(token) else { continue };
        let place = last.len() - distance;
        let follows = |tail: &&Vec<u32>| last[place..].starts_with(tail);
        if let Some(longest) = tails.iter().filter(follows).map(Vec::len).max() {
            return distance - longest;
        }
    }
    last.len()
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::foundation::random::Random;

    use super::*;

    #[test]
    fn agreements_are_as_long_as_a_plain_search_says() {
        let mut random = Random::new(5);
        for _ in 0..500 {
            let last: Vec<u32> = (0..=random.below(24)).map(|_| random.below(3) as u32).collect();
            let mut agreements = Agreements::default();
            agreements.measure(&last);
            let backwards: Vec<u32> = last.iter().rev().copied().collect();
            for distance in 1..last.len() {
                let pairs = backwards[distance..].iter().zip(&backwards);
                let plain = pairs.take_while(|(a, b)| a == b).count();
                assert_eq!(agreements.lengths[distance], plain, "{last:?} at {distance}");
            }
        }
    }

    #[test]
    fn a_breaker_may_begin_inside_a_token() {
        let words = ["a\n", "x<", "br>", "<br>y", "br", ">"].map(str::as_bytes);
        let encode = |text: &str| match text {
            "br>" => vec![2],
            _ => panic!("the rest of a breaker is {text}"),
        };
        let texts = ["\n".to_owned(), "<br>".to_owned()];
        let found = breakers(&texts, 6, |id| words[id as usize], encode);
        let expected = [(0, vec![vec![]]), (1, vec![vec![2]]), (3, vec![vec![]])];
        assert_eq!(found, Breakers::from(expected));
        assert_eq!(until_breaker(&[4, 1, 2, 4, 4], &found), 2);
        assert_eq!(until_breaker(&[4, 1, 4, 4], &found), 4);
        assert_eq!(until_breaker(&[4, 0, 4], &found), 1);
    }
}
