//! A tokenizer built from what its file says.
//!
//! In: a [`TokenizerSpec`] from any kind of file. Out: a [`Tokenizer`], or a sentence about the part that is invalid.
//! All checks are here, once for all kinds: sizes, ids that name tokens, merges that make tokens.

use std::fmt::Display;

use ahash::AHashMap;
use fusebox_runtime::error::{Error, Place, printable, quoted};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use crate::tokenizer::byte_encoding::{ByteEncoding, CONTINUES};
use crate::tokenizer::sentencepiece::SentencePiece;
use crate::tokenizer::spec::{Content, Keys, MAX_TOKENS, Rules, TokenizerSpec, is_eos_name};
use crate::tokenizer::{Encoder, Table, Tokenizer};

/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// The longest word of `WordPiece`, in characters, as in BERT; a longer one is unknown.
const MAX_WORD: usize = 100;
/// The longest message of a library that is shown, in characters: it may quote the file.
const MAX_MESSAGE: usize = 160;

impl TokenizerSpec {
    /// Builds the tokenizer.
    pub(super) fn build(mut self) -> Result<Tokenizer, Error> {
        self.check_tokens()?;
        self.check_ids()?;
        self.add_eos_tokens();
        let table = self.table();
        let encoder = self.encoder()?;
        let Self { mut eos, prefix, suffix, pair, rules, .. } = self;
        eos.sort_unstable();
        eos.dedup();
        Ok(Tokenizer { encoder, table, prefix, suffix, pair, eos, strips_space: rules.space_prefix })
    }

    /// The error of an invalid part.
    fn refuse(&self, key: &str, what: impl Into<String>) -> Error {
        Error::input(&self.path, Place::Key(key.to_owned()), what)
    }

    /// The same, with the message of the library that builds tokenizers.
    fn refuse_with(&self, key: &str, expected: &str, found: &dyn Display) -> Error {
        let found = printable(&found.to_string(), MAX_MESSAGE);
        self.refuse(key, format!("expected {expected}, found: {found}"))
    }

    fn check_tokens(&self) -> Result<(), Error> {
        let n_tokens = self.tokens.len();
        if !(1..=MAX_TOKENS).contains(&n_tokens) {
            let what = format!("expected 1 to {MAX_TOKENS} tokens, found {n_tokens}");
            return Err(self.refuse(self.keys.tokens, what));
        }
        if let Some(id) = self.tokens.iter().position(|text| text.len() > MAX_TOKEN_BYTES) {
            let what = format!("expected tokens of at most {MAX_TOKEN_BYTES} bytes, token {id} has more");
            return Err(self.refuse(self.keys.tokens, what));
        }
        // A merge makes a token, so it is no longer than the longest token.
        let longest = self.tokens.iter().map(String::len).max().unwrap_or(0);
        let is_long = |(a, b): &&(String, String)| a.len() + b.len() > longest;
        if let Some((a, b)) = self.merges.iter().find(is_long) {
            let what = format!("expected a merge that makes a token, found {} with {}", quoted(a), quoted(b));
            return Err(self.refuse(self.keys.merges, what));
        }
        Ok(())
    }

    fn check_ids(&self) -> Result<(), Error> {
        let n_tokens = self.tokens.len();
        let added = self.added.iter().map(|(id, _)| id);
        let ids = added.chain(&self.unused).chain(&self.prefix).chain(&self.suffix).chain(&self.eos);
        let joining = self.pair.iter().filter_map(|part| match part.content {
            Content::Token(id) => Some(id),
            Content::First | Content::Second => None,
        });
        match ids.copied().chain(joining).find(|id| *id as usize >= n_tokens) {
            Some(id) => {
                let what = format!("expected ids below {n_tokens}, the number of tokens, found {id}");
                Err(self.refuse(self.keys.added, what))
            }
            None => Ok(()),
        }
    }

    /// Adds the special tokens whose names say that they end a sequence.
    fn add_eos_tokens(&mut self) {
        let is_eos = |token: &AddedToken| token.special && is_eos_name(&token.content);
        self.eos.extend(self.added.iter().filter(|(_, token)| is_eos(token)).map(|(id, _)| id));
    }

    fn table(&self) -> Table {
        let mut is_added = vec![false; self.tokens.len()];
        for (id, _) in &self.added {
            is_added[*id as usize] = true;
        }
        let mut is_unused = vec![false; self.tokens.len()];
        for id in &self.unused {
            is_unused[*id as usize] = true;
        }
        let (mut bytes, mut ends_at) = (Vec::new(), Vec::with_capacity(self.tokens.len()));
        for (id, text) in self.tokens.iter().enumerate() {
            if is_added[id] {
                bytes.extend(text.as_bytes());
            } else if !is_unused[id] {
                self.encoding.add_bytes(text, &mut bytes);
            }
            ends_at.push(bytes.len());
        }
        let specials = self.added.iter().filter(|(_, token)| token.special);
        let mut specials: Vec<u32> = specials.map(|(id, _)| *id).collect();
        specials.sort_unstable();
        Table { bytes, ends_at, specials }
    }

    fn encoder(&mut self) -> Result<Encoder, Error> {
        match (self.scores.take(), self.unigram.take()) {
            (Some(scores), _) => Ok(Encoder::SentencePiece(self.sentencepiece(scores))),
            (None, Some(scores)) => Ok(Encoder::Library(Box::new(self.unigram(&scores)?))),
            (None, None) => Ok(Encoder::Library(Box::new(self.library()?))),
        }
    }

    fn sentencepiece(&mut self, scores: Vec<f32>) -> SentencePiece {
        let tokens = std::mem::take(&mut self.tokens);
        let unknown =
            self.rules.unknown.as_ref().and_then(|(text, _)| tokens.iter().position(|token| token == text));
        let added = self.added.drain(..).map(|(id, token)| (id, token.content));
        SentencePiece::new(tokens, scores, added, unknown.map(|id| id as u32), self.rules.space_prefix)
    }

    fn library(&mut self) -> Result<HfTokenizer, Error> {
        let mut vocabulary = AHashMap::with_capacity(self.tokens.len());
        for (id, text) in std::mem::take(&mut self.tokens).into_iter().enumerate() {
            if !text.is_empty() {
                vocabulary.insert(text, id as u32);
            }
        }
        if self.encoding == ByteEncoding::WordPiece {
            return self.wordpiece(vocabulary);
        }
        let Rules { ignore_merges, byte_fallback, unknown, space_prefix: _ } = &self.rules;
        let mut model = BPE::builder()
            .vocab_and_merges(vocabulary, std::mem::take(&mut self.merges))
            .cache_capacity(0)
            .ignore_merges(*ignore_merges)
            .byte_fallback(*byte_fallback);
        if let Some((unknown, is_fused)) = unknown {
            model = model.unk_token(unknown.clone()).fuse_unk(*is_fused);
        }
        let Keys { merges, .. } = self.keys;
        let model = model
            .build()
            .map_err(|error| self.refuse_with(merges, "a merge of two tokens that makes a token", &error))?;
        self.with_words(HfTokenizer::new(model))
    }

    /// A text becomes the tokens with the largest sum of scores.
    fn unigram(&mut self, scores: &[f64]) -> Result<HfTokenizer, Error> {
        let Keys { tokens: key, added: added_key, .. } = self.keys;
        let unknown = self.rules.unknown.as_ref().map(|(text, _)| text.clone());
        let unknown = unknown.and_then(|text| self.tokens.iter().position(|token| *token == text));
        let Some(unknown) = unknown.filter(|id| *id < scores.len()) else {
            return Err(self.refuse(key, "expected a token for unknown characters, found none"));
        };
        if let Some(id) = self.tokens.iter().take(scores.len()).position(String::is_empty) {
            return Err(self.refuse(key, format!("expected a text for each token, found none for {id}")));
        }
        let vocabulary = std::mem::take(&mut self.tokens).into_iter().zip(scores.iter().copied()).collect();
        let model = Unigram::from(vocabulary, Some(unknown), self.rules.byte_fallback)
            .map_err(|error| self.refuse_with(key, "a vocabulary", &error))?;
        let ids: Vec<(u32, String)> =
            self.added.iter().map(|(id, token)| (*id, token.content.clone())).collect();
        let encoder = self.with_words(HfTokenizer::new(model))?;
        // Tokens behind the vocabulary are numbered by the library.
        match ids.iter().find(|(id, text)| encoder.token_to_id(text) != Some(*id)) {
            Some((id, text)) => {
                let what =
                    format!("expected ids that follow the vocabulary, found {id} for {}", quoted(text));
                Err(self.refuse(added_key, what))
            }
            None => Ok(encoder),
        }
    }

    /// Each word becomes the longest tokens from its start on, or is unknown.
    fn wordpiece(&mut self, vocabulary: AHashMap<String, u32>) -> Result<HfTokenizer, Error> {
        let unknown = self.rules.unknown.as_ref().map(|(text, _)| text.clone()).unwrap_or_default();
        if !vocabulary.contains_key(&unknown) {
            let what = "expected a token for unknown words, found none";
            return Err(self.refuse(self.keys.tokens, what));
        }
        let model = WordPiece::builder()
            .vocab(vocabulary)
            .unk_token(unknown)
            .continuing_subword_prefix(CONTINUES.to_owned())
            .max_input_chars_per_word(MAX_WORD)
            .build()
            .map_err(|error| self.refuse_with(self.keys.tokens, "a vocabulary", &error))?;
        self.with_words(HfTokenizer::new(model))
    }

    /// The steps around a model: how a text is normalised and split, and the tokens that are found first.
    fn with_words(&mut self, mut encoder: HfTokenizer) -> Result<HfTokenizer, Error> {
        let Keys { added, .. } = self.keys;
        let expected = "tokens that can be searched for";
        let normalizer = self.normalizer.take();
        encoder
            .with_normalizer(normalizer)
            .map_err(|error| self.refuse_with(added, expected, &error))?
            .with_pre_tokenizer(self.pre.take());
        let tokens: Vec<AddedToken> = self.added.drain(..).map(|(_, token)| token).collect();
        encoder.add_tokens(tokens).map_err(|error| self.refuse_with(added, expected, &error))?;
        Ok(encoder)
    }
}
