//! Numbers of several threads, folded to one.
//!
//! In: a number of each thread; groups are of neighbouring threads and a power of two. Out: the number of each group,
//! for its first thread.
//! Where threads can read each other's registers, they do so within a plane. What is left goes through shared memory,
//! where half of the threads fold, then half of those: all threads of the workgroup go through every step.

use cubecl_core::ir::Variable;

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{Writes, constant};
use crate::graph::op::Fold;

impl Emitter<'_> {
    /// Folds a number of each of `group` threads.
    pub(super) fn reduced(&mut self, fold: Fold, value: Variable, group: u32) -> Variable {
        let plane = self.language.plane().min(group);
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
        let n_planes = THREADS / plane;
        let list = self.room.exchange(&mut self.writer, value.elem_type(), n_planes as usize);
        let [size, zero] = [plane, 0].map(|number| constant(i64::from(number)));
        let (own, lane) = (self.writer.div(self.unit, size), self.writer.rem(self.unit, size));
        if plane == 1 {
            self.writer.store(list, own, value);
        } else {
            let is_first = self.equals(lane, zero);
            self.when(is_first, |emitter| emitter.writer.store(list, own, value));
        }
        self.writer.barrier(false);
        let mut left = n;
        while left > 1 {
            left /= 2;
            // Whole groups of numbers stay together, so the first of each is where it was.
            let [n, half] = [n, left].map(|number| constant(i64::from(number)));
            let place = self.writer.rem(self.unit, n);
            let n_planes = constant(i64::from(n_planes));
            let folds = self.writer.below(place, half);
            let is_plane = self.writer.below(self.unit, n_planes);
            self.when(is_plane, |emitter| {
                emitter.when(folds, |emitter| {
                    let other = emitter.writer.add(emitter.unit, half);
                    let [a, b] = [emitter.unit, other].map(|i| emitter.writer.load(list, i));
                    let folded = emitter.fold(fold, a, b);
                    emitter.writer.store(list, emitter.unit, folded);
                });
            });
            self.writer.barrier(false);
        }
        // The first thread of a group reads what its next use of the list overwrites last of all.
        let n = constant(i64::from(n));
        let group = self.writer.div(own, n);
        let first = self.writer.mul(group, n);
        let value = self.writer.load(list, first);
        self.writer.barrier(false);
        value
    }
}
