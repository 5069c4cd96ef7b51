//! Tiles that matrix units multiply.
//!
//! In: a part with its products. Out: the tiles that are factors of them, how exact these are, and how their rows lie.
//! Rows of factors lie some words further apart than they are long: neighbours would else wait for each other, because
//! they want the same bank of memory.
//! Weights of few bits, and what meets them, are bfloat16 numbers, two in a word: half as many words, and products of
//! twice as many elements at a time. All else has a word for an element, of which ten bits behind the point count.

use std::collections::{BTreeMap, BTreeSet};

use crate::codegen::gpu::emit::tiles_read;
use crate::codegen::gpu::product::{Product, product};
use crate::codegen::gpu::wide::wide_fill;
use crate::graph::op::Fold;
use crate::kernel::walk::nests;
use crate::kernel::{Expr, ExprId, Kernel, Nest, Part, Place, TileId};
use crate::tensor::dtype::DType;

/// How the rows of a factor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Factor {
    /// Elements from one row to the next.
    pub(super) row: i64,
    /// Words that lie between.
    pub(super) gap: i64,
    /// Elements of a word: one, or two as bfloat16 numbers.
    pub(super) per_word: i64,
}

impl Factor {
    /// Words from one row to the next.
    pub(super) fn stride(self) -> i64 {
        self.row / self.per_word + self.gap
    }

    /// Words of a tile of so many elements.
    pub(super) fn padded_len(self, len: i64) -> i64 {
        len / self.row * self.stride()
    }
}

/// The tiles of a part that are factors of products and that nothing else reads but sums of their elements.
pub(super) fn factors(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, Factor> {
    let (mut found, mut others) = (BTreeMap::new(), BTreeSet::new());
    let mut products = Vec::new();
    for nest in nests(&part.body) {
        let product = nest.fold.as_ref().and_then(|fold| product(kernel, part, nest, fold));
        let Some(product) = product else {
            others.extend(tiles_read(nest).into_iter().filter(|tile| !is_summed(nest, *tile)));
            continue;
        };
        for operand in [&product.left, &product.right] {
            let own = Factor { row: operand.row, gap: gap(operand.is_turned), per_word: 1 };
            let agreed = found.entry(operand.tile).or_insert(own);
            if *agreed != own {
                others.insert(operand.tile);
            }
        }
        others.insert(product.sum.tile);
        products.push(product);
    }
    found.retain(|tile, _| !others.contains(tile));
    for tile in in_pairs(kernel, part, &products) {
        found.entry(tile).and_modify(|factor| factor.per_word = 2);
    }
    found
}

/// The factors whose elements are pairs: of products with weights of few bits, where all products of a tile agree, and
/// vectors fill it.
fn in_pairs(kernel: &Kernel, part: &Part, products: &[Product]) -> BTreeSet<TileId> {
    let fillers = |tile| nests(&part.body).filter(move |nest| nest.target == Place::Tile(tile));
    let is_filled = |tile| fillers(tile).all(|nest| wide_fill(kernel, part, nest).is_some());
    let is_weight = |tile| fillers(tile).any(|nest| has_few_bits(kernel, nest));
    let is_summed = |tile| nests(&part.body).any(|nest| is_summed(nest, tile));
    let mut single = BTreeSet::new();
    for product in products {
        let tiles = product.factors();
        let are_pairs = product.may_pair && tiles.iter().any(|tile| is_weight(*tile));
        let are_filled = tiles.iter().all(|tile| is_filled(*tile) && !is_summed(*tile));
        single.extend(tiles.into_iter().filter(|_| !are_pairs || !are_filled));
    }
    let mut n_before = usize::MAX;
    while n_before != single.len() {
        n_before = single.len();
        for tiles in products.iter().map(Product::factors) {
            if tiles.iter().any(|tile| single.contains(tile)) {
                single.extend(tiles);
            }
        }
    }
    products.iter().flat_map(Product::factors).filter(|tile| !single.contains(tile)).collect()
}

/// Whether a nest reads weights that bfloat16 numbers hold about as well as they are: those, and quantised ones.
fn has_few_bits(kernel: &Kernel, nest: &Nest) -> bool {
    nest.reads().any(|(_, param, _)| matches!(kernel.params[param].format.plain(), None | Some(DType::BF16)))
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
    use crate::codegen::samples::PRODUCT;
    use crate::kernel::parse::parse;

    #[test]
    fn rows_of_factors_keep_apart() {
        let banks = |factor: Factor, rows: i64, words: i64| {
            let row = factor.row / factor.per_word;
            let place = |word: i64| word / row * factor.stride() + word % row;
            assert_eq!(factor.padded_len(8 * factor.row), place(8 * row - 1) + 1 + factor.gap);
            let all = (0..rows).flat_map(|number| (0..words).map(move |i| number * row + i));
            all.map(|word| place(word) % 32).collect::<BTreeSet<i64>>().len()
        };
        // What a plane loads at once: eight rows and four neighbours of each, or turned, four and eight.
        assert_eq!(banks(Factor { row: 64, gap: gap(false), per_word: 1 }, 8, 4), 32);
        assert_eq!(banks(Factor { row: 64, gap: gap(true), per_word: 1 }, 4, 8), 32);
        assert_eq!(banks(Factor { row: 64, gap: gap(false), per_word: 2 }, 8, 4), 32);
    }

    #[test]
    fn weights_of_few_bits_and_what_meets_them_are_pairs() {
        let per_word = |text: &str| {
            let kernel = parse(text).unwrap();
            let found = factors(&kernel, &kernel.parts[0]);
            found.into_values().map(|factor| factor.per_word).collect::<Vec<i64>>()
        };
        assert_eq!(per_word(PRODUCT), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : bf16")), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : f32")), [1, 1]);
        // What is added up besides is as exact as can be, and so is all that it is multiplied with.
        let sum = "    for t0\n      tile3[t0] = sum d3 of tile1[t0, -d2+d3] from tile3[t0]\n  end";
        let sums = PRODUCT.replace("  end", sum).replace("  var t0", "  tile tile3 : f32[16]\n  var t0");
        assert_eq!(per_word(&sums), [1, 1]);
        // No whole number of fragments of pairs.
        let odd = PRODUCT.replace("blocks of 64 step 64", "blocks of 8 step 8").replace("64]", "8]");
        assert_eq!(per_word(&odd), [1, 1]);
    }
}
