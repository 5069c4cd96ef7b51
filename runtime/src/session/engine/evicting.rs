//! Which tokens a sequence drops, so that it may have more than the context.
//!
//! In: a policy, and how many tokens come next. Out: the pages that go before them; a step drops them and computes the
//! first tokens again.

use std::ops::Range;

use crate::error::Error;
use crate::session::engine::{Engine, Limits, Sequence, SequenceId};
use crate::session::evict::{Eviction, Needed};
use crate::session::refused;

/// The most tokens of a sequence that drops some: positions are whole numbers of 32 bits.
const MOST_TOKENS: usize = i32::MAX as usize;
/// Pages are dropped once this share of the window can go.
const EVICTED_SHARE: usize = 8;

impl Engine {
    /// Drops tokens of all sequences by a policy, so that each may have more than the context.
    ///
    /// # Errors
    /// Where a state goes only forward: what it was made of cannot be dropped, and its first tokens not be computed
    /// again.
    pub fn set_eviction(&mut self, policy: Box<dyn Eviction>) -> Result<(), Error> {
        if let Some(state) = &self.carried {
            let what = format!("the state `{state}` holds all tokens, so none can be dropped");
            return Err(refused("eviction", what));
        }
        self.eviction = Some(policy);
        Ok(())
    }

    /// Whether sequences drop tokens.
    pub fn evicts(&self) -> bool {
        self.eviction.is_some()
    }

    /// How many tokens of a sequence were dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn n_evicted(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.sequence(id)?.n_evicted)
    }

    /// How many tokens a sequence can still be extended by; there is no end to that where tokens are dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn room(&self, id: SequenceId) -> Result<usize, Error> {
        let most = if self.evicts() { MOST_TOKENS } else { self.limits.context };
        Ok(most.saturating_sub(self.sequence(id)?.len))
    }

    /// How many of `n` tokens the next step can extend a sequence by: all, or a page of them where tokens are dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn takes(&self, id: SequenceId, n: usize) -> Result<usize, Error> {
        let Limits { context, page_rows, .. } = self.limits;
        let sequence = self.sequence(id)?;
        let mut n_now = n;
        if self.evicts() {
            // The last of them should not see more than the first would.
            let fits = |n: usize| {
                let n_kept = sequence.n_kept() + n;
                n_kept <= context && self.beyond(sequence, n_kept - 1).is_empty()
            };
            while n_now > page_rows && !fits(n_now) {
                n_now = n_now.div_ceil(2).max(page_rows);
            }
        }
        Ok(n_now)
    }

    /// The pages that a sequence drops before it is extended by `n` tokens: some, if it needs another page.
    pub(super) fn due_pages(&self, sequence: &Sequence, n: usize) -> Range<usize> {
        let Limits { context, page_rows, .. } = self.limits;
        let n_kept = sequence.n_kept();
        if self.eviction.is_none() || n_kept + n <= sequence.pages.len() * page_rows {
            return 0..0;
        }
        let is_full = n_kept + n > context;
        let beyond = self.beyond(sequence, n_kept);
        if is_full && beyond.is_empty() { self.droppable(sequence, n_kept, usize::MAX) } else { beyond }
    }

    /// The pages that a sequence does not need where it keeps `n_kept` tokens, if they are enough to be dropped.
    fn beyond(&self, sequence: &Sequence, n_kept: usize) -> Range<usize> {
        self.droppable(sequence, n_kept, EVICTED_SHARE)
    }

    /// The same, if they are at least a page, and a part of the window that `share` of make the whole: each time that
    /// pages are dropped the tokens before them are computed again.
    fn droppable(&self, sequence: &Sequence, n_kept: usize, share: usize) -> Range<usize> {
        let Some(policy) = &self.eviction else { return 0..0 };
        let rows = self.limits.page_rows;
        let Needed { first, last } = policy.needed(n_kept);
        let first = if sequence.n_evicted > 0 { sequence.n_first } else { first }.div_ceil(rows);
        let end = n_kept.saturating_sub(last) / rows;
        let least = (last / rows / share).max(1);
        if end >= first + least { first..end } else { 0..0 }
    }
}
