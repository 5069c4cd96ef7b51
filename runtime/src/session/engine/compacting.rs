//! Compaction: each head of a sequence keeps the rows that its last tokens attend to most (`SnapKV`).
//!
//! In: a sequence, and how many rows it needs. Out: the same sequence with fewer rows, and pages that are free.
//! The last tokens are computed once more by a program that writes nothing and returns how much attention they pay to
//! each row. A head takes the rows with the most, in the order that they have; all heads keep equally many, so that one
//! page table serves them all, and row 7 may be another token in each. Keys were cached after RoPE, so every row stays
//! at its distance. Rows move through host memory, on every device alike.

use std::collections::BTreeMap;

use fusebox_compiler::foundation::entity::Id;

use crate::error::Error;
use crate::session::classes::Form;
use crate::session::engine::step::Start;
use crate::session::engine::{Due, Engine, Feed, Piece, Sequence, SequenceId};
use crate::session::evict::Needed;
use crate::session::loaded::Attention;
use crate::session::names::refused;
use crate::session::pool::PageId;

/// Rows over which attention is averaged: the neighbours of a row that matters are kept as well.
const N_NEIGHBOURS: usize = 5;

/// For each block, the rows that each of its heads keeps.
type Chosen = BTreeMap<String, Vec<Vec<usize>>>;

impl Engine {
    /// Refuses a program that does not say for every state of the KV cache which rows are kept.
    pub(super) fn check_choosable(&self, class: usize) -> Result<(), Error> {
        let returned = self.loaded[class].as_ref().expect("it was just loaded").attention();
        for layout in self.page_layouts() {
            let own = returned.iter().find(|own| own.block == layout.block());
            if own.is_none_or(|own| own.n_heads != layout.n_runs) {
                let what =
                    format!("no program returns how much attention each row of `{}` gets", layout.state);
                return Err(refused("eviction", what));
            }
        }
        Ok(())
    }

    /// Compacts the sequences of a step that are due. Those that free pages go before those that take some.
    pub(super) fn compact_due(&mut self, pieces: &[Piece<'_>]) -> Result<(), Error> {
        for takes_some in [false, true] {
            for id in pieces.iter().map(|piece| piece.sequence) {
                let sequence = self.sequence(id)?;
                let Due::Rows(needed) = sequence.due else { continue };
                if (self.n_replaced(sequence, needed) > 0) == takes_some {
                    self.compact(id, needed)?;
                }
            }
        }
        Ok(())
    }

    /// How many pages a compaction takes from the pool: what others use as well is not overwritten.
    pub(super) fn n_replaced(&self, sequence: &Sequence, needed: Needed) -> usize {
        self.n_pages_of(needed).saturating_sub(self.n_own(sequence))
    }

    /// How many pages a compaction frees.
    pub(super) fn n_vacated(&self, sequence: &Sequence, needed: Needed) -> usize {
        self.n_own(sequence).saturating_sub(self.n_pages_of(needed))
    }

    /// The pages of the rows that are needed.
    pub(super) fn n_pages_of(&self, needed: Needed) -> usize {
        needed.n_tokens().div_ceil(self.limits.page_rows)
    }

    fn n_own(&self, sequence: &Sequence) -> usize {
        sequence.pages.iter().filter(|page| self.pool.n_users(**page) == 1).count()
    }

    /// Drops all rows of a sequence but those that are needed.
    fn compact(&mut self, id: SequenceId, needed: Needed) -> Result<(), Error> {
        let chosen = self.choose(id, needed)?;
        let from = self.sequence(id)?.pages.clone();
        let (n, rows) = (self.n_pages_of(needed), self.limits.page_rows);
        // All is read before a page is given back, so that a device that fails loses none.
        let mut packed = Vec::new();
        for layout in self.page_layouts() {
            let heads = &chosen[layout.block()];
            let mut old = vec![0; from.len() * layout.bytes];
            for (page, bytes) in from.iter().zip(old.chunks_exact_mut(layout.bytes)) {
                self.device.read_state(&layout.state, page.index() * layout.bytes, bytes)?;
            }
            let mut new = vec![0; n * layout.bytes];
            for (run, kept) in heads.iter().enumerate() {
                for (slot, source) in kept.iter().enumerate() {
                    let [source, slot] =
                        [*source, slot].map(|slot| layout.row(slot / rows, run, slot % rows));
                    new[slot].copy_from_slice(&old[source]);
                }
            }
            packed.push((layout, new));
        }
        let pages = self.vacate(&from, n);
        let to = pages.clone();
        let sequence = self.sequence_mut(id)?;
        sequence.n_evicted += sequence.n_kept() - needed.n_tokens();
        sequence.n_first = needed.first + needed.between;
        (sequence.pages, sequence.due, sequence.output) = (pages, Due::Nothing, None);
        for (layout, new) in packed {
            for (page, bytes) in to.iter().zip(new.chunks_exact(layout.bytes)) {
                self.device.write_state(&layout.state, page.index() * layout.bytes, bytes)?;
            }
        }
        Ok(())
    }

    /// Which rows each head keeps.
    fn choose(&mut self, id: SequenceId, needed: Needed) -> Result<Chosen, Error> {
        let (_, observed) = self.chooser.expect("rows are due where a policy chooses them");
        let sequence = self.sequence(id)?;
        let (len, n_kept) = (sequence.len, sequence.n_kept());
        let tokens = sequence.tokens[len - observed..].to_vec();
        let at = Start { slot: n_kept - observed, position: len - observed };
        let (class, program) =
            self.bind_run(id, Form::Attention, Feed::Tokens(&tokens).rows(), observed, at)?;
        let loaded = self.loaded[class].as_ref().expect("it was just bound");
        self.device.replay(program, &loaded.symbols)?;
        self.weights.check()?;
        let all = loaded.attention().into_iter().enumerate().map(|(number, own)| {
            let Attention { block, n_heads } = own;
            let found: &[f32] = bytemuck::cast_slice(self.device.output(program, number));
            let of = |head: usize| found.iter().skip(head).step_by(n_heads).copied().take(n_kept);
            (block, (0..n_heads).map(|head| kept(&of(head).collect::<Vec<_>>(), needed)).collect())
        });
        Ok(all.collect())
    }

    /// Pages for what is kept: the last ones that are the sequence's own, and new ones where those are too few. The
    /// others are given back, and so the beginning is still found by sequences that begin alike.
    fn vacate(&mut self, pages: &[PageId], n: usize) -> Vec<PageId> {
        let pool = &mut self.pool;
        let mut to = Vec::with_capacity(self.limits.context.div_ceil(self.limits.page_rows));
        for page in pages.iter().rev() {
            if pool.n_users(*page) == 1 && to.len() < n {
                pool.forget(*page);
                to.push(*page);
            } else {
                pool.give_back(*page);
            }
        }
        to.resize_with(n, || pool.take().expect("the pages were counted"));
        to
    }
}

/// The slots that a head keeps, given how much attention each gets: the first, the last, and those between whose
/// neighbourhood gets the most.
fn kept(attention: &[f32], needed: Needed) -> Vec<usize> {
    let Needed { first, between, last } = needed;
    let past = attention.len() - last;
    // Neighbours that are not there count as zero.
    let mean = |slot: usize| {
        let near = slot.saturating_sub(N_NEIGHBOURS / 2)..(slot + N_NEIGHBOURS / 2 + 1).min(past);
        attention[near].iter().sum::<f32>() / N_NEIGHBOURS as f32
    };
    let mut ranked: Vec<(f32, usize)> = (first..past).map(|slot| (mean(slot), slot)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut slots: Vec<usize> = ranked.into_iter().take(between).map(|(_, slot)| slot).collect();
    slots.sort_unstable();
    (0..first).chain(slots).chain(past..attention.len()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_both_ends_and_what_gets_the_most_attention() {
        let mut attention = [0.0; 20];
        (attention[9], attention[0], attention[19]) = (1.0, 0.1, 9.0);
        let needed = Needed { first: 1, between: 5, last: 3 };
        assert_eq!(kept(&attention, needed), [0, 7, 8, 9, 10, 11, 17, 18, 19]);
        // Where all is equal the earlier ones stay; at an end fewer neighbours count.
        let even = Needed { first: 2, between: 3, last: 2 };
        assert_eq!(kept(&[1.0; 12], even), [0, 1, 2, 3, 4, 10, 11]);
    }
}
