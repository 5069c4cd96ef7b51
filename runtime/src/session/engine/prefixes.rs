//! Pages that sequences with equal beginnings share.
//!
//! In: the tokens of a sequence that is empty. Out: the sequence with the pages of earlier ones that begin alike; of a
//! page that goes on differently its first rows are copied.

use crate::error::Error;
use crate::session::engine::{Engine, SequenceId, no_sequence};
use crate::session::kin::Kin;
use crate::session::pool::{PageId, Prefix};

/// Fewer rows than this share of a page are computed again instead of copied.
const COPIED_SHARE: usize = 8;

/// The pages that hold the first of some tokens.
struct Found {
    /// Full ones, and one more where that holds some of the tokens that follow.
    pages: Vec<PageId>,
    /// What is known after each full one.
    prefixes: Vec<Prefix>,
    n_tokens: usize,
}

impl Engine {
    /// Lets other sequences find the last page of one that keeps fewer pages, if it is not full.
    pub(super) fn note_last(&mut self, id: SequenceId, n_pages: usize) -> Result<(), Error> {
        let Self { pool, slots, limits, .. } = self;
        let sequence = slots[id.index as usize].sequence.as_ref().ok_or_else(|| no_sequence(id))?;
        let n_full = sequence.len / limits.page_rows;
        let is_known = sequence.tokens.len() == sequence.len
            && sequence.prefixes.len() == n_full
            && sequence.n_evicted == 0;
        if let Some(page) = sequence.pages.get(n_full)
            && (is_known && n_pages <= n_full && pool.n_users(*page) == 1 && self.carried.is_none())
        {
            let before = sequence.prefixes.last().copied().unwrap_or(sequence.start);
            pool.note(*page, before, &sequence.tokens[n_full * limits.page_rows..]);
        }
        Ok(())
    }

    /// Shares with an empty sequence the pages of earlier ones that begin with the same tokens; says how many tokens it
    /// has now. At least the last token is left to be computed, as its logits are wanted. Nothing is shared where a
    /// state goes from token to token, as pages do not hold it.
    ///
    /// # Errors
    /// Where there is no such sequence.
    pub fn share_prefix(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, Error> {
        self.share_known(id, &tokens[..tokens.len().saturating_sub(1)])
    }

    /// The same with all of the tokens: none may be left to be computed.
    ///
    /// # Errors
    /// As [`Engine::share_prefix`].
    pub fn share_known(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, Error> {
        let rows = self.limits.page_rows;
        let sequence = self.sequence(id)?;
        if sequence.len > 0 || self.is_forward_only() {
            return Ok(sequence.len);
        }
        let Found { pages, prefixes, n_tokens } = self.known(tokens, sequence.start);
        // A page that ends there is written on; of any other the first rows are copied.
        let last = pages.get(prefixes.len()).copied();
        let copied = last.filter(|page| !self.pool.can_go_on(*page, n_tokens - prefixes.len() * rows));
        for page in &pages {
            self.pool.share(*page);
        }
        let sequence = self.sequence_mut(id)?;
        sequence.pages.extend(pages);
        sequence.prefixes.extend(prefixes);
        sequence.tokens.extend_from_slice(&tokens[..n_tokens]);
        sequence.len = n_tokens;
        self.cover_next(id)?;
        // Without room for a copy the page is shared until the sequence is extended.
        if let Some(page) = copied
            && let Some(own) = self.take_page()
        {
            match self.copy_page(page, own) {
                Ok(()) => self.replace_last(id, own)?,
                Err(_) => self.pool.give_back(own),
            }
        }
        Ok(n_tokens)
    }

    /// How many of the first of these tokens a sequence of this kin would share, and how many of the pages that it
    /// would share nobody uses now: these count as free.
    pub fn known_prefix(&self, tokens: &[u32], kin: &Kin) -> (usize, usize) {
        if self.is_forward_only() {
            return (0, 0);
        }
        let found = self.known(tokens, self.pool.empty(kin));
        let n_idle = found.pages.iter().filter(|page| self.pool.n_users(**page) == 0).count();
        (found.n_tokens, n_idle)
    }

    /// The pages that hold the first of some tokens.
    fn known(&self, tokens: &[u32], start: Prefix) -> Found {
        let rows = self.limits.page_rows;
        let (mut pages, mut prefixes, mut before) = (Vec::new(), Vec::new(), start);
        while let Some(own) = tokens.get(pages.len() * rows..(pages.len() + 1) * rows)
            && let Some((page, prefix)) = self.pool.find(before, own)
        {
            pages.push(page);
            prefixes.push(prefix);
            before = prefix;
        }
        let mut n_tokens = pages.len() * rows;
        let rest = &tokens[n_tokens..];
        let last = self.pool.common(before, &rest[..rest.len().min(rows)]);
        if let Some((page, n)) = last.filter(|(_, n)| *n >= (rows / COPIED_SHARE).max(1)) {
            pages.push(page);
            n_tokens += n;
        }
        // The token that follows sees the last of them in blocks with a window.
        while !self.are_seen(&pages, n_tokens) {
            pages.pop();
            prefixes.truncate(pages.len());
            n_tokens = pages.len() * rows;
        }
        Found { pages, prefixes, n_tokens }
    }
}
