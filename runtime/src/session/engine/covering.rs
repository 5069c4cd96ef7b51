//! Which pages of a sequence have window pages: those that its next tokens see in blocks with a window.
//!
//! In: a sequence, and the slots of the tokens that come. Out: window pages for what these tokens see and write. Pages
//! before them are left behind: their rows are there until the memory is wanted, and the sequence can be cut to where
//! the rows before its end still are.

use std::ops::Range;

use fusebox_compiler::foundation::entity::Id;

use crate::error::Error;
use crate::session::engine::{Engine, Sequence, SequenceId};
use crate::session::pool::PageId;
use crate::session::pool::windows::Windows;

/// The pages that tokens of these slots see, or are written to.
fn covered(windows: &Windows, slots: &Range<usize>, page_rows: usize) -> Range<usize> {
    let end = slots.end.div_ceil(page_rows);
    windows.first_covered(slots.start, page_rows).min(end)..end
}

impl Sequence {
    /// The window page of the page with this number. One that was left behind is read by nobody: in its place stands
    /// one that the sequence has.
    pub(super) fn window_page(&self, windows: &Windows, number: usize) -> i32 {
        let own = windows.of(self.pages[number]);
        let own = own.or_else(|| windows.of(*self.pages.get(self.covered.start)?));
        own.map_or(0, |page| page.index() as i32)
    }
}

impl Engine {
    /// Covers what tokens of these slots see and write, and nothing else of the sequence.
    pub(super) fn cover(&mut self, id: SequenceId, slots: Range<usize>) -> Result<(), Error> {
        self.sequence(id)?;
        let Self { windows: Some(windows), slots: all, limits, .. } = self else { return Ok(()) };
        let sequence = all[id.index as usize].sequence.as_mut().expect("it was just found");
        let (old, new) = (sequence.covered.clone(), covered(windows, &slots, limits.page_rows));
        for at in old.clone().filter(|at| !new.contains(at)) {
            windows.leave(sequence.pages[at]);
        }
        for at in new.clone().filter(|at| !old.contains(at)) {
            windows.cover(sequence.pages[at]);
        }
        sequence.covered = new;
        Ok(())
    }

    /// Covers what the next token of a sequence sees.
    pub(super) fn cover_next(&mut self, id: SequenceId) -> Result<(), Error> {
        let len = self.sequence(id)?.n_kept();
        self.cover(id, len..len)
    }

    /// Puts a copy in the place of the last page of a sequence.
    pub(super) fn replace_last(&mut self, id: SequenceId, own: PageId) -> Result<(), Error> {
        self.sequence(id)?;
        let Self { windows, slots, pool, .. } = self;
        let sequence = slots[id.index as usize].sequence.as_mut().expect("it was just found");
        let last = sequence.pages.len() - 1;
        let shared = std::mem::replace(&mut sequence.pages[last], own);
        if let Some(windows) = windows.as_mut().filter(|_| sequence.covered.contains(&last)) {
            windows.cover(own);
            windows.leave(shared);
        }
        pool.give_back(shared);
        Ok(())
    }

    /// How many window pages a sequence takes, beside those that it gives back, to be extended by `n` tokens in replays
    /// of at most `most`.
    pub(super) fn n_window_pages(&self, id: SequenceId, n: usize, most: usize) -> Result<usize, Error> {
        let Some(windows) = &self.windows else { return Ok(0) };
        let (sequence, rows) = (self.sequence(id)?, self.limits.page_rows);
        let len = sequence.n_kept();
        let is_sole = |at: &usize| windows.n_covering(sequence.pages[*at]) == 1;
        let n_sole = sequence.covered.clone().filter(is_sole).count();
        let of_replay = |first: usize| {
            let slots = len + first..len + (first + most).min(n);
            let is_taken = |at: &usize| !sequence.covered.contains(at) || is_sole(at);
            covered(windows, &slots, rows).filter(is_taken).count()
        };
        let n_taken = (0..n).step_by(most.max(1)).map(of_replay).max().unwrap_or(0);
        // The last page is copied where others use it as well.
        let copied = usize::from(self.shared_last(id)?.is_some());
        Ok((n_taken + copied).saturating_sub(n_sole))
    }

    /// How many window pages the next token of a sequence of `n_tokens` sees.
    pub(in crate::session) fn n_covered(&self, n_tokens: usize) -> usize {
        let rows = self.limits.page_rows;
        self.windows.as_ref().map_or(0, |windows| covered(windows, &(n_tokens..n_tokens), rows).len())
    }

    /// Refuses what takes more pages or window pages than are free, or become free.
    pub(super) fn check_free(
        &self,
        [n_pages, n_window_pages]: [usize; 2],
        n_freed: usize,
    ) -> Result<(), Error> {
        let free = self.pool.n_free() + n_freed;
        if n_pages > free {
            return Err(Error::Full { needed: n_pages, free });
        }
        match self.windows.as_ref().map(Windows::n_free) {
            Some(free) if n_window_pages > free => Err(Error::Full { needed: n_window_pages, free }),
            _ => Ok(()),
        }
    }

    /// Whether all that the next token of a sequence of `n_tokens` on these pages sees has its window pages still.
    pub(super) fn are_seen(&self, pages: &[PageId], n_tokens: usize) -> bool {
        let Some(windows) = &self.windows else { return true };
        let mut seen = covered(windows, &(n_tokens..n_tokens), self.limits.page_rows);
        seen.all(|at| windows.of(pages[at]).is_some())
    }
}
