//! The tokenizer next to a Qorus file: `X.tokenizer`, or `tokenizer.bin` in the same folder.
//!
//! In: a header of eight numbers, the length and bytes of each token, then merges of two tokens into one, by rank. Out:
//! a [`TokenizerSpec`].
//! The file has no pre-tokenizer: merges apply across the whole text.

use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use tokenizers::AddedToken;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::naming::files::{TOKENIZER_OF_QORUS, TOKENIZER_SUFFIX};
use crate::sidecar;
use crate::tokenizer::byte_encoding::{ByteEncoding, gpt2_char};
use crate::tokenizer::spec::{Keys, MAX_TOKENS, TokenizerSpec};

/// The largest file that is read.
const MAX_BYTES: usize = 256 << 20;
/// The magic number, little-endian.
const MAGIC: u32 = 0x5154_4b52;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const MERGE_BYTES: usize = 12;

/// The contents of the file.
struct Vocabulary<'a> {
    /// BOS, EOS and padding.
    special: [u32; 3],
    tokens: Vec<&'a [u8]>,
    merges: Vec<[u32; 3]>,
}

/// Reads the file next to the checkpoint.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<TokenizerSpec, Error> {
    let own = sidecar::with_suffix(checkpoint, TOKENIZER_SUFFIX);
    let path = if own.exists() { own } else { sidecar::in_folder(checkpoint, TOKENIZER_OF_QORUS) };
    let bytes = sidecar::read_required(&path, MAX_BYTES, "a tokenizer")?;
    let Vocabulary { special, tokens, merges } = vocabulary(&path, &bytes)?;
    let encoded = |id: u32| tokens[id as usize].iter().map(|byte| gpt2_char(*byte)).collect::<String>();
    let merges = merges.iter().map(|[a, b, _]| (encoded(*a), encoded(*b))).collect();
    let mut texts: Vec<String> = (0..tokens.len() as u32).map(encoded).collect();
    let mut added = Vec::new();
    for id in special {
        // A special token of a single byte stands for that byte too.
        let text = tokens.get(id as usize).and_then(|bytes| std::str::from_utf8(bytes).ok());
        if let Some(text) = text.filter(|text| text.len() > 1 && added.iter().all(|(known, _)| *known != id))
        {
            added.push((id, AddedToken::from(text, true).normalized(false)));
            text.clone_into(&mut texts[id as usize]);
        }
    }
    let [bos, eos, _] = special;
    let is_token = |id: u32| (id as usize) < tokens.len();
    let keys = Keys { tokens: "tokens", merges: "merges", added: "bos, eos and pad" };
    Ok(TokenizerSpec {
        merges,
        added,
        pre: Some(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false))),
        prefix: Some(bos).filter(|id| is_token(*id)).into_iter().collect(),
        eos: Some(eos).filter(|id| is_token(*id)).into_iter().collect(),
        ..TokenizerSpec::new(path, keys, texts, ByteEncoding::Gpt2)
    })
}

fn vocabulary<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vocabulary<'a>, Error> {
    let refuse = |at: usize, what: String| Error::input(path, Place::Byte(at as u64), what);
    let word = |at: usize| sidecar::read_u32(path, bytes, at);
    let header = [0, 4, 8, 12, 16, 20, 24].map(word);
    let [magic, version, n_tokens, n_merges, bos, eos, pad] = header;
    if magic? != MAGIC {
        return Err(refuse(0, "expected a tokenizer of Qorus, found other bytes".to_owned()));
    }
    let version = version?;
    if version != VERSION {
        return Err(refuse(4, format!("expected version {VERSION}, found {version}")));
    }
    let (n_tokens, n_merges) = (n_tokens? as usize, n_merges? as usize);
    if !(1..=MAX_TOKENS).contains(&n_tokens) {
        return Err(refuse(8, format!("expected 1 to {MAX_TOKENS} tokens, found {n_tokens}")));
    }
    let mut at = HEADER_BYTES;
    // Each token takes at least one byte.
    let mut tokens = Vec::with_capacity(n_tokens.min(bytes.len()));
    for _ in 0..n_tokens {
        let token = bytes.get(at).and_then(|n| bytes.get(at + 1..at + 1 + usize::from(*n)));
        let token = token
            .ok_or_else(|| refuse(at, "expected a length and that many bytes, found the end".to_owned()))?;
        tokens.push(token);
        at += 1 + token.len();
    }
    let expected = n_merges.checked_mul(MERGE_BYTES).and_then(|n| n.checked_add(at));
    if expected != Some(bytes.len()) {
        let what =
            format!("expected {n_merges} merges to the end of the file, found {} bytes", bytes.len() - at);
        return Err(refuse(at, what));
    }
    let merge = |idx: usize| -> Result<[u32; 3], Error> {
        let start = at + idx * MERGE_BYTES;
        let ids = [word(start)?, word(start + 4)?, word(start + 8)?];
        let texts = ids.map(|id| tokens.get(id as usize).copied());
        match texts {
            [Some(a), Some(b), Some(made)] if [a, b].concat() == made => Ok(ids),
            _ => Err(refuse(start, format!("expected two tokens and their concatenation, found {ids:?}"))),
        }
    };
    let merges = (0..n_merges).map(merge).collect::<Result<_, _>>()?;
    Ok(Vocabulary { special: [bos?, eos?, pad?], tokens, merges })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of four tokens, one of them a merge.
    fn file() -> Vec<u8> {
        let mut bytes = [MAGIC, VERSION, 4, 1, 3, 3, u32::MAX, 0].map(u32::to_le_bytes).concat();
        for token in ["a", "b", "ab", "</s>"] {
            bytes.push(token.len() as u8);
            bytes.extend(token.as_bytes());
        }
        bytes.extend([0u32, 1, 2].map(u32::to_le_bytes).concat());
        bytes
    }

    fn refusal(bytes: &[u8]) -> String {
        vocabulary(Path::new("f"), bytes).err().unwrap().to_string()
    }

    #[test]
    fn tokens_and_merges_are_read() {
        let bytes = file();
        let found = vocabulary(Path::new("f"), &bytes).unwrap();
        assert_eq!((found.tokens[2], found.merges[0], found.special[1]), (&b"ab"[..], [0, 1, 2], 3));
    }

    #[test]
    fn every_truncation_and_every_wrong_number_is_a_sentence() {
        let bytes = file();
        for n in 0..bytes.len() {
            assert!(refusal(&bytes[..n]).contains("expected"), "{n}");
        }
        let wrong = |at: usize, number: u32| {
            let mut bytes = file();
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            refusal(&bytes)
        };
        assert_eq!(wrong(0, 7), "f: byte 0: expected a tokenizer of Qorus, found other bytes");
        assert_eq!(wrong(4, 2), "f: byte 4: expected version 1, found 2");
        assert!(wrong(8, u32::MAX).contains("expected 1 to 4194304 tokens"));
        assert!(
            wrong(12, u32::MAX).contains("expected 4294967295 merges to the end of the file, found 12 bytes")
        );
        let merge = bytes.len() - 12;
        assert_eq!(
            wrong(merge, 9),
            "f: byte 44: expected two tokens and their concatenation, found [9, 1, 2]"
        );
        assert!(wrong(merge + 8, 1).contains("found [0, 1, 1]"));
    }
}
