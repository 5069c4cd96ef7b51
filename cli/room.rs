//! How long a text may be.
//!
//! In: a text, or a number of tokens. Out: the tokens, or a sentence that says how many there is room for.
//! What cannot fit is refused before it is cut into tokens: that takes time and memory by the length of the text.

use fusebox_compiler::foundation::amount::counted;
use fusebox_models::tokenizer::Tokenizer;

/// No more bytes of a text than so many become one when its characters are composed, before it is cut into tokens.
const MOST_COMPOSED: usize = 3;

/// How many tokens a text may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// As many as the context.
    pub(crate) context: usize,
    /// As many as any context of the model.
    pub(crate) most: usize,
}

impl Room {
    /// What may be done where it is too small.
    pub(crate) fn remedy(self) -> String {
        if self.context < self.most {
            format!("-c takes up to {}", self.most)
        } else {
            "the model takes no more".to_owned()
        }
    }

    /// Refuses more tokens than there is room for, beginning with what has them.
    pub(crate) fn check(self, what_has: &str, n_tokens: usize) -> Result<(), String> {
        if n_tokens <= self.context {
            return Ok(());
        }
        let (tokens, remedy) = (counted(n_tokens, "token"), self.remedy());
        Err(format!("{what_has} {tokens}, the context holds {}; {remedy}", self.context))
    }

    /// The tokens of a text, and with `add_special` those that the model wants around it.
    pub(crate) fn tokens(
        self,
        what_has: &str,
        (tokenizer, text, add_special): (&Tokenizer, &str, bool),
    ) -> Result<Vec<u32>, String> {
        let lengths = (0..tokenizer.n_tokens()).map(|id| tokenizer.token_bytes(id as u32).len());
        let longest = lengths.max().unwrap_or(0).max(1);
        self.check(&format!("{what_has} at least"), text.len() / (MOST_COMPOSED * longest))?;
        let tokens = tokenizer.encode(text, add_special).map_err(|error| error.to_string())?;
        self.check(what_has, tokens.len())?;
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_what_would() {
        let room = |context| Room { context, most: 512 };
        assert_eq!(room(4).check("the prompt has", 4), Ok(()));
        let sentence = room(1).check("the prompt has", 4).unwrap_err();
        assert_eq!(sentence, "the prompt has 4 tokens, the context holds 1; -c takes up to 512");
        let sentence = room(512).check("the text has", 513).unwrap_err();
        assert_eq!(sentence, "the text has 513 tokens, the context holds 512; the model takes no more");
    }
}
