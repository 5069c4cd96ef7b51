//! Vector loads: runs of elements that a nest can read 16 bytes (`uint4`) at a time.
//!
//! In: a nest whose innermost loop runs along the elements of the buffers it reads. Out: its loads, one *piece* at a
//! time. A piece is what one vector of the densest format holds:
//!
//! ```text
//!  format          elements a vector   words a piece
//!  f32, i32                4           4
//!  f16, bf16               8           4
//!  q8_0, int8             16           4 quants + scale
//!  q4_*, q5_*, k          32           4 quants + high bits + scales
//! ```

use std::collections::BTreeMap;

use crate::kernel::index::{Atom, Index, element_of};
use crate::kernel::walk::nests;
use crate::kernel::{
    Access, Blocks, Expr, ExprId, Folding, Kernel, Nest, ParamId, Part, Place, Range, TileId, VarId,
};
use crate::tensor::quant::Format;

/// The vector loads of a nest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VectorLoads {
    /// Elements of a piece.
    pub(crate) len: i64,
    /// Pieces of the innermost loop.
    pub(crate) n_pieces: i64,
    /// 32-bit words of a piece in flight.
    pub(crate) n_words: i64,
    /// Loads from buffers, each with the first element of the piece at which the loop's variable is zero.
    pub(crate) loads: BTreeMap<ExprId, (ParamId, Index)>,
    /// The same for tiles.
    pub(crate) tiles: BTreeMap<ExprId, (TileId, Index)>,
}

/// The buffers that a kernel reads as vectors.
pub(crate) fn read_as_vectors(kernel: &Kernel) -> Vec<ParamId> {
    let all = kernel.parts.iter().flat_map(|part| all_vector_loads(kernel, part));
    let mut found: Vec<ParamId> =
        all.flat_map(|vectors| vectors.loads.into_values().map(|(param, _)| param)).collect();
    found.sort();
    found.dedup();
    found
}

/// The tiles that threads read piece by piece, with the piece length where all readers agree.
pub(crate) fn interleaved(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, i64> {
    let mut found: BTreeMap<TileId, Option<i64>> = BTreeMap::new();
    for VectorLoads { len, tiles, .. } in all_vector_loads(kernel, part) {
        for (tile, _) in tiles.into_values() {
            let is_whole = part.tiles[tile].dims.last().is_some_and(|dim| (*dim as i64) % len == 0);
            let own = is_whole.then_some(len);
            let agreed = found.entry(tile).or_insert(own);
            *agreed = agreed.filter(|_| *agreed == own);
        }
    }
    // Pieces of four need no interleaving.
    found.into_iter().filter_map(|(tile, len)| Some((tile, len.filter(|len| *len > 4)?))).collect()
}

/// The vector loads of every nest of a part.
fn all_vector_loads(kernel: &Kernel, part: &Part) -> impl Iterator<Item = VectorLoads> {
    nests(&part.body).filter_map(|nest| match &nest.fold {
        Some(folding) => fold_vector_loads(kernel, part, nest, folding),
        None => fill_vector_loads(kernel, part, nest),
    })
}

/// The vector loads of a fold, if any.
pub(crate) fn fold_vector_loads(
    kernel: &Kernel,
    part: &Part,
    nest: &Nest,
    folding: &Folding,
) -> Option<VectorLoads> {
    let var = *folding.loops.last()?;
    if !part.vars[var].until.is_empty() {
        return None;
    }
    let found = vector_loads_along(kernel, part, nest, (var, part.vars[var].range.whole_len()?.as_const()?))?;
    (found.n_pieces > 1).then_some(found)
}

/// The vector loads of a nest that fills a tile, if any.
pub(crate) fn fill_vector_loads(kernel: &Kernel, part: &Part, nest: &Nest) -> Option<VectorLoads> {
    let var = *nest.loops.last()?;
    let (Place::Tile(_), None) = (nest.target, &nest.fold) else { return None };
    let target = first_of_piece(&kernel.dims(part, nest.target), &nest.at, var)?;
    let found = vector_loads_along(kernel, part, nest, (var, part.fixed_len(var)?))?;
    (are_aligned(part, &target, 4) && found.len % 4 == 0)
        .then_some(VectorLoads { tiles: BTreeMap::new(), ..found })
}

/// The vector loads along a variable with this many values.
fn vector_loads_along(
    kernel: &Kernel,
    part: &Part,
    nest: &Nest,
    (var, n): (VarId, i64),
) -> Option<VectorLoads> {
    let (mut loads, mut tiles) = (BTreeMap::new(), BTreeMap::new());
    let mut len = 1;
    for (id, expr) in nest.exprs.iter() {
        let Expr::Load { from, at } = expr else { continue };
        let Some(first) = first_of_piece(&kernel.dims(part, *from), at, var) else { continue };
        match from {
            Place::Tile(tile) => {
                tiles.insert(id, (*tile, first));
            }
            Place::Param(param) if kernel.params[*param].access == Access::Read => {
                if let Some(natural) = elements_per_vector(kernel.params[*param].format) {
                    loads.insert(id, (*param, first));
                    len = len.max(natural);
                }
            }
            Place::Param(_) => {}
        }
    }
    loads.retain(|_, (_, first)| are_aligned(part, first, len));
    tiles.retain(|_, (_, first)| are_aligned(part, first, len));
    let n_words = loads.values().map(|(param, _)| packed_len(kernel.params[*param].format, len)).sum();
    (!loads.is_empty() && n % len == 0).then_some(VectorLoads {
        len,
        n_pieces: n / len,
        n_words,
        loads,
        tiles,
    })
}

/// Whether an index is always a multiple of a length.
pub(crate) fn are_aligned(part: &Part, index: &Index, len: i64) -> bool {
    let is_block = |atom: &Atom| match atom {
        Atom::Var(var) => match &part.vars[*var].range {
            Range::Blocks(Blocks { start, step, .. }) => start.as_const() == Some(0) && step % len == 0,
            Range::Whole { .. } | Range::Within { .. } => false,
        },
        _ => false,
    };
    let is_whole = |(atom, factor): &(Atom, i64)| factor % len == 0 || is_block(atom);
    index.offset() % len == 0 && index.terms().iter().all(is_whole)
}

/// Elements in 16 bytes of quants.
pub(crate) fn elements_per_vector(format: Format) -> Option<i64> {
    match format {
        Format::F32 | Format::I32 => Some(4),
        Format::F16 | Format::BF16 => Some(8),
        Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::IQ4NL
        | Format::IQ4XS
        | Format::MXFP4 => Some(32),
        Format::Q8_0 => Some(16),
        Format::Int8 { group } => (group % 32 == 0).then_some(16),
        // Their fields have other orders.
        Format::Q2K | Format::Q3K | Format::Q4Pairs => None,
    }
}

/// Words of this many elements with their scales.
fn packed_len(format: Format, len: i64) -> i64 {
    let shared = match format {
        Format::F32 | Format::I32 | Format::F16 | Format::BF16 => 0,
        Format::Q8_0
        | Format::Int8 { .. }
        | Format::Q4_0
        | Format::Q4Pairs
        | Format::IQ4NL
        | Format::MXFP4
        | Format::Q2K
        | Format::Q3K => 1,
        Format::Q4_1 | Format::Q5_0 | Format::IQ4XS => 2,
        Format::Q5_1 | Format::Q4K => 3,
        Format::Q5K | Format::Q6K => 4,
    };
    len * 4 / elements_per_vector(format).unwrap_or(1) + shared
}

/// The element that a load reads where a variable is zero, if the variable's step is one element.
pub(crate) fn first_of_piece(dims: &[i64], at: &[Index], var: VarId) -> Option<Index> {
    let element = element_of(dims, at);
    let first = element.minus(&Index::var(var));
    let is_next = element.terms().contains(&(Atom::Var(var), 1)) && !first.uses_var(|own| own == var);
    is_next.then_some(first)
}
