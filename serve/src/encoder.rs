//! The engine of a model that embeds or ranks texts and generates none.
//!
//! In: texts. Out: their vectors. It has no sequences: every step is refused, and requests for text never reach it.

use std::sync::Arc;

use fusebox_models::embed::Embedder;
use fusebox_runtime::error::Error;

use crate::engine::{Capacity, Engine, Piece, Refused, SequenceId};

/// Makes what embeds, on the thread that uses it.
pub(crate) type MakeEmbedder = Arc<dyn Fn() -> Result<Embedder, String> + Send + Sync>;

/// What is said of a model that generates no text.
pub(crate) const ONLY_EMBEDS: &str = "this model embeds texts and generates none; use /v1/embeddings";

/// An error of the runtime as the scheduler takes it.
pub(crate) fn refused(error: Error) -> Refused {
    match error {
        Error::Full { needed, free } => Refused::Full { needed, free },
        other => Refused::Fault(other.to_string()),
    }
}

/// Embeds, and nothing else.
pub(crate) struct Encoder {
    embedder: Embedder,
}

impl Encoder {
    /// # Errors
    /// Where it does not compile, or the device refuses it.
    pub(crate) fn new(make: &MakeEmbedder) -> Result<Self, String> {
        Ok(Self { embedder: make()? })
    }
}

impl Engine for Encoder {
    fn capacity(&self) -> Capacity {
        let session = self.embedder.session();
        let (context, vocab) = (session.context(), session.n_vocab());
        Capacity { page: context, pages: 1, free: 1, sequences: 0, context, vocab, shares: false }
    }

    fn open(&mut self) -> Result<SequenceId, Refused> {
        Err(Refused::Fault(ONLY_EMBEDS.to_owned()))
    }

    fn fork(&mut self, _: SequenceId, _: usize) -> Result<SequenceId, Refused> {
        Err(Refused::Fault(ONLY_EMBEDS.to_owned()))
    }

    fn step(&mut self, _: &[Piece]) -> Result<(), Refused> {
        Err(Refused::Fault(ONLY_EMBEDS.to_owned()))
    }

    fn rows(&self, _: usize) -> &[f32] {
        &[]
    }

    fn truncate(&mut self, _: SequenceId, _: usize) {}

    fn release(&mut self, _: SequenceId) {}

    fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Refused> {
        self.embedder.embed(tokens).map_err(refused)
    }
}
