//! Tiles that matrix units multiply.
//!
//! In: a part with its products. Out: the tiles that are factors of them, and how their rows lie.
//! Rows of factors lie some words further apart than they are long: neighbours would else wait for each other, because
//! they want the same bank of memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::codegen::gpu::emit::tiles_read;
use crate::codegen::gpu::product::{Product, product};
use crate::graph::op::Fold;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, TileId};

/// How the rows of a factor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    /// Elements from one row to the next.
    pub(super) row: i64,
    /// Words that lie between.
    pub(super) gap: i64,
}

impl Factor {
    /// Words from one row to the next.
    pub(super) fn stride(self) -> i64 {
        self.row + self.gap
    }

    /// Words of a tile of so many elements.
    pub(super) fn padded_len(self, len: i64) -> i64 {
        len / self.row * self.stride()
    }
}

/// The tiles of a part that are factors of products and that nothing else reads but sums of their elements.
pub(super) fn factors(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, Factor> {
    let (mut found, mut others) = (BTreeMap::new(), BTreeSet::new());
    for nest in nests(&part.body) {
        let product = nest.fold.as_ref().and_then(|fold| product(kernel, part, nest, fold));
        let Some(Product { left, right, sum, .. }) = product else {
            others.extend(tiles_read(nest).into_iter().filter(|tile| !is_summed(nest, *tile)));
            continue;
        };
        for operand in [left, right] {
            let own = Factor { row: operand.row, gap: gap(operand.is_turned) };
            let agreed = found.entry(operand.tile).or_insert(own);
            if *agreed != own {
                others.insert(operand.tile);
            }
        }
        others.insert(sum.tile);
    }
    found.retain(|tile, _| !others.contains(tile));
    found
}

/// Words between the rows of a factor. Neighbours want different banks of memory, of which there are 32: eight rows at
/// four elements of each, or four rows at eight elements of each.
fn gap(is_turned: bool) -> i64 {
    if is_turned { 8 } else { 4 }
}

/// Whether a nest does nothing with a tile but to add up its elements: a sum of factors may be one of rounded factors.
fn is_summed(nest: &Nest, tile: TileId) -> bool {
    let is_load = |id: ExprId| matches!(nest.exprs[id], Expr::Load { from, .. } if from == Place::Tile(tile));
    let n_loads = nest.exprs.iter().filter(|(id, _)| is_load(*id)).count();
    nest.fold.as_ref().is_some_and(|fold| fold.fold == Fold::Sum) && is_load(nest.value) && n_loads == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_factors_keep_apart() {
        let banks = |factor: Factor, rows: i64, elements: i64| {
            let place = |element: i64| element + element / factor.row * factor.gap;
            assert!((1..512).all(|element| place(element) > place(element - 1)));
            assert_eq!(place(511) + 1 + factor.gap, factor.padded_len(512));
            let words = (0..rows).flat_map(|row| (0..elements).map(move |i| row * factor.row + i));
            words.map(|word| place(word) % 32).collect::<BTreeSet<i64>>().len()
        };
        // What a plane loads at once: eight rows and four neighbours of each, or turned, four and eight.
        assert_eq!(banks(Factor { row: 64, gap: gap(false) }, 8, 4), 32);
        assert_eq!(banks(Factor { row: 64, gap: gap(true) }, 4, 8), 32);
    }
}
