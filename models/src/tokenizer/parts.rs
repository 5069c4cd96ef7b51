//! What every kind of file says of its tokenizer, and the tokenizer made of it.
//!
//! In: [`Parts`] as a reader found them. Out: a [`Tokenizer`], or a sentence about the part that does not fit.
//! Everything is checked here once for all kinds: sizes, ids that name tokens, merges that make tokens.

use std::fmt::Display;
use std::path::PathBuf;

use ahash::AHashMap;
use fusebox_runtime::error::{Error, Place, printable, quoted};
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{AddedToken, Tokenizer as Merger};

use crate::tokenizer::pieces::Pieces;
use crate::tokenizer::spelling::Spelling;
use crate::tokenizer::{Encoder, Table, Tokenizer};

/// The most tokens a vocabulary may have.
pub(super) const MAX_TOKENS: usize = 1 << 22;
/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 1 << 16;
/// The most characters of a complaint that are shown: it may quote the file.
const MAX_COMPLAINT: usize = 160;

/// Tokens that end an answer whatever else a file says, if they are special in it.
const ENDS: [&str; 11] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<EOT>",
];

/// Whether a token of this text ends an answer, if it is special.
pub(super) fn names_an_end(text: &str) -> bool {
    ENDS.contains(&text)
}

/// A tokenizer as its file has it.
pub(super) struct Parts {
    pub(super) path: PathBuf,
    /// The names under which the file has its parts.
    pub(super) keys: Keys,
    /// The text of each token, in the file's spelling; an empty one is no token.
    pub(super) tokens: Vec<String>,
    pub(super) spelling: Spelling,
    /// Pairs of tokens that become one, the most urgent first.
    pub(super) merges: Vec<(String, String)>,
    /// Instead of merges, how much each token is preferred.
    pub(super) scores: Option<Vec<f32>>,
    /// Tokens that are found in a text before anything else.
    pub(super) added: Vec<(u32, AddedToken)>,
    /// Tokens that no text has.
    pub(super) unused: Vec<u32>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre: Option<PreTokenizerWrapper>,
    pub(super) rules: Rules,
    pub(super) prefix: Vec<u32>,
    pub(super) suffix: Vec<u32>,
    pub(super) ends: Vec<u32>,
}

/// What a sentence about a part calls it.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) tokens: &'static str,
    pub(super) merges: &'static str,
    pub(super) added: &'static str,
}

/// Switches of byte-pair encoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// A word that is a token stays whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A character that is no token becomes the tokens of its bytes.
    pub(super) byte_fallback: bool,
    /// What stands for a character that is no token, and whether several of these become one.
    pub(super) unknown: Option<(String, bool)>,
    /// Whether a text loses the space that its first word begins with; with scores, whether one is put there first.
    pub(super) drops_space: bool,
}

impl Parts {
    /// Tokens alone: nothing is added to a text, prepared or merged, and nothing ends it.
    pub(super) fn new(path: PathBuf, keys: Keys, tokens: Vec<String>, spelling: Spelling) -> Self {
        Self {
            path,
            keys,
            tokens,
            spelling,
            merges: Vec::new(),
            scores: None,
            added: Vec::new(),
            unused: Vec::new(),
            normalizer: None,
            pre: None,
            rules: Rules::default(),
            prefix: Vec::new(),
            suffix: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The tokenizer.
    pub(super) fn build(mut self) -> Result<Tokenizer, Error> {
        self.check_tokens()?;
        self.check_ids()?;
        self.add_ends();
        let table = self.table();
        let encoder = self.encoder()?;
        let Self { mut ends, prefix, suffix, rules, .. } = self;
        ends.sort_unstable();
        ends.dedup();
        Ok(Tokenizer { encoder, table, prefix, suffix, ends, drops_space: rules.drops_space })
    }

    /// The error that something under a key is not as it should be.
    fn refuse(&self, key: &str, what: impl Into<String>) -> Error {
        Error::input(&self.path, Place::Key(key.to_owned()), what)
    }

    /// The same, with what the code that builds tokenizers found.
    fn complain(&self, key: &str, expected: &str, found: &dyn Display) -> Error {
        let found = printable(&found.to_string(), MAX_COMPLAINT);
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
        // A merge makes a token, so it is not longer than the longest.
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
        let ids = added.chain(&self.unused).chain(&self.prefix).chain(&self.suffix).chain(&self.ends);
        match ids.copied().find(|id| *id as usize >= n_tokens) {
            Some(id) => {
                let what = format!("expected ids below {n_tokens}, the number of tokens, found {id}");
                Err(self.refuse(self.keys.added, what))
            }
            None => Ok(()),
        }
    }

    /// Adds the special tokens whose names say that they end an answer.
    fn add_ends(&mut self) {
        let is_end = |token: &AddedToken| token.special && names_an_end(&token.content);
        self.ends.extend(self.added.iter().filter(|(_, token)| is_end(token)).map(|(id, _)| id));
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
        let (mut bytes, mut stops) = (Vec::new(), Vec::with_capacity(self.tokens.len()));
        for (id, text) in self.tokens.iter().enumerate() {
            if is_added[id] {
                bytes.extend(text.as_bytes());
            } else if !is_unused[id] {
                self.spelling.add_bytes(text, &mut bytes);
            }
            stops.push(bytes.len());
        }
        let specials = self.added.iter().filter(|(_, token)| token.special);
        let mut specials: Vec<u32> = specials.map(|(id, _)| *id).collect();
        specials.sort_unstable();
        Table { bytes, stops, specials }
    }

    fn encoder(&mut self) -> Result<Encoder, Error> {
        match self.scores.take() {
            Some(scores) => Ok(Encoder::Scores(self.pieces(scores))),
            None => Ok(Encoder::Merges(Box::new(self.merger()?))),
        }
    }

    fn pieces(&mut self, scores: Vec<f32>) -> Pieces {
        let tokens = std::mem::take(&mut self.tokens);
        let unknown =
            self.rules.unknown.as_ref().and_then(|(text, _)| tokens.iter().position(|token| token == text));
        let added = self.added.drain(..).map(|(id, token)| (id, token.content));
        Pieces::new(tokens, scores, added, unknown.map(|id| id as u32), self.rules.drops_space)
    }

    fn merger(&mut self) -> Result<Merger, Error> {
        let mut vocabulary = AHashMap::with_capacity(self.tokens.len());
        for (id, text) in std::mem::take(&mut self.tokens).into_iter().enumerate() {
            if !text.is_empty() {
                vocabulary.insert(text, id as u32);
            }
        }
        let Rules { ignore_merges, byte_fallback, unknown, drops_space: _ } = &self.rules;
        let mut model = BPE::builder()
            .vocab_and_merges(vocabulary, std::mem::take(&mut self.merges))
            .cache_capacity(0)
            .ignore_merges(*ignore_merges)
            .byte_fallback(*byte_fallback);
        if let Some((unknown, is_fused)) = unknown {
            model = model.unk_token(unknown.clone()).fuse_unk(*is_fused);
        }
        let Keys { merges, added, .. } = self.keys;
        let model = model
            .build()
            .map_err(|error| self.complain(merges, "a merge of two tokens that makes a token", &error))?;
        let mut encoder = Merger::new(model);
        let unfound = "tokens that can be searched for";
        let normalizer = self.normalizer.take();
        encoder
            .with_normalizer(normalizer)
            .map_err(|error| self.complain(added, unfound, &error))?
            .with_pre_tokenizer(self.pre.take());
        let tokens: Vec<AddedToken> = self.added.drain(..).map(|(_, token)| token).collect();
        encoder.add_tokens(tokens).map_err(|error| self.complain(added, unfound, &error))?;
        Ok(encoder)
    }
}
