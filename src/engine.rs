//! Many sequences over one paged KV cache, decoded together.
//!
//! In: batches, each a few sequences and their next tokens. Out: the logits of each.
//! Handles are plain numbers: a sequence lives until it is released. Sampling is the caller's: [`Sampler`] is that of
//! the other handles, and anything else that picks a token from logits will do.
//!
//! [`Sampler`]: fusebox_models::sample::Sampler

use std::path::Path;
use std::sync::Arc;

use fusebox_models::tokenizer::Tokenizer;
use fusebox_runtime::session::classes::Form;
use fusebox_runtime::session::engine::{Engine as Runtime, Feed, Piece, SequenceId};
use fusebox_runtime::session::kin::Kin;

use crate::error::Error;

/// A sequence of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(SequenceId);

/// What a step appends to sequences.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pieces: Vec<(Sequence, Vec<u32>, bool)>,
}

/// Many sequences over one KV cache.
pub struct Engine {
    runtime: Runtime,
    tokenizer: Option<Arc<Tokenizer>>,
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends tokens to a sequence, of which a batch has one piece.
    pub fn add(&mut self, sequence: Sequence, tokens: impl Into<Vec<u32>>) {
        self.pieces.push((sequence, tokens.into(), false));
    }

    /// The same, with logits after every one of them, which [`Engine::step_with`] hands on.
    pub fn score(&mut self, sequence: Sequence, tokens: impl Into<Vec<u32>>) {
        self.pieces.push((sequence, tokens.into(), true));
    }
}

/// Over an engine of the runtime, without a tokenizer.
impl From<Runtime> for Engine {
    fn from(runtime: Runtime) -> Self {
        Self { runtime, tokenizer: None }
    }
}

impl Engine {
    pub(crate) fn new(runtime: Runtime, tokenizer: Option<Arc<Tokenizer>>) -> Self {
        Self { runtime, tokenizer }
    }

    /// Makes the programs that verify guesses of up to `n` tokens.
    pub(crate) fn prepare_guesses(&mut self, n: usize) -> Result<(), Error> {
        if self.is_forward_only() {
            let what = "drafts need a model whose KV cache can be cut, found one with recurrent states";
            return Err(Error::from(what));
        }
        self.runtime.prepare(Form::Scored, n + 1)?;
        Ok(self.runtime.prepare_all(Form::Batch)?)
    }

    /// A new sequence without tokens.
    pub fn open(&mut self) -> Sequence {
        Sequence(self.runtime.open())
    }

    /// The same, which shares pages only with its kin, and has their adapters.
    ///
    /// # Errors
    /// Where the kin is of a model with other adapters.
    pub fn open_as(&mut self, kin: &Kin) -> Result<Sequence, Error> {
        Ok(Sequence(self.runtime.open_as(kin)?))
    }

    /// A copy of a sequence, which shares the pages so far.
    ///
    /// # Errors
    /// Where there is no such sequence, or no place for a copy of its states.
    pub fn fork(&mut self, sequence: Sequence) -> Result<Sequence, Error> {
        Ok(Sequence(self.runtime.fork(sequence.0)?))
    }

    /// Shares with an empty sequence the pages of earlier ones that begin with the same tokens; says how many tokens it
    /// has now, and need not be computed.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn share_prefix(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<usize, Error> {
        Ok(self.runtime.share_prefix(sequence.0, tokens)?)
    }

    /// The same with all of the tokens: none may be left to be computed.
    ///
    /// # Errors
    /// As [`Engine::share_prefix`].
    pub fn share_known(&mut self, sequence: Sequence, tokens: &[u32]) -> Result<usize, Error> {
        Ok(self.runtime.share_known(sequence.0, tokens)?)
    }

    /// How many of the first of these tokens [`Engine::share_known`] would find for a sequence of this kin, and how
    /// many of the pages that hold them count as free now, because nobody uses them.
    pub fn known_prefix(&self, tokens: &[u32], kin: &Kin) -> (usize, usize) {
        self.runtime.known_prefix(tokens, kin)
    }

    /// Writes what pages hold whose tokens are known into a folder, in a file of this model's; says how many there are.
    ///
    /// # Errors
    /// Where it cannot be written, or another file is in its place.
    pub fn save_prefixes(&mut self, folder: &Path) -> Result<usize, Error> {
        Ok(self.runtime.save_prefixes(folder)?)
    }

    /// Takes in what [`Engine::save_prefixes`] wrote, as far as there are free pages, and says how many it took; none
    /// where there is no file of this model's.
    ///
    /// # Errors
    /// Where the file is damaged; then nothing is taken in.
    pub fn load_prefixes(&mut self, folder: &Path) -> Result<usize, Error> {
        Ok(self.runtime.load_prefixes(folder)?)
    }

    /// Whether a sequence can be cut to `len` tokens.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn can_cut(&self, sequence: Sequence, len: usize) -> Result<bool, Error> {
        Ok(self.runtime.can_cut(sequence.0, len)?)
    }

    /// Drops the tokens of a sequence from a position on.
    ///
    /// # Errors
    /// Where there is no such sequence, or [`Engine::can_cut`] says that it cannot be cut there.
    pub fn truncate(&mut self, sequence: Sequence, len: usize) -> Result<(), Error> {
        Ok(self.runtime.truncate(sequence.0, len)?)
    }

    /// Ends a sequence and gives its pages back; what they hold is found until they are wanted.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn release(&mut self, sequence: Sequence) -> Result<(), Error> {
        Ok(self.runtime.release(sequence.0)?)
    }

    /// The same, and nothing is found of it any more.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn discard(&mut self, sequence: Sequence) -> Result<(), Error> {
        Ok(self.runtime.discard(sequence.0)?)
    }

    /// Appends all of a batch, in as few replays as it allows: one token of each of many sequences is one, in which
    /// every weight is read once.
    ///
    /// # Errors
    /// Where a piece names no sequence or one twice, has no tokens or unknown ones, exceeds the context, or there are
    /// too few pages ([`Error::full`]); then nothing is changed.
    pub fn step(&mut self, batch: &Batch) -> Result<(), Error> {
        self.step_with(batch, |_, _| {})
    }

    /// The same; `each` gets the logits after every token of the pieces that are scored, in their order.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_with(&mut self, batch: &Batch, mut each: impl FnMut(Sequence, &[f32])) -> Result<(), Error> {
        let pieces = batch.pieces.iter().map(|(own, tokens, is_scored)| Piece {
            sequence: own.0,
            feed: Feed::Tokens(tokens),
            is_scored: *is_scored,
        });
        let pieces: Vec<Piece<'_>> = pieces.collect();
        let is_scored = |id| pieces.iter().any(|piece| piece.sequence == id && piece.is_scored);
        Ok(self.runtime.step_with(&pieces, &mut |id, row| {
            if is_scored(id) {
                each(Sequence(id), row);
            }
        })?)
    }

    /// The logits of the next token of a sequence of the last step.
    ///
    /// # Errors
    /// Where there is no such sequence, or the last step did not extend it.
    pub fn logits(&self, sequence: Sequence) -> Result<&[f32], Error> {
        Ok(self.runtime.logits(sequence.0)?)
    }

    /// The tokens of a sequence.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn tokens(&self, sequence: Sequence) -> Result<&[u32], Error> {
        Ok(self.runtime.tokens(sequence.0)?)
    }

    /// Whether sequences drop tokens.
    pub fn evicts(&self) -> bool {
        self.runtime.evicts()
    }

    /// The most tokens of a sequence, those that it dropped among them.
    pub fn longest(&self) -> usize {
        self.runtime.longest()
    }

    /// How many of `n` tokens a step should extend a sequence by: all, or a part of them where tokens are dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn takes(&self, sequence: Sequence, n: usize) -> Result<usize, Error> {
        Ok(self.runtime.takes(sequence.0, n)?)
    }

    /// How many tokens a sequence has.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn len(&self, sequence: Sequence) -> Result<usize, Error> {
        Ok(self.runtime.len(sequence.0)?)
    }

    /// Whether a state goes only forward, so that a sequence cannot be cut.
    pub fn is_forward_only(&self) -> bool {
        self.runtime.is_forward_only()
    }

    /// The tokens of a text, with those that the model wants around it, such as BOS.
    ///
    /// # Errors
    /// Where the model has no tokenizer, or it fails on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// Where the model has no tokenizer.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        Ok(self.tokenizer()?.decode(tokens, true))
    }

    /// Whether a token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_eos(token))
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.runtime.limits().context
    }

    /// The size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.runtime.limits().n_vocab
    }

    /// Pages of the KV cache that sequences can still take.
    pub fn n_free_pages(&self) -> usize {
        self.runtime.n_free_pages()
    }

    /// How many of those hold tokens that a sequence may share.
    pub fn n_idle_pages(&self) -> usize {
        self.runtime.n_idle_pages()
    }

    /// Pages of the KV cache.
    pub fn n_pages(&self) -> usize {
        self.runtime.limits().n_pages
    }

    /// The tokens that a page holds.
    pub fn page_len(&self) -> usize {
        self.runtime.limits().page_rows
    }

    fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_deref().ok_or_else(|| Error::from("this model has no tokenizer"))
    }
}
