//! Constrained decoding: JSON schemas, regular expressions and Lark grammars, by `llguidance`.
//!
//! In: a grammar and a tokenizer. Out: for each step the tokens that are allowed.
//! Once a token is known, another thread computes the mask of the next one, while the replay of the first runs.
//! A keyword of a schema that is not enforced is an error, never silence. White space between the tokens of JSON is
//! bounded, so that a model cannot go on for ever with it.

use std::mem;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use fusebox::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{ApproximateTokEnv, SimpleVob, TokRxInfo, TokTrie};

/// The longest grammar that is taken, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// White space between the tokens of JSON.
const BLANK: &str = r"[ \n]{1,4}";

/// Makes constraints over one vocabulary.
pub(crate) struct Grammars {
    factory: ParserFactory,
    worker: Sender<Order>,
}

/// What an answer must match.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Grammar {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema.
    Schema(Value),
    /// A regular expression.
    Regex(String),
    /// A grammar in the Lark syntax of `llguidance`.
    Lark(String),
}

/// The state of one constrained sequence.
pub(crate) struct Constraint {
    mask: Mask,
    worker: Sender<Order>,
}

/// A matcher with the tokens that it allows next, or a sentence.
type Matched = (Matcher, Result<SimpleVob, String>);

/// The mask of the next token.
enum Mask {
    /// It is there, or there is none.
    Known(Box<Matched>),
    /// Another thread computes it.
    Awaited(Receiver<Matched>),
}

/// A mask to compute, and who waits for it.
struct Order {
    matcher: Matcher,
    answer: Sender<Matched>,
}

/// What a request hears where the thread that computes masks is gone.
const GONE: &str = "the grammar failed";

impl Grammars {
    /// # Errors
    /// Where the vocabulary cannot be made into a trie.
    pub(crate) fn new(tokenizer: &Tokenizer, n_vocab: usize) -> Result<Self, String> {
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id);
            if tokenizer.is_special(id) || tokenizer.is_eos(id) {
                let name =
                    if bytes.is_empty() { format!("<special {id}>").into_bytes() } else { bytes.to_vec() };
                [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_slice()].concat()
            } else {
                bytes.to_vec()
            }
        };
        let words: Vec<Vec<u8>> = (0..n_vocab as u32).map(word).collect();
        let eos = tokenizer.eos();
        let first = eos.first().copied().ok_or("the tokenizer has no end token")?;
        let trie = TokTrie::from(&TokRxInfo::new(n_vocab as u32, first), &words).with_eos_tokens(eos);
        let env = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&(env as _)).map_err(|error| error.to_string())?;
        factory.quiet();
        let (worker, orders) = channel::<Order>();
        let work = move || {
            for Order { mut matcher, answer } in orders {
                let mask = mask_of(&mut matcher);
                // Nobody waits where the answer has ended.
                let _ = answer.send((matcher, mask));
            }
        };
        let started = thread::Builder::new().name("fusebox-masks".to_owned()).spawn(work);
        started.map_err(|error| error.to_string())?;
        Ok(Self { factory, worker })
    }

    /// A constraint at its start.
    ///
    /// # Errors
    /// A sentence with the part of the grammar that is not supported.
    pub(crate) fn constraint(&self, grammar: &Grammar) -> Result<Constraint, String> {
        let top = match grammar {
            Grammar::JsonObject => TopLevelGrammar::from_json_schema(bounded(json!({ "type": "object" }))),
            Grammar::Schema(schema) => {
                check_length(schema.to_string().len())?;
                TopLevelGrammar::from_json_schema(bounded(schema.clone()))
            }
            Grammar::Regex(regex) => {
                check_length(regex.len())?;
                TopLevelGrammar::from_regex(regex)
            }
            Grammar::Lark(lark) => {
                check_length(lark.len())?;
                TopLevelGrammar::from_lark(lark.clone())
            }
        };
        let mut matcher = Matcher::new(self.factory.create_parser(top));
        if let Some(error) = matcher.get_error() {
            return Err(first_line(&error));
        }
        // Some grammars fail only when they are first used.
        let mask = mask_of(&mut matcher)?;
        Ok(Constraint { mask: Mask::Known(Box::new((matcher, Ok(mask)))), worker: self.worker.clone() })
    }
}

fn mask_of(matcher: &mut Matcher) -> Result<SimpleVob, String> {
    matcher.compute_mask_or_eos().map_err(|error| first_line(&error.to_string()))
}

/// A schema with bounded white space; `true` and `false` stay what they are.
fn bounded(mut schema: Value) -> Value {
    if let Some(object) = schema.as_object_mut() {
        object.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": BLANK }));
    }
    schema
}

fn check_length(n: usize) -> Result<(), String> {
    if n > MAX_BYTES {
        return Err(format!("expected at most {MAX_BYTES} bytes, found {n}"));
    }
    Ok(())
}

fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().chars().take(400).collect()
}

/// Takes the logits of tokens that a mask does not allow down to negative infinity.
pub(crate) fn keep_allowed(mask: &SimpleVob, logits: &mut [f32]) {
    let n_known = mask.as_slice().len() * 32;
    for (word, logits) in mask.as_slice().iter().zip(logits.chunks_mut(32)) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            word => {
                let banned = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                banned.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
            }
        }
    }
    if let Some(unknown) = logits.get_mut(n_known..) {
        unknown.fill(f32::NEG_INFINITY);
    }
}

impl Constraint {
    /// The tokens that may come next.
    ///
    /// # Errors
    /// A sentence where the grammar became too large.
    pub(crate) fn mask(&mut self) -> Result<&SimpleVob, String> {
        self.known()?.1.as_ref().map_err(Clone::clone)
    }

    /// The matcher and its mask, once both are there.
    fn known(&mut self) -> Result<&mut Matched, String> {
        if let Mask::Awaited(answer) = &self.mask {
            self.mask = Mask::Known(Box::new(answer.recv().map_err(|_| GONE.to_owned())?));
        }
        match &mut self.mask {
            Mask::Known(known) => Ok(known.as_mut()),
            Mask::Awaited(_) => Err(GONE.to_owned()),
        }
    }

    /// Takes a token; true where nothing may follow.
    ///
    /// # Errors
    /// A sentence where it is not allowed.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool, String> {
        let (matcher, _) = self.known()?;
        matcher.consume_token(id).map_err(|error| first_line(&error.to_string()))?;
        if matcher.is_stopped() {
            return Ok(true);
        }
        let (answer, mask) = channel();
        if let Mask::Known(known) = mem::replace(&mut self.mask, Mask::Awaited(mask)) {
            let (matcher, _) = *known;
            // Where the thread is gone, so is the answer's sender, and the next call says it.
            let _ = self.worker.send(Order { matcher, answer });
        }
        Ok(false)
    }

    /// The same constraint for another sequence, before either has a token.
    ///
    /// # Errors
    /// A sentence where the grammar failed.
    pub(crate) fn again(&mut self) -> Result<Self, String> {
        let worker = self.worker.clone();
        let (matcher, mask) = self.known()?;
        Ok(Self { mask: Mask::Known(Box::new((matcher.deep_clone(), mask.clone()))), worker })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_bans_what_it_does_not_hold_and_what_lies_past_its_end() {
        let mut mask = SimpleVob::alloc(100);
        for id in [0, 31, 64, 99].into_iter().chain(32..64) {
            mask.allow_token(id);
        }
        let mut logits = vec![1.0; 140];
        keep_allowed(&mask, &mut logits);
        for (id, logit) in (0..).zip(&logits) {
            let is_allowed = id < 100 && mask.is_allowed(id);
            assert_eq!(*logit, if is_allowed { 1.0 } else { f32::NEG_INFINITY }, "{id}");
        }
    }
}
