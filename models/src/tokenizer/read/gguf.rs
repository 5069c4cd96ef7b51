//! The tokenizer in the metadata of a GGUF file.
//!
//! In: the keys `tokenizer.ggml.*`. Out: a [`TokenizerSpec`].
//! Five models are supported: byte-level BPE, `gpt2` in these files, `SentencePiece` BPE with scores, `llama`, or with
//! merges, `gemma4`, `WordPiece`, `bert`, and Unigram, `t5`; others are refused by name.
//! Missing keys have llama.cpp's defaults.

use std::collections::BTreeSet;

use fusebox_runtime::error::{Error, Place, quoted};
use fusebox_runtime::weights::Checkpoint;
use fusebox_runtime::weights::value::{List, Value};
use tokenizers::AddedToken;
use tokenizers::normalizers::bert::BertNormalizer;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::utils::Sequence;
use tokenizers::normalizers::{NormalizerWrapper, Strip};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use crate::naming::tokenizer::{
    ADD_BOS, ADD_EOS, ADD_SPACE, BOS, CHARSMAP, CLS, EOS, GEMMA4, GPT2, MERGES, MERGES_SPACES, MODEL,
    MORE_EOS, PRE, SCORES, SENTENCEPIECE, SEPARATOR, TOKENS, TYPES, UNIGRAM, UNKNOWN, WORDPIECE, kind,
};
use crate::sidecar;
use crate::tokenizer::byte_encoding::{ByteEncoding, CONTINUES, SPACE};
use crate::tokenizer::charsmap;
use crate::tokenizer::read::pre_tokenizer;
use crate::tokenizer::spec::{BERT, Keys, ROBERTA, Rules, TokenizerSpec, is_eos_name};

/// The added tokens, and the unused ones.
type SpecialTokens = (Vec<(u32, AddedToken)>, Vec<u32>);

/// Reads the tokenizer.
pub(crate) fn read(checkpoint: &Checkpoint) -> Result<TokenizerSpec, Error> {
    let file = File(checkpoint);
    match file.string(MODEL)?.ok_or_else(|| file.refuse(MODEL, "expected a string, found nothing"))? {
        GPT2 => byte_level_bpe(&file),
        SENTENCEPIECE => sentencepiece_bpe(&file),
        WORDPIECE => wordpiece(&file),
        UNIGRAM => unigram(&file),
        GEMMA4 => gemma4(&file),
        other => {
            let found = quoted(other);
            let what = format!(
                "the tokenizer {found} is not supported, expected one of {GPT2}, {SENTENCEPIECE}, {GEMMA4}, \
                 {WORDPIECE}, {UNIGRAM}"
            );
            Err(file.unsupported(MODEL, what))
        }
    }
}

/// Byte-level BPE.
fn byte_level_bpe(file: &File) -> Result<TokenizerSpec, Error> {
    let name = file.string(PRE)?.unwrap_or("default");
    let pre = pre_tokenizer::named(name).ok_or_else(|| {
        let what = format!(
            "the pre-tokenizer {} is not supported, expected one of {}",
            quoted(name),
            pre_tokenizer::names()
        );
        file.unsupported(PRE, what)
    })?;
    let defaults = Defaults { adds_bos: pre.adds_bos, bos: None, eos: None };
    let spec = file.spec(ByteEncoding::Gpt2, MERGES, &defaults)?;
    Ok(TokenizerSpec {
        pair: BERT.parts(&spec.prefix, &spec.suffix),
        merges: file.merges()?,
        normalizer: pre.normalizer(),
        pre: Some(pre.words()),
        rules: Rules { ignore_merges: pre.ignore_merges, ..Rules::default() },
        ..spec
    })
}

/// `SentencePiece` BPE with scores.
fn sentencepiece_bpe(file: &File) -> Result<TokenizerSpec, Error> {
    // The defaults are those of Llama's original vocabulary.
    let defaults = Defaults { adds_bos: true, bos: Some(1), eos: Some(2) };
    let spec = file.spec(ByteEncoding::SentencePiece, SCORES, &defaults)?;
    let unknown = file.token(UNKNOWN, spec.tokens.len())?.unwrap_or(0);
    let unknown = spec.tokens.get(unknown as usize).cloned();
    Ok(TokenizerSpec {
        scores: Some(file.scores(spec.tokens.len())?),
        rules: Rules {
            byte_fallback: true,
            unknown: unknown.map(|text| (text, false)),
            space_prefix: file.flag(ADD_SPACE)?.unwrap_or(true),
            ..Rules::default()
        },
        ..spec
    })
}

/// BPE over characters, with merges. Lines are apart, as no merge has their ends.
fn gemma4(file: &File) -> Result<TokenizerSpec, Error> {
    let defaults = Defaults { adds_bos: true, bos: Some(2), eos: Some(1) };
    let spec = file.spec(ByteEncoding::SentencePiece, MERGES, &defaults)?;
    let unknown = file.token(UNKNOWN, spec.tokens.len())?.unwrap_or(3);
    let unknown = spec.tokens.get(unknown as usize).cloned();
    Ok(TokenizerSpec {
        merges: file.merges()?,
        normalizer: Some(replaced(" ", SPACE.to_string())),
        pre: Some(pre_tokenizer::lines()),
        rules: Rules {
            byte_fallback: true,
            unknown: unknown.map(|text| (text, true)),
            space_prefix: false,
            ..Rules::default()
        },
        ..spec
    })
}

/// A normalizer that replaces a text, or runs of spaces.
fn replaced(pattern: &str, by: String) -> NormalizerWrapper {
    let pattern = match pattern {
        SPACES => ReplacePattern::Regex(pattern.to_owned()),
        _ => ReplacePattern::String(pattern.to_owned()),
    };
    Replace::new(pattern, by).expect("both patterns compile").into()
}

/// Unigram: the tokens with the largest sum of scores.
fn unigram(file: &File) -> Result<TokenizerSpec, Error> {
    let defaults = Defaults { adds_bos: false, bos: None, eos: Some(1) };
    let spec = file.spec(ByteEncoding::SentencePiece, SCORES, &defaults)?;
    let scores = file.scores(spec.tokens.len())?;
    // Tokens that are not of the language do not count for the score of what is unknown.
    let unused: BTreeSet<u32> = spec.unused.iter().copied().collect();
    let is_of_text = |id: usize| !unused.contains(&(id as u32));
    let least = scores.iter().enumerate().filter(|(id, _)| is_of_text(*id)).map(|(_, score)| *score);
    let least = least.fold(f32::INFINITY, f32::min);
    let score = |(id, score): (usize, &f32)| f64::from(if is_of_text(id) { *score } else { least });
    let unigram = Some(scores.iter().enumerate().map(score).collect());
    let unknown = file.token(UNKNOWN, spec.tokens.len())?.unwrap_or(2);
    let unknown = spec.tokens.get(unknown as usize).cloned();
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if let Some(table) = file.bytes(CHARSMAP)? {
        let (normalizer, _) = charsmap::normalizer(&table)
            .ok_or_else(|| file.refuse(CHARSMAP, "expected a valid table of a normaliser"))?;
        steps.push(normalizer.into());
    }
    if file.flag(MERGES_SPACES)?.unwrap_or(false) {
        steps.extend([replaced(SPACES, " ".to_owned()), Strip::new(true, true).into()]);
    }
    let space_prefix = file.flag(ADD_SPACE)?.unwrap_or(true);
    let scheme = if space_prefix { PrependScheme::Always } else { PrependScheme::Never };
    let adds_eos = file.flag(ADD_EOS)?.unwrap_or(true);
    let suffix: Vec<u32> = spec.eos.first().copied().filter(|_| adds_eos).into_iter().collect();
    Ok(TokenizerSpec {
        // Of the families with such a tokenizer XLM-R joins texts.
        pair: ROBERTA.parts(&spec.prefix, &suffix),
        unigram,
        normalizer: Some(Sequence::new(steps).into()),
        pre: Some(Metaspace::new(SPACE, scheme, false).into()),
        rules: Rules { unknown: unknown.map(|text| (text, true)), space_prefix, ..Rules::default() },
        suffix,
        ..spec
    })
}

/// `WordPiece`. GGUF marks tokens that start a word, and not those that continue one.
fn wordpiece(file: &File) -> Result<TokenizerSpec, Error> {
    let spec =
        file.spec(ByteEncoding::WordPiece, TOKENS, &Defaults { adds_bos: false, bos: None, eos: None })?;
    let n_tokens = spec.tokens.len();
    let special = |keys: &[&str], usual: u32| -> Result<Option<u32>, Error> {
        for key in keys {
            if let Some(id) = file.token(key, n_tokens)? {
                return Ok(Some(id));
            }
        }
        Ok(Some(usual).filter(|id| (*id as usize) < n_tokens))
    };
    let (first, last) = (special(&[CLS, BOS], CLS_ID)?, special(&[SEPARATOR, EOS], SEPARATOR_ID)?);
    let unknown = special(&[UNKNOWN], UNKNOWN_ID)?;
    let adds_first = file.flag(ADD_BOS)?.unwrap_or(true);
    let text = |token: &String| match token.strip_prefix(SPACE) {
        Some(word) if !word.is_empty() => word.to_owned(),
        // Special tokens are as they are.
        _ if token.is_empty() || token.starts_with('[') && token.ends_with(']') => token.clone(),
        _ => format!("{CONTINUES}{token}"),
    };
    let tokens: Vec<String> = spec.tokens.iter().map(text).collect();
    let special = [first, last, unknown].into_iter().flatten();
    let own = special.map(|id| (id, AddedToken::from(tokens[id as usize].as_str(), true).normalized(false)));
    let mut added: Vec<(u32, AddedToken)> = own.filter(|(_, token)| !token.content.is_empty()).collect();
    added.extend(spec.added.into_iter().filter(|(id, _)| ![first, last, unknown].contains(&Some(*id))));
    let unknown = unknown.and_then(|id| tokens.get(id as usize).cloned());
    let prefix: Vec<u32> = first.filter(|_| adds_first).into_iter().collect();
    let suffix: Vec<u32> = last.into_iter().collect();
    Ok(TokenizerSpec {
        pair: BERT.parts(&prefix, &suffix),
        tokens,
        added,
        normalizer: Some(BertNormalizer::new(true, true, Some(true), true).into()),
        pre: Some(BertPreTokenizer.into()),
        rules: Rules { unknown: unknown.map(|text| (text, false)), space_prefix: true, ..Rules::default() },
        prefix,
        suffix,
        eos: last.into_iter().collect(),
        ..spec
    })
}

/// Runs of spaces.
const SPACES: &str = " {2,}";

/// The ids of BERT, where a file does not say them.
const CLS_ID: u32 = 101;
const SEPARATOR_ID: u32 = 102;
const UNKNOWN_ID: u32 = 100;

/// The values of missing keys.
struct Defaults {
    adds_bos: bool,
    bos: Option<u32>,
    eos: Option<u32>,
}

/// The metadata, read by key.
struct File<'a>(&'a Checkpoint);

impl<'a> File<'a> {
    fn refuse(&self, key: &str, what: impl Into<String>) -> Error {
        Error::input(sidecar::weights_path(self.0), Place::Key(key.to_owned()), what)
    }

    fn unsupported(&self, key: &str, what: String) -> Error {
        let path = sidecar::weights_path(self.0).to_owned();
        Error::Unsupported { path, place: Place::Key(key.to_owned()), what }
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.0.metadata().get(key)
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let text = value.as_text();
        text.map(Some).ok_or_else(|| self.refuse(key, format!("expected a string, found {value}")))
    }

    /// What both models share; `merges_key` is the key of merges or scores.
    fn spec(
        &self,
        encoding: ByteEncoding,
        merges_key: &'static str,
        defaults: &Defaults,
    ) -> Result<TokenizerSpec, Error> {
        let tokens = self.strings(TOKENS)?.to_vec();
        let token = |key: &str, default: Option<u32>| -> Result<Option<u32>, Error> {
            let default = default.filter(|id| (*id as usize) < tokens.len());
            Ok(self.token(key, tokens.len())?.or(default))
        };
        let (bos, eos) = (token(BOS, defaults.bos)?, token(EOS, defaults.eos)?);
        let mut all_eos: Vec<u32> = eos.into_iter().collect();
        for key in MORE_EOS {
            all_eos.extend(token(key, None)?);
        }
        let (added, unused) = self.special_tokens(&tokens)?;
        let adds_bos = self.flag(ADD_BOS)?.unwrap_or(defaults.adds_bos);
        let adds_eos = self.flag(ADD_EOS)?.unwrap_or(false);
        let path = sidecar::weights_path(self.0).to_owned();
        let keys = Keys { tokens: TOKENS, merges: merges_key, added: TYPES };
        Ok(TokenizerSpec {
            added,
            unused,
            prefix: bos.filter(|_| adds_bos).into_iter().collect(),
            suffix: eos.filter(|_| adds_eos).into_iter().collect(),
            eos: all_eos,
            ..TokenizerSpec::new(path, keys, tokens, encoding)
        })
    }

    /// The score of each token.
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

    /// A list of bytes, if present.
    fn bytes(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let bytes: Option<Vec<u8>> = match value.as_list() {
            Some(List::Unsigned(all)) => all.iter().map(|n| u8::try_from(*n).ok()).collect(),
            Some(List::Signed(all)) => {
                all.iter().map(|n| i8::try_from(*n).ok().map(i8::cast_unsigned)).collect()
            }
            _ => None,
        };
        bytes.map(Some).ok_or_else(|| self.refuse(key, format!("expected bytes, found {value}")))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(value) => Err(self.refuse(key, format!("expected true or false, found {value}"))),
        }
    }

    fn strings(&self, key: &str) -> Result<&'a [String], Error> {
        match self.value(key) {
            Some(Value::List(List::Texts(texts))) => Ok(texts),
            Some(value) => Err(self.refuse(key, format!("expected a list of strings, found {value}"))),
            None => Err(self.refuse(key, "expected a list of strings, found nothing")),
        }
    }

    /// The token id under a key, if present.
    fn token(&self, key: &str, n_tokens: usize) -> Result<Option<u32>, Error> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let id = value.to_u64().filter(|id| *id < n_tokens as u64);
        let expected = || self.refuse(key, format!("expected a token below {n_tokens}, found {value}"));
        id.map(|id| Some(id as u32)).ok_or_else(expected)
    }

    /// The added tokens (control, user-defined and unknown), and the unused ones.
    fn special_tokens(&self, tokens: &[String]) -> Result<SpecialTokens, Error> {
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
            // Some files mark end-of-sequence tokens as normal; like llama.cpp, recognise them by their text.
            let ty = if ty <= kind::BYTE && is_eos_name(text) { kind::CONTROL } else { ty };
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
        let merges = self.strings(MERGES)?;
        let split = |(idx, merge): (usize, &String)| {
            // The first token may itself start with the separating space.
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
