//! Guesses by earlier text (prompt lookup): what followed the last tokens where they stood before.
//!
//! In: the tokens of a sequence. Out: the tokens after the latest earlier place of its last four tokens, else three,
//! else two. It costs nothing and is right where an answer repeats its prompt: edits, summaries, code, data.

use std::collections::HashMap;

use crate::draft::Draft;
use crate::error::Error;

/// Lengths of passages that are looked up, the longest first.
const LENGTHS: [usize; 3] = [4, 3, 2];

/// Guesses by earlier text.
#[derive(Debug, Default)]
pub struct Ngram {
    /// The tokens that are indexed.
    tokens: Vec<u32>,
    /// For each length, where its passages ended last; a passage at the very end is not there yet.
    ends: [HashMap<[u32; LENGTHS[0]], usize>; LENGTHS.len()],
}

impl Ngram {
    /// The last `length` tokens as a key.
    fn key(tokens: &[u32], length: usize) -> Option<[u32; LENGTHS[0]]> {
        let mut key = [0; LENGTHS[0]];
        let first = tokens.len().checked_sub(length)?;
        key[..length].copy_from_slice(&tokens[first..]);
        Some(key)
    }

    /// Indexes the passages that ended before each new token.
    fn update(&mut self, tokens: &[u32]) {
        let n_same = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if n_same < self.tokens.len() {
            self.tokens.clear();
            self.ends.iter_mut().for_each(HashMap::clear);
        }
        for token in &tokens[self.tokens.len()..] {
            for (length, ends) in LENGTHS.into_iter().zip(&mut self.ends) {
                if let Some(key) = Self::key(&self.tokens, length) {
                    ends.insert(key, self.tokens.len());
                }
            }
            self.tokens.push(*token);
        }
    }
}

impl Draft for Ngram {
    fn guess(&mut self, tokens: &[u32], n: usize, guess: &mut Vec<u32>) -> Result<(), Error> {
        self.update(tokens);
        let mut places = LENGTHS.into_iter().zip(&self.ends);
        let place = places.find_map(|(length, ends)| ends.get(&Self::key(tokens, length)?).copied());
        if let Some(place) = place {
            let first = guess.len();
            for at in place..place + n {
                // A guess may repeat itself.
                let token = tokens.get(at).copied().unwrap_or_else(|| guess[first + at - tokens.len()]);
                guess.push(token);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(draft: &mut Ngram, tokens: &[u32], n: usize) -> Vec<u32> {
        let mut guess = Vec::new();
        draft.guess(tokens, n, &mut guess).unwrap();
        guess
    }

    #[test]
    fn the_latest_place_of_the_longest_passage_goes_on() {
        let mut draft = Ngram::default();
        assert_eq!(guess(&mut draft, &[1, 2, 3, 4, 5], 3), [0; 0]);
        assert_eq!(guess(&mut draft, &[1, 2, 3, 4, 5, 1, 2], 2), [3, 4]);
        // Of two places of [1, 2] the later one.
        assert_eq!(guess(&mut draft, &[1, 2, 3, 4, 5, 1, 2, 9, 1, 2], 2), [9, 1]);
        // [3, 1, 2] stands once, [1, 2] later.
        assert_eq!(guess(&mut draft, &[3, 1, 2, 7, 1, 2, 8, 3, 1, 2], 1), [7]);
    }

    #[test]
    fn a_guess_repeats_itself() {
        assert_eq!(guess(&mut Ngram::default(), &[7, 7, 7], 4), [7, 7, 7, 7]);
        assert_eq!(guess(&mut Ngram::default(), &[1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn a_sequence_that_was_cut_is_indexed_again() {
        let mut draft = Ngram::default();
        guess(&mut draft, &[1, 2, 3, 4, 5, 6], 1);
        assert_eq!(guess(&mut draft, &[1, 2, 8, 1, 2], 1), [8]);
        assert_eq!(guess(&mut draft, &[1], 1), [0; 0]);
        assert_eq!(guess(&mut draft, &[], 1), [0; 0]);
    }
}
