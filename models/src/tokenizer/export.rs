//! The tokenizer of any other checkpoint as a GGUF file has it.
//!
//! In: a checkpoint, and how many tokens its model has. Out: the pairs `tokenizer.ggml.*`.
//! GGUF tells how words are divided by a name, so a division without one is refused. Byte-pair encoding with merges of
//! characters becomes pieces with scores: the earlier a merge, the higher the score of what it makes.

use std::collections::BTreeMap;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};

use crate::tokenizer::parts::Parts;
use crate::tokenizer::spelling::{Spelling, hexadecimal};
use crate::tokenizer::{pre, read};

/// The numbers of types of tokens.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

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
        types.push(UNUSED);
    }
    let mut pairs = Vec::new();
    let mut put = |key: &str, value: Value| pairs.push((format!("tokenizer.ggml.{key}"), value));
    match parts.spelling {
        Spelling::Letters => {
            put("model", Value::Text("gpt2".to_owned()));
            put("pre", Value::Text(division(&parts)?.to_owned()));
            let merges = parts.merges.iter().map(|(a, b)| format!("{a} {b}"));
            put("merges", Value::List(List::Texts(merges.collect())));
        }
        Spelling::Pieces => {
            put("model", Value::Text("llama".to_owned()));
            put("scores", Value::List(List::Floats(scores(&parts, tokens.len()))));
            put("add_space_prefix", Value::Bool(parts.rules.drops_space));
        }
    }
    put("tokens", Value::List(List::Texts(tokens)));
    put("token_type", Value::List(List::Signed(types)));
    let named = checkpoint.metadata().get("bos_token_id").and_then(Value::to_u64);
    if let Some(bos) = parts.prefix.first().map(|bos| u64::from(*bos)).or(named) {
        put("bos_token_id", Value::Unsigned(bos));
    }
    put("add_bos_token", Value::Bool(!parts.prefix.is_empty()));
    put("add_eos_token", Value::Bool(!parts.suffix.is_empty()));
    // A file has a name for three of the tokens that end an answer; special ones are known by their texts besides.
    for (key, id) in ["eos_token_id", "eot_token_id", "eom_token_id"].iter().zip(ends(&parts)) {
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

fn types(parts: &Parts) -> Vec<i64> {
    let is_bytes = parts.spelling == Spelling::Pieces;
    let plain = |text: &String| match hexadecimal(text) {
        Some(_) if is_bytes => BYTE,
        _ if text.is_empty() => UNUSED,
        _ => NORMAL,
    };
    let mut types: Vec<i64> = parts.tokens.iter().map(plain).collect();
    for (id, token) in &parts.added {
        let is_unknown = parts.rules.unknown.as_ref().is_some_and(|(text, _)| *text == token.content);
        let special = if is_unknown { UNKNOWN } else { CONTROL };
        types[*id as usize] = if token.special { special } else { USER_DEFINED };
    }
    types
}

/// The name of how words are divided.
fn division(parts: &Parts) -> Result<&'static str, Error> {
    let name = pre::name_of(parts.pre.as_ref(), parts.normalizer.is_some(), parts.rules.ignore_merges);
    name.ok_or_else(|| Error::Unsupported {
        path: parts.path.clone(),
        place: Place::Key("pre_tokenizer".to_owned()),
        what: "it divides words in a way that GGUF has no name for".to_owned(),
    })
}

fn scores(parts: &Parts, n_tokens: usize) -> Vec<f64> {
    let mut made: BTreeMap<String, f64> = BTreeMap::new();
    for (rank, (a, b)) in parts.merges.iter().enumerate() {
        made.entry(format!("{a}{b}")).or_insert(-(rank as f64));
    }
    let score = |id: usize| parts.tokens.get(id).and_then(|text| made.get(text)).copied();
    (0..n_tokens).map(|id| score(id).unwrap_or(UNMADE)).collect()
}
