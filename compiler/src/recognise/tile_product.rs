//! Recognises matrix products of tiles, for tensor cores.
//!
//! In: a nest `sum[i, j] = Σ left[i, k] · right[j, k]` over tiles, perhaps added to an initial value. Several loops may
//! number the rows i, and the right operand may be transposed: `right[k, j]`. Out: the product, with the fragments of
//! each warp, or nothing.

use std::cmp::Reverse;

use crate::graph::op::{Binary, Fold};
use crate::kernel::index::{Index, element_of};
use crate::kernel::{Blocks, Expr, ExprId, Folding, Kernel, Nest, Part, Place, Range, TileId, VarId};
use crate::recognise::THREADS;
use crate::tensor::dtype::DType;

/// M of an MMA: rows of a fragment of sums.
pub(crate) const MMA_M: i64 = 16;
/// N: its columns.
pub(crate) const MMA_N: i64 = 8;
/// K of a TF32 MMA.
pub(crate) const MMA_K: i64 = 8;
/// K of a bf16 MMA.
const MMA_K_BF16: i64 = 2 * MMA_K;
/// Accumulator fragments that a warp keeps in registers, at most.
const MAX_FRAGMENTS_PER_WARP: i64 = 16;
/// Threads of a warp.
pub(crate) const WARP: u32 = 32;

/// A product of two tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Product {
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) sum: Operand,
    /// The initial sum, if not zero.
    pub(crate) start: Option<Start>,
    pub(crate) inner: VarId,
    /// Whether K may end inside a fragment.
    pub(crate) is_ragged: bool,
    /// Whether K is a multiple of that of a bf16 MMA, and both operands have their rows along it.
    pub(crate) may_use_bf16: bool,
    pub(crate) fragments: WarpTiling,
}

impl Product {
    /// The operands that are multiplied.
    pub(crate) fn operands(&self) -> [TileId; 2] {
        [self.left.tile, self.right.tile]
    }
}

/// A tile that a product reads or adds to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    pub(crate) tile: TileId,
    pub(crate) element: Index,
    /// Elements from one row to the next.
    pub(crate) row: i64,
    /// Its variables other than K.
    pub(crate) own: Vec<VarId>,
    /// Whether K numbers its rows.
    pub(crate) is_transposed: bool,
}

/// The initial sum of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The sum so far.
    Own,
    /// A scalar expression.
    Scalar(ExprId),
}

/// How warps share the fragments of a sum. With n warps along the rows, each computes every n-th row of fragments;
/// columns likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WarpTiling {
    /// Warps along the rows, and along the columns.
    pub(crate) warps: [i64; 2],
    /// Rows and columns of fragments that a warp computes.
    pub(crate) per_warp: [i64; 2],
}

impl WarpTiling {
    /// The tiling that uses the most warps, and among those the one that loads the least; none if none fits.
    pub(crate) fn of(n_rows: i64, n_columns: i64) -> Option<Self> {
        if n_rows % MMA_M != 0 || n_columns % MMA_N != 0 {
            return None;
        }
        let (rows, columns) = (n_rows / MMA_M, n_columns / MMA_N);
        let most = i64::from(THREADS / WARP);
        let shared = |n: i64| (1..=most).filter(move |warps| n > 0 && n % warps == 0);
        let all = shared(rows).flat_map(|along| shared(columns).map(move |across| [along, across]));
        let all = all.filter(|[along, across]| along * across <= most);
        let all = all.map(|warps| Self { warps, per_warp: [rows / warps[0], columns / warps[1]] });
        let best = all.min_by_key(|own| {
            let [along, across] = own.per_warp;
            // Warps whose rows are all past the end are idle: many warps with few rows each are better.
            (Reverse(own.n_warps()), along * MMA_M + across * MMA_N, along)
        })?;
        (best.per_warp[0] * best.per_warp[1] <= MAX_FRAGMENTS_PER_WARP).then_some(best)
    }

    /// Warps that have fragments.
    pub(crate) fn n_warps(self) -> i64 {
        self.warps[0] * self.warps[1]
    }
}

/// The product of tiles that a nest is, if it is one.
pub(crate) fn tile_product(kernel: &Kernel, part: &Part, nest: &Nest, folding: &Folding) -> Option<Product> {
    let [inner] = folding.loops[..] else { return None };
    let Place::Tile(sum) = nest.target else { return None };
    let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return None };
    let depth = depth(part, inner, MMA_K)?;
    if folding.fold != Fold::Sum {
        return None;
    }
    let start = folding.init.map(|init| match &nest.exprs[init] {
        Expr::Load { from, at } if *from == nest.target && *at == nest.at => Start::Own,
        _ => Start::Scalar(init),
    });
    let many: Vec<VarId> = nest.loops.iter().copied().filter(|var| most(part, *var) != Some(1)).collect();
    let target = element_of(&kernel.dims(part, nest.target), &nest.at);
    let is_column = |var: &VarId| target.step_of(*var) == Some(1);
    let (columns, mut rows): (Vec<VarId>, Vec<VarId>) = many.into_iter().partition(is_column);
    rows.sort_by_key(|var| target.step_of(*var));
    let n = |vars: &[VarId]| vars.iter().map(|var| most(part, *var)).product::<Option<i64>>();
    let (n_rows, n_columns) = (n(&rows)?, n(&columns)?);
    let operand = |id: ExprId, own: &[VarId], others: &[VarId]| {
        let id = match nest.exprs[id] {
            Expr::Cast(DType::F32, of) => of,
            _ => id,
        };
        let Expr::Load { from: from @ Place::Tile(tile), at } = &nest.exprs[id] else { return None };
        let element = element_of(&kernel.dims(part, *from), at);
        let is_transposed = element.step_of(inner)? != 1;
        let (across, along) = if is_transposed { (&[inner][..], own) } else { (own, &[inner][..]) };
        let row = row(part, &element, across)?;
        let is_apart = others.iter().all(|var| element.step_of(*var) == Some(0));
        let len = part.tiles[*tile].dims.iter().product::<usize>() as i64;
        let is_matrix = part.tiles[*tile].dtype.is_float() && len == n(across)? * row && n(along)? <= row;
        let is_factor = along.len() == 1 && element.step_of(along[0]) == Some(1) && row % MMA_K == 0;
        let operand = Operand { tile: *tile, element, row, own: own.to_vec(), is_transposed };
        (is_factor && is_apart && is_matrix).then_some(operand)
    };
    let (left, right) = operand(a, &rows, &columns)
        .zip(operand(b, &columns, &rows))
        .or_else(|| operand(b, &rows, &columns).zip(operand(a, &columns, &rows)))?;
    let row = row(part, &target, &rows)?;
    let is_sum = columns.len() == 1 && target.step_of(inner) == Some(0) && row % 4 == 0;
    let is_apart = sum != left.tile && sum != right.tile && left.tile != right.tile;
    let own = [rows, columns].concat();
    let sum = Operand { tile: sum, element: target, row, own, is_transposed: false };
    let is_single = part.tiles[sum.tile].dtype == DType::F32;
    let is_possible = is_sum && is_apart && is_single && !left.is_transposed;
    let fragments = WarpTiling::of(n_rows, n_columns)?;
    let is_ragged = depth == KExtent::Ragged;
    let is_even =
        [&left, &right].into_iter().all(|operand| !operand.is_transposed && operand.row % MMA_K_BF16 == 0);
    let may_use_bf16 = is_even && self::depth(part, inner, MMA_K_BF16) == Some(KExtent::Aligned);
    is_possible.then_some(Product { left, right, sum, start, inner, is_ragged, may_use_bf16, fragments })
}

/// Elements from one row to the next, where variables number the rows densely, the fastest first.
fn row(part: &Part, element: &Index, vars: &[VarId]) -> Option<i64> {
    let first = element.step_of(*vars.first()?)?;
    let mut step = first;
    for var in vars {
        if element.step_of(*var)? != step {
            return None;
        }
        step *= most(part, *var)?;
    }
    Some(first)
}

/// The most values of a nest's variable, where that is known.
fn most(part: &Part, var: VarId) -> Option<i64> {
    part.full_len(var)?.as_const()
}

/// What is known of the end of K.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KExtent {
    /// Always a multiple of the MMA's K.
    Aligned,
    /// Anywhere, in a tile whose rows are such multiples.
    Ragged,
}

fn depth(part: &Part, inner: VarId, of: i64) -> Option<KExtent> {
    let is_whole = |len: i64| len % of == 0;
    match &part.vars[inner].range {
        Range::Whole { len } => len.as_const().filter(|len| is_whole(*len)).map(|_| KExtent::Aligned),
        Range::Within { of } => {
            let Blocks { start, step, block, end } = part.vars[*of].range.blocks()?;
            let len = start.as_const().zip(end.as_const()).map(|(start, end)| end - start);
            let ends_whole = step == block && len.is_some_and(is_whole);
            is_whole(*block).then_some(if ends_whole { KExtent::Aligned } else { KExtent::Ragged })
        }
        Range::Blocks(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::parse::parse;
    use crate::kernel::samples::PRODUCT;
    use crate::recognise::mma_operands::{OperandLayout, mma_operands};

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

    #[test]
    fn every_fragment_is_computed_once() {
        let mut n_shared = 0;
        for rows in 1..9 {
            for columns in 1..17 {
                let Some(WarpTiling { warps, per_warp }) = WarpTiling::of(rows * MMA_M, columns * MMA_N)
                else {
                    continue;
                };
                n_shared += 1;
                let own = |axis: usize, warp: i64| (0..per_warp[axis]).map(move |i| warp + i * warps[axis]);
                let mut found: Vec<(i64, i64)> = Vec::new();
                for (row, column) in (0..warps[0]).flat_map(|r| (0..warps[1]).map(move |c| (r, c))) {
                    found.extend(own(0, row).flat_map(|row| own(1, column).map(move |column| (row, column))));
                }
                found.sort_unstable();
                let all: Vec<_> = (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))).collect();
                assert_eq!(found, all, "{rows} by {columns}");
            }
        }
        assert!(n_shared > 100 && WarpTiling::of(8, 16).is_none() && WarpTiling::of(16, 12).is_none());
        // Too many fragments for the warps that can share them.
        assert!(WarpTiling::of(11 * MMA_M, 13 * MMA_N).is_none());
    }

    #[test]
    fn warps_share_fragments_so_that_each_loads_few() {
        let of = |rows: i64, columns: i64| WarpTiling::of(rows, columns).unwrap();
        assert_eq!(of(128, 64), WarpTiling { warps: [4, 2], per_warp: [2, 4] });
        assert_eq!(of(64, 64), WarpTiling { warps: [4, 2], per_warp: [1, 4] });
        assert_eq!(of(64, 32), WarpTiling { warps: [4, 2], per_warp: [1, 2] });
        assert_eq!(of(16, 128), WarpTiling { warps: [1, 8], per_warp: [1, 2] });
        assert_eq!(of(128, 128).per_warp, [2, 8]);
    }

    #[test]
    fn a_nest_over_tiles_is_a_product_whose_factors_have_their_rows() {
        let kernel = parse(PRODUCT).unwrap();
        let found = mma_operands(&kernel, &kernel.parts[0]);
        assert!(
            found.len() == 2
                && found
                    .into_values()
                    .all(|factor| factor == OperandLayout { row: 64, padding: 4, per_word: 2 })
        );
    }

    #[test]
    fn rows_of_several_loops_are_a_product_where_they_follow_each_other() {
        let kernel = parse(SCORES).unwrap();
        let found = mma_operands(&kernel, &kernel.parts[0]);
        assert!(
            found.len() == 2
                && found
                    .into_values()
                    .all(|factor| factor == OperandLayout { row: 64, padding: 4, per_word: 1 })
        );
        let turned = SCORES.replace("f32[8, 2, 32]", "f32[2, 8, 32]").replace("tile2[t0, g1", "tile2[g1, t0");
        let kernel = parse(&turned).unwrap();
        assert!(mma_operands(&kernel, &kernel.parts[0]).is_empty());
    }

    #[test]
    fn an_operand_may_be_transposed_and_k_may_end_anywhere() {
        let kernel = parse(MIXTURE).unwrap();
        let found = mma_operands(&kernel, &kernel.parts[0]);
        let lies: Vec<(i64, i64)> = found.into_values().map(|factor| (factor.row, factor.padding)).collect();
        assert_eq!(lies, [(32, 4), (64, 8)]);
        // A tile that something else reads is not rounded.
        let read = MIXTURE.replace("sum s3 of tile0[t0, -s2+s3]", "max s3 of tile0[t0, -s2+s3]");
        let kernel = parse(&read).unwrap();
        assert_eq!(
            mma_operands(&kernel, &kernel.parts[0])
                .into_values()
                .map(|factor| factor.row)
                .collect::<Vec<_>>(),
            [64]
        );
    }

    #[test]
    fn what_is_no_product_of_whole_fragments_stays_as_it_is() {
        let odd_rows = PRODUCT.replace("t:16", "t:12").replace("[16, ", "[12, ").replace("0..16", "0..12");
        let odd_blocks =
            PRODUCT.replace("blocks of 64 step 64", "blocks of 60 step 60").replace("q8_0", "f16");
        let no_product = PRODUCT.replace("mul(tile1", "add(tile1");
        for text in [odd_rows, odd_blocks, no_product] {
            let kernel = parse(&text).unwrap();
            assert!(mma_operands(&kernel, &kernel.parts[0]).is_empty(), "{text}");
        }
    }
}
