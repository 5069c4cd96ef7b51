//! The tokenizer in the metadata of a GGUF file.
//!
//! In: the keys `tokenizer.ggml.*`. Out: its [`Parts`].
//! Byte-pair encoding over bytes is read, which these files call `gpt2`, and pieces with scores, which they call
//! `llama`; the others are refused by name.
//! What a file leaves out is as llama.cpp takes it.

use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use tokenizers::AddedToken;

use crate::beside;
use crate::naming::tokenizer::{
    ADD_BOS, ADD_EOS, ADD_SPACE, BOS, ENDS, EOS, LETTERS, MERGES, MODEL, PIECES, PRE, SCORES, TOKENS, TYPES,
    UNKNOWN, kind,
};
use crate::tokenizer::parts::{Keys, Parts, Rules, names_an_end};
use crate::tokenizer::pre;
use crate::tokenizer::spelling::Spelling;

/// The tokens that are found before all others, and those that no text has.
type Marked = (Vec<(u32, AddedToken)>, Vec<u32>);

/// What the file says of its tokenizer.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<Parts, Error> {
    let file = File(checkpoint);
    match file.text(MODEL)?.ok_or_else(|| file.refuse(MODEL, "expected a text, found nothing"))? {
        LETTERS => by_merges(&file),
        PIECES => by_scores(&file),
        other => {
            let found = quoted(other);
            let what = format!("the tokenizer {found} is not supported, expected `{LETTERS}` or `{PIECES}`");
            Err(file.unsupported(MODEL, what))
        }
    }
}

/// Byte-pair encoding over bytes.
fn by_merges(file: &File) -> Result<Parts, Error> {
    let name = file.text(PRE)?.unwrap_or("default");
    let pre = pre::named(name).ok_or_else(|| {
        let what =
            format!("the pre-tokenizer {} is not supported, expected one of {}", quoted(name), pre::names());
        file.unsupported(PRE, what)
    })?;
    let defaults = Defaults { adds_bos: pre.adds_bos, bos: None, eos: None };
    let parts = file.parts(Spelling::Letters, MERGES, &defaults)?;
    Ok(Parts {
        merges: file.merges()?,
        normalizer: pre.normalizer(),
        pre: Some(pre.words()),
        rules: Rules { ignore_merges: pre.ignore_merges, ..Rules::default() },
        ..parts
    })
}

/// Pieces with scores.
fn by_scores(file: &File) -> Result<Parts, Error> {
    // Missing keys have the values of Llama's original vocabulary.
    let defaults = Defaults { adds_bos: true, bos: Some(1), eos: Some(2) };
    let parts = file.parts(Spelling::Pieces, SCORES, &defaults)?;
    let unknown = file.token(UNKNOWN, parts.tokens.len())?.unwrap_or(0);
    let unknown = parts.tokens.get(unknown as usize).cloned();
    Ok(Parts {
        scores: Some(file.scores(parts.tokens.len())?),
        rules: Rules {
            byte_fallback: true,
            unknown: unknown.map(|text| (text, false)),
            drops_space: file.truth(ADD_SPACE)?.unwrap_or(true),
            ..Rules::default()
        },
        ..parts
    })
}

/// What holds where a file says nothing.
struct Defaults {
    adds_bos: bool,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// The metadata, asked for what a tokenizer needs.
struct File<'a>(&'a Checkpoint);

impl<'a> File<'a> {
    fn refuse(&self, key: &str, what: impl Into<String>) -> Error {
        Error::input(beside::weights(self.0), Place::Key(key.to_owned()), what)
    }

    fn unsupported(&self, key: &str, what: String) -> Error {
        let path = beside::weights(self.0).to_owned();
        Error::Unsupported { path, place: Place::Key(key.to_owned()), what }
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.0.metadata().get(key)
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let text = value.as_text();
        text.map(Some).ok_or_else(|| self.refuse(key, format!("expected a text, found {value}")))
    }

    /// What all kinds of tokenizers have; `how` is the key of what they differ in.
    fn parts(&self, spelling: Spelling, how: &'static str, defaults: &Defaults) -> Result<Parts, Error> {
        let tokens = self.texts(TOKENS)?.to_vec();
        let token = |key: &str, default: Option<u32>| -> Result<Option<u32>, Error> {
            let default = default.filter(|id| (*id as usize) < tokens.len());
            Ok(self.token(key, tokens.len())?.or(default))
        };
        let (bos, eos) = (token(BOS, defaults.bos)?, token(EOS, defaults.eos)?);
        let mut ends: Vec<u32> = eos.into_iter().collect();
        for key in ENDS {
            ends.extend(token(key, None)?);
        }
        let (added, unused) = self.marked(&tokens)?;
        let adds_bos = self.truth(ADD_BOS)?.unwrap_or(defaults.adds_bos);
        let adds_eos = self.truth(ADD_EOS)?.unwrap_or(false);
        let path = beside::weights(self.0).to_owned();
        let keys = Keys { tokens: TOKENS, merges: how, added: TYPES };
        Ok(Parts {
            added,
            unused,
            prefix: bos.filter(|_| adds_bos).into_iter().collect(),
            suffix: eos.filter(|_| adds_eos).into_iter().collect(),
            ends,
            ..Parts::new(path, keys, tokens, spelling)
        })
    }

    /// The scores of the tokens, one for each.
    fn scores(&self, n_tokens: usize) -> Result<Vec<f32>, Error> {
        let scores = match self.value(SCORES).and_then(Value::as_list) {
            Some(List::Floats(scores)) if scores.len() == n_tokens => scores,
            _ => {
                let what = format!("expected {n_tokens} numbers, one for each token");
                return Err(self.refuse(SCORES, what));
            }
        };
        if let Some(id) = scores.iter().position(|score| !score.is_finite()) {
            return Err(
                self.refuse(SCORES, format!("expected finite numbers, token {id} has {}", scores[id]))
            );
        }
        Ok(scores.iter().map(|score| *score as f32).collect())
    }

    fn truth(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(*truth)),
            Some(value) => Err(self.refuse(key, format!("expected true or false, found {value}"))),
        }
    }

    fn texts(&self, key: &str) -> Result<&'a [String], Error> {
        match self.value(key) {
            Some(Value::List(List::Texts(texts))) => Ok(texts),
            Some(value) => Err(self.refuse(key, format!("expected a list of texts, found {value}"))),
            None => Err(self.refuse(key, "expected a list of texts, found nothing")),
        }
    }

    /// The token that a key names, if there is one.
    fn token(&self, key: &str, n_tokens: usize) -> Result<Option<u32>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let id = value.to_u64().filter(|id| *id < n_tokens as u64);
        let expected = || self.refuse(key, format!("expected a token below {n_tokens}, found {value}"));
        id.map(|id| Some(id as u32)).ok_or_else(expected)
    }

    /// The tokens that are found before all others, and those that no text has.
    fn marked(&self, tokens: &[String]) -> Result<Marked, Error> {
        let (mut added, mut unused) = (Vec::new(), Vec::new());
        let Some(value) = self.value(TYPES) else { return Ok((added, unused)) };
        let types: Option<Vec<u64>> = match value.as_list() {
            Some(List::Unsigned(types)) => Some(types.clone()),
            Some(List::Signed(types)) => types.iter().map(|n| u64::try_from(*n).ok()).collect(),
            _ => None,
        };
        let types = types.filter(|types| types.len() == tokens.len());
        let expected = || format!("expected {} types, one for each token, found {value}", tokens.len());
        let types = types.ok_or_else(|| self.refuse(TYPES, expected()))?;
        for (id, (ty, text)) in types.into_iter().zip(tokens).enumerate() {
            // Some files have what ends an answer among the tokens of words; llama.cpp knows it by its text, too.
            let ty = if ty <= kind::BYTE && names_an_end(text) { kind::CONTROL } else { ty };
            match ty {
                kind::UNKNOWN | kind::CONTROL | kind::USER_DEFINED if !text.is_empty() => {
                    let token = AddedToken::from(text.as_str(), ty != kind::USER_DEFINED).normalized(false);
                    added.push((id as u32, token));
                }
                kind::UNUSED => unused.push(id as u32),
                0..=kind::BYTE => {}
                _ => {
                    let what = format!("expected types up to {}, token {id} has {ty}", kind::BYTE);
                    return Err(self.refuse(TYPES, what));
                }
            }
        }
        Ok((added, unused))
    }

    fn merges(&self) -> Result<Vec<(String, String)>, Error> {
        let merges = self.texts(MERGES)?;
        let split = |(idx, merge): (usize, &String)| {
            // The first token may itself begin with the space that parts them.
            let first = merge.chars().next().map_or(0, char::len_utf8);
            let pair =
                merge[first..].split_once(' ').map(|(a, b)| (merge[..first].to_owned() + a, b.to_owned()));
            pair.filter(|(_, b)| !b.is_empty()).ok_or_else(|| {
                let what =
                    format!("expected two tokens with a space between, entry {idx} is {}", quoted(merge));
                self.refuse(MERGES, what)
            })
        };
        merges.iter().enumerate().map(split).collect()
    }
}
