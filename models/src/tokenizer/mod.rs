//! Text to tokens and back.
//!
//! In: a checkpoint whose file, or a file beside it, holds a vocabulary. Out: a [`Tokenizer`], whatever kind of
//! file it was: `gguf.rs`, `json.rs`, `ajc1.rs` and `qorus.rs` read one kind each into the same `Parts`.
//! A file is hostile until proven otherwise: every id, merge and length is checked before anything is built.
//! Tokens become text by their bytes alone, so [`stream::Stream`] and [`Tokenizer::decode`] cannot differ.

use fusebox_runtime::error::Error as FileError;
use fusebox_runtime::weights::{Checkpoint, Kind};
use tokenizers::Tokenizer as Merger;

use crate::error::Error;
use crate::tokenizer::parts::Parts;
use crate::tokenizer::pieces::Pieces;
use crate::tokenizer::stream::Stream;

mod ajc1;
pub(crate) mod export;
mod gguf;
mod json;
mod parts;
mod pieces;
mod pre;
mod qorus;
mod spelling;
pub mod stream;

/// What turns text into tokens and tokens into text.
pub struct Tokenizer {
    encoder: Encoder,
    table: Table,
    /// What surrounds a text that is encoded with its special tokens.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// Ascending, each once.
    ends: Vec<u32>,
    /// Whether a text loses the space that its first word begins with.
    drops_space: bool,
}

/// How a text becomes tokens.
enum Encoder {
    /// By merges in an order, within words.
    Merges(Box<Merger>),
    /// By the scores of pieces, across words.
    Scores(Pieces),
}

/// The bytes of every token.
struct Table {
    bytes: Vec<u8>,
    /// Where the bytes of each token end.
    stops: Vec<usize>,
    /// The tokens that are no part of a text, ascending.
    specials: Vec<u32>,
}

/// What a checkpoint, or a file beside it, says of its tokenizer.
fn read(checkpoint: &Checkpoint) -> Result<Parts, FileError> {
    match checkpoint.kind() {
        Kind::Gguf { .. } => gguf::read(checkpoint),
        Kind::Safetensors => json::read(checkpoint),
        Kind::Ajc1 => ajc1::read(checkpoint),
        Kind::Qorus => qorus::read(checkpoint),
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint: from a GGUF file itself, from `tokenizer.json` beside safetensors, or
    /// from the `.tokenizer` beside a checkpoint of qwen3.c.
    ///
    /// # Errors
    /// [`Error::File`] where there is none, where it is not as its kind wants it, or where nothing here reads it.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, Error> {
        Ok(read(checkpoint)?.build()?)
    }

    /// The tokens of a text. Names of special tokens in it stand for these tokens; with `add_special`, those that
    /// the model wants around every text are added.
    ///
    /// # Errors
    /// [`Error::Text`] where the file's own rules fail on the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, Error> {
        let ids = match &self.encoder {
            Encoder::Scores(pieces) => pieces.encode(text),
            Encoder::Merges(merger) => {
                let encoding = merger.encode_fast(text, false);
                encoding.map_err(|error| Error::Text { what: error.to_string() })?.get_ids().to_vec()
            }
        };
        if !add_special {
            return Ok(ids);
        }
        Ok([self.prefix.as_slice(), &ids, &self.suffix].concat())
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD. With `skip_special`, special tokens are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for id in ids {
            text += &stream.push(*id);
        }
        text + &stream.finish()
    }

    /// The text of tokens that come one by one.
    pub fn stream(&self, skip_special: bool) -> Stream<'_> {
        Stream::new(self, skip_special, true)
    }

    /// The text of tokens that go on behind others: it keeps its first space, unless what goes before is no text.
    pub fn stream_after(&self, before: Option<u32>, skip_special: bool) -> Stream<'_> {
        Stream::new(self, skip_special, before.is_none_or(|id| self.is_special(id)))
    }

    /// The bytes of a token, which need not be whole characters; none where there is no such token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        let Table { bytes, stops, .. } = &self.table;
        let idx = id as usize;
        let start = if idx == 0 { 0 } else { stops.get(idx - 1).copied().unwrap_or(bytes.len()) };
        let stop = stops.get(idx).copied().unwrap_or(bytes.len());
        &bytes[start..stop]
    }

    /// Whether a token is no part of a text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.specials.binary_search(&id).is_ok()
    }

    /// Every token that ends an answer, ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// How many tokens there are; each has a smaller number.
    pub fn n_tokens(&self) -> usize {
        self.table.stops.len()
    }
}
