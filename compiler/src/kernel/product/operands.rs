//! Operands of MMAs: how the rows of their tiles lie in shared memory, and which tiles can be operands.
//!
//! In: the products of tiles of a part. Out: an [`OperandLayout`] for each tile that they multiply. Rows are padded by
//! a few words, so that the lanes of a warp read 32 different banks:
//!
//! ```text
//!             lanes of one load               padding   bank of row r, word w
//!  plain      8 rows × 4 words                   4      (r · (row + 4) + w) % 32
//!  transposed 4 rows × 8 words                   8      (r · (row + 8) + w) % 32
//! ```
//!
//! A tile of operands holds rounded elements, so only MMAs and sums of its elements may read it.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::op::Fold;
use crate::kernel::product::MmaType;
use crate::kernel::product::tiles::{Operand, TileProduct};
use crate::kernel::vector_loads::fill_vector_loads;
use crate::kernel::walk::{nests, tiles_read};
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, TileId};

/// How the rows of an MMA operand lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperandLayout {
    /// Elements from one row to the next.
    pub(crate) row: i64,
    /// Words of padding after each row.
    pub(crate) padding: i64,
    /// Elements a word: one (TF32), or two (bf16).
    pub(crate) per_word: i64,
}

impl OperandLayout {
    fn of(operand: &Operand, mma: MmaType) -> Self {
        let per_word = match mma {
            MmaType::Tf32 => 1,
            MmaType::Bf16 => 2,
        };
        Self { row: operand.row, padding: row_padding(operand.is_transposed), per_word }
    }

    /// Words from one row to the next.
    pub(crate) fn stride(self) -> i64 {
        self.row / self.per_word + self.padding
    }

    /// Words of a tile of `len` elements.
    pub(crate) fn padded_len(self, len: i64) -> i64 {
        len / self.row * self.stride()
    }
}

/// The layouts of the tiles that products multiply.
pub(crate) fn operand_layouts(products: &[TileProduct]) -> BTreeMap<TileId, OperandLayout> {
    let operands =
        products.iter().flat_map(|product| product.operands().map(|operand| (operand, product.mma)));
    operands.map(|(operand, mma)| (operand.tile, OperandLayout::of(operand, mma))).collect()
}

/// The tiles that cannot be what the products of a part say: their layouts differ, something else than MMAs and sums
/// reads them, or they hold bf16 pairs and are also summed, or stored one element at a time.
pub(crate) fn unfit_operands(kernel: &Kernel, part: &Part) -> BTreeSet<TileId> {
    let mut layouts = BTreeMap::new();
    // Tiles that are no operands, and those whose elements take a word each.
    let (mut others, mut single) = (BTreeSet::new(), BTreeSet::new());
    for nest in nests(&part.body) {
        if let Some(product) = TileProduct::of(kernel, part, nest) {
            others.insert(product.sum.tile);
            for operand in product.operands() {
                let own = OperandLayout::of(operand, product.mma);
                if *layouts.entry(operand.tile).or_insert(own) != own {
                    others.insert(operand.tile);
                }
            }
            continue;
        }
        for tile in tiles_read(nest) {
            if is_summed(nest, tile) { &mut single } else { &mut others }.insert(tile);
        }
        if let Place::Tile(tile) = nest.target
            && fill_vector_loads(kernel, part, nest).is_none()
        {
            single.insert(tile);
        }
    }
    let is_unfit = |tile: &TileId, layout: OperandLayout| {
        others.contains(tile) || (layout.per_word == 2 && single.contains(tile))
    };
    layouts.into_iter().filter(|(tile, layout)| is_unfit(tile, *layout)).map(|(tile, _)| tile).collect()
}

/// Words of padding after a row of an operand: see the table above.
fn row_padding(is_transposed: bool) -> i64 {
    if is_transposed { 8 } else { 4 }
}

/// Whether a nest only sums the elements of a tile: the rounded ones will do for that.
fn is_summed(nest: &Nest, tile: TileId) -> bool {
    let is_load = |id: ExprId| matches!(nest.exprs[id], Expr::Load { from, .. } if from == Place::Tile(tile));
    let n_loads = nest.exprs.iter().filter(|(id, _)| is_load(*id)).count();
    nest.fold.as_ref().is_some_and(|fold| fold.fold == Fold::Sum) && is_load(nest.value) && n_loads == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_rows_have_no_bank_conflicts() {
        let banks = |layout: OperandLayout, rows: i64, words: i64| {
            let row = layout.row / layout.per_word;
            let place = |word: i64| word / row * layout.stride() + word % row;
            assert_eq!(layout.padded_len(8 * layout.row), place(8 * row - 1) + 1 + layout.padding);
            let all = (0..rows).flat_map(|number| (0..words).map(move |i| number * row + i));
            all.map(|word| place(word) % 32).collect::<BTreeSet<i64>>().len()
        };
        // What a warp loads at once: eight rows and four words of each, or transposed, four rows and eight words.
        assert_eq!(banks(OperandLayout { row: 64, padding: row_padding(false), per_word: 1 }, 8, 4), 32);
        assert_eq!(banks(OperandLayout { row: 64, padding: row_padding(true), per_word: 1 }, 4, 8), 32);
        assert_eq!(banks(OperandLayout { row: 64, padding: row_padding(false), per_word: 2 }, 8, 4), 32);
    }
}
