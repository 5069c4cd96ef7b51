//! Lists the tasks that are routed to an expert (stream compaction).
//!
//! In: a part regrouped by expert, and an expert. Out: a tile with the numbers of its tasks, in order, and their count.
//! Each thread scans a run of tasks and counts those of the expert; a prefix sum over the threads gives the position of
//! its first. So the order does not depend on timing.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::grouped_gemm::ExpertGroup;
use crate::codegen::gpu::writer::{Writes, constant};

impl Emitter<'_> {
    /// Lists the tasks of the current expert; all threads go through it.
    pub(super) fn list_tasks_of_expert(&mut self, group: &ExpertGroup) {
        let (threads, counts) = (constant(i64::from(THREADS)), constant(group.max_tasks));
        let lens: Vec<Variable> = group.routing.iter().map(|var| self.count(*var)).collect();
        let n = self.product(&lens);
        let rounded = self.writer.add(n, constant(i64::from(THREADS) - 1));
        let share = self.writer.div(rounded, threads);
        let first = self.writer.mul(self.thread, share);
        let end = self.writer.add(first, share);
        let is_short = self.writer.below(n, end);
        let end = self.writer.select(is_short, n, end);
        let own = self.writer.mutable(constant(0));
        self.each_task_of_expert(group, (first, end), &lens, |emitter, _| {
            let more = emitter.writer.add(own.value(), constant(1));
            emitter.writer.set(&own, more);
        });
        let place = self.writer.add(counts, self.thread);
        self.store_tile(group.task_list, place, own.value());
        self.barrier();
        let [before, all] = [0, 0].map(|none| self.writer.mutable(constant(none)));
        self.counted(constant(0), threads, constant(1), |emitter, other| {
            let place = emitter.writer.add(counts, other);
            let found = emitter.load_word_of_tile(group.task_list, place, 0);
            let found = emitter.writer.unsigned(found);
            let is_before = emitter.writer.below(other, emitter.thread);
            let of_earlier = emitter.writer.select(is_before, found, constant(0));
            for (sum, more) in [(&before, of_earlier), (&all, found)] {
                let more = emitter.writer.add(sum.value(), more);
                emitter.writer.set(sum, more);
            }
        });
        self.each_task_of_expert(group, (first, end), &lens, |emitter, number| {
            emitter.store_tile(group.task_list, before.value(), number);
            let next = emitter.writer.add(before.value(), constant(1));
            emitter.writer.set(&before, next);
        });
        self.barrier();
        let all = self.writer.copied(&all);
        self.ends.insert(group.block, all);
    }

    /// Runs `act` for those of a thread's tasks that are routed to the expert.
    fn each_task_of_expert(
        &mut self,
        group: &ExpertGroup,
        (first, end): (Variable, Variable),
        lens: &[Variable],
        act: impl FnOnce(&mut Self, Variable),
    ) {
        let expert = self.vars[&group.expert];
        self.counted(first, end, constant(1), |emitter, number| {
            emitter.bind(&group.routing, lens, number);
            let routed = emitter.index(&group.expert_index);
            let is_own = emitter.equals(routed, expert);
            emitter.when(is_own, |emitter| act(emitter, number));
        });
    }
}
