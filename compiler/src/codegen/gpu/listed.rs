//! The tasks that pick a matrix, as a list.
//!
//! In: what is to be known of tasks that are done together, and a matrix. Out: a tile with the numbers of those that
//! pick it, in order, and where its blocks end.
//! Each thread goes through tasks that follow each other, and counts those that pick the matrix; what the threads
//! before it have counted says where its own begin in the list. So nothing depends on which thread is faster.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::grouped::Group;
use crate::codegen::gpu::writer::{Writes, constant};

impl Emitter<'_> {
    /// Lists the tasks that pick the matrix; all threads go through it.
    pub(super) fn listed(&mut self, group: &Group) {
        let (threads, behind) = (constant(i64::from(THREADS)), constant(group.most));
        let lens: Vec<Variable> = group.picking.iter().map(|var| self.count(*var)).collect();
        let n = self.product(&lens);
        let rounded = self.writer.add(n, constant(i64::from(THREADS) - 1));
        let share = self.writer.div(rounded, threads);
        let first = self.writer.mul(self.unit, share);
        let end = self.writer.add(first, share);
        let is_short = self.writer.below(n, end);
        let end = self.writer.select(is_short, n, end);
        let own = self.writer.changing(constant(0));
        self.picked(group, (first, end), &lens, |emitter, _| {
            let more = emitter.writer.add(own.value(), constant(1));
            emitter.writer.set(&own, more);
        });
        let place = self.writer.add(behind, self.unit);
        self.store_tile(group.list, place, own.value());
        self.barrier();
        let [before, all] = [0, 0].map(|none| self.writer.changing(constant(none)));
        self.counted(constant(0), threads, constant(1), |emitter, other| {
            let place = emitter.writer.add(behind, other);
            let found = emitter.load_word_of_tile(group.list, place, 0);
            let found = emitter.writer.unsigned(found);
            let is_before = emitter.writer.below(other, emitter.unit);
            let of_earlier = emitter.writer.select(is_before, found, constant(0));
            for (sum, more) in [(&before, of_earlier), (&all, found)] {
                let more = emitter.writer.add(sum.value(), more);
                emitter.writer.set(sum, more);
            }
        });
        self.picked(group, (first, end), &lens, |emitter, number| {
            emitter.store_tile(group.list, before.value(), number);
            let next = emitter.writer.add(before.value(), constant(1));
            emitter.writer.set(&before, next);
        });
        self.barrier();
        let all = self.writer.settled(&all);
        self.ends.insert(group.block, all);
    }

    /// Does something for those of a thread's tasks that pick the matrix.
    fn picked(
        &mut self,
        group: &Group,
        (first, end): (Variable, Variable),
        lens: &[Variable],
        act: impl FnOnce(&mut Self, Variable),
    ) {
        let matrix = self.vars[&group.matrix];
        self.counted(first, end, constant(1), |emitter, number| {
            emitter.bind(&group.picking, lens, number);
            let picked = emitter.index(&group.pick);
            let is_own = emitter.equals(picked, matrix);
            emitter.when(is_own, |emitter| act(emitter, number));
        });
    }
}
