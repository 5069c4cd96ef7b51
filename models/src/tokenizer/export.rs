//! The tokenizer of any other checkpoint as a GGUF file has it.
//!
//! In: a checkpoint, and how many tokens its model has. Out: the pairs `tokenizer.ggml.*`.
//! GGUF tells how words are divided by a name, so a division without one is refused. Byte-pair encoding with merges of
//! characters becomes pieces with scores: the earlier a merge, the higher the score of what it makes.

use std::collections::BTreeMap;
use std::iter;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use serde_json::{Value as Json, json};

use crate::naming::tokenizer::{self as names, kind};
use crate::tokenizer::json::steps;
use crate::tokenizer::parts::Parts;
use crate::tokenizer::spelling::{SPACE, Spelling, hexadecimal};
use crate::tokenizer::{pre, read};

/// The score of a token that no merge makes.
const UNMADE: f64 = -1e6;

/// The pairs of a tokenizer.
pub(crate) fn pairs(checkpoint: &Checkpoint, n_tokens: usize) -> Result<Vec<(String, Value)>, Error> {
    let parts = read(checkpoint)?;
    let mut tokens = parts.tokens.clone();
    let mut types = types(&parts);
    // A model may have more rows than tokens; names for the rest must differ.
    for id in tokens.len()..n_tokens {
        tokens.push(format!("[PAD{id}]"));
        types.push(kind::UNUSED);
    }
    let mut pairs = Vec::new();
    let mut put = |key: &str, value: Value| pairs.push((key.to_owned(), value));
    match parts.spelling {
        Spelling::Letters => {
            put(names::MODEL, Value::Text(names::LETTERS.to_owned()));
            put(names::PRE, Value::Text(division(&parts)?.to_owned()));
            let merges = parts.merges.iter().map(|(a, b)| format!("{a} {b}"));
            put(names::MERGES, Value::List(List::Texts(merges.collect())));
        }
        Spelling::Pieces => {
            put(names::MODEL, Value::Text(names::PIECES.to_owned()));
            put(names::SCORES, Value::List(List::Floats(scores(&parts, tokens.len()))));
            put(names::ADD_SPACE, Value::Bool(adds_space(&parts)?));
        }
    }
    put(names::TOKENS, Value::List(List::Texts(tokens)));
    put(names::TYPES, Value::List(List::Signed(types.into_iter().map(u64::cast_signed).collect())));
    let named = checkpoint.metadata().get("bos_token_id").and_then(Value::to_u64);
    if let Some(bos) = parts.prefix.first().map(|bos| u64::from(*bos)).or(named) {
        put(names::BOS, Value::Unsigned(bos));
    }
    put(names::ADD_BOS, Value::Bool(!parts.prefix.is_empty()));
    put(names::ADD_EOS, Value::Bool(!parts.suffix.is_empty()));
    // A file has a name for three of the tokens that end an answer; special ones are known by their texts besides.
    for (key, id) in iter::once(names::EOS).chain(names::ENDS).zip(ends(&parts)) {
        put(key, Value::Unsigned(u64::from(id)));
    }
    Ok(pairs)
}

/// The tokens that end an answer, the one that ends texts first.
fn ends(parts: &Parts) -> Vec<u32> {
    let mut ends: Vec<u32> = Vec::new();
    for id in &parts.ends {
        if !ends.contains(id) {
            ends.push(*id);
        }
    }
    ends
}

fn types(parts: &Parts) -> Vec<u64> {
    let is_bytes = parts.spelling == Spelling::Pieces;
    let plain = |text: &String| match hexadecimal(text) {
        Some(_) if is_bytes => kind::BYTE,
        _ if text.is_empty() => kind::UNUSED,
        _ => kind::NORMAL,
    };
    let mut types: Vec<u64> = parts.tokens.iter().map(plain).collect();
    for (id, token) in &parts.added {
        let is_unknown = parts.rules.unknown.as_ref().is_some_and(|(text, _)| *text == token.content);
        let special = if is_unknown { kind::UNKNOWN } else { kind::CONTROL };
        types[*id as usize] = if token.special { special } else { kind::USER_DEFINED };
    }
    types
}

/// Whether a space is put before a text of pieces.
fn adds_space(parts: &Parts) -> Result<bool, Error> {
    if !parts.rules.byte_fallback {
        return Err(unsupported(parts, "model.byte_fallback", "it takes characters that are no token"));
    }
    let prepared = [("normalizer", json!(parts.normalizer)), ("pre_tokenizer", json!(parts.pre))];
    let found = prepared
        .iter()
        .map(|(key, part)| space_of(part).ok_or_else(|| unsupported(parts, key, "it prepares texts")));
    Ok(found.collect::<Result<Vec<_>, _>>()?.contains(&true))
}

/// Whether a part puts a space before a text, where it does nothing else but to write spaces as pieces have them.
fn space_of(part: &Json) -> Option<bool> {
    let is_space = |text: &Json| *text == SPACE.to_string();
    let of_step = |step: &Json| match step["type"].as_str() {
        None | Some("Sequence") => Some(false),
        Some("Prepend") => is_space(&step["prepend"]).then_some(true),
        Some("Replace") => {
            (step["pattern"] == json!({"String": " "}) && is_space(&step["content"])).then_some(false)
        }
        Some("Metaspace") => is_space(&step["replacement"]).then(|| step["prepend_scheme"] != "never"),
        Some(_) => None,
    };
    Some(steps(part).into_iter().map(of_step).collect::<Option<Vec<_>>>()?.contains(&true))
}

/// The name of how words are divided.
fn division(parts: &Parts) -> Result<&'static str, Error> {
    let name = pre::name_of(parts.pre.as_ref(), parts.normalizer.as_ref(), parts.rules.ignore_merges);
    name.ok_or_else(|| unsupported(parts, "pre_tokenizer", "it divides words"))
}

fn unsupported(parts: &Parts, key: &str, does: &str) -> Error {
    let what = format!("{does} in a way that GGUF has no name for");
    Error::Unsupported { path: parts.path.clone(), place: Place::Key(key.to_owned()), what }
}

fn scores(parts: &Parts, n_tokens: usize) -> Vec<f64> {
    let mut made: BTreeMap<String, f64> = BTreeMap::new();
    for (rank, (a, b)) in parts.merges.iter().enumerate() {
        made.entry(format!("{a}{b}")).or_insert(-(rank as f64));
    }
    let score = |id: usize| parts.tokens.get(id).and_then(|text| made.get(text)).copied();
    (0..n_tokens).map(|id| score(id).unwrap_or(UNMADE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_put_before_texts_where_a_step_does_so_and_other_steps_are_not_known() {
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let metaspace =
            |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme});
        let both = |steps: &[&Json]| json!({"type": "Sequence", "normalizers": steps});
        assert_eq!(space_of(&Json::Null), Some(false));
        assert_eq!(space_of(&both(&[&prepend, &replace])), Some(true));
        assert_eq!(space_of(&both(&[&replace])), Some(false));
        assert_eq!(space_of(&metaspace("first")), Some(true));
        assert_eq!(space_of(&metaspace("never")), Some(false));
        assert_eq!(space_of(&both(&[&prepend, &json!({"type": "NFKC"})])), None);
        assert_eq!(space_of(&json!({"type": "Prepend", "prepend": "_"})), None);
    }
}
