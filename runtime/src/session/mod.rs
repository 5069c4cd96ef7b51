//! Sessions: token sequences with their KV caches, and the programs that extend them.
//!
//! In: tokens, or vectors in their place. Out: logits, or the best of them, or hidden vectors.
//! An [`Engine`] holds many sequences, which take pages of one KV cache. A [`Session`] is an engine with one sequence.
//! `pool.rs` has the pages, `evict.rs` says which tokens a sequence drops, `classes.rs` says which program takes how
//! many tokens, `loaded.rs` is a program on its device, `names.rs` has what graphs and engines call their inputs,
//! `kin.rs` says which sequences share pages, `saved.rs` keeps sequences, `saved_pages.rs` the prefix cache and
//! `cache.rs` compiled programs on disk, `device/` runs them.

use std::path::Path;
use std::time::Duration;

use fusebox_compiler::schedule::Plan;

use crate::device::Footprint;
use crate::error::Error;

pub mod cache;
pub mod classes;
pub mod engine;
pub mod evict;
pub mod kin;
mod loaded;
mod moved;
pub mod names;
mod pool;
mod saved;
mod saved_pages;

use classes::Form;
use engine::{Engine, Feed, Piece, SequenceId};
use evict::Eviction;

/// One token sequence with its KV cache.
pub struct Session {
    engine: Engine,
    sequence: SequenceId,
}

impl Session {
    /// A session with an empty sequence of an engine.
    pub fn of(mut engine: Engine) -> Self {
        let sequence = engine.open();
        Self { engine, sequence }
    }

    /// Compiles and loads the programs that a prompt of `n_tokens` needs, so that the prompt itself does not wait for
    /// that.
    ///
    /// # Errors
    /// Where a program does not compile, or the device refuses it.
    pub fn prepare(&mut self, n_tokens: usize) -> Result<(), Error> {
        self.engine.prepare(Form::Run, n_tokens)
    }

    /// The most tokens of a step that are all scored; 0 where the session was not made for it.
    pub fn most_scored(&self) -> usize {
        self.engine.most_scored()
    }

    /// As [`Session::prepare`], for a step of `n_tokens` that are all scored.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn prepare_scored(&mut self, n_tokens: usize) -> Result<(), Error> {
        self.engine.prepare(Form::Scored, n_tokens)
    }

    /// How many tokens the sequence has.
    pub fn position(&self) -> usize {
        self.engine.len(self.sequence).expect("the sequence of a session lives as long as it")
    }

    /// Lets the sequence drop tokens by a policy, so that it may have more than the context.
    ///
    /// # Errors
    /// As [`Engine::set_eviction`].
    pub fn set_eviction(&mut self, policy: Box<dyn Eviction>) -> Result<(), Error> {
        self.engine.set_eviction(policy)
    }

    /// How many tokens the sequence has dropped.
    pub fn n_evicted(&self) -> usize {
        self.engine.n_evicted(self.sequence).expect("the sequence of a session lives as long as it")
    }

    /// How many tokens can still be appended.
    pub fn room(&self) -> usize {
        self.engine.room(self.sequence).expect("the sequence of a session lives as long as it")
    }

    /// How many tokens the sequence keeps at most.
    pub fn context(&self) -> usize {
        self.engine.limits().context
    }

    /// How many tokens a page of its KV cache has.
    pub fn page_size(&self) -> usize {
        self.engine.limits().page_rows
    }

    /// The size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.engine.limits().n_vocab
    }

    /// The plan that decodes one token.
    pub fn plan(&self) -> &Plan {
        self.engine.plan()
    }

    /// The plan that takes `n_tokens` in one replay.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn plan_of(&mut self, n_tokens: usize) -> Result<&Plan, Error> {
        self.engine.plan_of(Form::Run, n_tokens)
    }

    /// The replays that a prompt of `n_tokens` is split into: how many tokens each takes.
    pub fn pieces(&self, n_tokens: usize) -> impl Iterator<Item = usize> + use<> {
        self.engine.pieces(n_tokens)
    }

    /// What the device holds.
    pub fn footprint(&self) -> Footprint {
        self.engine.footprint()
    }

    /// What the device is.
    pub fn device(&self) -> String {
        self.engine.device()
    }

    /// Appends tokens and returns the logits of the next one.
    ///
    /// # Errors
    /// Where there are no tokens, a token is not in the vocabulary, the programs start from vectors, or the sequence
    /// would become longer than the context; then nothing is appended.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.extend(Feed::Tokens(tokens), false, &mut |_| {})?;
        Ok(self.logits())
    }

    /// Appends tokens, and calls `each` with a row of output for each of them: its logits, where the session was made
    /// to score every token, or its hidden vector.
    ///
    /// # Errors
    /// As [`Session::feed`].
    pub fn score(&mut self, tokens: &[u32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.extend(Feed::Tokens(tokens), true, each)
    }

    /// The same with the kind of each token, which says whose it is of texts that were joined, for a model that tells
    /// kinds apart.
    ///
    /// # Errors
    /// As [`Session::feed`], and where the model has fewer kinds.
    pub fn score_joined(
        &mut self,
        tokens: &[u32],
        kinds: &[u32],
        each: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        self.extend(Feed::Joined { tokens, kinds }, true, each)
    }

    /// Appends input vectors, one after another, in place of the embeddings of tokens; otherwise as [`Session::score`].
    ///
    /// # Errors
    /// As [`Session::feed`], and where the numbers are no whole vectors.
    pub fn score_vectors(&mut self, vectors: &[f32], each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.extend(Feed::Vectors(vectors), true, each)
    }

    fn extend(&mut self, feed: Feed<'_>, is_scored: bool, each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        let Self { engine, sequence } = self;
        let n = engine.check_feed(*sequence, feed)?;
        let mut first = 0;
        while first < n {
            let n_now = engine.takes(*sequence, n - first)?;
            let now = feed.part(first..first + n_now, n);
            let piece = Piece { sequence: *sequence, feed: now, is_scored };
            engine.step_with(&[piece], &mut |_, row| each(row))?;
            first += n_now;
        }
        Ok(())
    }

    /// As [`Session::feed`] of tokens that fit into one replay; returns how long each step of the plan took.
    ///
    /// # Errors
    /// As [`Session::feed`], and where the tokens do not fit into one replay.
    pub fn profile(&mut self, tokens: &[u32]) -> Result<Vec<Duration>, Error> {
        self.engine.profile(self.sequence, tokens)
    }

    /// The rows of output of the last replay: of each of its tokens, or of the last.
    pub fn rows(&self) -> &[f32] {
        self.engine.rows(self.sequence).unwrap_or_default()
    }

    /// The last output row of the sequence: the logits of its next token, or a hidden vector; empty before the first
    /// token.
    pub fn logits(&self) -> &[f32] {
        self.engine.logits(self.sequence).unwrap_or_default()
    }

    /// The tokens that the logits belong to, largest first, where the programs select the best.
    pub fn best(&self) -> Option<&[u32]> {
        let none: &[u32] = &[];
        self.engine.selects_best().then(|| self.engine.best(self.sequence).ok().flatten().unwrap_or(none))
    }

    /// Saves the sequence in a file.
    ///
    /// # Errors
    /// As [`Engine::save`].
    pub fn save(&mut self, path: &Path) -> Result<(), Error> {
        self.engine.save(self.sequence, path)
    }

    /// Replaces the sequence by one that was saved, and returns its tokens.
    ///
    /// # Errors
    /// As [`Engine::restore`]; then the sequence is empty.
    pub fn restore(&mut self, path: &Path) -> Result<&[u32], Error> {
        self.engine.truncate(self.sequence, 0)?;
        self.engine.restore(self.sequence, path)?;
        self.engine.tokens(self.sequence)
    }

    /// Replaces the sequence by that of another session, whose engine may run on another device.
    ///
    /// # Errors
    /// As [`Engine::continue_from`]; then the sequence is empty.
    pub fn continue_from(&mut self, other: &mut Self) -> Result<(), Error> {
        self.engine.truncate(self.sequence, 0)?;
        self.engine.continue_from(self.sequence, &mut other.engine, other.sequence)
    }

    /// How many numbers a row of output has: all logits, or the best of them.
    pub fn width(&self) -> usize {
        self.engine.width()
    }

    /// How many of the first `position` tokens can be kept: all, unless a state goes only forward or some of them were
    /// evicted.
    pub fn reusable(&self, position: usize) -> usize {
        let can_be_cut = self.engine.can_cut(self.sequence, position);
        if can_be_cut.expect("the sequence of a session lives as long as it") { position } else { 0 }
    }

    /// Whether a state goes only forward, so that a sequence cannot be cut.
    pub fn is_forward_only(&self) -> bool {
        self.engine.is_forward_only()
    }

    /// Drops all tokens from a position on and keeps those before it.
    ///
    /// # Errors
    /// Where a state goes only forward: then all tokens can be kept, or none. Where some were evicted: then none of
    /// those before them can be kept alone.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        self.engine.truncate(self.sequence, position)
    }
}
