//! Products of tiles through the matrix units of a GPU.
//!
//! In: a nest that adds to a tile the products of two others, `sum[i, j] += Σ left[i, k] · right[j, k]`. Out:
//! fragments of 16 rows and 16 columns, eight elements deep, which the threads of a plane load, multiply and store
//! together. The units take single-precision numbers whose last thirteen bits are zero, so factors are rounded to that
//! when they are stored; sums are in single precision. Rows of factors lie four words further apart than they are
//! long: neighbours would else wait for each other, because they want the same bank of memory.
//! A tile holds as many rows as a task may have. Those past the end hold anything, and so do their sums, which nobody
//! reads. What surrounds the product, before and behind it, stays as it is.

use std::collections::{BTreeMap, BTreeSet};

use cubecl_core::ir::{
    CoopMma, ElemType, FloatKind, Instruction, Matrix, MatrixIdent, MatrixLayout, Operation, StorageType,
    Variable,
};

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::{Emitter, tiles_read};
use crate::codegen::gpu::room::Spot;
use crate::codegen::gpu::wide::{dims_of, element_of};
use crate::codegen::gpu::writer::{U32, Writes, constant};
use crate::graph::op::{Binary, Fold};
use crate::kernel::index::{Atom, Index};
use crate::kernel::{Expr, ExprId, Folding, Kernel, Nest, Part, Place, Range, Stmt, TileId, VarId};
use crate::tensor::dtype::DType;

/// Rows and columns of a fragment.
const SIDE: i64 = 16;
/// What is summed over at a time.
const DEPTH: i64 = 8;
/// Threads that share a fragment.
const PLANE: u32 = 32;
/// Words between the rows of a factor.
const GAP: i64 = 4;

/// A product of two tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Product {
    left: Operand,
    right: Operand,
    sum: Operand,
    n_rows: i64,
    n_columns: i64,
    inner: VarId,
    fragments: Fragments,
}

/// A tile that a product reads or adds to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Operand {
    tile: TileId,
    element: Index,
    /// Elements from one row to the next.
    row: i64,
}

/// How many columns of fragments there are, and which each plane computes: so many, every one in the same column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fragments {
    columns: i64,
    each: i64,
    /// Planes that compute any.
    planes: i64,
}

impl Fragments {
    /// The fragments of a sum, if planes can share them so.
    fn of(n_rows: i64, n_columns: i64) -> Option<Self> {
        if n_rows % SIDE != 0 || n_columns % SIDE != 0 {
            return None;
        }
        let n_planes = i64::from(THREADS / PLANE);
        let (rows, columns) = (n_rows / SIDE, n_columns / SIDE);
        let n = rows * columns;
        if n == 0 || n_planes % columns != 0 || (n > n_planes && n % n_planes != 0) {
            return None;
        }
        Some(Self { columns, each: (n / n_planes).max(1), planes: n.min(n_planes) })
    }

    /// Rows of fragments from one of a plane's to its next.
    fn step(self) -> i64 {
        self.planes / self.columns
    }
}

/// The tiles of a part that are factors of products only, with the length of their rows.
pub(super) fn factors(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, i64> {
    let (mut found, mut others) = (BTreeMap::new(), BTreeSet::new());
    let mut pending: Vec<&Stmt> = part.body.iter().collect();
    while let Some(stmt) = pending.pop() {
        match stmt {
            Stmt::Loop { body, .. } => pending.extend(body),
            Stmt::Nest(nest) => match nest.fold.as_ref().and_then(|fold| product(kernel, part, nest, fold)) {
                Some(Product { left, right, sum, .. }) => {
                    found.extend([(left.tile, left.row), (right.tile, right.row)]);
                    others.insert(sum.tile);
                }
                None => others.extend(tiles_read(nest)),
            },
        }
    }
    found.retain(|tile, _| !others.contains(tile));
    found
}

/// Elements of a tile of factors, with what lies between its rows.
pub(super) fn padded_len(len: i64, row: i64) -> i64 {
    len / row * (row + GAP)
}

/// A nest as a product of tiles, if it is one.
pub(super) fn product(kernel: &Kernel, part: &Part, nest: &Nest, folding: &Folding) -> Option<Product> {
    let [inner] = folding.loops[..] else { return None };
    let Place::Tile(sum) = nest.target else { return None };
    let Expr::Load { from, at } = &nest.exprs[folding.init?] else { return None };
    let Expr::Binary(Binary::Mul, a, b) = nest.exprs[nest.value] else { return None };
    if folding.fold != Fold::Sum || *from != nest.target || *at != nest.at || !is_whole(part, inner) {
        return None;
    }
    let many: Vec<VarId> = nest.loops.iter().copied().filter(|var| most(part, *var) != Some(1)).collect();
    let [first, second] = many[..] else { return None };
    let target = element_of(&dims_of(kernel, part, nest.target), &nest.at);
    let (rows, columns) = if factor(&target, second) == Some(1) { (first, second) } else { (second, first) };
    let (n_rows, n_columns) = (most(part, rows)?, most(part, columns)?);
    let operand = |id: ExprId, own: VarId, other: VarId| {
        let Expr::Load { from: from @ Place::Tile(tile), at } = &nest.exprs[id] else { return None };
        let element = element_of(&dims_of(kernel, part, *from), at);
        let row = factor(&element, own)?;
        let is_factor = factor(&element, inner) == Some(1) && factor(&element, other) == Some(0);
        let len = part.tiles[*tile].dims.iter().product::<usize>() as i64;
        let is_matrix = part.tiles[*tile].dtype.is_float() && len == most(part, own)? * row;
        (is_factor && is_matrix && row % DEPTH == 0).then_some(Operand { tile: *tile, element, row })
    };
    let (left, right) = operand(a, rows, columns)
        .zip(operand(b, columns, rows))
        .or_else(|| operand(b, rows, columns).zip(operand(a, columns, rows)))?;
    let row = factor(&target, rows)?;
    let is_sum = factor(&target, columns) == Some(1) && factor(&target, inner) == Some(0) && row % 4 == 0;
    let is_apart = sum != left.tile && sum != right.tile && left.tile != right.tile;
    let sum = Operand { tile: sum, element: target, row };
    let is_single = part.tiles[sum.tile].dtype == DType::F32;
    let fragments = Fragments::of(n_rows, n_columns)?;
    let product = Product { left, right, sum, n_rows, n_columns, inner, fragments };
    (is_sum && is_apart && is_single).then_some(product)
}

/// What an index grows by with each value of a variable; nothing where it does not grow evenly.
fn factor(index: &Index, var: VarId) -> Option<i64> {
    let own = index.terms().iter().find(|(atom, _)| *atom == Atom::Var(var)).map_or(0, |(_, factor)| *factor);
    let rest = index.minus(&Index::var(var).times(own));
    (!rest.uses_var(|other| other == var)).then_some(own)
}

/// The most values of a variable of a nest, where that is known.
fn most(part: &Part, var: VarId) -> Option<i64> {
    match &part.vars[var].range {
        Range::Whole { len } => len.as_const(),
        Range::Within { of } => match &part.vars[*of].range {
            Range::Blocks { block, .. } => Some(*block),
            Range::Whole { .. } | Range::Within { .. } => None,
        },
        Range::Blocks { .. } => None,
    }
}

/// Whether what is summed over always is a multiple of a fragment's depth.
fn is_whole(part: &Part, inner: VarId) -> bool {
    match &part.vars[inner].range {
        Range::Whole { len } => len.as_const().is_some_and(|len| len % DEPTH == 0),
        Range::Within { of } => match &part.vars[*of].range {
            Range::Blocks { start, step, block, end } => {
                let len = start.as_const().zip(end.as_const()).map(|(start, end)| end - start);
                step == block && block % DEPTH == 0 && len.is_some_and(|len| len % DEPTH == 0)
            }
            Range::Whole { .. } | Range::Within { .. } => false,
        },
        Range::Blocks { .. } => false,
    }
}

impl Emitter<'_> {
    /// The product that a nest is, where matrix units can do it.
    pub(super) fn product_of_tiles(&self, nest: &Nest, folding: &Folding) -> Option<Product> {
        if !self.dialect.has_matrices {
            return None;
        }
        let product = product(self.kernel, self.part, nest, folding)?;
        let is_factor = |operand: &Operand| self.row_of_factor(operand.tile).is_some();
        let is_near = |operand: &Operand| matches!(self.spot(operand.tile), Spot::Shared(_));
        let are_near = [&product.left, &product.right, &product.sum].into_iter().all(is_near);
        (are_near && is_factor(&product.left) && is_factor(&product.right)).then_some(product)
    }

    /// Multiplies two tiles and adds to a third; all planes go through it.
    pub(super) fn multiplied(&mut self, nest: &Nest, product: &Product) {
        for var in nest.loops.iter().chain([&product.inner]) {
            let start = self.start(*var);
            self.vars.insert(*var, start);
        }
        let depth = self.count(product.inner);
        let [left, right, sum] = [&product.left, &product.right, &product.sum].map(|it| self.first_word(it));
        let Fragments { columns: n_columns, each, planes } = product.fragments;
        let plane = self.writer.div(self.unit, constant(i64::from(PLANE)));
        let is_busy = self.writer.below(plane, constant(planes));
        let [row, column] = {
            let columns = constant(n_columns);
            [self.writer.div(plane, columns), self.writer.rem(plane, columns)]
        };
        self.when(is_busy, |emitter| {
            let [left_row, right_row] = [product.left.row + GAP, product.right.row + GAP];
            let right = emitter.stepped(right, column, SIDE * right_row);
            let rows: Vec<Variable> = (0..each)
                .map(|number| emitter.writer.add(row, constant(number * product.fragments.step())))
                .collect();
            let sums: Vec<(Variable, Variable)> = rows
                .iter()
                .map(|row| {
                    let place = emitter.stepped(sum, *row, SIDE * product.sum.row);
                    let place = emitter.stepped(place, column, SIDE);
                    let fragment = emitter.fragment(MatrixIdent::Accumulator);
                    emitter.fetch(fragment, place, product.sum.row);
                    (fragment, place)
                })
                .collect();
            let [a, b] = [MatrixIdent::A, MatrixIdent::B].map(|ident| emitter.fragment(ident));
            let [zero, step] = [0, DEPTH].map(constant);
            emitter.counted(zero, depth, step, |emitter, k| {
                let place = emitter.writer.add(right, k);
                emitter.fetch(b, place, right_row);
                for (row, (fragment, _)) in rows.iter().zip(&sums) {
                    let place = emitter.stepped(left, *row, SIDE * left_row);
                    let place = emitter.writer.add(place, k);
                    emitter.fetch(a, place, left_row);
                    let operation = CoopMma::Execute { mat_a: a, mat_b: b, mat_c: *fragment };
                    emitter.matrix_operation(operation, *fragment);
                }
            });
            for (mat, offset) in sums {
                let (stride, layout) = (constant(product.sum.row), MatrixLayout::RowMajor);
                let shared = emitter.room.shared();
                emitter.matrix_operation(CoopMma::Store { mat, stride, offset, layout }, shared);
            }
        });
    }

    /// The word of shared memory where an operand starts.
    fn first_word(&mut self, operand: &Operand) -> Variable {
        let element = self.index(&operand.element);
        let place = self.spread(operand.tile, element);
        self.tile_word(operand.tile, place).1
    }

    /// A place so many steps further on.
    fn stepped(&mut self, place: Variable, n: Variable, step: i64) -> Variable {
        let offset = self.writer.mul(n, constant(step));
        self.writer.add(place, offset)
    }

    fn fragment(&mut self, ident: MatrixIdent) -> Variable {
        let (kind, layout) = match ident {
            // Both factors have what is summed over side by side.
            MatrixIdent::A => (FloatKind::TF32, MatrixLayout::RowMajor),
            MatrixIdent::B => (FloatKind::TF32, MatrixLayout::ColMajor),
            MatrixIdent::Accumulator => (FloatKind::F32, MatrixLayout::Undefined),
        };
        let (m, n, k) = (SIDE as usize, SIDE as usize, DEPTH as usize);
        let storage = StorageType::Scalar(ElemType::Float(kind));
        *self.writer.scope.create_matrix(Matrix { ident, m, n, k, storage, layout })
    }

    /// Loads a fragment from shared memory.
    fn fetch(&mut self, fragment: Variable, offset: Variable, stride: i64) {
        let is_sum = fragment.elem_type() == ElemType::Float(FloatKind::F32);
        let layout = is_sum.then_some(MatrixLayout::RowMajor);
        let (value, stride) = (self.room.shared(), constant(stride));
        self.matrix_operation(CoopMma::Load { value, stride, offset, layout }, fragment);
    }

    fn matrix_operation(&mut self, operation: CoopMma, out: Variable) {
        self.writer.scope.register(Instruction::new(Operation::CoopMma(operation), out));
    }

    /// Where an element of a tile of factors lies: rows have gaps between them.
    pub(super) fn spread(&mut self, tile: TileId, element: Variable) -> Variable {
        let Some(row) = self.row_of_factor(tile) else { return element };
        let number = self.writer.div(element, constant(row));
        self.stepped(element, number, GAP)
    }

    /// A number as matrix units take it: the nearest whose last thirteen bits are zero.
    pub(super) fn rounded_factor(&mut self, value: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, value);
        let half = constant(1 << 12);
        let bits = self.writer.add(bits, half);
        self.writer.and(bits, !0x1fff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::gpu::compile;
    use crate::codegen::gpu::dialect::{Dialect, Language};
    use crate::kernel::parse::parse;

    /// Sums of 16 tokens and 32 rows, in blocks of 64 of 128 elements.
    const KERNEL: &str = r#"kernel "matmat w" matrix-matrix
  read @0 x : f32[t:16, d:128]
  read @1 w : q8_0[r:32, d:128]
  write @2 y : f32[t:16, r:32]
part
  tile tile0 : f32[16, 32]
  tile tile1 : f32[16, 64]
  tile tile2 : f32[32, 64]
  var t0 in 0..16
  var r1 in 0..32
  var d2 in blocks of 64 step 64 from 0 to 128
  var d3 within d2
  grid
  for t0, r1
    tile0[t0, r1] = 0.0
  loop d2
    for t0, d3
      tile1[t0, -d2+d3] = @0[t0, d3]
    for r1, d3
      tile2[r1, -d2+d3] = @1[r1, d3]
    for t0, r1
      tile0[t0, r1] = sum d3 of mul(tile1[t0, -d2+d3], tile2[r1, -d2+d3]) from tile0[t0, r1]
  end
  for t0, r1
    @2[t0, r1] = tile0[t0, r1]
"#;

    #[test]
    fn every_fragment_is_computed_once_and_a_plane_stays_in_its_column() {
        let mut n_shared = 0;
        for rows in 1..9 {
            for columns in 1..9 {
                let Some(fragments) = Fragments::of(rows * SIDE, columns * SIDE) else { continue };
                n_shared += 1;
                let mut found: Vec<(i64, i64)> = Vec::new();
                for plane in 0..fragments.planes {
                    let (row, column) = (plane / fragments.columns, plane % fragments.columns);
                    found.extend((0..fragments.each).map(|i| (row + i * fragments.step(), column)));
                }
                found.sort_unstable();
                let all: Vec<_> = (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))).collect();
                assert_eq!(found, all, "{rows} by {columns}");
            }
        }
        assert!(n_shared > 10 && Fragments::of(8, 16).is_none() && Fragments::of(16, 48).is_none());
    }

    #[test]
    fn a_nest_over_tiles_is_a_product_whose_factors_have_their_rows() {
        let kernel = parse(KERNEL).unwrap();
        let found = factors(&kernel, &kernel.parts[0]);
        assert_eq!(found.into_values().collect::<Vec<_>>(), [64, 64]);
        let source = |dialect: Dialect| compile(&kernel, dialect).unwrap().source;
        let with = Dialect::from(Language::Cuda);
        assert!(source(with).contains("mma_sync"));
        assert!(!source(Dialect { has_matrices: false, ..with }).contains("mma_sync"));
    }

    #[test]
    fn what_is_no_product_of_whole_fragments_stays_as_it_is() {
        let odd_rows = KERNEL.replace("t:16", "t:12").replace("[16, ", "[12, ").replace("0..16", "0..12");
        let odd_depth = KERNEL.replace("d:128", "d:100").replace("to 128", "to 100").replace("q8_0", "f16");
        let no_product = KERNEL.replace("mul(tile1", "add(tile1");
        for text in [odd_rows, odd_depth, no_product] {
            let kernel = parse(&text).unwrap();
            assert!(factors(&kernel, &kernel.parts[0]).is_empty(), "{text}");
            assert!(!compile(&kernel, Language::Cuda).unwrap().source.contains("mma_sync"), "{text}");
        }
    }

    #[test]
    fn rows_of_factors_keep_apart() {
        let place = |element: i64| element + element / 64 * GAP;
        assert!((1..512).all(|element| place(element) > place(element - 1)));
        assert_eq!(place(511) + 1 + GAP, padded_len(512, 64));
        // Eight rows, four neighbours of each: all 32 banks.
        let banks: BTreeSet<i64> =
            (0..8).flat_map(|row| (0..4).map(move |i| place(row * 64 + i) % 32)).collect();
        assert_eq!(banks.len(), 32);
    }
}
