//! The pages of blocks with a window: fewer than the other blocks have, for what the next token sees.
//!
//! In: pages of the pool, and which of them the window of a sequence covers. Out: for each page its window page, where
//! the rows of these blocks lie, as long as it has one.
//!
//! ```text
//!  pages of a sequence       12   7   9   3   8   5
//!  their window pages         -   -   4   1   0   2
//!                                     │   └───┴───┴─ covered by the window: they stay
//!                                     └───────────── left behind: it stays until another page needs the memory,
//!                                                    so the sequence may go back, and others may begin alike
//! ```
//!
//! Nothing here allocates after [`Windows::new`].

use fusebox_compiler::define_id;
use fusebox_compiler::foundation::entity::Id;

use crate::session::pool::PageId;

define_id!(
    /// A page of the states of blocks with a window.
    WindowPageId,
    "window page"
);

/// Which pages have window pages.
pub(in crate::session) struct Windows {
    /// The most tokens that a token sees, itself among them.
    reach: usize,
    /// For each page of the pool.
    pages: Vec<Page>,
    /// For each window page.
    owners: Vec<Owner>,
    /// How many window pages are covered.
    n_covered: usize,
    /// Counts the pages that were left behind.
    clock: u64,
}

#[derive(Clone, Copy, Default)]
struct Page {
    window_page: Option<WindowPageId>,
    /// How many sequences have it in their windows.
    n_covering: u32,
}

#[derive(Clone, Copy, Default)]
struct Owner {
    /// The page whose rows it holds.
    page: Option<PageId>,
    /// When that page was left behind.
    left_since: u64,
}

impl Windows {
    /// `n_window_pages` for a pool of `n_pages`, for windows of `reach` tokens.
    pub(in crate::session) fn new(n_pages: usize, n_window_pages: usize, reach: usize) -> Self {
        Self {
            reach,
            pages: vec![Page::default(); n_pages],
            owners: vec![Owner::default(); n_window_pages],
            n_covered: 0,
            clock: 0,
        }
    }

    /// The first page that a sequence keeps whose next token has this slot. One more than the window covers is kept, so
    /// that a guess can be taken back.
    pub(in crate::session) fn first_covered(&self, slot: usize, page_rows: usize) -> usize {
        ((slot + 1).saturating_sub(self.reach) / page_rows).saturating_sub(1)
    }

    /// How many window pages can be given to pages that have none.
    pub(in crate::session) fn n_free(&self) -> usize {
        self.owners.len() - self.n_covered
    }

    /// The window page of a page.
    pub(in crate::session) fn of(&self, page: PageId) -> Option<WindowPageId> {
        self.pages[page.index()].window_page
    }

    /// How many sequences have a page in their windows.
    pub(in crate::session) fn n_covering(&self, page: PageId) -> u32 {
        self.pages[page.index()].n_covering
    }

    /// Keeps the window page of a page for one more sequence; gives it one if it has none.
    pub(in crate::session) fn cover(&mut self, page: PageId) {
        self.attach(page).expect("the window pages were counted");
        let Page { n_covering, .. } = &mut self.pages[page.index()];
        self.n_covered += usize::from(*n_covering == 0);
        *n_covering += 1;
    }

    /// The window of a sequence has left a page behind.
    pub(in crate::session) fn leave(&mut self, page: PageId) {
        let Page { n_covering, window_page } = &mut self.pages[page.index()];
        *n_covering -= 1;
        if *n_covering == 0 {
            self.n_covered -= 1;
            self.clock += 1;
            let window_page = window_page.expect("it was covered");
            self.owners[window_page.index()].left_since = self.clock;
        }
    }

    /// Whether a window page holds nothing.
    pub(in crate::session) fn has_empty(&self) -> bool {
        self.owners.iter().any(|owner| owner.page.is_none())
    }

    /// The window page of a page, which is given one if it has none: one that holds nothing, or that of the page that
    /// was left behind first. Nothing where all are covered.
    pub(in crate::session) fn attach(&mut self, page: PageId) -> Option<WindowPageId> {
        if let Some(own) = self.of(page) {
            return Some(own);
        }
        let is_free = |owner: &Owner| owner.page.is_none_or(|page| self.pages[page.index()].n_covering == 0);
        let free = self.owners.iter().enumerate().filter(|(_, owner)| is_free(owner));
        let (index, _) = free.min_by_key(|(_, owner)| (owner.page.is_some(), owner.left_since))?;
        if let Some(old) = self.owners[index].page.replace(page) {
            self.pages[old.index()].window_page = None;
        }
        self.pages[page.index()].window_page = Some(WindowPageId::from_index(index));
        self.of(page)
    }

    /// Takes the window page of a page that gets another content.
    pub(in crate::session) fn detach(&mut self, page: PageId) {
        if let Some(old) = self.pages[page.index()].window_page.take() {
            self.owners[old.index()].page = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fusebox_compiler::foundation::random::Random;

    use super::*;

    #[test]
    fn a_window_covers_the_rows_that_the_next_token_sees_and_a_page_before_them() {
        let windows = Windows::new(8, 4, 10);
        // The token of slot 25 sees slots 16 to 25.
        assert_eq!([0, 9, 24, 25, 28, 29].map(|slot| windows.first_covered(slot, 4)), [0, 0, 2, 3, 3, 4]);
    }

    /// Against a list of who covers what.
    #[test]
    fn what_is_covered_keeps_its_window_page_and_no_other_page_has_it() {
        const N_PAGES: usize = 12;
        let mut random = Random::new(3);
        let mut windows = Windows::new(N_PAGES, 5, 1);
        let mut covered: Vec<(PageId, WindowPageId)> = Vec::new();
        for _ in 0..20_000 {
            let page = PageId::from_index(random.below(N_PAGES));
            let is_covered = covered.iter().any(|(own, _)| *own == page);
            match random.below(4) {
                0 if is_covered || windows.n_free() > 0 => {
                    windows.cover(page);
                    covered.push((page, windows.of(page).unwrap()));
                }
                1 if !covered.is_empty() => {
                    let (page, _) = covered.swap_remove(random.below(covered.len()));
                    windows.leave(page);
                    assert!(windows.of(page).is_some(), "what was left behind has its rows still");
                }
                2 if !is_covered => {
                    windows.detach(page);
                    assert_eq!(windows.of(page), None);
                }
                3 => assert_eq!(windows.attach(page).is_some(), windows.of(page).is_some()),
                _ => {}
            }
            for (page, own) in &covered {
                assert_eq!(windows.of(*page), Some(*own));
            }
            let distinct: BTreeSet<PageId> = covered.iter().map(|(page, _)| *page).collect();
            assert_eq!(windows.n_free(), 5 - distinct.len());
            let held = (0..N_PAGES).filter_map(|page| windows.of(PageId::from_index(page)));
            let held: Vec<WindowPageId> = held.collect();
            assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len(), "a window page has one owner");
        }
    }

    #[test]
    fn of_what_was_left_behind_the_first_goes_first() {
        let mut windows = Windows::new(5, 3, 1);
        let page = PageId::from_index;
        for index in 0..3 {
            windows.cover(page(index));
        }
        for index in [1, 0, 2] {
            windows.leave(page(index));
        }
        windows.cover(page(3));
        assert_eq!([0, 1, 2].map(|index| windows.of(page(index)).is_some()), [true, false, true]);
        windows.cover(page(0));
        windows.cover(page(4));
        assert_eq!((windows.of(page(2)), windows.n_free()), (None, 0));
        assert_eq!(windows.attach(page(2)), None);
    }
}
