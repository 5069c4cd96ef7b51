//! Emits tensor-core products: `mma.m16n8k8` (TF32) and `mma.m16n8k16` (bf16), 32-bit accumulators.
//!
//! In: a product of tiles that a nest says it is. Out: the loads, MMAs and stores of each warp. Fragments (PTX ISA,
//! "Matrix Fragments for mma.m16n8k8"); lane l has group g = l/4 and index i = l%4 in its quad. A word is one TF32
//! number or two bf16:
//!
//! ```text
//!  A (16 × 8 words)             B (8 words × 8)         D (16 × 8 sums)
//!  a0 = A[g    ][i    ]         b0 = B[i    ][g]        d0, d1 = D[g    ][2i], [2i + 1]
//!  a1 = A[g + 8][i    ]         b1 = B[i + 4][g]        d2, d3 = D[g + 8][2i], [2i + 1]
//!  a2 = A[g    ][i + 4]
//!  a3 = A[g + 8][i + 4]
//! ```
//!
//! bf16 operands are loaded by `ldmatrix`, TF32 operands word by word; they are rounded when they are stored to the
//! tile. The product says the type, `operands.rs` pads the rows. Rows past the end hold garbage, and so do their sums,
//! which nobody reads. The K dimension must end with a whole fragment: its tail is zero-filled.

use std::collections::BTreeSet;

use cubecl_core::ir::{
    Comparison, CoopMma, ElemType, FloatKind, Instruction, Matrix, MatrixIdent, MatrixLayout, Operation,
    StorageType, Variable,
};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::tiles::shared_memory::Placement;
use crate::codegen::gpu::writer::{F32, U32, Writer, Writes, constant, known, scalar};
use crate::kernel::product::fragments::{MMA_K, MMA_M, MMA_N, WARP, WarpTiling};
use crate::kernel::product::operands::OperandLayout;
use crate::kernel::product::tiles::{Operand, Start, TileProduct};
use crate::kernel::walk::nests;
use crate::kernel::{Nest, Place, Stmt, TileId, VarId};
use crate::target::THREADS;

/// A thread's position in a product.
struct ThreadPosition {
    /// The first row and column of its warp's fragments.
    own: [Variable; 2],
    /// Its lane in the warp.
    lane: Variable,
}

impl ThreadPosition {
    /// The lane's group `l/4` and its index `l%4` in the quad.
    fn lane_in_quad(&self, writer: &mut Writer) -> [Variable; 2] {
        [writer.shift_right(self.lane, 2), writer.and(self.lane, 3)]
    }

    /// For `ldmatrix`: the row whose address the lane gives, of `n_rows`, and which half of K it starts.
    fn ldmatrix_row(&self, writer: &mut Writer, n_rows: i64) -> [Variable; 2] {
        let half = writer.div(self.lane, constant(n_rows));
        [writer.and(self.lane, n_rows as u32 - 1), writer.and(half, 1)]
    }
}

/// Words of half a fragment row of an operand.
const HALF_K: i64 = MMA_K / 2;

/// The offsets of a lane's four accumulators, in words.
fn sum_offsets(product: &TileProduct) -> [i64; 4] {
    let row = 8 * product.sum.row;
    [0, 1, row, row + 1]
}

/// The MMA shape for this many elements a word.
fn mma_shape(per_word: i64) -> Matrix {
    let (m, n, k) = (MMA_M as usize, MMA_N as usize, (per_word * MMA_K) as usize);
    let storage = StorageType::Scalar(ElemType::Float(operand_type(per_word)));
    Matrix { ident: MatrixIdent::A, m, n, k, storage, layout: MatrixLayout::ColMajor }
}

/// The operand type for this many elements a word.
fn operand_type(per_word: i64) -> FloatKind {
    if per_word == 2 { FloatKind::BF16 } else { FloatKind::TF32 }
}

impl Emitter<'_> {
    /// The product that a nest is, where tensor cores can compute it.
    pub(super) fn tensor_core_product(&self, nest: &Nest) -> Option<TileProduct> {
        let product = TileProduct::of(self.kernel, self.part, nest)?;
        let is_shared = |operand: &Operand| matches!(self.placement(operand.tile), Placement::Shared(_));
        let are_shared = [&product.left, &product.right, &product.sum].into_iter().all(is_shared);
        (self.dialect.has_tensor_cores && are_shared).then_some(product)
    }

    /// Multiplies two tiles and adds to a third; all warps go through it.
    pub(super) fn mma_product(&mut self, nest: &Nest, product: &TileProduct) {
        self.prepare_operands(nest, product);
        self.bind_first(nest, product);
        let (depth, _) = self.k_len(product);
        let per_word = self.operand_layout(product.left.tile).map_or(1, |layout| layout.per_word);
        let depth = self.writer.div(depth, constant(per_word));
        let [left, right] = [&product.left, &product.right].map(|it| self.first_word(it));
        let kept = self.accumulators.get(&product.sum.tile).cloned();
        self.for_busy_warps(product, |emitter, at| {
            let [left_row, right_row] = [&product.left, &product.right].map(|it| emitter.stride(it));
            let sums = kept.clone().unwrap_or_else(|| emitter.load_sums(product, &at));
            // Strides from column to column and from word to word along K.
            let (across, along) = if product.right.is_transposed { (1, right_row) } else { (right_row, 1) };
            let is_whole = per_word > 1;
            let (of_rows, of_columns, next) = if is_whole {
                (
                    at.ldmatrix_row(&mut emitter.writer, MMA_M),
                    at.ldmatrix_row(&mut emitter.writer, MMA_N),
                    HALF_K,
                )
            } else {
                let of_four = at.lane_in_quad(&mut emitter.writer);
                (of_four, of_four, 1)
            };
            let rows = emitter.fragment_addresses(left, product, (0, at.own), (of_rows, [left_row, next]));
            let columns =
                emitter.fragment_addresses(right, product, (1, at.own), (of_columns, [across, next * along]));
            let all_a: Vec<Variable> = rows.iter().map(|_| emitter.operand_fragment(per_word, 4)).collect();
            let all_b: Vec<Variable> =
                columns.iter().map(|_| emitter.operand_fragment(per_word, 2)).collect();
            let [zero, step] = [0, MMA_K].map(constant);
            emitter.counted(zero, depth, step, |emitter, k| {
                let further = emitter.writer.mul(k, constant(along));
                for (a, place) in all_a.iter().zip(&rows) {
                    let place = emitter.writer.add(*place, k);
                    if is_whole {
                        emitter.ldmatrix(*a, place, 4);
                    } else {
                        emitter.load_fragment(*a, place, &[0, 8 * left_row, HALF_K, 8 * left_row + HALF_K]);
                    }
                }
                let fetch_column = |emitter: &mut Self, number: usize| {
                    let Some((b, place)) = all_b.get(number).zip(columns.get(number)) else { return };
                    let place = emitter.writer.add(*place, further);
                    if is_whole {
                        emitter.ldmatrix(*b, place, 2);
                    } else {
                        emitter.load_fragment(*b, place, &[0, HALF_K * along]);
                    }
                };
                // One column's load overlaps the MMAs of the one before: more would take registers.
                fetch_column(emitter, 0);
                for (number, registers_b) in all_b.iter().enumerate() {
                    fetch_column(emitter, number + 1);
                    for (registers_a, sums) in all_a.iter().zip(sums.chunks(all_b.len())) {
                        let (matrix, registers_c) = (mma_shape(per_word), sums[number]);
                        let (registers_a, registers_b) = (*registers_a, *registers_b);
                        let operation =
                            CoopMma::ExecuteManual { matrix, registers_a, registers_b, registers_c };
                        let operation = Operation::CoopMma(operation);
                        emitter.writer.scope.register(Instruction::new(operation, registers_c));
                    }
                }
            });
            if kept.is_none() {
                emitter.store_sums(product, &at, &sums);
            }
        });
    }

    /// Whether a nest zeroes accumulators that live in registers.
    pub(super) fn is_accumulator_init(&self, nest: &Nest) -> bool {
        let kept = self.memory.accumulators(self.part_number());
        nest.fold.is_none() && matches!(nest.target, Place::Tile(tile) if kept.contains_key(&tile))
    }

    /// Zeroes the accumulators that live in registers during a loop.
    pub(super) fn open_accumulators(&mut self, var: VarId, body: &[Stmt]) -> Vec<(Nest, TileProduct)> {
        let kept = self.memory.accumulators(self.part_number());
        let is_own = |nest: &&Nest| matches!(nest.target, Place::Tile(tile) if kept.get(&tile) == Some(&var));
        let own: Vec<Nest> = nests(body).filter(is_own).cloned().collect();
        let products = own.into_iter().map(|nest| {
            let product = self.tensor_core_product(&nest).expect("only products keep their sums");
            let [along, across] = product.fragments.per_warp;
            let sums = (0..along * across).map(|_| self.zero_fragment()).collect();
            self.accumulators.insert(product.sum.tile, sums);
            (nest, product)
        });
        products.collect()
    }

    /// Stores the accumulators when their loop is done.
    pub(super) fn close_accumulators(&mut self, kept: Vec<(Nest, TileProduct)>) {
        for (nest, product) in kept {
            self.sync_before(BTreeSet::new(), Some(product.sum.tile));
            self.bind_first(&nest, &product);
            let sums = self.accumulators.remove(&product.sum.tile).unwrap_or_default();
            self.for_busy_warps(&product, |emitter, at| emitter.store_sums(&product, &at, &sums));
        }
    }

    /// Binds the variables of a product to their first values.
    fn bind_first(&mut self, nest: &Nest, product: &TileProduct) {
        for var in nest.loops.iter().chain([&product.inner]) {
            let start = self.start(*var);
            self.vars.insert(*var, start);
        }
    }

    /// Runs `act` for warps that have fragments of rows that exist.
    fn for_busy_warps(&mut self, product: &TileProduct, act: impl FnOnce(&mut Self, ThreadPosition)) {
        let size = constant(i64::from(WARP));
        let (warp, lane) = (self.writer.div(self.thread, size), self.writer.rem(self.thread, size));
        let fragments = product.fragments;
        let columns = constant(fragments.warps[1]);
        let own = [self.writer.div(warp, columns), self.writer.rem(warp, columns)];
        let at = ThreadPosition { own, lane };
        // Rows are numbered with their last variable slowest, and only that one may have fewer values than the tile has
        // room for.
        let all = fragments.warps[0] * fragments.per_warp[0] * MMA_M;
        let n_rows = self.n_rows(product).filter(|n_rows| known(*n_rows) != Some(all as u32));
        let are_there = n_rows.map(|n_rows| {
            let first = self.writer.mul(at.own[0], constant(MMA_M));
            self.writer.below(first, n_rows)
        });
        let is_own = (fragments.n_warps() < i64::from(THREADS / WARP))
            .then(|| self.writer.below(warp, constant(fragments.n_warps())));
        self.if_present(is_own, |emitter| emitter.if_present(are_there, |emitter| act(emitter, at)));
    }

    /// How many rows of the left operand exist, where missing ones come last.
    fn n_rows(&mut self, product: &TileProduct) -> Option<Variable> {
        let (last, others) = product.left.own.split_last()?;
        let others: Vec<Variable> = others.iter().map(|var| self.count(*var)).collect();
        let of_one = self.product(&others);
        let count = self.count(*last);
        known(of_one).map(|_| self.writer.mul(count, of_one))
    }

    /// The addresses of a lane's first word of each of its warp's fragments along an axis. `within` is the lane's
    /// position in a fragment, as (row, word), and `steps` their strides.
    fn fragment_addresses(
        &mut self,
        first: Variable,
        product: &TileProduct,
        (axis, own): (usize, [Variable; 2]),
        (within, steps): ([Variable; 2], [i64; 2]),
    ) -> Vec<Variable> {
        let WarpTiling { warps, per_warp } = product.fragments;
        let side = steps[0] * [MMA_M, MMA_N][axis];
        let first = self.offset_by(first, own[axis], side);
        let first =
            within.into_iter().zip(steps).fold(first, |place, (n, step)| self.offset_by(place, n, step));
        (0..per_warp[axis]).map(|i| self.writer.add(first, constant(i * warps[axis] * side))).collect()
    }

    /// The addresses of a lane's first accumulator of each of its warp's fragments.
    fn sum_addresses(&mut self, product: &TileProduct, at: &ThreadPosition) -> Vec<Variable> {
        let WarpTiling { warps, per_warp } = product.fragments;
        let first = self.first_word(&product.sum);
        let column = self.offset_by(first, at.own[1], MMA_N);
        let of_four = at.lane_in_quad(&mut self.writer);
        let rows = self.fragment_addresses(column, product, (0, at.own), (of_four, [product.sum.row, 2]));
        let columns = |row| (0..per_warp[1]).map(move |i| (row, i * warps[1] * MMA_N));
        rows.into_iter().flat_map(columns).map(|(row, i)| self.writer.add(row, constant(i))).collect()
    }

    /// A warp's accumulators as they are in memory, or zeros.
    fn load_sums(&mut self, product: &TileProduct, at: &ThreadPosition) -> Vec<Variable> {
        let places = self.sum_addresses(product, at);
        let sums = places.into_iter().map(|place| {
            if product.start.is_none() {
                return self.zero_fragment();
            }
            let sum = self.sum_fragment();
            self.load_fragment(sum, place, &sum_offsets(product));
            sum
        });
        sums.collect()
    }

    /// A fragment of zeros.
    fn zero_fragment(&mut self) -> Variable {
        let sum = self.sum_fragment();
        let zero = self.writer.float_number(0.0);
        (0..4).for_each(|i| self.writer.store(sum, constant(i), zero));
        sum
    }

    /// Stores a warp's accumulators.
    fn store_sums(&mut self, product: &TileProduct, at: &ThreadPosition, sums: &[Variable]) {
        let (places, shared) = (self.sum_addresses(product, at), self.memory.shared());
        for (sum, place) in sums.iter().zip(places) {
            for (i, further) in sum_offsets(product).into_iter().enumerate() {
                let value = self.writer.load(*sum, constant(i as i64));
                let value = self.writer.reinterpreted(U32, value);
                let place = self.writer.add(place, constant(further));
                self.writer.store(shared, place, value);
            }
        }
    }

    /// Writes what fragments are about to load: the initial sums, and zeros in the K tail.
    fn prepare_operands(&mut self, nest: &Nest, product: &TileProduct) {
        let scalar = match product.start {
            Some(Start::Scalar(scalar)) => Some(scalar),
            Some(Start::Own) | None => None,
        };
        if let Some(scalar) = scalar {
            self.each_iteration(nest, |emitter| {
                let value = emitter.scalar(nest, scalar);
                emitter.store(nest.target, &nest.at, value);
            });
        }
        if product.is_ragged {
            let (depth, count) = self.k_len(product);
            let is_short = self.writer.below(count, depth);
            self.when(is_short, |emitter| {
                for operand in [&product.left, &product.right] {
                    emitter.zero_k_tail(operand, product.inner);
                }
            });
        }
        // Earlier accesses still count as such: only this nest has synchronised.
        if scalar.is_some() || product.is_ragged {
            self.writer.barrier(self.memory.spills());
        }
    }

    /// K as fragments cover it, and the actual number of elements.
    fn k_len(&mut self, product: &TileProduct) -> (Variable, Variable) {
        let count = self.count(product.inner);
        if !product.is_ragged {
            return (count, count);
        }
        let rounded = self.writer.add(count, constant(MMA_K - 1));
        let pieces = self.writer.div(rounded, constant(MMA_K));
        (self.writer.mul(pieces, constant(MMA_K)), count)
    }

    /// Zero-fills the K tail of an operand, as far as its last fragment goes.
    fn zero_k_tail(&mut self, operand: &Operand, inner: VarId) {
        let count = self.count(inner);
        let loops: Vec<VarId> = operand.own.iter().copied().chain([inner]).collect();
        let mut counts: Vec<Variable> = operand.own.iter().map(|var| self.count(*var)).collect();
        counts.push(constant(MMA_K));
        let n = self.product(&counts);
        let (thread, threads) = (self.thread, constant(i64::from(THREADS)));
        self.counted(thread, n, threads, |emitter, i| {
            let further = emitter.bind(&loops, &counts, i);
            let whole = emitter.writer.div(count, constant(MMA_K));
            let place = emitter.offset_by(further, whole, MMA_K);
            let is_past_end = emitter.writer.compare(Comparison::GreaterEqual, place, count);
            emitter.when(is_past_end, |emitter| {
                let position = emitter.writer.add(emitter.start(inner), place);
                emitter.vars.insert(inner, position);
                let element = emitter.index(&operand.element);
                let zero = emitter.writer.float_number(0.0);
                emitter.store_tile(operand.tile, element, zero);
            });
        });
    }

    /// Words from one row of an operand to the next.
    fn stride(&self, operand: &Operand) -> i64 {
        self.operand_layout(operand.tile).map_or(operand.row, OperandLayout::stride)
    }

    /// The shared-memory word where an operand starts.
    fn first_word(&mut self, operand: &Operand) -> Variable {
        let element = self.index(&operand.element);
        let place = self.padded_address(operand.tile, element);
        self.tile_word(operand.tile, place).1
    }

    /// An address `n` steps further.
    fn offset_by(&mut self, place: Variable, n: Variable, step: i64) -> Variable {
        let offset = self.writer.mul(n, constant(step));
        self.writer.add(place, offset)
    }

    /// A lane's accumulators of a fragment.
    fn sum_fragment(&mut self) -> Variable {
        *self.writer.scope.create_local_array(scalar(F32), 4)
    }

    /// A lane's words of an operand fragment.
    fn operand_fragment(&mut self, per_word: i64, n: usize) -> Variable {
        let word = scalar(ElemType::Float(operand_type(per_word))).with_vector_size(per_word as usize);
        *self.writer.scope.create_local_array(word, n)
    }

    /// Loads a lane's words of a fragment from shared memory, at offsets from an address.
    fn load_fragment(&mut self, fragment: Variable, place: Variable, further: &[i64]) {
        let shared = self.memory.shared();
        for (i, further) in further.iter().enumerate() {
            let place = self.writer.add(place, constant(*further));
            let word = self.writer.load(shared, place);
            self.writer.store_reinterpreted(fragment, constant(i as i64), word);
        }
    }

    /// `ldmatrix`: loads a fragment of `n_words` 8 × 8 blocks; each lane gives the address of one half row.
    fn ldmatrix(&mut self, fragment: Variable, offset: Variable, n_words: usize) {
        let (buffer, vector_size, factor) = (self.memory.shared(), None, n_words);
        let operation = CoopMma::LoadMatrix { buffer, offset, vector_size, factor, transpose: false };
        self.writer.scope.register(Instruction::new(Operation::CoopMma(operation), fragment));
    }

    /// The word of an operand's element, with padded rows.
    pub(super) fn padded_address(&mut self, tile: TileId, element: Variable) -> Variable {
        let Some(layout) = self.operand_layout(tile) else { return element };
        let number = self.writer.div(element, constant(layout.row));
        let word = self.writer.div(element, constant(layout.per_word));
        self.offset_by(word, number, layout.padding)
    }

    /// Rounds to TF32: the nearest number whose last 13 bits are zero. NaN passes unchanged: the NaN of GPUs has all
    /// bits set, and rounding up would carry into the sign.
    pub(super) fn round_to_tf32(&mut self, value: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, value);
        let half = constant(1 << 12);
        let rounded = self.writer.add(bits, half);
        let rounded = self.writer.and(rounded, !0x1fff);
        let is_number = self.equals(value, value);
        self.writer.select(is_number, rounded, bits)
    }
}
