//! The pages of the KV cache: who uses each, and what it holds.
//!
//! In: how many pages there are. Out: pages to write to, pages that several sequences share, and full pages found again
//! by their tokens (prefix caching). Only numbers are kept here: the rows lie in the states of the device.
//!
//! ```text
//!  free ──take──▶ used by n sequences ──give back──▶ n = 0, tokens known:   idle ──find──▶ used again
//!    ▲                                                n = 0, else:           free
//!    └───────────────────── take, the longest idle first ────────────────────┘
//! ```
//!
//! Nothing here allocates after [`Pool::new`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use fusebox_compiler::define_id;
use fusebox_compiler::foundation::entity::Id;

define_id!(
    /// A page of the KV cache.
    PageId,
    "page"
);

/// What a full page holds: a hash of its tokens and of all tokens before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Prefix(u64, u64);

/// The pages of a KV cache.
pub(super) struct Pool {
    page_rows: usize,
    pages: Vec<Page>,
    free: Vec<PageId>,
    n_idle: usize,
    /// The tokens of every page whose content is known, one page after another.
    tokens: Vec<u32>,
    by_prefix: HashMap<Prefix, PageId>,
    hashers: [RandomState; 2],
    /// Counts the pages that became idle.
    clock: u64,
}

/// One page.
#[derive(Clone, Copy, Default)]
struct Page {
    /// How many sequences use it.
    n_users: u32,
    /// What it holds and what was before, where it is full and this is known.
    content: Option<(Prefix, Prefix)>,
    /// When it became idle.
    idle_since: u64,
}

impl Pool {
    /// `n_pages` free pages.
    pub(super) fn new(page_rows: usize, n_pages: usize) -> Self {
        Self {
            page_rows,
            pages: vec![Page::default(); n_pages],
            // The first page is taken first: memory is touched from its start.
            free: (0..n_pages).rev().map(PageId::from_index).collect(),
            n_idle: 0,
            tokens: vec![0; n_pages * page_rows],
            by_prefix: HashMap::with_capacity(2 * n_pages),
            hashers: [RandomState::new(), RandomState::new()],
            clock: 0,
        }
    }

    /// How many pages can be taken.
    pub(super) fn n_free(&self) -> usize {
        self.free.len() + self.n_idle
    }

    /// Takes a page that nobody uses, one without known content first; none where all are used.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop().or_else(|| self.longest_idle())?;
        self.forget(page);
        self.pages[page.index()].n_users = 1;
        Some(page)
    }

    fn longest_idle(&mut self) -> Option<PageId> {
        let is_idle = |(_, page): &(usize, &Page)| page.n_users == 0 && page.content.is_some();
        let idle = self.pages.iter().enumerate().filter(is_idle);
        let (index, _) = idle.min_by_key(|(_, page)| page.idle_since)?;
        self.n_idle -= 1;
        Some(PageId::from_index(index))
    }

    /// How many sequences use a page.
    pub(super) fn n_users(&self, page: PageId) -> u32 {
        self.pages[page.index()].n_users
    }

    /// Lets one more sequence use a page.
    pub(super) fn share(&mut self, page: PageId) {
        let Page { n_users, .. } = &mut self.pages[page.index()];
        self.n_idle -= usize::from(*n_users == 0);
        *n_users += 1;
    }

    /// Gives a page back that a sequence used.
    pub(super) fn give_back(&mut self, page: PageId) {
        let Page { n_users, content, idle_since } = &mut self.pages[page.index()];
        *n_users -= 1;
        if *n_users > 0 {
            return;
        }
        if content.is_some() {
            self.clock += 1;
            *idle_since = self.clock;
            self.n_idle += 1;
        } else {
            self.free.push(page);
        }
    }

    /// What is known before the first token of a sequence; sequences of different salts share no pages.
    pub(super) fn empty(&self, salt: u64) -> Prefix {
        let [a, b] = &self.hashers;
        Prefix(a.hash_one(salt), b.hash_one(salt))
    }

    /// What a page of these tokens holds, given what was before.
    fn prefix(&self, before: Prefix, tokens: &[u32]) -> Prefix {
        let [a, b] = &self.hashers;
        Prefix(a.hash_one((before, tokens)), b.hash_one((before, tokens)))
    }

    /// Records that a page is full and holds these tokens; says what is known after them.
    pub(super) fn fill(&mut self, page: PageId, before: Prefix, tokens: &[u32]) -> Prefix {
        let prefix = self.prefix(before, tokens);
        // Of two pages with one content the first is found.
        if let std::collections::hash_map::Entry::Vacant(e) = self.by_prefix.entry(prefix) {
            e.insert(page);
            self.pages[page.index()].content = Some((before, prefix));
            self.tokens[page.index() * self.page_rows..][..tokens.len()].copy_from_slice(tokens);
        }
        prefix
    }

    /// The page that holds these tokens after what was before, and what is known after them.
    pub(super) fn find(&self, before: Prefix, tokens: &[u32]) -> Option<(PageId, Prefix)> {
        let prefix = self.prefix(before, tokens);
        let page = *self.by_prefix.get(&prefix)?;
        let own = &self.tokens[page.index() * self.page_rows..][..self.page_rows];
        let is_same = own == tokens && self.pages[page.index()].content == Some((before, prefix));
        is_same.then_some((page, prefix))
    }

    /// Forgets what a page holds, because it is written to.
    pub(super) fn forget(&mut self, page: PageId) {
        if let Some((_, prefix)) = self.pages[page.index()].content.take() {
            self.by_prefix.remove(&prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use fusebox_compiler::foundation::random::Random;

    use super::*;

    #[test]
    fn full_pages_are_found_by_all_tokens_up_to_their_end() {
        let mut pool = Pool::new(2, 4);
        let start = pool.empty(0);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        let one = pool.fill(a, start, &[1, 2]);
        pool.fill(b, one, &[3, 4]);
        assert_eq!(pool.find(start, &[1, 2]), Some((a, one)));
        assert_eq!(pool.find(one, &[3, 4]).map(|(page, _)| page), Some(b));
        assert_eq!(pool.find(start, &[3, 4]), None);
        assert_eq!(pool.find(pool.empty(1), &[1, 2]), None);
        pool.give_back(a);
        pool.give_back(b);
        assert_eq!((pool.n_free(), pool.free.len()), (4, 2));
        pool.share(b);
        assert_eq!((pool.n_free(), pool.n_users(b)), (3, 1));
        // Free pages go first, then the page that was idle longest.
        for _ in 0..3 {
            pool.take().unwrap();
        }
        assert_eq!((pool.take(), pool.find(start, &[1, 2])), (None, None));
    }

    /// Against a list of who uses what.
    #[test]
    fn no_page_has_two_owners_and_none_is_lost() {
        let mut random = Random::new(7);
        let mut pool = Pool::new(1, 8);
        let mut users: Vec<Vec<(PageId, Prefix)>> = vec![Vec::new(); 4];
        for _ in 0..20_000 {
            let user = random.below(4);
            let before = users[user].last().map_or(pool.empty(0), |(_, prefix)| *prefix);
            match random.below(4) {
                0 => {
                    let token = [random.below(3) as u32];
                    if let Some(found) = pool.find(before, &token) {
                        pool.share(found.0);
                        users[user].push(found);
                    } else if let Some(page) = pool.take() {
                        let taken = users.iter().flatten().all(|(own, _)| *own != page);
                        assert!(taken, "{page} is used already");
                        let prefix = pool.fill(page, before, &token);
                        users[user].push((page, prefix));
                    }
                }
                1 => {
                    if let Some((page, _)) = users[user].pop() {
                        pool.give_back(page);
                    }
                }
                2 => {
                    let other = random.below(4);
                    if other != user {
                        let shared = users[other].clone();
                        for (page, _) in &shared {
                            pool.share(*page);
                        }
                        let old = std::mem::replace(&mut users[user], shared);
                        for (page, _) in &old {
                            pool.give_back(*page);
                        }
                    }
                }
                _ => {
                    for (page, _) in std::mem::take(&mut users[user]) {
                        pool.give_back(page);
                    }
                }
            }
            for page in (0..8).map(PageId::from_index) {
                let n_users = users.iter().flatten().filter(|(own, _)| *own == page).count();
                assert_eq!(pool.n_users(page) as usize, n_users);
            }
            let used: std::collections::BTreeSet<PageId> =
                users.iter().flatten().map(|(page, _)| *page).collect();
            assert_eq!(pool.n_free(), 8 - used.len());
        }
    }
}
