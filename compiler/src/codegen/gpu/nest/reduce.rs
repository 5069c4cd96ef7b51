//! Reductions across threads.
//!
//! In: a number of each thread; groups are consecutive threads, a power of two of them. Out: the number of each group,
//! for its first thread. Within a subgroup (warp) they are butterfly shuffles; subgroups exchange through shared memory
//! and halve in number each step. All threads of the workgroup go through every step.

use cubecl_core::ir::{ElemType, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{Writes, constant};
use crate::graph::op::Fold;
use crate::target::THREADS;

impl Emitter<'_> {
    /// Reduces a number of each of `group` threads.
    pub(crate) fn reduce(&mut self, fold: Fold, value: Variable, group: u32) -> Variable {
        let subgroup_size = self.dialect.subgroup_size.min(group);
        let mut value = value;
        let mut mask = subgroup_size / 2;
        while mask > 0 {
            let other = self.writer.shuffle_xor(value, mask);
            value = self.fold(fold, value, other);
            mask /= 2;
        }
        if subgroup_size == group {
            value
        } else {
            self.reduce_in_shared_memory(fold, value, subgroup_size, group / subgroup_size)
        }
    }

    /// The same through shared memory, where each subgroup has one number and a group is `n` subgroups.
    fn reduce_in_shared_memory(
        &mut self,
        fold: Fold,
        value: Variable,
        subgroup_size: u32,
        n: u32,
    ) -> Variable {
        let elem = value.elem_type();
        let n_warps = THREADS / subgroup_size;
        let size = constant(i64::from(subgroup_size));
        let (own, lane) = (self.writer.div(self.thread, size), self.writer.rem(self.thread, size));
        if subgroup_size == 1 {
            self.exchange(own, value);
        } else {
            let is_first = self.equals(lane, constant(0));
            self.when(is_first, |emitter| emitter.exchange(own, value));
        }
        self.writer.barrier(false);
        let mut left = n;
        while left > 1 {
            left /= 2;
            // A group's numbers stay adjacent, so the first of each is where it was.
            let [all, half] = [n, left].map(|number| constant(i64::from(number)));
            let place = self.writer.rem(self.thread, all);
            let folds = self.writer.below(place, half);
            let fold_two = |emitter: &mut Self| {
                let other = emitter.writer.add(emitter.thread, half);
                let [a, b] = [emitter.thread, other].map(|place| emitter.exchanged(elem, place));
                let folded = emitter.fold(fold, a, b);
                emitter.exchange(emitter.thread, folded);
            };
            if subgroup_size == 1 {
                self.when(folds, fold_two);
            } else {
                let is_plane = self.writer.below(self.thread, constant(i64::from(n_warps)));
                self.when(is_plane, |emitter| emitter.when(folds, fold_two));
            }
            self.writer.barrier(false);
        }
        let n = constant(i64::from(n));
        let group = self.writer.div(own, n);
        let first = self.writer.mul(group, n);
        let value = self.exchanged(elem, first);
        // The next reduction reuses the exchange area.
        self.writer.barrier(false);
        value
    }

    /// Puts a number into the exchange area.
    fn exchange(&mut self, place: Variable, value: Variable) {
        let word = self.writer.add(place, constant(self.memory.exchange() as i64));
        let shared = self.memory.shared();
        let value = self.writer.reinterpreted(shared.elem_type(), value);
        self.writer.store(shared, word, value);
    }

    /// A number from the exchange area.
    fn exchanged(&mut self, elem: ElemType, place: Variable) -> Variable {
        let word = self.writer.add(place, constant(self.memory.exchange() as i64));
        let word = self.writer.load(self.memory.shared(), word);
        self.writer.reinterpreted(elem, word)
    }
}
