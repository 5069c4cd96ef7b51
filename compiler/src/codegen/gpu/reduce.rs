//! Numbers of several threads, folded to one.
//!
//! In: a number of each thread; groups are of neighbouring threads and a power of two. Out: the number of each group,
//! for its first thread.
//! Where threads can read each other's registers, they do so within a plane. What is left goes through shared memory,
//! where half of the threads fold, then half of those: all threads of the workgroup go through every step.

use cubecl_core::ir::{ElemType, Variable};

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{Writes, constant};
use crate::graph::op::Fold;

impl Emitter<'_> {
    /// Folds a number of each of `group` threads.
    pub(super) fn reduced(&mut self, fold: Fold, value: Variable, group: u32) -> Variable {
        let plane = self.dialect.plane.min(group);
        let mut value = value;
        let mut mask = plane / 2;
        while mask > 0 {
            let other = self.writer.lane(value, mask);
            value = self.fold(fold, value, other);
            mask /= 2;
        }
        if plane == group { value } else { self.reduced_in_memory(fold, value, plane, group / plane) }
    }

    /// The same through shared memory: every plane has one number, a group has those of `n` planes.
    fn reduced_in_memory(&mut self, fold: Fold, value: Variable, plane: u32, n: u32) -> Variable {
        let elem = value.elem_type();
        let n_planes = THREADS / plane;
        let size = constant(i64::from(plane));
        let (own, lane) = (self.writer.div(self.unit, size), self.writer.rem(self.unit, size));
        if plane == 1 {
            self.exchange(own, value);
        } else {
            let is_first = self.equals(lane, constant(0));
            self.when(is_first, |emitter| emitter.exchange(own, value));
        }
        self.writer.barrier(false);
        let mut left = n;
        while left > 1 {
            left /= 2;
            // Whole groups of numbers stay together, so the first of each is where it was.
            let [all, half] = [n, left].map(|number| constant(i64::from(number)));
            let place = self.writer.rem(self.unit, all);
            let folds = self.writer.below(place, half);
            let fold_two = |emitter: &mut Self| {
                let other = emitter.writer.add(emitter.unit, half);
                let [a, b] = [emitter.unit, other].map(|place| emitter.exchanged(elem, place));
                let folded = emitter.fold(fold, a, b);
                emitter.exchange(emitter.unit, folded);
            };
            if plane == 1 {
                self.when(folds, fold_two);
            } else {
                let is_plane = self.writer.below(self.unit, constant(i64::from(n_planes)));
                self.when(is_plane, |emitter| emitter.when(folds, fold_two));
            }
            self.writer.barrier(false);
        }
        let n = constant(i64::from(n));
        let group = self.writer.div(own, n);
        let first = self.writer.mul(group, n);
        let value = self.exchanged(elem, first);
        // What comes next may exchange other numbers.
        self.writer.barrier(false);
        value
    }

    /// Leaves a number for other threads.
    fn exchange(&mut self, place: Variable, value: Variable) {
        let word = self.writer.add(place, constant(self.room.exchange() as i64));
        let shared = self.room.shared();
        let value = self.writer.reinterpreted(shared.elem_type(), value);
        self.writer.store(shared, word, value);
    }

    /// The number that a thread has left.
    fn exchanged(&mut self, elem: ElemType, place: Variable) -> Variable {
        let word = self.writer.add(place, constant(self.room.exchange() as i64));
        let word = self.writer.load(self.room.shared(), word);
        self.writer.reinterpreted(elem, word)
    }
}
