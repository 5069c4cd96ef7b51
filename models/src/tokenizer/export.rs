//! Writes the tokenizer of any checkpoint as GGUF metadata.
//!
//! In: a checkpoint, and the vocabulary size of its model. Out: the pairs `tokenizer.ggml.*`.
//! GGUF identifies a pre-tokenizer by name, so one without a name is refused. BPE over characters becomes
//! `SentencePiece` BPE with scores: the earlier a merge, the higher the score of its token.

use std::collections::BTreeMap;
use std::iter;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use serde_json::{Value as Json, json};

use crate::naming::tokenizer::{self as names, kind};
use crate::tokenizer::byte_encoding::{ByteEncoding, SPACE, byte_fallback_value};
use crate::tokenizer::read::json::steps;
use crate::tokenizer::read::{pre_tokenizer, read};
use crate::tokenizer::spec::TokenizerSpec;

/// The score of a token that is no merge.
const NO_MERGE_SCORE: f64 = -1e6;

/// The metadata of a tokenizer.
pub(crate) fn pairs(checkpoint: &Checkpoint, n_tokens: usize) -> Result<Vec<(String, Value)>, Error> {
    let spec = read(checkpoint)?;
    if spec.unigram.is_some() {
        return Err(unsupported(&spec, "model.type", "it chooses tokens by their scores"));
    }
    let mut tokens = spec.tokens.clone();
    let mut types = types(&spec);
    // The embedding matrix may have more rows than there are tokens; the names of padding tokens must differ.
    for id in tokens.len()..n_tokens {
        tokens.push(format!("[PAD{id}]"));
        types.push(kind::UNUSED);
    }
    let mut pairs = Vec::new();
    let mut put = |key: &str, value: Value| pairs.push((key.to_owned(), value));
    match spec.encoding {
        ByteEncoding::Gpt2 => {
            put(names::MODEL, Value::Text(names::GPT2.to_owned()));
            put(names::PRE, Value::Text(pre_tokenizer_name(&spec)?.to_owned()));
            let merges = spec.merges.iter().map(|(a, b)| format!("{a} {b}"));
            put(names::MERGES, Value::List(List::Texts(merges.collect())));
        }
        ByteEncoding::WordPiece => {
            let what = "a WordPiece tokenizer is not written as GGUF";
            let place = Place::Key("model.type".to_owned());
            return Err(Error::Unsupported { path: spec.path.clone(), place, what: what.to_owned() });
        }
        ByteEncoding::SentencePiece => {
            put(names::MODEL, Value::Text(names::SENTENCEPIECE.to_owned()));
            put(names::SCORES, Value::List(List::Floats(scores(&spec, tokens.len()))));
            put(names::ADD_SPACE, Value::Bool(adds_space_prefix(&spec)?));
        }
    }
    put(names::TOKENS, Value::List(List::Texts(tokens)));
    put(names::TYPES, Value::List(List::Signed(types.into_iter().map(u64::cast_signed).collect())));
    let named = checkpoint.metadata().get("bos_token_id").and_then(Value::to_u64);
    if let Some(bos) = spec.prefix.first().map(|bos| u64::from(*bos)).or(named) {
        put(names::BOS, Value::Unsigned(bos));
    }
    put(names::ADD_BOS, Value::Bool(!spec.prefix.is_empty()));
    put(names::ADD_EOS, Value::Bool(!spec.suffix.is_empty()));
    // GGUF has keys for three end-of-sequence tokens; further special ones are recognised by their text.
    for (key, id) in iter::once(names::EOS).chain(names::MORE_EOS).zip(eos_tokens(&spec)) {
        put(key, Value::Unsigned(u64::from(id)));
    }
    Ok(pairs)
}

/// The end-of-sequence tokens, the end of text first.
fn eos_tokens(spec: &TokenizerSpec) -> Vec<u32> {
    let mut eos_tokens: Vec<u32> = Vec::new();
    for id in &spec.eos {
        if !eos_tokens.contains(id) {
            eos_tokens.push(*id);
        }
    }
    eos_tokens
}

fn types(spec: &TokenizerSpec) -> Vec<u64> {
    let is_bytes = spec.encoding == ByteEncoding::SentencePiece;
    let plain = |text: &String| match byte_fallback_value(text) {
        Some(_) if is_bytes => kind::BYTE,
        _ if text.is_empty() => kind::UNUSED,
        _ => kind::NORMAL,
    };
    let mut types: Vec<u64> = spec.tokens.iter().map(plain).collect();
    for (id, token) in &spec.added {
        let is_unknown = spec.rules.unknown.as_ref().is_some_and(|(text, _)| *text == token.content);
        let special = if is_unknown { kind::UNKNOWN } else { kind::CONTROL };
        types[*id as usize] = if token.special { special } else { kind::USER_DEFINED };
    }
    types
}

/// Whether a space is prepended to a text.
fn adds_space_prefix(spec: &TokenizerSpec) -> Result<bool, Error> {
    if !spec.rules.byte_fallback {
        return Err(unsupported(spec, "model.byte_fallback", "it handles unknown characters"));
    }
    let prepared = [("normalizer", json!(spec.normalizer)), ("pre_tokenizer", json!(spec.pre))];
    let found = prepared
        .iter()
        .map(|(key, part)| space_of(part).ok_or_else(|| unsupported(spec, key, "it normalises text")));
    Ok(found.collect::<Result<Vec<_>, _>>()?.contains(&true))
}

/// Whether a normalizer or pre-tokenizer prepends a space; `None` where it does more than to encode spaces.
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

/// The GGUF name of the pre-tokenizer.
fn pre_tokenizer_name(spec: &TokenizerSpec) -> Result<&'static str, Error> {
    let name = pre_tokenizer::name_of(spec.pre.as_ref(), spec.normalizer.as_ref(), spec.rules.ignore_merges);
    name.ok_or_else(|| unsupported(spec, "pre_tokenizer", "it splits text"))
}

fn unsupported(spec: &TokenizerSpec, key: &str, does: &str) -> Error {
    let what = format!("{does} in a way that GGUF has no name for");
    Error::Unsupported { path: spec.path.clone(), place: Place::Key(key.to_owned()), what }
}

fn scores(spec: &TokenizerSpec, n_tokens: usize) -> Vec<f64> {
    let mut made: BTreeMap<String, f64> = BTreeMap::new();
    for (rank, (a, b)) in spec.merges.iter().enumerate() {
        made.entry(format!("{a}{b}")).or_insert(-(rank as f64));
    }
    let score = |id: usize| spec.tokens.get(id).and_then(|text| made.get(text)).copied();
    (0..n_tokens).map(|id| score(id).unwrap_or(NO_MERGE_SCORE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_prepended_where_a_step_does_so_and_other_steps_are_not_known() {
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
