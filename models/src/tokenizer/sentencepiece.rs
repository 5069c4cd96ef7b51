//! The encoder of `SentencePiece` BPE: merges by the scores of tokens.
//!
//! In: a vocabulary with scores. Out: the tokens of any text.
//! Starting from single characters, the adjacent pair that makes the token of the highest score is merged, ties from
//! the left, until no pair makes a token. Characters that are no token then become byte tokens.
//! Added tokens split the text first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use ahash::AHashMap;

use crate::tokenizer::byte_encoding::SPACE;

/// The end of a linked list.
const NONE: usize = usize::MAX;

/// A vocabulary, searched by text.
pub(super) struct SentencePiece {
    ids: AHashMap<String, u32>,
    scores: Vec<f32>,
    /// Added tokens by their first byte, longest first.
    added: AHashMap<u8, Vec<(String, u32)>>,
    /// The byte tokens `<0x00>` to `<0xFF>`.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Whether a space is prepended to a text, and to what follows an added token.
    adds_space: bool,
}

/// Two adjacent symbols that make a token.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    /// The length of that token: where the symbols have another length now, one of them has been merged since.
    n_bytes: usize,
}

/// The symbols of a text as a doubly linked list.
struct Symbols {
    ranges: Vec<Range<usize>>,
    previous: Vec<usize>,
    next: Vec<usize>,
}

impl SentencePiece {
    /// An encoder for a vocabulary.
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

    /// Encodes a text.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut start, mut at) = (Vec::new(), 0, 0);
        while let Some(c) = text[at..].chars().next() {
            match self.added_token_at(&text[at..]) {
                Some((n_bytes, id)) => {
                    self.encode_plain(&text[start..at], &mut ids);
                    ids.push(id);
                    at += n_bytes;
                    start = at;
                }
                None => at += c.len_utf8(),
            }
        }
        self.encode_plain(&text[start..], &mut ids);
        ids
    }

    /// The longest added token that a text starts with.
    fn added_token_at(&self, text: &str) -> Option<(usize, u32)> {
        let tokens = self.added.get(text.as_bytes().first()?)?;
        let found = tokens.iter().find(|(token, _)| text.starts_with(token.as_str()));
        found.map(|(token, id)| (token.len(), *id))
    }

    /// Encodes a text without added tokens.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let spaces = if self.adds_space { " " } else { "" };
        let text = format!("{spaces}{text}").replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        for range in self.merge(&text) {
            match self.ids.get(&text[range.clone()]) {
                Some(id) => ids.push(*id),
                None => ids.extend(text[range].bytes().filter_map(|byte| self.byte(byte))),
            }
        }
    }

    fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes[usize::from(byte)].or(self.unknown)
    }

    /// The ranges of the symbols when no adjacent pair makes a token.
    fn merge(&self, text: &str) -> Vec<Range<usize>> {
        let mut symbols = Symbols::of(text);
        let mut pairs = BinaryHeap::new();
        for left in 0..symbols.ranges.len() {
            pairs.extend(self.pair(text, &symbols, left));
        }
        while let Some(Pair { left, right, n_bytes, .. }) = pairs.pop() {
            if symbols.next[left] != right || symbols.length(left, right) != n_bytes {
                continue;
            }
            symbols.join(left, right);
            pairs.extend(self.pair(text, &symbols, left));
            pairs.extend(self.pair(text, &symbols, symbols.previous[left]));
        }
        symbols.ranges.into_iter().filter(|range| !range.is_empty()).collect()
    }

    /// The token that a symbol and the next one make.
    fn pair(&self, text: &str, symbols: &Symbols, left: usize) -> Option<Pair> {
        let right = *symbols.next.get(left).filter(|right| **right != NONE)?;
        let n_bytes = symbols.length(left, right);
        let start = symbols.ranges[left].start;
        let id = *self.ids.get(&text[start..start + n_bytes])?;
        let score = self.scores.get(id as usize).copied().unwrap_or(0.0);
        Some(Pair { score, left, right, n_bytes })
    }
}

impl Symbols {
    /// One symbol per character.
    fn of(text: &str) -> Self {
        let ranges: Vec<Range<usize>> = text.char_indices().map(|(at, c)| at..at + c.len_utf8()).collect();
        let n = ranges.len();
        let previous = (0..n).map(|at| if at == 0 { NONE } else { at - 1 }).collect();
        let next = (0..n).map(|at| if at + 1 == n { NONE } else { at + 1 }).collect();
        Self { ranges, previous, next }
    }

    /// The length of two symbols together; 0 where one of them was merged away.
    fn length(&self, left: usize, right: usize) -> usize {
        let (left, right) = (&self.ranges[left], &self.ranges[right]);
        if left.is_empty() || right.is_empty() { 0 } else { left.len() + right.len() }
    }

    /// Merges two symbols into the left one.
    fn join(&mut self, left: usize, right: usize) {
        self.ranges[left].end = self.ranges[right].end;
        self.ranges[right].end = self.ranges[right].start;
        let next = self.next[right];
        self.next[left] = next;
        if let Some(previous) = self.previous.get_mut(next) {
            *previous = left;
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

    fn encoder(adds_space: bool) -> SentencePiece {
        let tokens = ["<unk>", "<s>", "▁", "a", "b", "ab", "ba", "▁a", "<0xC3>", "<0xA9>", "[x]", "[x]y"];
        let scores = [0.0, 0.0, -9.0, -8.0, -7.0, -1.0, -1.0, -2.0, 0.0, 0.0, 0.0, 0.0];
        let added = [(1, "<s>".to_owned()), (10, "[x]".to_owned()), (11, "[x]y".to_owned())];
        let tokens = tokens.map(str::to_owned).to_vec();
        SentencePiece::new(tokens, scores.to_vec(), added.into_iter(), Some(0), adds_space)
    }

    #[test]
    fn the_best_pair_is_first_and_of_equals_the_leftmost() {
        let encoder = encoder(false);
        assert_eq!(encoder.encode("abab"), [5, 5]);
        assert_eq!(encoder.encode("baba"), [6, 6]);
        assert_eq!(encoder.encode("aba"), [5, 3]);
        assert_eq!(encoder.encode(" aa"), [7, 3]);
        assert_eq!(encoder.encode(""), [0; 0]);
    }

    #[test]
    fn unknown_characters_become_bytes_or_the_unknown_token() {
        assert_eq!(encoder(false).encode("aéb"), [3, 8, 9, 4]);
        assert_eq!(encoder(false).encode("x"), [0]);
    }

    #[test]
    fn special_tokens_are_found_first_and_a_space_follows_them() {
        assert_eq!(encoder(true).encode("a<s>a[x]y"), [7, 1, 7, 11]);
        assert_eq!(encoder(false).encode("[x][x]ya"), [10, 11, 3]);
    }
}
