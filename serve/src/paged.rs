//! The engine of the scheduler over the engine of the runtime.
//!
//! In: pieces. Out: rows of logits, copied from the device.
//! Sequences take pages of one KV cache, and a fork shares those of its origin. Logits of every token and hidden vectors
//! come from programs of their own, over caches of their own, which are made when they are first wanted.

use fusebox_runtime::error::Error;
use fusebox_runtime::session::Session;
use fusebox_runtime::session::engine::{Engine as Runtime, Feed, Piece as Extension, SequenceId as Id};

use crate::engine::{Capacity, Engine, MakeEngine, Output, Piece, Refused, Scored, SequenceId};

/// Sequences of an engine of the runtime.
pub(crate) struct Paged {
    make: MakeEngine,
    runtime: Runtime,
    /// Scores every token; it holds a sequence of its own.
    every: Option<Session>,
    /// Gives hidden vectors.
    hidden: Option<Session>,
    /// The sequences by their numbers; none where a number is free.
    open: Vec<Option<Id>>,
    /// The rows of the pieces of the last step.
    rows: Vec<Vec<f32>>,
}

fn refused(error: Error) -> Refused {
    match error {
        Error::Full { needed, free } => Refused::Full { needed, free },
        other => Refused::Fault(other.to_string()),
    }
}

impl Paged {
    /// Makes the engine of `n` sequences.
    ///
    /// # Errors
    /// Where it does not compile, or the device refuses it.
    pub(crate) fn new(make: MakeEngine, n: usize) -> Result<Self, String> {
        let runtime = make(Output::Last, n)?;
        Ok(Self { make, runtime, every: None, hidden: None, open: vec![None; n], rows: Vec::new() })
    }

    fn id(&self, sequence: SequenceId) -> Id {
        self.open[sequence.0].expect("the sequence is open")
    }

    fn insert(&mut self, id: Id) -> Result<SequenceId, Refused> {
        let Some(free) = self.open.iter().position(Option::is_none) else {
            self.runtime.release(id).map_err(refused)?;
            return Err(Refused::Full { needed: 1, free: 0 });
        };
        self.open[free] = Some(id);
        Ok(SequenceId(free))
    }

    /// Scores every token of a piece that its sequence has been extended by.
    fn score(&mut self, number: usize, piece: &Piece) -> Result<(), Refused> {
        if self.every.is_none() {
            self.every = Some(Session::of((self.make)(Output::Every, 1).map_err(Refused::Fault)?));
        }
        let tokens = self.runtime.tokens(self.id(piece.sequence)).map_err(refused)?;
        let before = &tokens[..tokens.len() - piece.tokens.len()];
        let session = self.every.as_mut().expect("it was just made");
        session.truncate(0);
        if !before.is_empty() {
            session.feed(before).map_err(refused)?;
        }
        let rows = &mut self.rows[number];
        session.score(&piece.tokens, &mut |row| rows.extend_from_slice(row)).map_err(refused)
    }
}

impl Engine for Paged {
    fn capacity(&self) -> Capacity {
        let limits = self.runtime.limits();
        Capacity {
            page: limits.page_rows,
            pages: limits.n_pages,
            free: self.runtime.n_free_pages(),
            sequences: self.open.len(),
            context: limits.context,
            vocab: limits.n_vocab,
            shares: true,
        }
    }

    fn open(&mut self) -> Result<SequenceId, Refused> {
        let id = self.runtime.open();
        self.insert(id)
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let id = self.runtime.fork(self.id(of)).map_err(refused)?;
        self.runtime.truncate(id, at).map_err(refused)?;
        self.insert(id)
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows.resize_with(batch.len().max(self.rows.len()), Vec::new);
        let ids: Vec<Id> = batch.iter().map(|piece| self.id(piece.sequence)).collect();
        let pieces = ids.iter().zip(batch);
        let pieces: Vec<Extension<'_>> = pieces
            .map(|(id, piece)| Extension { sequence: *id, feed: Feed::Tokens(&piece.tokens) })
            .collect();
        self.runtime.step(&pieces).map_err(refused)?;
        for (number, (piece, id)) in batch.iter().zip(ids).enumerate() {
            match piece.scored {
                Scored::None => {}
                Scored::Last => {
                    let logits = self.runtime.logits(id).map_err(refused)?;
                    self.rows[number].extend_from_slice(logits);
                }
                Scored::All => self.score(number, piece)?,
            }
        }
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        &self.rows[piece]
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        let id = self.id(sequence);
        self.runtime.truncate(id, n).expect("the sequence is open");
    }

    fn release(&mut self, sequence: SequenceId) {
        if let Some(id) = self.open[sequence.0].take() {
            self.runtime.release(id).expect("the sequence is open");
        }
    }

    fn hidden(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Refused> {
        if self.hidden.is_none() {
            self.hidden = Some(Session::of((self.make)(Output::Hidden, 1).map_err(Refused::Fault)?));
        }
        let session = self.hidden.as_mut().expect("it was just made");
        session.truncate(0);
        let mut rows = Vec::new();
        session.score(tokens, &mut |row| rows.extend_from_slice(row)).map_err(refused)?;
        Ok(rows)
    }
}
