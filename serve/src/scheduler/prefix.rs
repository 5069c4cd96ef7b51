//! What of a prompt need not be computed.
//!
//! In: a request that may run. Out: a sequence that begins with as much of its prompt as is known.
//! Where sequences share pages, what those that ended held is found in the engine by its tokens; nothing is kept here
//! but the logits after the last prompts, so that the same prompt needs no replay before its first token. Where they
//! share none (a recurrent model), sequences that ended are kept while nobody needs their places, and one is taken over
//! by a request that goes on from it.
//! A prompt that a running sequence is just computing is waited for, so that it is computed once.

use std::cmp::Reverse;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use fusebox::Kin;

use crate::engine::{Capacity, Engine, Known, SequenceId};
use crate::scheduler::{Entry, Job, Scheduler};

/// The shortest beginning that is taken over: a shorter one is computed again, so that what a short prompt is answered
/// does not depend on what was asked before.
const MIN_SHARED: usize = 32;
/// The most sequences, or rows of logits, that are kept.
const MAX_KEPT: usize = 64;

/// What is left of sequences that ended.
#[derive(Default)]
pub(super) struct Prefixes {
    /// Sequences, where none share pages; the least recently used is first.
    kept: Vec<Kept>,
    /// The logits after the last prompts, where sequences share pages.
    rows: Vec<Row>,
    salts: RandomState,
}

/// A sequence that others may go on from.
struct Kept {
    sequence: SequenceId,
    tokens: Vec<u32>,
    kin: Kin,
    /// The length of the prompt it was made for, and the logits after it: the same prompt needs no replay, and begins
    /// with the same token however it was cut into pieces.
    row: Option<(usize, Arc<Vec<f32>>)>,
}

/// The logits after a prompt.
struct Row {
    prompt: Vec<u32>,
    kin: Kin,
    logits: Arc<Vec<f32>>,
}

/// Where an entry of the queue begins.
pub(super) struct Placed {
    pub(super) sequence: SequenceId,
    /// How many of its tokens are computed.
    pub(super) n: usize,
    /// The logits after all of them.
    pub(super) row: Option<Arc<Vec<f32>>>,
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Prefixes {
    /// What keeps sequences of other salts and adapters apart.
    pub(super) fn kin_of(&self, job: &Job) -> Kin {
        let salt = job.salt.as_ref().map_or(0, |text| self.salts.hash_one(text));
        Kin::new(salt, &job.scales)
    }

    /// The engine is gone, and all sequences with it.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
        self.rows.clear();
    }

    /// Closes the sequence of an entry that ended, and leaves what others may begin with.
    pub(super) fn keep(&mut self, engine: &mut dyn Engine, entry: Entry) {
        let Entry { job, mut tokens, sequence: Some(sequence), n_done, row, kin, .. } = entry else {
            return;
        };
        let capacity = engine.capacity();
        tokens.truncate(n_done);
        if capacity.shares || tokens.is_empty() || !job.is_cached {
            engine.release(sequence, job.is_cached);
            if let Some(logits) = row {
                self.rows.retain(|row| row.kin != kin || row.prompt != job.prompt);
                self.rows.push(Row { prompt: job.prompt, kin, logits });
                let n_over = self.rows.len().saturating_sub(capacity.sequences.min(MAX_KEPT));
                self.rows.drain(..n_over);
            }
            return;
        }
        // A sequence that is the beginning of this one is of no more use.
        let is_covered = |kept: &Kept| kept.kin == kin && tokens.starts_with(&kept.tokens);
        for kept in self.kept.extract_if(.., |kept| is_covered(kept)) {
            engine.release(kept.sequence, true);
        }
        let row = row.map(|row| (job.prompt.len(), row));
        self.kept.push(Kept { sequence, tokens, kin, row });
        while self.kept.len() > MAX_KEPT {
            self.forget(engine);
        }
    }

    /// Gives up the kept sequence that was used least recently.
    pub(super) fn forget(&mut self, engine: &mut dyn Engine) -> bool {
        if self.kept.is_empty() {
            return false;
        }
        engine.release(self.kept.remove(0).sequence, true);
        true
    }

    /// The logits after the prompt of an entry.
    fn row(&self, entry: &Entry) -> Option<Arc<Vec<f32>>> {
        let same = self
            .rows
            .iter()
            .filter(|_| entry.may_share())
            .find(|row| row.kin == entry.kin && row.prompt == entry.tokens);
        same.map(|row| Arc::clone(&row.logits))
    }

    /// The kept sequence with the longest common beginning, and its length.
    fn best(&self, entry: &Entry) -> Option<(usize, usize)> {
        let most = entry.tokens.len() - 1;
        let same = self.kept.iter().enumerate().filter(|(_, kept)| kept.kin == entry.kin);
        let same = same.map(|(at, kept)| (at, common(&kept.tokens, &entry.tokens).min(most)));
        same.filter(|(_, n)| *n >= MIN_SHARED).max_by_key(|(at, n)| (*n, Reverse(*at)))
    }

    /// A kept sequence that an entry goes on from.
    fn take_over(&mut self, engine: &mut dyn Engine, entry: &Entry) -> Option<Placed> {
        let is_same = |kept: &Kept| {
            kept.kin == entry.kin
                && kept.row.as_ref().is_some_and(|(n, _)| *n == entry.tokens.len())
                && kept.tokens.starts_with(&entry.tokens)
        };
        let (at, n) = match self.kept.iter().position(is_same) {
            Some(at) => (at, entry.tokens.len()),
            None => self.best(entry)?,
        };
        let Kept { sequence, row, .. } = self.kept.remove(at);
        engine.truncate(sequence, n);
        let row = row.filter(|_| n == entry.tokens.len()).map(|(_, row)| row);
        Some(Placed { sequence, n, row })
    }
}

impl Entry {
    /// Whether others' tokens may be used in place of computing its own.
    fn may_share(&self) -> bool {
        self.job.prompt_scores.is_none() && self.job.is_cached
    }

    /// What is known of its first `n` tokens, if it is worth taking over.
    fn known(&self, engine: &dyn Engine, n: usize) -> Known {
        let known =
            if self.may_share() { engine.known(&self.tokens[..n], &self.kin) } else { Known::default() };
        if known.tokens < MIN_SHARED { Known::default() } else { known }
    }
}

impl Scheduler {
    /// Whether a running sequence is about to have more of an entry's prompt than is known now.
    pub(super) fn is_computed_elsewhere(
        &self,
        engine: &dyn Engine,
        entry: &Entry,
        capacity: &Capacity,
    ) -> bool {
        if !entry.may_share() || !capacity.shares {
            return false;
        }
        let most = entry.tokens.len() - 1;
        let mut n_known = None;
        self.running.iter().any(|other| {
            let n_same = common(&other.tokens, &entry.tokens).min(most);
            other.kin == entry.kin
                && other.job.is_cached
                && other.n_done < n_same
                && (n_same == most && entry.is_choice_beside(other)
                    || n_same >= 2 * capacity.page
                        && n_same
                            >= capacity.page
                                + *n_known.get_or_insert_with(|| entry.known(engine, most).tokens))
        })
    }

    /// A sequence for an entry of the queue; none where there is no room.
    pub(super) fn place(&mut self, engine: &mut dyn Engine, at: usize) -> Option<Placed> {
        let capacity = engine.capacity();
        let entry = &self.waiting[at];
        let needed = (entry.tokens.len().min(capacity.context) + 1).div_ceil(capacity.page);
        // Running sequences grow: each has a page in reserve.
        let reserve = if self.running.is_empty() { 0 } else { self.running.len().max(capacity.pages / 100) };
        if !capacity.shares {
            if entry.may_share()
                && let Some(placed) = self.prefixes.take_over(engine, entry)
            {
                return Some(placed);
            }
            while self.running.len() + self.prefixes.kept.len() >= capacity.sequences {
                if !self.prefixes.forget(engine) {
                    return None;
                }
            }
            let (sequence, _) = engine.open(&[], &entry.kin).ok()?;
            return Some(Placed { sequence, n: 0, row: None });
        }
        if let Some(placed) = self.forked(engine, entry, &capacity) {
            return Some(placed);
        }
        let all = entry.tokens.len();
        // With the logits after a prompt none of it need be computed, else its last token.
        let row = self.prefixes.row(entry);
        let whole = row.as_ref().map(|_| engine.known(&entry.tokens, &entry.kin));
        let (known, n) = match whole.filter(|known| known.tokens == all) {
            Some(known) => (known, all),
            None => (entry.known(engine, all - 1), all - 1),
        };
        let n_new = needed.saturating_sub(known.tokens / capacity.page);
        if n_new + known.idle + reserve > capacity.free && !self.running.is_empty() {
            return None;
        }
        let shared = if known.tokens > 0 { &entry.tokens[..n] } else { &[] };
        let (sequence, n) = engine.open(shared, &entry.kin).ok()?;
        Some(Placed { sequence, n, row: row.filter(|_| n == all) })
    }

    /// A fork of another choice of the same request: then an entry has one token to compute.
    fn forked(&self, engine: &mut dyn Engine, entry: &Entry, capacity: &Capacity) -> Option<Placed> {
        let most = entry.tokens.len() - 1;
        let is_same = |other: &&Entry| {
            entry.is_choice_beside(other)
                && other.job.is_cached
                && other.n_done >= most
                && other.tokens.starts_with(&entry.tokens[..most])
        };
        let other = self.running.iter().filter(|_| entry.may_share()).find(is_same)?;
        let needed = (entry.tokens.len() + 1).div_ceil(capacity.page) - most / capacity.page;
        if needed > capacity.free {
            return None;
        }
        let sequence = engine.fork(other.sequence?, most).ok()?;
        Some(Placed { sequence, n: most, row: None })
    }
}
