//! Lists the rows that are routed to an expert (stream compaction).
//!
//! In: a part with routed rows, and an expert. Out: a tile with the numbers of its rows, in order, and their count.
//! Each thread scans a run of rows and counts those of the expert; a prefix sum over the threads gives the position of
//! its first. So the order does not depend on timing. The counts lie behind the list, one for each thread.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{Writes, constant};
use crate::kernel::RoutedRows;
use crate::target::THREADS;

impl Emitter<'_> {
    /// Lists the rows of the current expert; all threads go through it.
    pub(crate) fn list_routed_rows(&mut self, routed: &RoutedRows) {
        let max_rows: usize = self.part.tiles[routed.list].dims.iter().product();
        let (threads, counts) = (constant(i64::from(THREADS)), constant(max_rows as i64));
        let lens: Vec<Variable> = routed.rows.iter().map(|var| self.count(*var)).collect();
        let n = self.product(&lens);
        let rounded = self.writer.add(n, constant(i64::from(THREADS) - 1));
        let share = self.writer.div(rounded, threads);
        let first = self.writer.mul(self.thread, share);
        let end = self.writer.add(first, share);
        let is_short = self.writer.below(n, end);
        let end = self.writer.select(is_short, n, end);
        let own = self.writer.mutable(constant(0));
        self.each_row_of_expert(routed, (first, end), &lens, |emitter, _| {
            let more = emitter.writer.add(own.value(), constant(1));
            emitter.writer.set(&own, more);
        });
        let place = self.writer.add(counts, self.thread);
        self.store_tile(routed.list, place, own.value());
        self.barrier();
        let [before, all] = [0, 0].map(|none| self.writer.mutable(constant(none)));
        self.counted(constant(0), threads, constant(1), |emitter, other| {
            let place = emitter.writer.add(counts, other);
            let found = emitter.load_word_of_tile(routed.list, place, 0);
            let found = emitter.writer.unsigned(found);
            let is_before = emitter.writer.below(other, emitter.thread);
            let of_earlier = emitter.writer.select(is_before, found, constant(0));
            for (sum, more) in [(&before, of_earlier), (&all, found)] {
                let more = emitter.writer.add(sum.value(), more);
                emitter.writer.set(sum, more);
            }
        });
        self.each_row_of_expert(routed, (first, end), &lens, |emitter, number| {
            emitter.store_tile(routed.list, before.value(), number);
            let next = emitter.writer.add(before.value(), constant(1));
            emitter.writer.set(&before, next);
        });
        self.barrier();
        let all = self.writer.copied(&all);
        self.ends.insert(routed.along, all);
    }

    /// Runs `act` for those of a thread's rows that are routed to the expert.
    fn each_row_of_expert(
        &mut self,
        routed: &RoutedRows,
        (first, end): (Variable, Variable),
        lens: &[Variable],
        act: impl FnOnce(&mut Self, Variable),
    ) {
        let expert = self.vars[&routed.expert];
        self.counted(first, end, constant(1), |emitter, number| {
            emitter.bind(&routed.rows, lens, number);
            let own = emitter.index(&routed.by);
            let is_own = emitter.equals(own, expert);
            emitter.when(is_own, |emitter| act(emitter, number));
        });
    }
}
