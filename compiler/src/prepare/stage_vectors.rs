//! Shared-memory staging of the vector of a GEMV.
//!
//! In: a kernel. Out: a kernel that computes the same, but copies a vector that several rows of a weight meet to a tile
//! first. Each thread takes 16 or 32 consecutive elements of a row and of the vector: from global memory the vector's
//! loads would be strided, from an interleaved tile they have no bank conflicts.

use std::collections::BTreeMap;

use crate::foundation::entity::List;
use crate::kernel::index::{Index, element_of};
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, Stmt, Tile, VarId};
use crate::options::Options;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::sym::Sym;

/// The kernel, with the vectors of its products in shared memory, as far as that suffices.
pub(super) fn stage_vectors(kernel: &Kernel, options: &Options) -> Kernel {
    let mut new = kernel.clone();
    for part in &mut new.parts {
        stage(kernel, part, options.target.capabilities.shared_bytes);
    }
    new
}

fn stage(kernel: &Kernel, part: &mut Part, shared_bytes: usize) {
    let used: usize = part.tiles.values().map(|tile| 4 * tile.dims.iter().product::<usize>()).sum();
    // Other workgroups of the SM need shared memory as well.
    let mut room = (shared_bytes * 2 / 3).saturating_sub(used);
    let mut found: BTreeMap<(Place, Vec<Index>), Place> = BTreeMap::new();
    let mut body = Vec::new();
    for mut stmt in std::mem::take(&mut part.body) {
        if let Stmt::Nest(nest) = &mut stmt {
            for id in shared_vectors(kernel, part, nest) {
                let Expr::Load { from, at } = nest.exprs[id].clone() else { continue };
                let Some((along, len)) = tile_layout(part, nest) else { continue };
                let tile = match found.get(&(from, at.clone())) {
                    Some(tile) => *tile,
                    None if 4 * len <= room => {
                        room -= 4 * len;
                        let tile = Place::Tile(part.tiles.push(Tile { dtype: DType::F32, dims: vec![len] }));
                        found.insert((from, at.clone()), tile);
                        body.push(Stmt::Nest(load_nest(nest, (tile, &along), Expr::Load { from, at })));
                        tile
                    }
                    None => continue,
                };
                nest.exprs[id] = Expr::Load { from: tile, at: vec![along] };
            }
        }
        body.push(stmt);
    }
    part.body = body;
}

/// The loads of a nest that are the same for all of its rows, where it multiplies them with a weight's.
fn shared_vectors(kernel: &Kernel, part: &Part, nest: &Nest) -> Vec<ExprId> {
    let Some(folding) = &nest.fold else { return Vec::new() };
    let uses = |at: &[Index], vars: &[VarId]| at.iter().any(|at| at.uses_var(|var| vars.contains(&var)));
    let loads: Vec<_> = nest.reads().filter(|(_, _, at)| uses(at, &folding.loops)).collect();
    let is_row = |format: Format, at: &[Index]| format != Format::F32 && uses(at, &nest.loops);
    let n_rows: i64 = nest.loops.iter().map(|var| part.n_values(*var, &Sym::most)).product();
    if n_rows < 2 || !loads.iter().any(|(_, param, at)| is_row(kernel.params[*param].format, at)) {
        return Vec::new();
    }
    let is_vector =
        |param, at: &[Index]| kernel.params[param].format == Format::F32 && !uses(at, &nest.loops);
    loads.into_iter().filter(|(_, param, at)| is_vector(*param, at)).map(|(id, ..)| id).collect()
}

/// The index of a folded element in a tile of all of them, and their number.
fn tile_layout(part: &Part, nest: &Nest) -> Option<(Index, usize)> {
    let loops = &nest.fold.as_ref()?.loops;
    let len = |var: &VarId| part.vars[*var].range.whole_len().and_then(Sym::as_const);
    let lens = loops.iter().map(len).collect::<Option<Vec<i64>>>()?;
    let at: Vec<Index> = loops.iter().map(|var| Index::var(*var)).collect();
    Some((element_of(&lens, &at), lens.iter().product::<i64>() as usize))
}

/// The nest that copies the folded elements to a tile.
fn load_nest(nest: &Nest, (target, along): (Place, &Index), load: Expr) -> Nest {
    let loops = nest.folds().to_vec();
    let mut exprs: List<ExprId, Expr> = List::default();
    let value = exprs.push(load);
    Nest { target, at: vec![along.clone()], loops, fold: None, exprs, value, product: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::target::CUDA_SM90;

    /// Two products of rows with the same vector.
    const KERNEL: &str = r#"kernel "matvec gate up" matrix-vector
  read @0 x : f32[g:2, e:64]
  read @1 gate : q8_0[r:8, g:2, e:64]
  read @2 up : q8_0[r:8, g:2, e:64]
  write @3 y : f32[r:8]
part
  tile tile0 : f32[8]
  var r0 in 0..8
  var g1 in 0..2
  var e2 in 0..64
  var r3 in 0..8
  grid
  for r0
    tile0[r0] = sum g1, e2 of mul(@0[g1, e2], @1[r0, g1, e2])
  for r3
    @3[r3] = sum g1, e2 of mul(@0[g1, e2], @2[r3, g1, e2]) from tile0[r3]
"#;

    /// The sizes of the tiles that are added, and the number of nests.
    fn added(text: &str) -> (Vec<Vec<usize>>, usize) {
        let kernel = parse(text).unwrap();
        let before = kernel.parts[0].tiles.len();
        let part = &stage_vectors(&kernel, &Options::for_target(CUDA_SM90)).parts[0];
        let tiles = part.tiles.values().skip(before).map(|tile| tile.dims.clone());
        (tiles.collect(), part.body.len())
    }

    #[test]
    fn rows_that_meet_the_same_vector_share_a_tile_of_it() {
        assert_eq!(added(KERNEL), (vec![vec![128]], 3));
    }

    #[test]
    fn what_differs_from_row_to_row_or_meets_one_row_is_read_where_it_is() {
        let own = KERNEL.replace("x : f32[g:2, ", "x : f32[r:8, g:2, ").replace("@0[g1", "@0[r0, g1");
        let own = own.replacen("@0[r0, g1, e2], @2", "@0[r3, g1, e2], @2", 1);
        let one_row = KERNEL.replace("r:8", "r:1").replace("f32[8]", "f32[1]").replace("0..8", "0..1");
        let plain = KERNEL.replace("q8_0", "f32");
        let large = KERNEL.replace(":64]", ":16384]").replace("0..64", "0..16384");
        for text in [own, one_row, plain, large] {
            assert_eq!(added(&text), (Vec::new(), 2), "{text}");
        }
    }
}
