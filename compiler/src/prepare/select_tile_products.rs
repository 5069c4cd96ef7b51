//! Writes down which nests are products of tiles, for tensor cores.
//!
//! In: a kernel. Out: the same kernel; each nest that MMAs compute says which of its loops are rows, columns and the
//! sum, and what its operands are rounded to: bf16 where one of them is a weight of no more precision, TF32 otherwise.
//! What is chosen is checked by the same rules as what is claimed (`kernel/product/tiles.rs`, `operands.rs`).

use crate::kernel::index::element_of;
use crate::kernel::product::operands::unfit_operands;
use crate::kernel::product::tiles::{Operand, TileProduct};
use crate::kernel::product::{Kind, MmaType, Product, Side};
use crate::kernel::walk::{each_nest, nests};
use crate::kernel::{Kernel, Nest, Part, Place, VarId};
use crate::options::Options;
use crate::tensor::dtype::DType;

pub(super) fn select_tile_products(kernel: &Kernel, _: &Options) -> Kernel {
    let mut selected = kernel.clone();
    for (part, new) in kernel.parts.iter().zip(&mut selected.parts) {
        each_nest(&mut new.body, &mut |nest| nest.product = tile_product(kernel, part, nest));
        while drop_unfit(kernel, new) {}
    }
    selected
}

/// The product of tiles that a nest is, whatever else reads its operands.
fn tile_product(kernel: &Kernel, part: &Part, nest: &Nest) -> Option<Product> {
    let target = element_of(&kernel.dims(part, nest.target), &nest.at);
    let has_many = |var: &VarId| part.full_len(*var).and_then(|len| len.as_const()) != Some(1);
    let many = nest.loops.iter().copied().filter(has_many);
    let (row, mut columns): (Vec<VarId>, Vec<VarId>) = many.partition(|var| target.step_of(*var) == Some(1));
    let [row] = row[..] else { return None };
    columns.sort_by_key(|var| target.step_of(*var));
    let claim = |weight: Side, mma: MmaType| {
        let (columns, along) = (columns.clone(), nest.folds().to_vec());
        Product {
            kind: Kind::Mma(mma),
            weight,
            row: Some(row),
            columns,
            along,
            routed: Vec::new(),
            activations: None,
        }
    };
    let holds = |claim: &Product| {
        TileProduct::checked(kernel, part, nest, claim).is_some_and(|product| {
            let is_rough = |operand: &Operand| holds_rough_weight(kernel, part, operand);
            product.mma == MmaType::Tf32 || product.operands().into_iter().any(is_rough)
        })
    };
    let sides = [Side::Right, Side::Left].into_iter();
    sides.flat_map(|weight| [MmaType::Bf16, MmaType::Tf32].map(|mma| claim(weight, mma))).find(holds)
}

/// Whether an operand is filled with weights of bf16 precision or less.
fn holds_rough_weight(kernel: &Kernel, part: &Part, operand: &Operand) -> bool {
    let mut fills = nests(&part.body).filter(|nest| nest.target == Place::Tile(operand.tile));
    let is_rough = |param| matches!(kernel.params[param].format.plain(), None | Some(DType::BF16));
    fills.any(|nest| nest.reads().any(|(_, param, _)| is_rough(param)))
}

/// Has products whose operands are read or filled otherwise round to TF32 instead of bf16, and drops them where that is
/// not enough; says whether there were any.
fn drop_unfit(kernel: &Kernel, part: &mut Part) -> bool {
    let unfit = unfit_operands(kernel, part);
    let before = part.clone();
    let rounded = |nest: &Nest| {
        let product = TileProduct::of(kernel, &before, nest)?;
        product.operands().iter().any(|operand| unfit.contains(&operand.tile)).then_some(product.mma)
    };
    let has_pairs = nests(&before.body).any(|nest| rounded(nest) == Some(MmaType::Bf16));
    each_nest(&mut part.body, &mut |nest| match rounded(nest) {
        Some(MmaType::Bf16) => {
            nest.product = nest.product.take().map(|own| Product { kind: Kind::Mma(MmaType::Tf32), ..own });
        }
        Some(MmaType::Tf32) if !has_pairs => nest.product = None,
        Some(MmaType::Tf32) | None => {}
    });
    !unfit.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::product::operands::operand_layouts;
    use crate::kernel::product::tiles::tile_products;
    use crate::kernel::samples::PRODUCT;
    use crate::kernel::verify::verify;
    use crate::target::CUDA_SM90;

    /// Scores of 8 tokens of two heads at 32 positions.
    const SCORES: &str = r#"kernel "scores" attention
  read @0 q : f32[t:8, g:2, d:64]
  read @1 k : f16[s:32, d:64]
  write @2 y : f32[t:8, g:2, s:32]
part
  tile tile0 : f32[8, 2, 2, 32]
  tile tile1 : f16[32, 64]
  tile tile2 : f32[8, 2, 32]
  var t0 in 0..8
  var g1 in 0..2
  var side2 in 0..2
  var pair3 in 0..32
  var s4 in 0..32
  var d5 in 0..64
  grid
  for t0, g1, side2, pair3
    tile0[t0, g1, side2, pair3] = @0[t0, g1, 32*side2+pair3]
  for s4, d5
    tile1[s4, d5] = @1[s4, d5]
  for t0, g1, s4
    tile2[t0, g1, s4] = sum d5 of mul(tile0[t0, g1, (d5/32), (d5%32)], tile1[s4, d5])
  for t0, g1, s4
    @2[t0, g1, s4] = tile2[t0, g1, s4]
"#;

    /// Weighted sums of 64 elements at up to 100 positions, in blocks of 32.
    const MIXTURE: &str = r#"kernel "mixture" attention
  read @0 w : f32[t:16, s:100]
  read @1 v : f16[s:100, d:64]
  write @2 y : f32[t:16, d:64]
part
  tile tile0 : f32[16, 32]
  tile tile1 : f16[32, 64]
  tile tile2 : f32[16, 64]
  tile tile3 : f32[16]
  var t0 in 0..16
  var d1 in 0..64
  var s2 in blocks of 32 step 32 from 0 to 100
  var s3 within s2
  grid
  for t0, d1
    tile2[t0, d1] = 0.0
  for t0
    tile3[t0] = 1.0
  loop s2
    for t0, s3
      tile0[t0, -s2+s3] = @0[t0, s3]
    for s3, d1
      tile1[-s2+s3, d1] = @1[s3, d1]
    for t0
      tile3[t0] = sum s3 of tile0[t0, -s2+s3] from tile3[t0]
    for t0, d1
      tile2[t0, d1] = sum s3 of mul(tile0[t0, -s2+s3], cast.f32(tile1[-s2+s3, d1])) from div(tile2[t0, d1], tile3[t0])
  end
  for t0, d1
    @2[t0, d1] = tile2[t0, d1]
"#;

    /// Elements a row, words of padding and elements a word of each operand.
    fn operands(text: &str) -> Vec<[i64; 3]> {
        let kernel = select_tile_products(&parse(text).unwrap(), &Options::for_target(CUDA_SM90));
        assert_eq!(verify(&kernel), [], "{kernel}");
        let layouts = operand_layouts(&tile_products(&kernel, &kernel.parts[0]));
        layouts.into_values().map(|layout| [layout.row, layout.padding, layout.per_word]).collect()
    }

    #[test]
    fn a_nest_over_tiles_is_a_product_whose_operands_have_their_rows() {
        assert_eq!(operands(PRODUCT), [[64, 4, 2]; 2]);
        let turned = PRODUCT.replace(
            "mul(tile1[t0, -d2+d3], tile2[r1, -d2+d3])",
            "mul(tile2[r1, -d2+d3], tile1[t0, -d2+d3])",
        );
        assert_eq!(operands(&turned.replace("mma.bf16 right", "mma.bf16 left")), [[64, 4, 2]; 2]);
    }

    #[test]
    fn rows_of_several_loops_are_a_product_where_they_follow_each_other() {
        assert_eq!(operands(SCORES), [[64, 4, 1]; 2]);
        let turned = SCORES.replace("f32[8, 2, 32]", "f32[2, 8, 32]").replace("tile2[t0, g1", "tile2[g1, t0");
        assert_eq!(operands(&turned), [[0; 3]; 0]);
    }

    #[test]
    fn an_operand_may_be_transposed_and_k_may_end_anywhere() {
        assert_eq!(operands(MIXTURE), [[32, 4, 1], [64, 8, 1]]);
        // What something else reads is not rounded.
        let read = MIXTURE.replace("sum s3 of tile0[t0, -s2+s3]", "max s3 of tile0[t0, -s2+s3]");
        assert_eq!(operands(&read), [[0; 3]; 0]);
    }

    #[test]
    fn what_is_no_product_of_whole_fragments_stays_as_it_is() {
        let unclaimed = PRODUCT.replace("      mma.bf16 right row r1 columns t0 along d3\n", "");
        let odd_rows = unclaimed.replace("t:16", "t:12").replace("[16, ", "[12, ").replace("0..16", "0..12");
        let odd_blocks =
            unclaimed.replace("blocks of 64 step 64", "blocks of 60 step 60").replace("q8_0", "f16");
        let no_product = unclaimed.replace("mul(tile1", "add(tile1");
        for text in [odd_rows, odd_blocks, no_product] {
            assert_eq!(operands(&text), [[0; 3]; 0], "{text}");
        }
    }

    #[test]
    fn low_precision_weights_and_what_they_multiply_are_bf16_pairs() {
        let per_word =
            |text: &str| operands(text).into_iter().map(|[.., per_word]| per_word).collect::<Vec<i64>>();
        assert_eq!(per_word(PRODUCT), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : bf16")), [2, 2]);
        assert_eq!(per_word(&PRODUCT.replace("w : q8_0", "w : f32")), [1, 1]);
        // A tile that is also summed keeps TF32, and so does the other operand.
        let sum = "    for t0\n      tile3[t0] = sum d3 of tile1[t0, -d2+d3] from tile3[t0]\n  end";
        let sums = PRODUCT.replace("  end", sum).replace("  var t0", "  tile tile3 : f32[16]\n  var t0");
        let sums = sums.replace("  loop d2", "  for t0\n    tile3[t0] = 0.0\n  loop d2");
        assert_eq!(per_word(&sums), [1, 1]);
        // K is no multiple of that of a bf16 MMA.
        let odd = PRODUCT.replace("blocks of 64 step 64", "blocks of 8 step 8").replace("64]", "8]");
        assert_eq!(per_word(&odd), [1, 1]);
    }
}
