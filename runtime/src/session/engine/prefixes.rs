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
    /// Full ones, with what is known after each.
    full: Vec<(PageId, Prefix)>,
    /// One that holds some of the tokens that follow, and how many.
    last: Option<(PageId, usize)>,
}

impl Found {
    fn pages(&self) -> Vec<PageId> {
        self.full.iter().map(|(page, _)| *page).chain(self.last.map(|(page, _)| page)).collect()
    }

    fn n_tokens(&self, page_rows: usize) -> usize {
        self.full.len() * page_rows + self.last.map_or(0, |(_, n)| n)
    }
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
        let found = self.known(tokens, sequence.start);
        let (pages, n_tokens) = (found.pages(), found.n_tokens(rows));
        let Found { full, last } = found;
        // A page that ends there is written on; of any other the first rows are copied.
        let copied = last.filter(|(page, n)| !self.pool.can_go_on(*page, *n)).map(|(page, _)| page);
        for page in &pages {
            self.pool.share(*page);
        }
        let sequence = self.sequence_mut(id)?;
        sequence.pages.extend(pages);
        sequence.prefixes.extend(full.iter().map(|(_, prefix)| *prefix));
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
        let n_idle = found.pages().iter().filter(|page| self.pool.n_users(**page) == 0).count();
        (found.n_tokens(self.limits.page_rows), n_idle)
    }

    /// The pages that hold the first of some tokens.
    fn known(&self, tokens: &[u32], start: Prefix) -> Found {
        let rows = self.limits.page_rows;
        let (mut full, mut before) = (Vec::new(), start);
        while let Some(own) = tokens.get(full.len() * rows..(full.len() + 1) * rows)
            && let Some((page, prefix)) = self.pool.find(before, own)
        {
            full.push((page, prefix));
            before = prefix;
        }
        let rest = &tokens[full.len() * rows..];
        let last = self.pool.common(before, &rest[..rest.len().min(rows)]);
        let mut found = Found { full, last: last.filter(|(_, n)| *n >= (rows / COPIED_SHARE).max(1)) };
        // The token that follows sees the last of them in blocks with a window.
        while !self.are_seen(&found.pages(), found.n_tokens(rows)) {
            if found.last.take().is_none() {
                found.full.pop();
            }
        }
        found
    }
}
