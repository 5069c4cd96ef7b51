//! Activations that are quantised once for all tasks of a kernel, before the first.
//!
//! In: a kernel that says which these are. Out: for each parameter and layout, where in a shared buffer they are
//! stored. Whoever runs the kernel quantises them with all threads, [`COLUMNS`] columns at a time, before the first
//! task.

use fusebox_simd::{ActivationLayout, activation_bytes};

use crate::codegen::cpu::product::{Quantised, quantised};
use crate::codegen::cpu::{ALIGNMENT, Cpu};
use crate::kernel::product::activations::COLUMNS;
use crate::kernel::{Kernel, ParamId, Part, Place};
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
    for part in &kernel.parts {
        for quantised in quantised(cpu, kernel, part) {
            let Some(param) = param_ahead(part, &quantised) else { continue };
            if of(&all, part, &quantised).is_some() {
                continue;
            }
            let (k, layout) = (quantised.columns.k, quantised.layout);
            let offset = all.last().map_or(0, |last| last.end);
            let shape = &kernel.params[param].shape;
            let most = shape.max_len() / k;
            let n_bytes = activation_bytes(layout, most, k).next_multiple_of(ALIGNMENT);
            all.push(Ahead { param, k, layout, len: shape.len(), offset, end: offset + n_bytes });
        }
    }
    all
}

/// The parameter that holds activations, where they are quantised ahead.
fn param_ahead(part: &Part, quantised: &Quantised) -> Option<ParamId> {
    let own = &part.activations[quantised.id];
    match own.from {
        Place::Param(param) if own.is_ahead => Some(param),
        Place::Param(_) | Place::Tile(_) => None,
    }
}

/// Where activations of a part are, if they are quantised ahead.
pub(crate) fn of<'a>(all: &'a [Ahead], part: &Part, quantised: &Quantised) -> Option<&'a Ahead> {
    let param = param_ahead(part, quantised)?;
    let wanted = (param, quantised.columns.k, quantised.layout);
    all.iter().find(|own| (own.param, own.k, own.layout) == wanted)
}

/// Bytes of the shared buffer.
pub(crate) fn ahead_bytes(all: &[Ahead]) -> usize {
    all.last().map_or(0, |last| last.end)
}
