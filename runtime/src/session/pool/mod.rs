//! The pages of the KV cache: who uses each, and what it holds.
//!
//! In: how many pages there are. Out: pages to write to, pages that several sequences share, and pages found again by
//! their tokens (prefix caching). Only numbers are kept here: the rows lie in the states of the device.
//!
//! ```text
//!  free ──take──▶ used by n sequences ──give back──▶ n = 0, tokens known:   idle ──find──▶ used again
//!    ▲                                                n = 0, else:           free
//!    └───────────────────── take, the longest idle first ────────────────────┘
//! ```
//!
//! A full page is found by a hash of its tokens and of all tokens before them. A page that is known is also in a list
//! of those that follow the same tokens, where the one with the longest common beginning is looked for: so the last
//! page of a sequence is found that is not full, and the first rows of a page that goes on differently.
//!
//! Nothing here allocates after [`Pool::new`].

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use fusebox_compiler::define_id;
use fusebox_compiler::foundation::entity::Id;

use crate::session::kin::Kin;

pub(super) mod windows;

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
    /// The first of the known pages that follow the same tokens; each page has the next.
    followers: HashMap<Prefix, PageId>,
    hashers: [RandomState; 2],
    /// Counts the pages that became idle.
    clock: u64,
}

/// One page.
#[derive(Clone, Copy, Default)]
struct Page {
    /// How many sequences use it.
    n_users: u32,
    /// What it holds, where this is known.
    content: Option<Content>,
    /// The next page that follows the same tokens.
    next: Option<PageId>,
    /// When it became idle.
    idle_since: u64,
}

/// What a page holds whose tokens are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    before: Prefix,
    n_tokens: usize,
    /// What is known after it, where it is full.
    after: Option<Prefix>,
}

/// A page that is known, with what precedes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known<'p> {
    pub(super) page: PageId,
    pub(super) before: Prefix,
    /// What is known after it, where it is full.
    pub(super) after: Option<Prefix>,
    pub(super) tokens: &'p [u32],
    /// What orders pages by use: the larger, the later it was used.
    pub(super) used: u64,
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
            followers: HashMap::with_capacity(2 * n_pages),
            hashers: [RandomState::new(), RandomState::new()],
            clock: 0,
        }
    }

    /// How many pages can be taken.
    pub(super) fn n_free(&self) -> usize {
        self.free.len() + self.n_idle
    }

    /// How many of those hold known tokens.
    pub(super) fn n_idle(&self) -> usize {
        self.n_idle
    }

    /// Takes a page that nobody uses, one without known content first; none where all are used.
    pub(super) fn take(&mut self) -> Option<PageId> {
        if self.free.is_empty() {
            let idle = self.longest_idle()?;
            self.free.push(idle);
        }
        self.take_unknown()
    }

    /// Takes a page that nobody uses and that holds nothing known; none where there is none.
    pub(super) fn take_unknown(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.pages[page.index()].n_users = 1;
        Some(page)
    }

    fn longest_idle(&mut self) -> Option<PageId> {
        let is_idle = |(_, page): &(usize, &Page)| page.n_users == 0 && page.content.is_some();
        let idle = self.pages.iter().enumerate().filter(is_idle);
        let (index, _) = idle.min_by_key(|(_, page)| page.idle_since)?;
        let page = PageId::from_index(index);
        self.forget(page);
        self.n_idle -= 1;
        Some(page)
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
        let Page { n_users, content, idle_since, .. } = &mut self.pages[page.index()];
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

    /// What is known before the first token of a sequence; sequences of different kin share no pages.
    pub(super) fn empty(&self, kin: &Kin) -> Prefix {
        let [a, b] = &self.hashers;
        Prefix(a.hash_one(kin), b.hash_one(kin))
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
        if !self.by_prefix.contains_key(&prefix) {
            self.link(page, before, tokens, Some(prefix));
            self.by_prefix.insert(prefix, page);
        }
        prefix
    }

    /// Records what a page holds that is not full and that nobody will write to, unless another page holds it as well.
    pub(super) fn note(&mut self, page: PageId, before: Prefix, tokens: &[u32]) {
        let is_known = self.pages[page.index()].content.is_some();
        if tokens.is_empty()
            || is_known
            || self.common(before, tokens).is_some_and(|(_, n)| n == tokens.len())
        {
            return;
        }
        // Of a sequence that has grown the shorter form is of no more use.
        let covered = self.of_followers(before).find(|other| {
            let Page { n_users, content, .. } = self.pages[other.index()];
            n_users == 0
                && content.is_some_and(|content| content.after.is_none())
                && tokens.starts_with(self.tokens_of(*other))
        });
        if let Some(covered) = covered {
            self.forget(covered);
            self.n_idle -= 1;
            self.free.push(covered);
        }
        self.link(page, before, tokens, None);
    }

    fn link(&mut self, page: PageId, before: Prefix, tokens: &[u32], after: Option<Prefix>) {
        self.forget(page);
        self.tokens[page.index() * self.page_rows..][..tokens.len()].copy_from_slice(tokens);
        let next = self.followers.insert(before, page);
        let own = &mut self.pages[page.index()];
        (own.content, own.next) = (Some(Content { before, n_tokens: tokens.len(), after }), next);
    }

    /// The known pages that follow the same tokens.
    fn of_followers(&self, before: Prefix) -> impl Iterator<Item = PageId> {
        let first = self.followers.get(&before).copied();
        std::iter::successors(first, |page| self.pages[page.index()].next)
    }

    fn tokens_of(&self, page: PageId) -> &[u32] {
        let n = self.pages[page.index()].content.map_or(0, |content| content.n_tokens);
        &self.tokens[page.index() * self.page_rows..][..n]
    }

    /// The page that holds these tokens after what was before, and what is known after them.
    pub(super) fn find(&self, before: Prefix, tokens: &[u32]) -> Option<(PageId, Prefix)> {
        let prefix = self.prefix(before, tokens);
        let page = *self.by_prefix.get(&prefix)?;
        let is_after = |content: Content| content.before == before && content.after == Some(prefix);
        let is_same =
            self.tokens_of(page) == tokens && self.pages[page.index()].content.is_some_and(is_after);
        is_same.then_some((page, prefix))
    }

    /// The page that holds most of the first of these tokens after what was before, and how many.
    pub(super) fn common(&self, before: Prefix, tokens: &[u32]) -> Option<(PageId, usize)> {
        let n_same =
            |page: PageId| self.tokens_of(page).iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let all = self
            .of_followers(before)
            .filter(|page| self.pages[page.index()].content.is_some_and(|content| content.before == before));
        all.map(|page| (page, n_same(page))).filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    /// Whether nobody uses a page, and it holds exactly so many tokens: who begins with them may go on in it.
    pub(super) fn can_go_on(&self, page: PageId, n_tokens: usize) -> bool {
        let Page { n_users, content, .. } = self.pages[page.index()];
        n_users == 0 && content.is_some_and(|content| content.n_tokens == n_tokens && content.after.is_none())
    }

    /// All pages whose content is known.
    pub(super) fn known(&self) -> impl Iterator<Item = Known<'_>> {
        let known = |(index, own): (usize, &Page)| {
            let page = PageId::from_index(index);
            let Content { before, after, .. } = own.content?;
            let used = if own.n_users > 0 { u64::MAX } else { own.idle_since };
            Some(Known { page, before, after, tokens: self.tokens_of(page), used })
        };
        self.pages.iter().enumerate().filter_map(known)
    }

    /// Forgets what a page holds that somebody uses, because it is written to.
    pub(super) fn forget(&mut self, page: PageId) {
        let Page { content, next, .. } = &mut self.pages[page.index()];
        let (Some(Content { before, after, .. }), next) = (content.take(), next.take()) else { return };
        if let Some(after) = after {
            self.by_prefix.remove(&after);
        }
        if self.followers.get(&before) == Some(&page) {
            match next {
                Some(next) => self.followers.insert(before, next),
                None => self.followers.remove(&before),
            };
            return;
        }
        let previous = self.of_followers(before).find(|other| self.pages[other.index()].next == Some(page));
        if let Some(previous) = previous {
            self.pages[previous.index()].next = next;
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
        let start = pool.empty(&Kin::default());
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        let one = pool.fill(a, start, &[1, 2]);
        pool.fill(b, one, &[3, 4]);
        assert_eq!(pool.find(start, &[1, 2]), Some((a, one)));
        assert_eq!(pool.find(one, &[3, 4]).map(|(page, _)| page), Some(b));
        assert_eq!(pool.find(start, &[3, 4]), None);
        assert_eq!(pool.find(pool.empty(&1.into()), &[1, 2]), None);
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

    #[test]
    fn a_page_that_is_not_full_is_found_by_its_longest_common_beginning() {
        let mut pool = Pool::new(4, 4);
        let start = pool.empty(&Kin::default());
        let pages = [(); 3].map(|()| pool.take().unwrap());
        pool.note(pages[0], start, &[1, 2]);
        pool.fill(pages[1], start, &[1, 2, 4, 5]);
        pool.note(pages[2], start, &[1, 3, 3]);
        assert_eq!(pool.common(start, &[1, 2, 4, 6]), Some((pages[1], 3)));
        assert_eq!(pool.common(start, &[1, 3, 3, 9]), Some((pages[2], 3)));
        assert_eq!((pool.common(start, &[2]), pool.common(pool.empty(&1.into()), &[1])), (None, None));
        // Of a sequence that has grown the shorter form goes, and what is held elsewhere is not noted again.
        for page in pages {
            pool.give_back(page);
        }
        assert!(pool.can_go_on(pages[2], 3) && !pool.can_go_on(pages[2], 2) && !pool.can_go_on(pages[1], 4));
        let grown = pool.take().unwrap();
        pool.note(grown, start, &[1, 3, 3, 8]);
        pool.give_back(grown);
        assert_eq!((pool.n_idle(), pool.n_free()), (3, 4));
        assert_eq!(pool.common(start, &[1, 3, 3, 9]), Some((grown, 3)));
        let again = pool.take().unwrap();
        pool.note(again, start, &[1, 3]);
        pool.give_back(again);
        assert_eq!((pool.n_idle(), pool.n_free()), (3, 4));
        // A page that is taken is known no more, wherever it stood in the list.
        for n_left in [2, 1, 0] {
            while pool.n_idle() > n_left {
                pool.take().unwrap();
            }
            assert_eq!(pool.of_followers(start).count(), n_left);
        }
    }

    /// Against a list of who uses what.
    #[test]
    fn no_page_has_two_owners_and_none_is_lost() {
        let mut random = Random::new(7);
        let mut pool = Pool::new(1, 8);
        let mut users: Vec<Vec<(PageId, Prefix)>> = vec![Vec::new(); 4];
        for _ in 0..20_000 {
            let user = random.below(4);
            let before = users[user].last().map_or(pool.empty(&Kin::default()), |(_, prefix)| *prefix);
            match random.below(5) {
                // Its last page is forgotten, as if it were written again, or noted.
                4 => {
                    if let Some((page, _)) = users[user].last().filter(|(page, _)| pool.n_users(*page) == 1) {
                        pool.forget(*page);
                        pool.note(*page, pool.empty(&(random.below(3) as u64).into()), &[9]);
                    }
                }
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
            // Each page with known content is in one list, and each entry of a list has known content.
            let n_known = pool.pages.iter().filter(|page| page.content.is_some()).count();
            let listed = pool.followers.keys().map(|before| pool.of_followers(*before).count());
            assert_eq!((listed.sum::<usize>(), pool.known().count()), (n_known, n_known));
        }
    }
}
