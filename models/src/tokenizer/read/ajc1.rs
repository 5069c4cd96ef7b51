//! The `.tokenizer` file next to a qwen3.c checkpoint.
//!
//! In: a header of three numbers, then a score, a length and the bytes of each token. Out: a [`TokenizerSpec`].
//! The file has a score for each merged token instead of merges. A token's merge is found again by tokenising its bytes
//! with the merges of higher score only: that leaves the two tokens it is made of.
//! The pre-tokenizer is that of Qwen2, of whose vocabulary the file is an export.

use std::path::Path;

use ahash::AHashMap;
use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use tokenizers::AddedToken;

use crate::naming::files::TOKENIZER_SUFFIX;
use crate::sidecar;
use crate::tokenizer::byte_encoding::{ByteEncoding, gpt2_char};
use crate::tokenizer::read::pre_tokenizer;
use crate::tokenizer::spec::{Keys, MAX_TOKENS, TokenizerSpec};

/// The largest file that is read.
const MAX_BYTES: usize = 64 << 20;
const HEADER_BYTES: usize = 12;
/// Bytes of a token's score and length.
const RECORD_BYTES: usize = 8;
/// The score of a token that is no merge.
const NO_MERGE_SCORE: f32 = -1e6;
/// A bound on the work of finding the merges: the sum of squared token lengths.
const MAX_STEPS: usize = 1 << 28;

/// The contents of the file.
struct Vocabulary<'a> {
    bos: u32,
    eos: u32,
    tokens: Vec<(f32, &'a [u8])>,
}

/// Reads the file next to the checkpoint.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<TokenizerSpec, Error> {
    let path = sidecar::with_suffix(checkpoint, TOKENIZER_SUFFIX);
    let bytes = sidecar::read_required(&path, MAX_BYTES, "a tokenizer")?;
    let vocabulary = vocabulary(&path, &bytes)?;
    let merges = merges(&path, &vocabulary.tokens)?;
    let Vocabulary { bos, eos, tokens } = vocabulary;
    let mut texts = Vec::with_capacity(tokens.len());
    let mut added = Vec::new();
    for (id, (score, bytes)) in (0..).zip(&tokens) {
        match std::str::from_utf8(bytes) {
            Ok(text) if *score <= NO_MERGE_SCORE && bytes.len() > 1 => {
                let is_special = text.starts_with("<|") && text.ends_with("|>");
                added.push((id, AddedToken::from(text, is_special).normalized(false)));
                texts.push(text.to_owned());
            }
            _ => texts.push(gpt2_chars(bytes)),
        }
    }
    let qwen2 = pre_tokenizer::named("qwen2").expect("the pre-tokenizers hold qwen2");
    let keys = Keys { tokens: "tokens", merges: "scores", added: "bos and eos" };
    Ok(TokenizerSpec {
        merges,
        added,
        normalizer: qwen2.normalizer(),
        pre: Some(qwen2.words()),
        eos: vec![bos, eos],
        ..TokenizerSpec::new(path, keys, texts, ByteEncoding::Gpt2)
    })
}

fn gpt2_chars(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| gpt2_char(*byte)).collect()
}

fn vocabulary<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vocabulary<'a>, Error> {
    let refuse = |at: usize, what: String| Error::input(path, Place::Byte(at as u64), what);
    let word = |at: usize| sidecar::read_u32(path, bytes, at);
    let (bos, eos) = (word(4)?, word(8)?);
    let mut tokens = Vec::new();
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let score = f32::from_bits(word(at)?);
        if score.is_nan() || score > 0.0 {
            return Err(refuse(at, format!("expected a score of at most 0, found {score}")));
        }
        let n_bytes = word(at + 4)? as usize;
        let rest = &bytes[at + RECORD_BYTES..];
        let token = rest.get(..n_bytes).ok_or_else(|| {
            refuse(at + 4, format!("expected a token of at most {} bytes, found {n_bytes}", rest.len()))
        })?;
        tokens.push((score, token));
        if tokens.len() > MAX_TOKENS {
            return Err(refuse(at, format!("expected at most {MAX_TOKENS} tokens, found more")));
        }
        at += RECORD_BYTES + n_bytes;
    }
    Ok(Vocabulary { bos, eos, tokens })
}

/// The merges, highest score first.
fn merges(path: &Path, tokens: &[(f32, &[u8])]) -> Result<Vec<(String, String)>, Error> {
    let refuse = |what: String| Error::input(path, Place::Key("scores".to_owned()), what);
    let mut merged_tokens: Vec<usize> =
        (0..tokens.len()).filter(|id| tokens[*id].0 > NO_MERGE_SCORE).collect();
    let n_steps: usize =
        merged_tokens.iter().map(|id| tokens[*id].1.len()).fold(0, |sum, n| sum.saturating_add(n * n));
    if n_steps > MAX_STEPS {
        return Err(refuse("expected shorter merged tokens".to_owned()));
    }
    merged_tokens.sort_by(|a, b| tokens[*b].0.total_cmp(&tokens[*a].0).then(a.cmp(b)));
    let mut byte_tokens = [None; 256];
    for (id, (_, bytes)) in tokens.iter().enumerate() {
        if let [byte] = bytes {
            byte_tokens[usize::from(*byte)] = Some(id);
        }
    }
    let mut known: AHashMap<(usize, usize), (usize, usize)> = AHashMap::with_capacity(merged_tokens.len());
    let mut merges = Vec::with_capacity(merged_tokens.len());
    for (rank, id) in merged_tokens.into_iter().enumerate() {
        let bytes = tokens[id].1;
        let ids: Option<Vec<usize>> = bytes.iter().map(|byte| byte_tokens[usize::from(*byte)]).collect();
        match ids.map(|ids| apply_merges(ids, &known)).as_deref() {
            Some(&[a, b]) => {
                known.insert((a, b), (rank, id));
                merges.push((gpt2_chars(tokens[a].1), gpt2_chars(tokens[b].1)));
            }
            _ => {
                return Err(refuse(format!(
                    "expected token {id} to be a merge of two tokens of higher score"
                )));
            }
        }
    }
    Ok(merges)
}

/// Applies known merges by rank until none is left.
fn apply_merges(mut ids: Vec<usize>, known: &AHashMap<(usize, usize), (usize, usize)>) -> Vec<usize> {
    loop {
        let pairs = ids.windows(2).enumerate();
        let merges =
            pairs.filter_map(|(at, pair)| known.get(&(pair[0], pair[1])).map(|(rank, id)| (rank, at, id)));
        let Some((_, at, id)) = merges.min() else { return ids };
        ids[at] = *id;
        ids.remove(at + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with these tokens and scores.
    fn file(tokens: &[(f32, &[u8])]) -> Vec<u8> {
        let mut bytes = [9u32, 0, 1].map(u32::to_le_bytes).concat();
        for (score, token) in tokens {
            bytes.extend(score.to_le_bytes());
            bytes.extend((token.len() as u32).to_le_bytes());
            bytes.extend(*token);
        }
        bytes
    }

    fn found(tokens: &[(f32, &[u8])]) -> Result<Vec<(String, String)>, String> {
        let bytes = file(tokens);
        let vocabulary = vocabulary(Path::new("f"), &bytes).map_err(|error| error.to_string())?;
        merges(Path::new("f"), &vocabulary.tokens).map_err(|error| error.to_string())
    }

    #[test]
    fn merges_are_found_again_from_the_scores() {
        let tokens: [(f32, &[u8]); 6] =
            [(-1e6, b"a"), (-1e6, b"b"), (-1e6, b"c"), (-0.7, b"abc"), (-0.0, b"bc"), (-1.1, b"ab")];
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(found(&tokens).unwrap(), [pair("b", "c"), pair("a", "bc"), pair("a", "b")]);
    }

    #[test]
    fn a_token_that_is_no_merge_is_a_sentence() {
        let error = found(&[(-1e6, b"a"), (-0.0, b"ab")]).unwrap_err();
        assert_eq!(error, "f: key `scores`: expected token 1 to be a merge of two tokens of higher score");
        assert!(found(&[(-1e6, b"a"), (-0.0, b"")]).is_err());
        assert!(found(&[(f32::NAN, b"a")]).unwrap_err().contains("expected a score of at most 0"));
    }

    #[test]
    fn every_truncation_is_a_sentence_or_fewer_tokens() {
        let whole = file(&[(-1e6, b"a"), (-1e6, b"b"), (-0.0, b"ab")]);
        for n in 0..whole.len() {
            match vocabulary(Path::new("f"), &whole[..n]) {
                Ok(vocabulary) => assert!(vocabulary.tokens.len() < 3),
                Err(error) => assert!(error.to_string().contains("expected"), "{error}"),
            }
        }
        let mut long = whole;
        long[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = vocabulary(Path::new("f"), &long).err().unwrap().to_string();
        assert_eq!(error, "f: byte 16: expected a token of at most 20 bytes, found 4294967295");
    }
}
