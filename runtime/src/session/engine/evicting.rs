//! What a sequence drops, so that its KV cache is bounded.
//!
//! In: a policy, and how many tokens come next. Out: the pages or the rows that go before them; a step drops them, and
//! computes the first tokens again where whole pages went.

use crate::error::Error;
use crate::session::classes::Form;
use crate::session::engine::{Due, Engine, Limits, Sequence, SequenceId};
use crate::session::evict::{Eviction, Needed};
use crate::session::names::refused;

/// Tokens are dropped once this share of what is kept can go.
const EVICTED_SHARE: usize = 8;

impl Engine {
    /// Drops tokens of all sequences by a policy, so that each may have more than the context.
    ///
    /// # Errors
    /// Where a state goes only forward: what it was made of cannot be dropped, and its first tokens not be computed
    /// again. Where rows are to be chosen and no program says which, or it asks more tokens than are kept of the last.
    /// Where sequences have dropped tokens by another policy.
    pub fn set_eviction(&mut self, policy: Box<dyn Eviction>) -> Result<(), Error> {
        if let Some(state) = &self.carried {
            let what = format!("the state `{state}` holds all tokens, so none can be dropped");
            return Err(refused("eviction", what));
        }
        if self.windows.is_some() {
            let what = "blocks with a window have pages of their own here, which none can be dropped of";
            return Err(refused("eviction", what.to_owned()));
        }
        if self.slots.iter().filter_map(|slot| slot.sequence.as_ref()).any(|own| own.n_evicted > 0) {
            return Err(refused("eviction", "sequences have dropped tokens by another policy".to_owned()));
        }
        let Needed { between, last, .. } = policy.needed(self.limits.context);
        self.chooser = if between > 0 { Some(self.load_chooser(last)?) } else { None };
        self.eviction = Some(policy);
        Ok(())
    }

    /// Loads the program by which rows are chosen.
    fn load_chooser(&mut self, last: usize) -> Result<(usize, usize), Error> {
        let class = self.programs.classes().iter().position(|class| class.form == Form::Attention);
        let Some(class) = class else {
            let what = "rows are kept by attention, and this engine has no program that returns it";
            return Err(refused("eviction", what.to_owned()));
        };
        let observed = self.programs.classes()[class].most;
        if observed > last {
            let what = format!("the last {observed} tokens choose rows, and {last} of them are kept");
            return Err(refused("eviction", what));
        }
        self.load(class)?;
        self.check_choosable(class)?;
        Ok((class, observed))
    }

    /// Whether sequences drop tokens.
    pub fn evicts(&self) -> bool {
        self.eviction.is_some()
    }

    /// The most tokens of a sequence, those that it dropped among them.
    pub fn longest(&self) -> usize {
        self.eviction.as_ref().map_or(self.limits.context, |policy| policy.longest())
    }

    /// How many tokens of a sequence were dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn n_evicted(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.sequence(id)?.n_evicted)
    }

    /// How many tokens a sequence can still be extended by.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn room(&self, id: SequenceId) -> Result<usize, Error> {
        Ok(self.longest().saturating_sub(self.sequence(id)?.len))
    }

    /// How many of `n` tokens the next step can extend a sequence by: all, or a part of them where tokens are dropped.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn takes(&self, id: SequenceId, n: usize) -> Result<usize, Error> {
        let Limits { context, page_rows, .. } = self.limits;
        let sequence = self.sequence(id)?;
        let n_kept = sequence.n_kept();
        let Some(policy) = &self.eviction else { return Ok(n) };
        if self.chooser.is_some() {
            // A prompt is read whole, as far as the context goes.
            let room = context.saturating_sub(n_kept);
            let is_chosen = n > room && room < page_rows;
            let room =
                if is_chosen { context.saturating_sub(policy.needed(n_kept).n_tokens()) } else { room };
            return Ok(n.min(room.max(1)));
        }
        let mut n_now = n;
        // The last of them should not see more than the first would.
        let fits = |n: usize| {
            n_kept + n <= context && self.droppable(sequence, n_kept + n - 1, EVICTED_SHARE) == Due::Nothing
        };
        while n_now > page_rows && !fits(n_now) {
            n_now = n_now.div_ceil(2).max(page_rows);
        }
        Ok(n_now)
    }

    /// What a sequence drops before it is extended by `n` tokens.
    pub(super) fn due(&self, sequence: &Sequence, n: usize, is_scored: bool) -> Due {
        let Limits { context, page_rows, .. } = self.limits;
        let n_kept = sequence.n_kept();
        let n_new = (n_kept + n).div_ceil(page_rows).saturating_sub(sequence.pages.len());
        let is_full = n_kept + n > context || n_new > self.pool.n_free();
        if let Some((_, observed)) = self.chooser {
            // A guess is scored.
            let is_prompt = n > 1 && !(is_scored && n <= observed);
            return self.due_rows(n_kept, is_prompt, is_full);
        }
        if n_kept + n <= sequence.pages.len() * page_rows {
            return Due::Nothing;
        }
        let beyond = self.droppable(sequence, n_kept, EVICTED_SHARE);
        if is_full && beyond == Due::Nothing { self.droppable(sequence, n_kept, usize::MAX) } else { beyond }
    }

    /// The pages that a sequence does not need where it keeps `n_kept` tokens, if they are at least a page, and a part
    /// of the window that `share` of make the whole: each time that pages are dropped the tokens before them are
    /// computed again.
    fn droppable(&self, sequence: &Sequence, n_kept: usize, share: usize) -> Due {
        let Some(policy) = &self.eviction else { return Due::Nothing };
        let rows = self.limits.page_rows;
        let Needed { first, last, .. } = policy.needed(n_kept);
        let first = if sequence.n_evicted > 0 { sequence.n_first } else { first }.div_ceil(rows);
        let end = n_kept.saturating_sub(last) / rows;
        let least = (last / rows / share).max(1);
        if end >= first + least { Due::Pages(first..end) } else { Due::Nothing }
    }

    /// The rows that a sequence of `n_kept` tokens does not need, if they are at least a page, and a share of those
    /// that it needs. While a prompt is read nothing goes before the context is full: its last tokens choose.
    fn due_rows(&self, n_kept: usize, is_prompt: bool, is_full: bool) -> Due {
        let Some(policy) = self.eviction.as_ref().filter(|_| is_full || !is_prompt) else {
            return Due::Nothing;
        };
        let needed = policy.needed(n_kept);
        let n_needed = needed.n_tokens();
        let least = if is_full { 1 } else { (n_needed / EVICTED_SHARE).max(self.limits.page_rows) };
        if n_kept >= n_needed + least { Due::Rows(needed) } else { Due::Nothing }
    }
}
