//! Products of tiles through the matrix units of a GPU.
//!
//! In: a product that `product.rs` has found. Out: fragments of 16 rows and 16 columns, eight elements deep, which the
//! threads of a plane load, multiply and store together.
//! The units take single-precision numbers whose last thirteen bits are zero, so factors are rounded to that when they
//! are stored; sums are in single precision. `factor.rs` says how factors lie.
//! A tile holds as many rows as a task may have. Those past the end hold anything, and so do their sums, which nobody
//! reads. But what is summed over must end with a whole fragment: zeros are put behind it.
//! What surrounds the product, before and behind it, stays as it is.

use cubecl_core::ir::{
    Comparison, CoopMma, ElemType, FloatKind, Instruction, Matrix, MatrixIdent, MatrixLayout, Operation,
    StorageType, Variable,
};

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::factor::Factor;
use crate::codegen::gpu::product::{DEPTH, Fragments, Operand, PLANE, Product, SIDE, Start, product};
use crate::codegen::gpu::room::Spot;
use crate::codegen::gpu::writer::{U32, Writes, constant};
use crate::kernel::{Folding, Nest, TileId, VarId};

impl Emitter<'_> {
    /// The product that a nest is, where matrix units can do it.
    pub(super) fn product_of_tiles(&self, nest: &Nest, folding: &Folding) -> Option<Product> {
        if !self.dialect.has_matrices {
            return None;
        }
        let product = product(self.kernel, self.part, nest, folding)?;
        let is_factor = |operand: &Operand| self.factor(operand.tile).is_some();
        let is_near = |operand: &Operand| matches!(self.spot(operand.tile), Spot::Shared(_));
        let are_near = [&product.left, &product.right, &product.sum].into_iter().all(is_near);
        (are_near && is_factor(&product.left) && is_factor(&product.right)).then_some(product)
    }

    /// Multiplies two tiles and adds to a third; all planes go through it.
    pub(super) fn multiplied(&mut self, nest: &Nest, product: &Product) {
        self.prepared(nest, product);
        for var in nest.loops.iter().chain([&product.inner]) {
            let start = self.start(*var);
            self.vars.insert(*var, start);
        }
        let (depth, _) = self.depth(product);
        let [left, right, sum] = [&product.left, &product.right, &product.sum].map(|it| self.first_word(it));
        let Fragments { columns: n_columns, each, planes } = product.fragments;
        let plane = self.writer.div(self.unit, constant(i64::from(PLANE)));
        let is_busy = self.writer.below(plane, constant(planes));
        let [row, column] = {
            let columns = constant(n_columns);
            [self.writer.div(plane, columns), self.writer.rem(plane, columns)]
        };
        self.when(is_busy, |emitter| {
            let [left_row, right_row] = [&product.left, &product.right].map(|it| emitter.stride(it));
            // From one column of fragments to the next, and from one element that is summed over to the next.
            let (across, along) = if product.right.is_turned { (1, right_row) } else { (right_row, 1) };
            let right = emitter.stepped(right, column, SIDE * across);
            let rows: Vec<Variable> = (0..each)
                .map(|number| emitter.writer.add(row, constant(number * product.fragments.step())))
                .collect();
            let sums: Vec<(Variable, Variable)> = rows
                .iter()
                .map(|row| {
                    let place = emitter.stepped(sum, *row, SIDE * product.sum.row);
                    let place = emitter.stepped(place, column, SIDE);
                    let fragment = emitter.fragment(MatrixIdent::Accumulator, MatrixLayout::Undefined);
                    if product.start.is_some() {
                        emitter.fetch(fragment, place, product.sum.row);
                    } else {
                        let value = emitter.writer.float_number(0.0);
                        emitter.matrix_operation(CoopMma::Fill { value }, fragment);
                    }
                    (fragment, place)
                })
                .collect();
            let a = emitter.fragment(MatrixIdent::A, MatrixLayout::RowMajor);
            let lies = if product.right.is_turned { MatrixLayout::RowMajor } else { MatrixLayout::ColMajor };
            let b = emitter.fragment(MatrixIdent::B, lies);
            let [zero, step] = [0, DEPTH].map(constant);
            emitter.counted(zero, depth, step, |emitter, k| {
                let place = emitter.stepped(right, k, along);
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

    /// Writes what fragments are about to load: what the product adds to, and zeros behind what is summed over.
    fn prepared(&mut self, nest: &Nest, product: &Product) {
        let scalar = match product.start {
            Some(Start::Scalar(scalar)) => Some(scalar),
            Some(Start::Own) | None => None,
        };
        if let Some(scalar) = scalar {
            self.each(nest, |emitter| {
                let value = emitter.scalar(nest, scalar);
                emitter.store(nest.target, &nest.at, value);
            });
        }
        if product.is_ragged {
            let (depth, count) = self.depth(product);
            let is_short = self.writer.below(count, depth);
            self.when(is_short, |emitter| {
                for operand in [&product.left, &product.right] {
                    emitter.ended(operand, product.inner);
                }
            });
        }
        // What was touched before still counts as touched: only this nest has met within.
        if scalar.is_some() || product.is_ragged {
            self.writer.barrier(self.room.spills());
        }
    }

    /// How many elements fragments sum over, and how many there are.
    fn depth(&mut self, product: &Product) -> (Variable, Variable) {
        let count = self.count(product.inner);
        if !product.is_ragged {
            return (count, count);
        }
        let rounded = self.writer.add(count, constant(DEPTH - 1));
        let pieces = self.writer.div(rounded, constant(DEPTH));
        (self.writer.mul(pieces, constant(DEPTH)), count)
    }

    /// Puts zeros behind the end of what is summed over, as far as its last fragment goes.
    fn ended(&mut self, operand: &Operand, inner: VarId) {
        let count = self.count(inner);
        let loops: Vec<VarId> = operand.own.iter().copied().chain([inner]).collect();
        let mut counts: Vec<Variable> = operand.own.iter().map(|var| self.count(*var)).collect();
        counts.push(constant(DEPTH));
        let n = self.product(&counts);
        let (unit, threads) = (self.unit, constant(i64::from(THREADS)));
        self.counted(unit, n, threads, |emitter, i| {
            let further = emitter.bind(&loops, &counts, i);
            let whole = emitter.writer.div(count, constant(DEPTH));
            let place = emitter.stepped(further, whole, DEPTH);
            let is_behind = emitter.writer.compare(Comparison::GreaterEqual, place, count);
            emitter.when(is_behind, |emitter| {
                let position = emitter.writer.add(emitter.start(inner), place);
                emitter.vars.insert(inner, position);
                let element = emitter.index(&operand.element);
                let zero = emitter.writer.float_number(0.0);
                emitter.store_tile(operand.tile, element, zero);
            });
        });
    }

    /// Words from one row of a factor to the next.
    fn stride(&self, operand: &Operand) -> i64 {
        self.factor(operand.tile).map_or(operand.row, Factor::stride)
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

    fn fragment(&mut self, ident: MatrixIdent, layout: MatrixLayout) -> Variable {
        let kind = match ident {
            MatrixIdent::A | MatrixIdent::B => FloatKind::TF32,
            MatrixIdent::Accumulator => FloatKind::F32,
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
        let Some(factor) = self.factor(tile) else { return element };
        let number = self.writer.div(element, constant(factor.row));
        self.stepped(element, number, factor.gap)
    }

    /// A number as matrix units take it: the nearest whose last thirteen bits are zero. What is no number stays as it
    /// is: with all bits set, as GPUs make it, it would be carried into the sign.
    pub(super) fn rounded_factor(&mut self, value: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, value);
        let half = constant(1 << 12);
        let rounded = self.writer.add(bits, half);
        let rounded = self.writer.and(rounded, !0x1fff);
        let is_number = self.equals(value, value);
        self.writer.select(is_number, rounded, bits)
    }
}
