//! The context length: how many tokens fit, and errors where they do not.
//!
//! In: a prompt, or a number of tokens; free memory. Out: token ids, or a sentence that says how many would fit; how
//! many pages of a KV cache memory has.
//! A text that cannot fit is refused before it is tokenised, which takes time and memory.

use fusebox_compiler::foundation::amount::counted;
use fusebox_models::embed::relevance::Relevance;
use fusebox_models::tokenizer::{Pair, Tokenizer};

/// Unicode normalisation (NFC) joins at most this many bytes into one, before the text is tokenised.
const MAX_NFC_BYTES: usize = 3;

/// The limit on the tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLimit {
    /// The context length of the session.
    pub context: usize,
    /// The longest that the model supports.
    pub model_max: usize,
}

impl ContextLimit {
    /// How to get a longer context.
    pub fn remedy(self) -> String {
        if self.context < self.model_max {
            format!("-c raises it to at most {}", self.model_max)
        } else {
            "the model supports no more".to_owned()
        }
    }

    /// Refuses more tokens than fit; `what_has` starts the sentence, as in "the prompt has".
    pub fn check(self, what_has: &str, n_tokens: usize) -> Result<(), String> {
        if n_tokens <= self.context {
            return Ok(());
        }
        let (tokens, remedy) = (counted(n_tokens, "token"), self.remedy());
        Err(format!("{what_has} {tokens}, but the context length is {}; {remedy}", self.context))
    }

    /// Tokenises a text; `add_special` adds the tokens that the model wants around it, such as BOS.
    pub fn encode(
        self,
        what_has: &str,
        tokenizer: &Tokenizer,
        text: &str,
        add_special: bool,
    ) -> Result<Vec<u32>, String> {
        self.check_bytes(what_has, tokenizer, text.len())?;
        let tokens = tokenizer.encode(text, add_special).map_err(|error| error.to_string())?;
        self.check(what_has, tokens.len())?;
        Ok(tokens)
    }

    /// Tokenises a query and a document for a model that ranks.
    pub fn encode_pair(
        self,
        what_has: &str,
        tokenizer: &Tokenizer,
        relevance: Relevance,
        texts: [&str; 2],
    ) -> Result<Pair, String> {
        self.check_bytes(what_has, tokenizer, texts.map(str::len).iter().sum())?;
        let pair = relevance.input(tokenizer, texts)?;
        self.check(what_has, pair.tokens.len())?;
        Ok(pair)
    }

    /// Refuses a text that cannot fit into the context, by its bytes.
    fn check_bytes(self, what_has: &str, tokenizer: &Tokenizer, n_bytes: usize) -> Result<(), String> {
        let lengths = (0..tokenizer.n_tokens()).map(|id| tokenizer.token_bytes(id as u32).len());
        let longest = lengths.max().unwrap_or(0).max(1);
        self.check(&format!("{what_has} at least"), n_bytes / (MAX_NFC_BYTES * longest))
    }
}

/// The range of context lengths that a session may have; the longest that fits into memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRange {
    /// The shortest that is of use.
    pub min: usize,
    /// The longest that is wanted.
    pub max: usize,
}

impl ContextRange {
    /// Exactly `n_tokens`.
    pub fn exactly(n_tokens: usize) -> Self {
        Self { min: n_tokens, max: n_tokens }
    }

    /// The same range, raised to at least `n_tokens`.
    #[must_use]
    pub fn no_less_than(self, n_tokens: usize) -> Self {
        Self { min: self.min.max(n_tokens), max: self.max.max(n_tokens) }
    }

    /// The longest context of a sequence where all sequences share room for this number of tokens, and no less than the
    /// minimum.
    pub fn of_room(self, n_tokens: usize) -> usize {
        n_tokens.clamp(self.min, self.max)
    }
}

/// How many pages of a KV cache fit into `free` bytes, but no more than `most`; `bytes` is what `n` of them take.
pub fn pages_fitting(bytes: impl Fn(usize) -> usize, most: usize, free: usize) -> usize {
    let (mut fitting, mut too_many) = (0, most + 1);
    while too_many - fitting > 1 {
        let tried = fitting.midpoint(too_many);
        if bytes(tried) <= free {
            fitting = tried;
        } else {
            too_many = tried;
        }
    }
    fitting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_what_would() {
        let limit = |context| ContextLimit { context, model_max: 512 };
        assert_eq!(limit(4).check("the prompt has", 4), Ok(()));
        let sentence = limit(1).check("the prompt has", 4).unwrap_err();
        assert_eq!(
            sentence,
            "the prompt has 4 tokens, but the context length is 1; -c raises it to at most 512"
        );
        let sentence = limit(512).check("the text has", 513).unwrap_err();
        assert_eq!(
            sentence,
            "the text has 513 tokens, but the context length is 512; the model supports no more"
        );
    }

    #[test]
    fn as_many_pages_are_taken_as_memory_has() {
        // Blocks with a window have no more than two pages.
        let fitting = |free| pages_fitting(|n| 500 * n + 140 * n.min(2), 5, free);
        assert_eq!([9200, 2780, 2779, 1280, 640, 639, 0].map(fitting), [5, 5, 4, 2, 1, 0, 0]);
    }

    #[test]
    fn a_context_is_as_long_as_there_is_room() {
        let context = ContextRange { min: 1, max: 300 };
        assert_eq!([9, 5, 4, 1, 0].map(|pages| context.of_room(64 * pages)), [300, 300, 256, 64, 1]);
        assert_eq!(context.no_less_than(40).of_room(0), 40);
        assert_eq!(ContextRange::exactly(100).of_room(0), 100);
    }
}
