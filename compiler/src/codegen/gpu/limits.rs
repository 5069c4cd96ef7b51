//! Refuses kernels whose indices do not fit 32 bits.
//!
//! In: a verified kernel. Out: nothing, or the limit that it exceeds. Indices are computed modulo 2³² and come out
//! right where each index, each dividend and each buffer's length lies below 2³¹. Buffers of real models do; a larger
//! one is refused, never wrong.

use crate::error::Error;
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::walk::nests;
use crate::kernel::{Blocks, Kernel, Nest, Part, Range};

const LIMIT: i64 = i32::MAX as i64;

/// Whether every index, range, grid and buffer fits.
pub(super) fn check(kernel: &Kernel) -> Result<(), Error> {
    let parts = kernel.parts.iter().map(of_part).fold(0, i64::saturating_add);
    let params = kernel.params.values().map(|param| param.shape.max_len() as i64);
    let largest = params.fold(parts, i64::max);
    if largest <= LIMIT {
        return Ok(());
    }
    let what = format!("a number of the indices of kernel {:?}", kernel.name);
    Err(Error::Limit { what, found: largest.unsigned_abs(), limit: LIMIT.unsigned_abs() })
}

fn of_part(part: &Part) -> i64 {
    let most = |range: &Range| match range {
        Range::Whole { len } => len.most().max(1),
        Range::Blocks(Blocks { end, step, block, .. }) => end.most().max(1).saturating_add(step + block),
        Range::Within { .. } => 1,
    };
    let ranges = part.vars.values().map(|var| most(&var.range)).max().unwrap_or(0);
    let starts = part.vars.values().map(|var| match &var.range {
        Range::Blocks(Blocks { start, .. }) => of_index(start, &part.vars),
        Range::Whole { .. } | Range::Within { .. } => 0,
    });
    let n_tasks = part.grid.iter().map(|var| most(&part.vars[*var].range)).fold(1, i64::saturating_mul);
    starts
        .fold(ranges.max(n_tasks), i64::max)
        .max(of_indices(nests(&part.body).flat_map(Nest::indices), &part.vars))
        .max(of_indices(part.routed.iter().map(|routed| &routed.by), &part.vars))
}

/// The largest magnitude of some indices.
fn of_indices<'i>(indices: impl IntoIterator<Item = &'i Index>, vars: &Vars) -> i64 {
    indices.into_iter().map(|index| of_index(index, vars)).max().unwrap_or(0)
}

/// The largest magnitude of an index, or of one inside it.
fn of_index(index: &Index, vars: &Vars) -> i64 {
    let (low, high) = index.bounds(vars);
    let mut largest = low.saturating_abs().max(high.saturating_abs());
    for (atom, _) in index.terms() {
        largest = largest.max(match atom {
            Atom::Var(_) => 0,
            Atom::Symbols(symbols) => {
                symbols.iter().map(|symbol| symbol.max.saturating_abs()).fold(1, i64::saturating_mul)
            }
            Atom::Div(inner, by) | Atom::Rem(inner, by) | Atom::Min(inner, by) | Atom::Max(inner, by) => {
                of_index(inner, vars).max(by.saturating_abs())
            }
            Atom::Lookup { at, .. } => of_indices(at, vars),
        });
    }
    largest
}
