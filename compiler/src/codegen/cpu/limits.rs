//! Refuses kernels whose indices could overflow.
//!
//! In: a verified kernel. Out: nothing, or the limit that it passes.
//! `verify` proves bounds of exact integers, and code computes with 64 bits: where the sizes of all terms of a sum stay
//! small, the two agree, and the proof holds for the code. The interpreter saturates instead.
//! No kernel of a real model comes near.

use crate::error::Error;
use crate::kernel::index::{Atom, Index, Vars};
use crate::kernel::walk::nests;
use crate::kernel::{Blocks, Kernel, Nest, Part, Range};

/// The largest sum of the sizes of an index's terms, and of anything else that is counted.
const LARGEST: i64 = 1 << 60;

/// Whether every index, range and grid can be computed with 64 bits.
pub(super) fn check(kernel: &Kernel) -> Result<(), Error> {
    if kernel.parts.iter().any(|part| part.routed.is_some()) {
        let what = format!("kernel {:?}, whose tasks list routed rows,", kernel.name);
        return Err(Error::Unsupported { what, target: "a processor".to_owned() });
    }
    let largest = kernel.parts.iter().map(of_part).max().unwrap_or(0);
    if largest <= LARGEST {
        return Ok(());
    }
    let what = format!("a number of the indices of kernel {:?}", kernel.name);
    Err(Error::Limit { what, found: largest.unsigned_abs(), limit: LARGEST.unsigned_abs() })
}

fn of_part(part: &Part) -> i64 {
    let ranges = part.vars.values().map(|var| of_range(&var.range, &part.vars)).max().unwrap_or(0);
    let n_values = |range: &Range| match range {
        Range::Whole { len } => len.most().max(1),
        Range::Blocks(Blocks { end, .. }) => end.most().max(1),
        Range::Within { .. } => 1,
    };
    let grid = part.grid.iter().map(|var| n_values(&part.vars[*var].range));
    let n_tasks = grid.fold(1, i64::saturating_mul);
    ranges.max(n_tasks).max(of_indices(nests(&part.body).flat_map(Nest::indices), &part.vars))
}

fn of_range(range: &Range, vars: &Vars) -> i64 {
    match range {
        Range::Whole { len } => of_index(&Index::sym(len), vars),
        Range::Within { of } => of_range(&vars[*of].range, vars),
        Range::Blocks(Blocks { start, step, block, end }) => {
            let parts = [of_index(start, vars), *step, *block, of_index(&Index::sym(end), vars)];
            parts.into_iter().fold(0, i64::saturating_add)
        }
    }
}

/// The largest size of some indices.
fn of_indices<'i>(indices: impl IntoIterator<Item = &'i Index>, vars: &Vars) -> i64 {
    indices.into_iter().map(|index| of_index(index, vars)).max().unwrap_or(0)
}

/// The sum of the largest sizes of an index's terms, or that of an index inside it, if larger.
fn of_index(index: &Index, vars: &Vars) -> i64 {
    let mut sum = index.offset().saturating_abs();
    let mut inside = 0;
    for (atom, factor) in index.terms() {
        let (low, high) = Index::atom(atom.clone()).bounds(vars);
        let size = low.saturating_abs().max(high.saturating_abs());
        // The bounds of an index may be those of its loops' ends, taken apart.
        let size = if let Atom::Var(var) = atom { size.max(of_range(&vars[*var].range, vars)) } else { size };
        sum = sum.saturating_add(size.saturating_mul(factor.saturating_abs()));
        inside = inside.max(match atom {
            Atom::Var(_) | Atom::Symbols(_) => 0,
            Atom::Div(inner, by) | Atom::Rem(inner, by) | Atom::Min(inner, by) | Atom::Max(inner, by) => {
                of_index(inner, vars).max(by.saturating_abs())
            }
            Atom::Lookup { at, .. } => of_indices(at, vars),
        });
    }
    sum.max(inside)
}
