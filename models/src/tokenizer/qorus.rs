//! The tokenizer beside a Qorus file: `X.tokenizer`, or `tokenizer.bin` in the same folder.
//!
//! In: a header of eight numbers, the bytes of each token behind their length, then merges of two tokens into one, the
//! most urgent first. Out: its [`Parts`].
//! The file says nothing of words, so a text is merged as a whole.

use std::path::Path;

use fusebox_runtime::error::{Error, Place};
use fusebox_runtime::weights::Checkpoint;
use tokenizers::AddedToken;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::beside;
use crate::naming::files::{TOKENIZER_ENDING, TOKENIZER_OF_QORUS};
use crate::tokenizer::parts::{Keys, MAX_TOKENS, Parts};
use crate::tokenizer::spelling::{Spelling, letter};

/// The longest file that is read.
const MAX_BYTES: usize = 256 << 20;
/// How it begins: the number 0x51544b52, little-endian.
const MAGIC: u32 = 0x5154_4b52;
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
const MERGE_BYTES: usize = 12;

/// What is in the file.
struct Vocabulary<'a> {
    /// The first, the last and the empty token of a text.
    special: [u32; 3],
    tokens: Vec<&'a [u8]>,
    merges: Vec<[u32; 3]>,
}

/// What the file beside the checkpoint says.
pub(super) fn read(checkpoint: &Checkpoint) -> Result<Parts, Error> {
    let own = beside::with_ending(checkpoint, TOKENIZER_ENDING);
    let path = if own.exists() { own } else { beside::in_folder(checkpoint, TOKENIZER_OF_QORUS) };
    let bytes = beside::needed(&path, MAX_BYTES, "a tokenizer")?;
    let Vocabulary { special, tokens, merges } = vocabulary(&path, &bytes)?;
    let spelt = |id: u32| tokens[id as usize].iter().map(|byte| letter(*byte)).collect::<String>();
    let merges = merges.iter().map(|[a, b, _]| (spelt(*a), spelt(*b))).collect();
    let mut texts: Vec<String> = (0..tokens.len() as u32).map(spelt).collect();
    let mut added = Vec::new();
    for id in special {
        // One of a single letter stands for that letter too.
        let text = tokens.get(id as usize).and_then(|bytes| std::str::from_utf8(bytes).ok());
        if let Some(text) = text.filter(|text| text.len() > 1 && added.iter().all(|(known, _)| *known != id))
        {
            added.push((id, AddedToken::from(text, true).normalized(false)));
            text.clone_into(&mut texts[id as usize]);
        }
    }
    let [bos, eos, _] = special;
    let known = |id: u32| (id as usize) < tokens.len();
    let keys = Keys { tokens: "tokens", merges: "merges", added: "bos, eos and pad" };
    Ok(Parts {
        merges,
        added,
        pre: Some(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false))),
        prefix: Some(bos).filter(|id| known(*id)).into_iter().collect(),
        ends: Some(eos).filter(|id| known(*id)).into_iter().collect(),
        ..Parts::new(path, keys, texts, Spelling::Letters)
    })
}

fn vocabulary<'a>(path: &Path, bytes: &'a [u8]) -> Result<Vocabulary<'a>, Error> {
    let refuse = |at: usize, what: String| Error::input(path, Place::Byte(at as u64), what);
    let word = |at: usize| beside::word(path, bytes, at);
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
    // Each token takes a byte at least.
    let mut tokens = Vec::with_capacity(n_tokens.min(bytes.len()));
    for _ in 0..n_tokens {
        let token = bytes.get(at).and_then(|n| bytes.get(at + 1..at + 1 + usize::from(*n)));
        let token = token
            .ok_or_else(|| refuse(at, "expected a length and so many bytes, found the end".to_owned()))?;
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
            _ => Err(refuse(start, format!("expected two tokens and what they make, found {ids:?}"))),
        }
    };
    let merges = (0..n_merges).map(merge).collect::<Result<_, _>>()?;
    Ok(Vocabulary { special: [bos?, eos?, pad?], tokens, merges })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of four tokens, one of which two others make.
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
        assert_eq!(wrong(merge, 9), "f: byte 44: expected two tokens and what they make, found [9, 1, 2]");
        assert!(wrong(merge + 8, 1).contains("found [0, 1, 1]"));
    }
}
