//! The engine of a model that embeds or ranks texts and generates none.
//!
//! In: texts. Out: their vectors or scores. It has no sequences: every step is refused, and requests for text never
//! reach it.

use fusebox::tokenizer::Pair;
use fusebox::{Embedder, Kin};

use crate::engine::{Capacity, Engine, Known, Piece, Refused, SequenceId};

/// The refusal of a request to generate text.
const NO_TEXT: &str = "this model generates no text";

/// Embeds, and nothing else.
pub(crate) struct Encoder {
    embedder: Embedder,
}

impl Encoder {
    pub(crate) fn new(embedder: Embedder) -> Self {
        Self { embedder }
    }
}

impl Engine for Encoder {
    fn capacity(&self) -> Capacity {
        let (context, vocab) = (self.embedder.context(), self.embedder.n_vocab());
        Capacity {
            page: context,
            pages: 1,
            free: 1,
            idle: 0,
            sequences: 0,
            context,
            vocab,
            shares: false,
            longest: context,
        }
    }

    fn known(&self, _: &[u32], _: &Kin) -> Known {
        Known::default()
    }

    fn open(&mut self, _: &[u32], _: &Kin) -> Result<(SequenceId, usize), Refused> {
        Err(Refused::Fault(NO_TEXT.to_owned()))
    }

    fn fork(&mut self, _: SequenceId, _: usize) -> Result<SequenceId, Refused> {
        Err(Refused::Fault(NO_TEXT.to_owned()))
    }

    fn takes(&self, _: SequenceId, n: usize) -> usize {
        n
    }

    fn step(&mut self, _: &[Piece]) -> Result<(), Refused> {
        Err(Refused::Fault(NO_TEXT.to_owned()))
    }

    fn rows(&self, _: usize) -> &[f32] {
        &[]
    }

    fn truncate(&mut self, _: SequenceId, _: usize) {}

    fn release(&mut self, _: SequenceId, _: bool) {}

    fn save(&mut self) {}

    fn embed(&mut self, input: &Pair) -> Result<Vec<f32>, Refused> {
        Ok(self.embedder.embed_pair(input)?)
    }
}
