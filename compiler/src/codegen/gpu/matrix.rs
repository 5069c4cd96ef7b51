//! Products of tiles through the matrix units of a GPU.
//!
//! In: a product that `product.rs` has found. Out: fragments of 16 rows and 16 columns, eight elements deep, which the
//! threads of a plane load, multiply and store together.
//! The units take single-precision numbers whose last thirteen bits are zero, so factors are rounded to that when they
//! are stored; sums are in single precision. Rows of factors lie four words further apart than they are long:
//! neighbours would else wait for each other, because they want the same bank of memory.
//! A tile holds as many rows as a task may have. Those past the end hold anything, and so do their sums, which nobody
//! reads. What surrounds the product, before and behind it, stays as it is.

use cubecl_core::ir::{
    CoopMma, ElemType, FloatKind, Instruction, Matrix, MatrixIdent, MatrixLayout, Operation, StorageType,
    Variable,
};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::product::{DEPTH, Fragments, Operand, PLANE, Product, SIDE, product};
use crate::codegen::gpu::room::Spot;
use crate::codegen::gpu::writer::{U32, Writes, constant};
use crate::kernel::{Folding, Nest, TileId};

/// Words between the rows of a factor.
const GAP: i64 = 4;

/// Elements of a tile of factors, with what lies between its rows.
pub(super) fn padded_len(len: i64, row: i64) -> i64 {
    len / row * (row + GAP)
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
                    if product.adds {
                        emitter.fetch(fragment, place, product.sum.row);
                    } else {
                        let value = emitter.writer.float_number(0.0);
                        emitter.matrix_operation(CoopMma::Fill { value }, fragment);
                    }
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
    use std::collections::BTreeSet;

    use super::*;

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
