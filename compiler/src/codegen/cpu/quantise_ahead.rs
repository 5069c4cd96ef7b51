//! Activations that are quantised once for all tasks of a kernel, before the first.
//!
//! In: a kernel. Out: which parameters hold such activations, as contiguous rows, and where in a shared buffer they are
//! stored when quantised. Whoever runs the kernel quantises them with all threads, [`VECTORS`] rows at a time, before
//! the first task. Single rows, and layouts that interleave rows, are quantised by the tasks that need them.

use crate::codegen::cpu::Cpu;
use crate::codegen::cpu::emit::ALIGNMENT;
use crate::codegen::cpu::hoist::rounded;
use crate::codegen::cpu::micro::{ActivationLayout, activation_bytes};
use crate::codegen::cpu::product::Activations;
use crate::kernel::{Kernel, ParamId, Place};
use crate::tensor::sym::Sym;

/// Vectors that are rounded at a time, and that lie together.
pub(super) const VECTORS: usize = 16;

/// A parameter that is rounded.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    pub(super) param: ParamId,
    pub(super) k: usize,
    pub(super) layout: ActivationLayout,
    /// How many elements there are.
    len: Sym,
    /// Where they start in the room, and where others may.
    pub(super) offset: usize,
    end: usize,
}

impl Ahead {
    /// How many vectors there are.
    pub(super) fn n_vectors(&self, of: &impl Fn(&Sym) -> i64) -> usize {
        of(&self.len).max(0) as usize / self.k
    }

    /// How many tasks round them.
    pub(super) fn n_tasks(&self, of: &impl Fn(&Sym) -> i64) -> i64 {
        self.n_vectors(of).div_ceil(VECTORS) as i64
    }
}

/// What is rounded ahead of a kernel's tasks.
pub(super) fn ahead(cpu: &Cpu, kernel: &Kernel) -> Vec<Ahead> {
    let mut all: Vec<Ahead> = Vec::new();
    for slot in kernel.parts.iter().flat_map(|part| rounded(cpu, kernel, part)) {
        let Place::Param(param) = slot.x.place else { continue };
        if !slot.is_ahead || of(&all, &slot).is_some() {
            continue;
        }
        let Activations { k, layout, .. } = slot;
        let offset = all.last().map_or(0, |last| last.end);
        let shape = &kernel.params[param].shape;
        let most = shape.max_len() / k;
        let n_bytes = activation_bytes(layout, most, k).next_multiple_of(ALIGNMENT);
        all.push(Ahead { param, k, layout, len: shape.len(), offset, end: offset + n_bytes });
    }
    all
}

/// What holds the vectors of a product.
pub(super) fn of<'a>(all: &'a [Ahead], rounded: &Activations) -> Option<&'a Ahead> {
    let is_it = |own: &&Ahead| {
        let here = (Place::Param(own.param), own.k, own.layout);
        here == (rounded.x.place, rounded.k, rounded.layout)
    };
    all.iter().find(is_it).filter(|_| rounded.is_ahead)
}

/// Bytes of the room that all of them share.
pub(super) fn room_bytes(all: &[Ahead]) -> usize {
    all.last().map_or(0, |last| last.end)
}
