//! Elements in the order in which a place stores them.
//!
//! In: a place of a kernel and the index of each axis. Out: one index of the element, with its format.

use crate::kernel::index::{Index, Vars, element_of};
use crate::kernel::{Kernel, Part, Place, Range, VarId};
use crate::tensor::quant::Format;

/// An element of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) place: Place,
    pub(crate) format: Format,
    pub(crate) n_elements: i64,
    /// Its index in storage order.
    pub(crate) element: Index,
}

impl Stored {
    /// The element of a place at these indices.
    pub(crate) fn of(kernel: &Kernel, part: &Part, place: Place, at: &[Index]) -> Self {
        let format = match place {
            Place::Param(id) => kernel.params[id].format,
            Place::Tile(id) => Format::of(part.tiles[id].dtype),
        };
        let dims = kernel.dims(part, place);
        Self { place, format, n_elements: dims.iter().product(), element: element_of(&dims, at) }
    }

    /// Elements from one value of a loop to the next, where that is always the same.
    pub(crate) fn step_of(&self, var: VarId) -> Option<i64> {
        self.element.step_of(var)
    }
}

/// An index at the start of some loops.
pub(crate) fn at_start(index: &Index, loops: &[VarId], vars: &Vars) -> Index {
    let start = |var: VarId| match &vars[var].range {
        _ if !loops.contains(&var) => Index::var(var),
        Range::Within { of } => Index::var(*of),
        Range::Whole { .. } | Range::Blocks(_) => Index::default(),
    };
    index.replaced(&start, vars)
}
