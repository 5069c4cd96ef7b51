//! Tokenizers: text to token ids and back.
//!
//! In: a checkpoint with a vocabulary, in the model file or next to it. Out: a [`Tokenizer`]. `read/` has a module for
//! each kind of file, which all make the same `TokenizerSpec`, and `build.rs` checks and builds it.
//! Files are untrusted: every id, merge and length is checked before anything is built.
//! Tokens are decoded byte by byte, so [`stream::Stream`] and [`Tokenizer::decode`] cannot differ.

use fusebox_runtime::weights::Checkpoint;
use tokenizers::Tokenizer as HfTokenizer;

use crate::error::Error;
use crate::tokenizer::read::read;
use crate::tokenizer::sentencepiece::SentencePiece;
use crate::tokenizer::spec::{Content, Part};
use crate::tokenizer::stream::Stream;

mod build;
mod byte_encoding;
mod charsmap;
pub(crate) mod export;
mod pattern;
mod read;
mod sentencepiece;
mod spec;
pub mod stream;

/// Encodes text to token ids and decodes them.
pub struct Tokenizer {
    encoder: Encoder,
    table: Table,
    /// Added around a text that is encoded with special tokens.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// How two texts become one input; empty where nothing says it.
    pair: Vec<Part>,
    /// Sorted, without duplicates.
    eos: Vec<u32>,
    /// Whether decoding strips the leading space of a text.
    strips_space: bool,
}

/// The input that two texts are joined to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The kind of each token, which says whose it is (`token_type_ids` in Transformers).
    pub kinds: Vec<u32>,
}

/// How text is encoded.
enum Encoder {
    /// BPE with ranked merges, `WordPiece` or `Unigram`, within the words of a pre-tokenizer.
    Library(Box<HfTokenizer>),
    /// `SentencePiece` BPE with scores, without a pre-tokenizer.
    SentencePiece(SentencePiece),
}

/// The bytes of every token.
struct Table {
    bytes: Vec<u8>,
    /// The end offset of each token's bytes.
    ends_at: Vec<usize>,
    /// Special tokens, sorted.
    specials: Vec<u32>,
}

impl Tokenizer {
    /// Opens the tokenizer of a checkpoint: in a GGUF file itself, in `tokenizer.json` next to safetensors, or in the
    /// `.tokenizer` file next to a qwen3.c checkpoint.
    ///
    /// # Errors
    /// [`Error::File`] where there is none, where it is invalid, or where it is not supported.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, Error> {
        Ok(read(checkpoint)?.build()?)
    }

    /// Encodes a text. Special tokens in the text are recognised; `add_special` adds those that the model wants around
    /// every text, such as BOS.
    ///
    /// # Errors
    /// [`Error::Text`] where the file's own rules fail on the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        let ids = match &self.encoder {
            Encoder::SentencePiece(encoder) => encoder.encode(text),
            Encoder::Library(encoder) => {
                let encoding = encoder.encode_fast(text, false);
                encoding.map_err(|error| Error::Text { what: error.to_string() })?.get_ids().to_vec()
            }
        };
        if !add_special {
            return Ok(ids);
        }
        Ok([self.prefix.as_slice(), &ids, &self.suffix].concat())
    }

    /// Joins two texts, such as a query and a document, as the file says; none where it does not.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_pair(&self, texts: [&str; 2]) -> Result<Option<Pair>, Error> {
        if self.pair.is_empty() {
            return Ok(None);
        }
        let [first, second] = texts.map(|text| self.encode(text, false));
        let (first, second) = (first?, second?);
        let mut pair = Pair::default();
        for Part { content, kind } in &self.pair {
            match content {
                Content::Token(id) => pair.tokens.push(*id),
                Content::First => pair.tokens.extend(&first),
                Content::Second => pair.tokens.extend(&second),
            }
            pair.kinds.resize(pair.tokens.len(), *kind);
        }
        Ok(Some(pair))
    }

    /// Whether two texts can be joined.
    pub fn joins(&self) -> bool {
        !self.pair.is_empty()
    }

    /// Decodes tokens; bytes that are not UTF-8 become U+FFFD. `skip_special` leaves out special tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for id in ids {
            text += &stream.push(*id);
        }
        text + &stream.finish()
    }

    /// A streaming decoder for the tokens of a whole text.
    pub fn stream(&self, skip_special: bool) -> Stream<'_> {
        Stream::new(self, skip_special, true)
    }

    /// A streaming decoder for tokens that continue a text: the leading space is kept, unless `before`, the last token
    /// so far, is a special one or none.
    pub fn stream_after(&self, before: Option<u32>, skip_special: bool) -> Stream<'_> {
        Stream::new(self, skip_special, before.is_none_or(|id| self.is_special(id)))
    }

    /// The bytes of a token, which need not be whole characters; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let Table { bytes, ends_at, .. } = &self.table;
        let idx = id as usize;
        let start = if idx == 0 { 0 } else { ends_at.get(idx - 1).copied().unwrap_or(bytes.len()) };
        let stop = ends_at.get(idx).copied().unwrap_or(bytes.len());
        &bytes[start..stop]
    }

    /// Whether a token is special: no part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.specials.binary_search(&id).is_ok()
    }

    /// The token that is added before a text, if there is one.
    pub fn bos(&self) -> Option<u32> {
        self.prefix.first().copied()
    }

    /// The end-of-sequence tokens, sorted.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    /// Whether a token is an end-of-sequence token.
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos.binary_search(&id).is_ok()
    }

    /// The number of tokens; ids are below it.
    pub fn n_tokens(&self) -> usize {
        self.table.ends_at.len()
    }
}
