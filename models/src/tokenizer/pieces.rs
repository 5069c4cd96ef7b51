//! Text to tokens by the scores of pieces, as `SentencePiece` does it for byte-pair vocabularies.
//!
//! In: the pieces of a vocabulary with their scores. Out: the tokens of any text.
//! Neighbours that make a piece become one, the piece of the highest score first, of equal ones the leftmost; it begins
//! with single characters and ends when no two neighbours make a piece. What is no piece then becomes its bytes.
//! Tokens that are found before all others divide the text first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use ahash::AHashMap;

use crate::tokenizer::spelling::SPACE;

/// The end of a chain.
const NONE: usize = usize::MAX;

/// A vocabulary that is searched by texts.
pub(super) struct Pieces {
    ids: AHashMap<String, u32>,
    scores: Vec<f32>,
    /// The tokens that are found before all others, by their first bytes, the longest first.
    added: AHashMap<u8, Vec<(String, u32)>>,
    /// What stands for a byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Whether a space is put before a text, and before what follows such a token.
    adds_space: bool,
}

/// Two neighbours that make a piece.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// How long the piece is: once it is not, one of the neighbours has become another.
    n_bytes: usize,
}

/// Pieces of a text, each with its neighbours.
struct Chain {
    ranges: Vec<Range<usize>>,
    before: Vec<usize>,
    after: Vec<usize>,
}

impl Pieces {
    /// The search over tokens by their texts.
    pub(super) fn new(
        tokens: Vec<String>,
        scores: Vec<f32>,
        added: impl Iterator<Item = (u32, String)>,
        unknown: Option<u32>,
        adds_space: bool,
    ) -> Self {
        let mut by_byte: AHashMap<u8, Vec<(String, u32)>> = AHashMap::new();
        for (id, text) in added {
            if let Some(first) = text.bytes().next() {
                by_byte.entry(first).or_default().push((text, id));
            }
        }
        by_byte.values_mut().for_each(|tokens| tokens.sort_by_key(|(text, _)| Reverse(text.len())));
        let numbered = (0..).zip(tokens).filter(|(_, text)| !text.is_empty());
        let ids: AHashMap<String, u32> = numbered.map(|(id, text)| (text, id)).collect();
        let bytes = (0..=u8::MAX).map(|byte| ids.get(&format!("<0x{byte:02X}>")).copied()).collect();
        Self { ids, scores, added: by_byte, bytes, unknown, adds_space }
    }

    /// The tokens of a text.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut start, mut at) = (Vec::new(), 0, 0);
        while let Some(c) = text[at..].chars().next() {
            match self.added_at(&text[at..]) {
                Some((n_bytes, id)) => {
                    self.add_words(&text[start..at], &mut ids);
                    ids.push(id);
                    at += n_bytes;
                    start = at;
                }
                None => at += c.len_utf8(),
            }
        }
        self.add_words(&text[start..], &mut ids);
        ids
    }

    /// The longest of the tokens found before all others that a text begins with.
    fn added_at(&self, text: &str) -> Option<(usize, u32)> {
        let tokens = self.added.get(text.as_bytes().first()?)?;
        let found = tokens.iter().find(|(token, _)| text.starts_with(token.as_str()));
        found.map(|(token, id)| (token.len(), *id))
    }

    /// Adds the tokens of a text that holds none of those.
    fn add_words(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let spaces = if self.adds_space { " " } else { "" };
        let text = format!("{spaces}{text}").replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        for range in self.merged(&text) {
            match self.ids.get(&text[range.clone()]) {
                Some(id) => ids.push(*id),
                None => ids.extend(text[range].bytes().filter_map(|byte| self.byte(byte))),
            }
        }
    }

    fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes[usize::from(byte)].or(self.unknown)
    }

    /// Where the pieces of a text are when no two neighbours make another.
    fn merged(&self, text: &str) -> Vec<Range<usize>> {
        let mut chain = Chain::of(text);
        let mut pairs = BinaryHeap::new();
        for left in 0..chain.ranges.len() {
            pairs.extend(self.pair(text, &chain, left));
        }
        while let Some(Pair { left, right, n_bytes, .. }) = pairs.pop() {
            if chain.after[left] != right || chain.length(left, right) != n_bytes {
                continue;
            }
            chain.join(left, right);
            pairs.extend(self.pair(text, &chain, left));
            pairs.extend(self.pair(text, &chain, chain.before[left]));
        }
        chain.ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// What a piece and the next one make.
    fn pair(&self, text: &str, chain: &Chain, left: usize) -> Option<Pair> {
        let right = *chain.after.get(left).filter(|right| **right != NONE)?;
        let n_bytes = chain.length(left, right);
        let start = chain.ranges[left].start;
        let id = *self.ids.get(&text[start..start + n_bytes])?;
        let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
        Some(Pair { score, left, right, n_bytes })
    }
}

impl Chain {
    /// The characters of a text.
    fn of(text: &str) -> Self {
        let ranges: Vec<Range<usize>> = text.char_indices().map(|(at, c)| at..at + c.len_utf8()).collect();
        let n = ranges.len();
        let before = (0..n).map(|at| if at == 0 { NONE } else { at - 1 }).collect();
        let after = (0..n).map(|at| if at + 1 == n { NONE } else { at + 1 }).collect();
        Self { ranges, before, after }
    }

    /// The length of two neighbours together; 0 where one of them is gone.
    fn length(&self, left: usize, right: usize) -> usize {
        let (left, right) = (&self.ranges[left], &self.ranges[right]);
        if left.is_empty() || right.is_empty() { 0 } else { left.len() + right.len() }
    }

    /// Makes two neighbours one, in the place of the left.
    fn join(&mut self, left: usize, right: usize) {
        self.ranges[left].end = self.ranges[right].end;
        self.ranges[right].end = self.ranges[right].start;
        let next = self.after[right];
        self.after[left] = next;
        if let Some(before) = self.before.get_mut(next) {
            *before = left;
        }
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Pair {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(adds_space: bool) -> Pieces {
        let tokens = ["<unk>", "<s>", "▁", "a", "b", "ab", "ba", "▁a", "<0xC3>", "<0xA9>", "[x]", "[x]y"];
        let scores = [0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -1.0, -2.0, 0.0, 0.0, 0.0, 0.0];
        let added = [(1, "<s>".to_owned()), (10, "[x]".to_owned()), (11, "[x]y".to_owned())];
        let tokens = tokens.map(str::to_owned).to_vec();
        Pieces::new(tokens, scores.to_vec(), added.into_iter(), Some(0), adds_space)
    }

    #[test]
    fn the_best_pair_is_first_and_of_equals_the_leftmost() {
        let pieces = pieces(false);
        assert_eq!(pieces.encode("abab"), [5, 5]);
        assert_eq!(pieces.encode("baba"), [6, 6]);
        assert_eq!(pieces.encode("aba"), [5, 3]);
        assert_eq!(pieces.encode(" aa"), [7, 3]);
        assert_eq!(pieces.encode(""), [0; 0]);
    }

    #[test]
    fn what_is_no_piece_becomes_bytes_or_unknown() {
        assert_eq!(pieces(false).encode("aéb"), [3, 8, 9, 4]);
        assert_eq!(pieces(false).encode("x"), [0]);
    }

    #[test]
    fn special_tokens_are_found_first_and_a_space_follows_them() {
        assert_eq!(pieces(true).encode("a<s>a[x]y"), [7, 1, 7, 11]);
        assert_eq!(pieces(false).encode("[x][x]ya"), [10, 11, 3]);
    }
}
