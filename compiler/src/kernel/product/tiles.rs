//! Products of tiles on tensor cores, as nests say that they are.
//!
//! In: a nest `sum[i, j] = Σ left[i, k] · right[j, k]` over tiles, perhaps added to an initial value, and the
//! [`Product`] that it says it is. Several loops may number the rows i, and the right operand may be transposed:
//! `right[k, j]`. Out: the operands and the fragments of each warp, or nothing where it is no such product.

use crate::graph::op::{Binary, Fold};
use crate::kernel::index::{Index, element_of};
use crate::kernel::product::fragments::{MMA_K, MMA_K_BF16, WarpTiling};
use crate::kernel::product::{Kind, MmaType, Product, Side};
use crate::kernel::walk::nests;
use crate::kernel::{Blocks, Expr, ExprId, Kernel, Nest, Part, Place, Range, TileId, VarId};
use crate::tensor::dtype::DType;

/// A product of two tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TileProduct {
    pub(crate) mma: MmaType,
    pub(crate) left: Operand,
    pub(crate) right: Operand,
    pub(crate) sum: Operand,
    /// The initial sum, if not zero.
    pub(crate) start: Option<Start>,
    pub(crate) inner: VarId,
    /// Whether K may end inside a fragment.
    pub(crate) is_ragged: bool,
    pub(crate) fragments: WarpTiling,
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

/// The products of tiles that the nests of a part say they are.
pub(crate) fn tile_products(kernel: &Kernel, part: &Part) -> Vec<TileProduct> {
    nests(&part.body).filter_map(|nest| TileProduct::of(kernel, part, nest)).collect()
}

impl TileProduct {
    /// The product that a nest says it is; nothing where it says none.
    pub(crate) fn of(kernel: &Kernel, part: &Part, nest: &Nest) -> Option<Self> {
        Self::checked(kernel, part, nest, nest.product.as_ref()?)
    }

    /// The product, if a nest is that.
    pub(crate) fn checked(kernel: &Kernel, part: &Part, nest: &Nest, product: &Product) -> Option<Self> {
        let (Kind::Mma(mma), rows, column) = (product.kind, &product.columns, product.row?) else {
            return None;
        };
        let folding = nest.fold.as_ref().filter(|folding| folding.fold == Fold::Sum)?;
        let (&[inner], Place::Tile(sum)) = (&product.along[..], nest.target) else { return None };
        let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return None };
        let is_one = |var: &VarId| most(part, *var) == Some(1);
        let is_named = |var: &VarId| rows.contains(var) || *var == column;
        let are_loops = rows.iter().chain([&column]).all(|var| nest.loops.contains(var));
        let are_named = nest.loops.iter().all(|var| is_named(var) || is_one(var));
        if !are_loops || !are_named || folding.loops != product.along || !product.routed.is_empty() {
            return None;
        }
        let start = folding.init.map(|init| match &nest.exprs[init] {
            Expr::Load { from, at } if *from == nest.target && *at == nest.at => Start::Own,
            _ => Start::Scalar(init),
        });
        let n = |vars: &[VarId]| vars.iter().try_fold(1, |n: i64, var| n.checked_mul(most(part, *var)?));
        let fragments = WarpTiling::of(n(rows)?, n(&[column])?)?;
        let operand = |id: ExprId, own: &[VarId], others: &[VarId]| {
            let (from @ Place::Tile(tile), at) = nest.loaded(id)? else { return None };
            let element = element_of(&kernel.dims(part, from), at);
            let is_transposed = element.step_of(inner)? != 1;
            let (across, along) = if is_transposed { (&[inner][..], own) } else { (own, &[inner][..]) };
            let row = row(part, &element, across)?;
            let is_apart = others.iter().all(|var| element.step_of(*var) == Some(0));
            let len = part.tiles[tile].dims.iter().product::<usize>() as i64;
            let is_matrix = part.tiles[tile].dtype.is_float()
                && n(across)?.checked_mul(row) == Some(len)
                && n(along)? <= row;
            let is_factor = along.len() == 1 && element.step_of(along[0]) == Some(1) && row % MMA_K == 0;
            let operand = Operand { tile, element, row, own: own.to_vec(), is_transposed };
            (is_factor && is_apart && is_matrix).then_some(operand)
        };
        let [left, right] = match product.weight {
            Side::Left => [b, a],
            Side::Right => [a, b],
        };
        let (left, right) = (operand(left, rows, &[column])?, operand(right, &[column], rows)?);
        let target = element_of(&kernel.dims(part, nest.target), &nest.at);
        let row = row(part, &target, rows)?;
        let is_sum = target.step_of(column) == Some(1) && target.step_of(inner) == Some(0) && row % 4 == 0;
        let is_apart = sum != left.tile && sum != right.tile && left.tile != right.tile;
        let is_single = part.tiles[sum].dtype == DType::F32;
        let is_even = |operand: &Operand| !operand.is_transposed && operand.row % MMA_K_BF16 == 0;
        let are_pairs = || {
            is_even(&left) && is_even(&right) && k_extent(part, inner, MMA_K_BF16) == Some(KExtent::Aligned)
        };
        let is_rounded = mma == MmaType::Tf32 || are_pairs();
        let own = [rows, &[column][..]].concat();
        let sum = Operand { tile: sum, element: target, row, own, is_transposed: false };
        let is_ragged = k_extent(part, inner, MMA_K)? == KExtent::Ragged;
        (is_sum && is_apart && is_single && is_rounded && !left.is_transposed).then_some(Self {
            mma,
            left,
            right,
            sum,
            start,
            inner,
            is_ragged,
            fragments,
        })
    }

    /// The operands that are multiplied.
    pub(crate) fn operands(&self) -> [&Operand; 2] {
        [&self.left, &self.right]
    }
}

/// Elements from one row to the next, where variables number the rows densely, the fastest first.
fn row(part: &Part, element: &Index, vars: &[VarId]) -> Option<i64> {
    let first = element.step_of(*vars.first()?)?;
    let mut step = first;
    for var in vars {
        if element.step_of(*var)? != step {
            return None;
        }
        step = step.checked_mul(most(part, *var)?)?;
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

fn k_extent(part: &Part, inner: VarId, of: i64) -> Option<KExtent> {
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
