//! Streaming detokenisation: text from tokens that come one by one.
//!
//! In: the tokens of an answer, as they are generated. Out: whole UTF-8 characters, as soon as they are complete.
//! The pieces and what [`Stream::finish`] adds are together what [`Tokenizer::decode`] gives for all tokens.

use std::str::from_utf8;

use crate::tokenizer::Tokenizer;

/// A streaming decoder.
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// The bytes of an incomplete character.
    held: Vec<u8>,
    /// Whether a text starts here and nothing has come yet.
    at_start: bool,
}

impl<'a> Stream<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, skip_special: bool, at_start: bool) -> Self {
        Self { tokenizer, skip_special, held: Vec::new(), at_start }
    }

    /// The characters that this token completes.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let mut bytes = self.tokenizer.token_bytes(id);
        if self.at_start && !bytes.is_empty() {
            self.at_start = false;
            if self.tokenizer.strips_space {
                bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            }
        }
        self.held.extend(bytes);
        let mut text = String::new();
        let n_done = complete(&self.held, &mut text);
        self.held.drain(..n_done);
        text
    }

    /// The rest, if the last character stayed incomplete.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// Appends the complete characters at the start of `bytes`, and returns the number of bytes used.
fn complete(bytes: &[u8], text: &mut String) -> usize {
    let mut at = 0;
    loop {
        let error = match from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return bytes.len();
            }
            Err(error) => error,
        };
        let valid = at + error.valid_up_to();
        text.push_str(from_utf8(&bytes[at..valid]).expect("it is valid up to there"));
        at = valid;
        let Some(n_bad) = error.error_len() else { return at };
        text.push(char::REPLACEMENT_CHARACTER);
        at += n_bad;
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::foundation::random::Random;

    use super::*;

    /// The text of bytes that come in pieces of random lengths.
    fn in_pieces(bytes: &[u8], random: &mut Random) -> String {
        let (mut held, mut text, mut rest) = (Vec::new(), String::new(), bytes);
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((1 + random.below(4)).min(rest.len()));
            held.extend(piece);
            let n_done = complete(&held, &mut text);
            held.drain(..n_done);
            rest = after;
        }
        text + &String::from_utf8_lossy(&held)
    }

    #[test]
    fn any_pieces_of_any_bytes_give_the_text_of_the_whole() {
        let mut random = Random::new(7);
        let alphabet = [b'a', 0xc3, 0xa9, 0xf0, 0x9f, 0x9a, 0x80, 0xe6, 0x97, 0xa5, 0xff, b'\n'];
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..random.below(24)).map(|_| alphabet[random.below(12)]).collect();
            assert_eq!(in_pieces(&bytes, &mut random), String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_character_waits_until_it_is_complete() {
        let mut text = String::new();
        assert_eq!((complete(&"a🚀".as_bytes()[..4], &mut text), text.as_str()), (1, "a"));
    }
}
