//! Tiles that are MMA operands: their type, and the padding of their rows.
//!
//! In: a part with its products. Out: an [`OperandLayout`] for each tile that only MMAs (and sums of its elements)
//! read. Rows are padded by a few words, so that the lanes of a warp read 32 different banks:
//!
//! ```text
//!             lanes of one load               padding   bank of row r, word w
//!  plain      8 rows × 4 words                   4      (r · (row + 4) + w) % 32
//!  transposed 4 rows × 8 words                   8      (r · (row + 8) + w) % 32
//! ```
//!
//! Quantised and bf16 weights, and what they are multiplied with, are stored as bf16 pairs: half the words, and twice
//! the K an MMA. Everything else is TF32, one element a word.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::op::Fold;
use crate::kernel::walk::{nests, tiles_read};
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, TileId};
use crate::recognise::tile_product::{Product, tile_product};
use crate::recognise::vector_loads::fill_vector_loads;
use crate::tensor::dtype::DType;

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
    /// Words from one row to the next.
    pub(crate) fn stride(self) -> i64 {
        self.row / self.per_word + self.padding
    }

    /// Words of a tile of `len` elements.
    pub(crate) fn padded_len(self, len: i64) -> i64 {
        len / self.row * self.stride()
    }
}

/// The tiles of a part that are operands of products, and that nothing else reads but sums of their elements.
pub(crate) fn mma_operands(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, OperandLayout> {
    let (mut found, mut others) = (BTreeMap::new(), BTreeSet::new());
    let mut products = Vec::new();
    for nest in nests(&part.body) {
        let product = nest.fold.as_ref().and_then(|fold| tile_product(kernel, part, nest, fold));
        let Some(product) = product else {
            others.extend(tiles_read(nest).into_iter().filter(|tile| !is_summed(nest, *tile)));
            continue;
        };
        for operand in [&product.left, &product.right] {
            let own =
                OperandLayout { row: operand.row, padding: row_padding(operand.is_transposed), per_word: 1 };
            let agreed = found.entry(operand.tile).or_insert(own);
            if *agreed != own {
                others.insert(operand.tile);
            }
        }
        others.insert(product.sum.tile);
        products.push(product);
    }
    found.retain(|tile, _| !others.contains(tile));
    for tile in bf16_operands(kernel, part, &products) {
        found.entry(tile).and_modify(|layout| layout.per_word = 2);
    }
    found
}

/// The operands stored as bf16 pairs: those of products with low-precision weights, where all products of a tile agree
/// and vector loads fill it.
fn bf16_operands(kernel: &Kernel, part: &Part, products: &[Product]) -> BTreeSet<TileId> {
    let fillers = |tile| nests(&part.body).filter(move |nest| nest.target == Place::Tile(tile));
    let is_filled = |tile| fillers(tile).all(|nest| fill_vector_loads(kernel, part, nest).is_some());
    let is_weight = |tile| fillers(tile).any(|nest| reads_low_precision_weight(kernel, nest));
    let is_summed = |tile| nests(&part.body).any(|nest| is_summed(nest, tile));
    let mut single = BTreeSet::new();
    for product in products {
        let tiles = product.operands();
        let are_pairs = product.may_use_bf16 && tiles.iter().any(|tile| is_weight(*tile));
        let are_filled = tiles.iter().all(|tile| is_filled(*tile) && !is_summed(*tile));
        single.extend(tiles.into_iter().filter(|_| !are_pairs || !are_filled));
    }
    let mut n_before = usize::MAX;
    while n_before != single.len() {
        n_before = single.len();
        for tiles in products.iter().map(Product::operands) {
            if tiles.iter().any(|tile| single.contains(tile)) {
                single.extend(tiles);
            }
        }
    }
    products.iter().flat_map(Product::operands).filter(|tile| !single.contains(tile)).collect()
}

/// Whether a nest reads weights of bf16 precision or less.
fn reads_low_precision_weight(kernel: &Kernel, nest: &Nest) -> bool {
    nest.reads().any(|(_, param, _)| matches!(kernel.params[param].format.plain(), None | Some(DType::BF16)))
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
    use crate::kernel::parse::parse;
    use crate::kernel::samples::PRODUCT;

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

    #[test]
    fn low_precision_weights_and_what_they_multiply_are_bf16_pairs() {
        let per_word = |text: &str| {
            let kernel = parse(text).unwrap();
            let found = mma_operands(&kernel, &kernel.parts[0]);
            found.into_values().map(|layout| layout.per_word).collect::<Vec<i64>>()
        };
        assert_eq!(per_word(PRODUCT), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : bf16")), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : f32")), [1, 1]);
        // A tile that is also summed keeps TF32, and so does the other operand.
        let sum = "    for t0\n      tile3[t0] = sum d3 of tile1[t0, -d2+d3] from tile3[t0]\n  end";
        let sums = PRODUCT.replace("  end", sum).replace("  var t0", "  tile tile3 : f32[16]\n  var t0");
        assert_eq!(per_word(&sums), [1, 1]);
        // K is no multiple of that of a bf16 MMA.
        let odd = PRODUCT.replace("blocks of 64 step 64", "blocks of 8 step 8").replace("64]", "8]");
        assert_eq!(per_word(&odd), [1, 1]);
    }
}
