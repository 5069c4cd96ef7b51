//! The engine over sessions with a fixed number of sequences.
//!
//! In: pieces. Out: rows of logits, copied from the device.
//! A slot is one sequence of the session, with a KV cache of a whole context. Pieces of one token are decoded as one
//! batch; longer ones are computed one after another.
//! Logits of every token come from a second session, which is made when they are first wanted.

use fusebox_runtime::session::{SequenceId as Slot, Session};

use crate::engine::{Capacity, Engine, MakeSession, Output, Piece, Refused, Scored, SequenceId};

/// Tokens of a page. Slots have no pages; the scheduler counts with them.
const PAGE: usize = 64;

/// Sequences in the slots of a session.
pub(crate) struct Slots {
    make: MakeSession,
    session: Session,
    /// Scores every token; it holds a text of its own.
    every: Option<Session>,
    /// Gives hidden vectors.
    hidden: Option<Session>,
    /// The tokens of each slot; none where it is free.
    texts: Vec<Option<Vec<u32>>>,
    /// The rows of the pieces of the last step.
    rows: Vec<Vec<f32>>,
}

#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn fault(error: impl ToString) -> Refused {
    Refused::Fault(error.to_string())
}

impl Slots {
    /// Makes the session of `n` sequences.
    ///
    /// # Errors
    /// Where it does not compile, or the device refuses it.
    pub(crate) fn new(make: MakeSession, n: usize) -> Result<Self, String> {
        let session = make(Output::Last, n)?;
        let texts = vec![None; session.n_sequences()];
        Ok(Self { make, session, every: None, hidden: None, texts, rows: Vec::new() })
    }

    fn tokens(&mut self, sequence: SequenceId) -> &mut Vec<u32> {
        self.texts[sequence.0].as_mut().expect("the sequence is open")
    }

    /// Sets the session to a sequence, as long as its tokens.
    fn select(&mut self, sequence: SequenceId) -> Result<(), Refused> {
        let n = self.tokens(sequence).len();
        self.session.select(Slot(sequence.0)).map_err(fault)?;
        // Where a state goes only forward, the tokens before are computed again.
        let kept = self.session.reusable(n);
        self.session.truncate(kept).map_err(fault)?;
        if kept < n {
            let tokens = self.texts[sequence.0].as_ref().expect("the sequence is open");
            self.session.feed(tokens).map_err(fault)?;
        }
        Ok(())
    }

    /// Appends the pieces of one token as a batch.
    fn decode(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        let mut tokens = vec![None; self.texts.len()];
        for piece in batch.iter().filter(|piece| is_decode(piece)) {
            self.select(piece.sequence)?;
            tokens[piece.sequence.0] = Some(piece.tokens[0]);
        }
        self.session.decode_batch(&tokens).map_err(fault)?;
        for (number, piece) in batch.iter().enumerate().filter(|(_, piece)| is_decode(piece)) {
            self.session.select(Slot(piece.sequence.0)).map_err(fault)?;
            self.rows[number].extend_from_slice(self.session.logits());
        }
        Ok(())
    }

    /// Appends a piece by itself.
    fn feed(&mut self, number: usize, piece: &Piece) -> Result<(), Refused> {
        self.select(piece.sequence)?;
        let logits = self.session.feed(&piece.tokens).map_err(fault)?;
        if piece.scored == Scored::Last {
            self.rows[number].extend_from_slice(logits);
        }
        if piece.scored == Scored::All {
            self.score(number, piece)?;
        }
        Ok(())
    }

    /// Scores every token of a piece, after the tokens that its sequence has.
    fn score(&mut self, number: usize, piece: &Piece) -> Result<(), Refused> {
        if self.every.is_none() {
            self.every = Some((self.make)(Output::Every, 1).map_err(Refused::Fault)?);
        }
        let before = self.texts[piece.sequence.0].as_ref().expect("the sequence is open");
        let session = self.every.as_mut().expect("it was just made");
        session.truncate(0).map_err(fault)?;
        if !before.is_empty() {
            session.feed(before).map_err(fault)?;
        }
        let rows = &mut self.rows[number];
        session.score(&piece.tokens, &mut |row| rows.extend_from_slice(row)).map_err(fault)
    }

    fn append(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        let n_decoded = batch.iter().filter(|piece| is_decode(piece)).count();
        // A state that goes only forward would do so in the slots without a token, too.
        let may_skip = n_decoded == self.texts.len() || !self.session.is_forward_only();
        let is_batch = n_decoded > 1 && may_skip;
        if is_batch {
            self.decode(batch)?;
        }
        for (number, piece) in batch.iter().enumerate() {
            if !(is_batch && is_decode(piece)) {
                self.feed(number, piece)?;
            }
        }
        Ok(())
    }
}

/// Whether a piece can be one of a batch.
fn is_decode(piece: &Piece) -> bool {
    piece.tokens.len() == 1 && piece.scored != Scored::All
}

impl Engine for Slots {
    fn capacity(&self) -> Capacity {
        let context = self.session.context();
        let each = context.div_ceil(PAGE);
        let used: usize = self.texts.iter().flatten().map(|_| each).sum();
        Capacity {
            page: PAGE,
            pages: self.texts.len() * each,
            free: self.texts.len() * each - used,
            sequences: self.texts.len(),
            context,
            vocab: self.session.n_vocab(),
            shares: false,
        }
    }

    fn open(&mut self) -> Result<SequenceId, Refused> {
        let Some(free) = self.texts.iter().position(Option::is_none) else {
            return Err(Refused::Full { needed: 1, free: 0 });
        };
        self.texts[free] = Some(Vec::new());
        Ok(SequenceId(free))
    }

    fn fork(&mut self, of: SequenceId, at: usize) -> Result<SequenceId, Refused> {
        let tokens = self.tokens(of)[..at].to_vec();
        let forked = self.open()?;
        if !tokens.is_empty() {
            let piece = Piece { sequence: forked, tokens, scored: Scored::None };
            if let Err(refused) = self.step(&[piece]) {
                self.release(forked);
                return Err(refused);
            }
        }
        Ok(forked)
    }

    fn step(&mut self, batch: &[Piece]) -> Result<(), Refused> {
        self.rows.iter_mut().for_each(Vec::clear);
        self.rows.resize_with(batch.len().max(self.rows.len()), Vec::new);
        // A sequence of the session that is longer than its tokens is cut before it is used.
        self.append(batch)?;
        for piece in batch {
            self.tokens(piece.sequence).extend_from_slice(&piece.tokens);
        }
        Ok(())
    }

    fn rows(&self, piece: usize) -> &[f32] {
        &self.rows[piece]
    }

    fn truncate(&mut self, sequence: SequenceId, n: usize) {
        self.tokens(sequence).truncate(n);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.texts[sequence.0] = None;
    }

    fn hidden(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Refused> {
        if self.hidden.is_none() {
            self.hidden = Some((self.make)(Output::Hidden, 1).map_err(Refused::Fault)?);
        }
        let session = self.hidden.as_mut().expect("it was just made");
        session.truncate(0).map_err(fault)?;
        let mut rows = Vec::new();
        session.score(tokens, &mut |row| rows.extend_from_slice(row)).map_err(fault)?;
        Ok(rows)
    }
}
