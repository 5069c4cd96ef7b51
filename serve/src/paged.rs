//! The engine of the scheduler over the engine of the runtime.
//!
//! In: pieces. Out: rows of logits, copied from the device.
//! Sequences take pages of one KV cache, and a fork shares those of its origin. Logits of every token and hidden vectors
//! come from programs of their own, over caches of their own, which are made when they are first wanted.
//! Where a state goes only forward, a sequence that is cut starts again: the tokens that are kept are computed with the
//! next ones.

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
    open: Vec<Option<Sequence>>,
    /// The rows of the pieces of the last step.
    rows: Vec<Vec<f32>>,
}

/// An open sequence.
#[derive(Clone)]
struct Sequence {
    id: Id,
    /// Its first tokens, where they have yet to be computed again.
    again: Vec<u32>,
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

    fn sequence(&mut self, sequence: SequenceId) -> &mut Sequence {
        self.open[sequence.0].as_mut().expect("the sequence is open")
    }

    /// The number of the next sequence.
    fn free(&self) -> Result<usize, Refused> {
        self.open.iter().position(Option::is_none).ok_or(Refused::Full { needed: 1, free: 0 })
    }

    /// The first `n` tokens of a sequence.
    fn tokens(&self, sequence: &Sequence, n: usize) -> Result<Vec<u32>, Refused> {
        let tokens = self.runtime.tokens(sequence.id).map_err(refused)?;
        Ok(sequence.again.iter().chain(tokens).copied().take(n).collect())
    }

    /// Whether a sequence can be cut to `n` tokens.
    fn can_cut(&self, sequence: &Sequence, n: usize) -> Result<bool, Refused> {
        let is_whole = sequence.again.is_empty() && n == self.runtime.len(sequence.id).map_err(refused)?;
        Ok(is_whole || !self.runtime.is_forward_only())
    }

    /// Scores every token of a piece that its sequence has been extended by.
    fn score(&mut self, number: usize, id: Id, piece: &Piece) -> Result<(), Refused> {
        if self.every.is_none() {
            self.every = Some(Session::of((self.make)(Output::Every, 1).map_err(Refused::Fault)?));
        }
        let tokens = self.runtime.tokens(id).map_err(refused)?;
        let before = &tokens[..tokens.len() - piece.tokens.len()];
        let session = self.every.as_mut().expect("it was just made");
        session.truncate(0).map_err(refused)?;
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
            shares: !self.runtime.is_forward_only(),
        }
    }

    fn open(&mut self) -> Result<SequenceId, Refused> {
        let free = self.free()?;
        self.open[free] = Some(Sequence { id: self.runtime.open(), again: Vec::new() });
        Ok(SequenceId(free))
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let (free, of) = (self.free()?, self.sequence(of).clone());
        let own = if self.can_cut(&of, at)? {
            let id = self.runtime.fork(of.id).map_err(refused)?;
            self.runtime.truncate(id, at).map_err(refused)?;
            Sequence { id, again: Vec::new() }
        } else {
            let again = self.tokens(&of, at)?;
            Sequence { id: self.runtime.open(), again }
        };
        self.open[free] = Some(own);
        Ok(SequenceId(free))
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows.resize_with(batch.len().max(self.rows.len()), Vec::new);
        let ids: Vec<Id> = batch.iter().map(|piece| self.sequence(piece.sequence).id).collect();
        let tokens = |piece: &Piece| {
            let again = &self.open[piece.sequence.0].as_ref().expect("the sequence is open").again;
            [again, &*piece.tokens].concat()
        };
        let tokens: Vec<Vec<u32>> = batch.iter().map(tokens).collect();
        let pieces = ids.iter().zip(&tokens);
        let pieces: Vec<Extension<'_>> =
            pieces.map(|(id, tokens)| Extension { sequence: *id, feed: Feed::Tokens(tokens) }).collect();
        self.runtime.step(&pieces).map_err(refused)?;
        batch.iter().for_each(|piece| self.sequence(piece.sequence).again.clear());
        for (number, (piece, id)) in batch.iter().zip(ids).enumerate() {
            match piece.scored {
                Scored::None => {}
                Scored::Last => {
                    let logits = self.runtime.logits(id).map_err(refused)?;
                    self.rows[number].extend_from_slice(logits);
                }
                Scored::All => self.score(number, id, piece)?,
            }
        }
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        &self.rows[piece]
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        let own = self.sequence(sequence).clone();
        let is_cut = self.can_cut(&own, n).expect("the sequence is open");
        let (again, n) =
            if is_cut { (Vec::new(), n) } else { (self.tokens(&own, n).expect("the sequence is open"), 0) };
        self.runtime.truncate(own.id, n).expect("the sequence is open");
        self.sequence(sequence).again = again;
    }

    fn release(&mut self, sequence: SequenceId) {
        if let Some(own) = self.open[sequence.0].take() {
            self.runtime.release(own.id).expect("the sequence is open");
        }
    }

    fn hidden(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Refused> {
        if self.hidden.is_none() {
            self.hidden = Some(Session::of((self.make)(Output::Hidden, 1).map_err(Refused::Fault)?));
        }
        let session = self.hidden.as_mut().expect("it was just made");
        session.truncate(0).map_err(refused)?;
        let mut rows = Vec::new();
        session.score(tokens, &mut |row| rows.extend_from_slice(row)).map_err(refused)?;
        Ok(rows)
    }
}
