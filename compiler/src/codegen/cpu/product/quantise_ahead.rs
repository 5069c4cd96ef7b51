//! Activations that are quantised once for all tasks of a kernel, before the first.
//!
//! In: a kernel. Out: which parameters hold such activations, as contiguous rows, and where in a shared buffer they are
//! stored when quantised. Whoever runs the kernel quantises them with all threads, [`COLUMNS`] rows at a time, before
//! the first task. Single rows, and layouts that interleave rows, are quantised by the tasks that need them.

use fusebox_simd::{ActivationLayout, activation_bytes};

use crate::codegen::cpu::hoist::quantised;
use crate::codegen::cpu::product::{Activations, COLUMNS};
use crate::codegen::cpu::{ALIGNMENT, Cpu};
use crate::kernel::{Kernel, ParamId, Place};
use crate::tensor::sym::Sym;

/// A parameter that is quantised.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    pub(crate) param: ParamId,
    pub(crate) k: usize,
    pub(crate) layout: ActivationLayout,
    /// The number of elements.
    len: Sym,
    /// Where they start in the shared buffer, and the first free byte after them.
    pub(crate) offset: usize,
    end: usize,
}

impl Ahead {
    /// The number of columns.
    pub(crate) fn n_columns(&self, of: &impl Fn(&Sym) -> i64) -> usize {
        of(&self.len).max(0) as usize / self.k
    }

    /// The number of tasks that quantise them.
    pub(crate) fn n_tasks(&self, of: &impl Fn(&Sym) -> i64) -> i64 {
        self.n_columns(of).div_ceil(COLUMNS) as i64
    }
}

/// The activations that are quantised ahead of a kernel's tasks.
pub(crate) fn ahead(cpu: &Cpu, kernel: &Kernel) -> Vec<Ahead> {
    let mut all: Vec<Ahead> = Vec::new();
    for slot in kernel.parts.iter().flat_map(|part| quantised(cpu, kernel, part)) {
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

/// The parameter that holds the activations of a product.
pub(crate) fn of<'a>(all: &'a [Ahead], quantised: &Activations) -> Option<&'a Ahead> {
    let is_it = |own: &&Ahead| {
        let here = (Place::Param(own.param), own.k, own.layout);
        here == (quantised.x.place, quantised.k, quantised.layout)
    };
    all.iter().find(is_it).filter(|_| quantised.is_ahead)
}

/// Bytes of the shared buffer.
pub(crate) fn ahead_bytes(all: &[Ahead]) -> usize {
    all.last().map_or(0, |last| last.end)
}
