//! Stop strings, found in text that arrives in pieces.
//!
//! In: pieces of an answer, split anywhere. Out: the answer up to the first stop string, which is never emitted.
//! Only text that may be the start of a stop string is held back.

use crate::error::Error;

/// Searches a stream for the first of several stop strings.
#[derive(Clone, Debug)]
pub struct Stop {
    strings: Vec<String>,
    held: String,
    /// The number of the string that was found.
    found: Option<usize>,
}

impl Stop {
    /// A search for these strings; with none, all text passes.
    ///
    /// # Errors
    /// [`Error::Setting`] for an empty string, which would end every answer.
    pub fn new(strings: Vec<String>) -> Result<Self, Error> {
        if strings.iter().any(String::is_empty) {
            let (expected, found) = ("strings that are not empty".to_owned(), "an empty one".to_owned());
            return Err(Error::Setting { setting: "stop", expected, found });
        }
        Ok(Self { strings, held: String::new(), found: None })
    }

    /// The text that is certain to precede any stop string, given this piece; empty once one was found.
    pub fn push(&mut self, piece: &str) -> String {
        if self.has_stopped() {
            return String::new();
        }
        self.held += piece;
        let undecided = self.held.len() - self.n_undecided();
        // A possible stop string that starts earlier decides where the answer ends.
        if let Some(first) = self.first().filter(|(at, _)| *at <= undecided) {
            return self.stop_at(first);
        }
        let rest = self.held.split_off(undecided);
        std::mem::replace(&mut self.held, rest)
    }

    /// The text held back at the end of the answer.
    pub fn finish(&mut self) -> String {
        match self.first() {
            Some(first) => self.stop_at(first),
            None => std::mem::take(&mut self.held),
        }
    }

    /// Where the first stop string starts, and its number.
    fn first(&self) -> Option<(usize, usize)> {
        let strings = self.strings.iter().enumerate();
        strings.filter_map(|(number, string)| Some((self.held.find(string.as_str())?, number))).min()
    }

    fn stop_at(&mut self, (at, number): (usize, usize)) -> String {
        self.found = Some(number);
        self.held.truncate(at);
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub fn has_stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|number| self.strings[number].as_str())
    }

    /// How many bytes at the end may be the start of a stop string.
    fn n_undecided(&self) -> usize {
        let may_begin = |text: &String| {
            let longest = (text.len() - 1).min(self.held.len());
            (1..=longest).rev().find(|n| self.held.as_bytes().ends_with(&text.as_bytes()[..*n]))
        };
        let n_bytes = self.strings.iter().filter_map(may_begin).max().unwrap_or(0);
        // The cut falls between characters, even if a stop string matches half of one.
        (n_bytes..=self.held.len())
            .find(|n| self.held.is_char_boundary(self.held.len() - n))
            .unwrap_or(n_bytes)
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::foundation::random::Random;

    use super::*;

    fn stop(strings: &[&str]) -> Stop {
        Stop::new(strings.iter().map(|text| (*text).to_owned()).collect()).unwrap()
    }

    #[test]
    fn a_stop_may_span_pieces_and_never_comes_out() {
        let mut stop = stop(&["</s>", "END"]);
        assert_eq!(["a<", "b</", "s", ">c"].map(|piece| stop.push(piece)), ["a", "<b", "", ""]);
        assert_eq!((stop.has_stopped(), stop.found()), (true, Some("</s>")));
        assert_eq!((stop.push("more"), stop.finish()), (String::new(), String::new()));
    }

    #[test]
    fn what_only_began_like_a_stop_comes_out_at_the_end() {
        let mut stop = stop(&["</s>"]);
        assert_eq!((stop.push("x</"), stop.finish()), ("x".to_owned(), "</".to_owned()));
        assert!(!stop.has_stopped());
    }

    #[test]
    fn the_first_of_two_stops_counts_and_characters_stay_whole() {
        let mut stop = stop(&["later", "日本"]);
        assert_eq!(["é日", "語日", "本later"].map(|piece| stop.push(piece)), ["é", "日語", ""]);
        assert!(Stop::new(vec![String::new()]).is_err());
    }

    #[test]
    fn any_division_gives_the_text_before_the_stop() {
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let text: String = (0..random.below(16)).map(|_| ['a', 'b', 'é'][random.below(3)]).collect();
            let strings = [&["aba", "béa"][..], &["abab", "b", "béa"], &["aéb", "é"]][random.below(3)];
            let mut stop = stop(strings);
            let (mut out, mut rest) = (String::new(), text.as_str());
            while let Some((at, c)) = rest.char_indices().nth(random.below(3)) {
                let (piece, after) = rest.split_at(at + c.len_utf8());
                out += &stop.push(piece);
                rest = after;
            }
            out += &stop.push(rest);
            out += &stop.finish();
            let end = strings.iter().filter_map(|stop| text.find(stop)).min();
            assert_eq!(
                (out.as_str(), stop.has_stopped()),
                (&text[..end.unwrap_or(text.len())], end.is_some())
            );
        }
    }
}
