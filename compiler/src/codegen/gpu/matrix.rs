//! Products of tiles through the matrix units of a GPU.
//!
//! In: a product that `product.rs` has found. Out: fragments of 16 rows and eight columns of sums, eight words deep,
//! which the threads of a plane load, multiply and store together. Of four neighbours each has a word of a factor's
//! row and the fourth behind it, and two sums side by side; the next four are in the next row.
//! A word is two bfloat16 numbers, or one in single precision whose last thirteen bits are zero: factors are rounded to
//! that when they are stored; sums are in single precision. `factor.rs` says which, and how factors lie.
//! A tile holds as many rows as a task may have. Those past the end hold anything, and so do their sums, which nobody
//! reads. But what is summed over must end with a whole fragment: zeros are put behind it.
//! What surrounds the product, before and behind it, stays as it is.

use std::collections::BTreeSet;

use cubecl_core::ir::{
    Comparison, CoopMma, ElemType, FloatKind, Instruction, Matrix, MatrixIdent, MatrixLayout, Operation,
    StorageType, Variable,
};

use crate::codegen::gpu::THREADS;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::factor::Factor;
use crate::codegen::gpu::product::{
    COLUMNS, DEPTH, Fragments, Operand, PLANE, Product, ROWS, Start, product,
};
use crate::codegen::gpu::room::Spot;
use crate::codegen::gpu::writer::{F32, U32, Writer, Writes, constant, known, scalar};
use crate::kernel::walk::nests;
use crate::kernel::{Folding, Nest, Place, Stmt, TileId, VarId};

/// Where a thread is in a product.
struct At {
    /// The first row and the first column of its plane's fragments.
    own: [Variable; 2],
    /// Its number in its plane.
    lane: Variable,
}

impl At {
    /// Its row of a fragment of the left factor or of sums, and its column of one of the right; and which of the four
    /// threads there it is.
    fn of_four(&self, writer: &mut Writer) -> [Variable; 2] {
        [writer.shift_right(self.lane, 2), writer.and(self.lane, 3)]
    }

    /// The row of a fragment of so many that the thread tells the units of, and which half of it.
    fn of_rows(&self, writer: &mut Writer, n_rows: i64) -> [Variable; 2] {
        let half = writer.div(self.lane, constant(n_rows));
        [writer.and(self.lane, n_rows as u32 - 1), writer.and(half, 1)]
    }
}

/// Words of half a row of a fragment of a factor.
const HALF: i64 = DEPTH / 2;

/// The words of a thread's share of a fragment of sums, behind the first.
fn elements_of_sum(product: &Product) -> [i64; 4] {
    let row = 8 * product.sum.row;
    [0, 1, row, row + 1]
}

/// The shape of what the units multiply at once, where words have so many elements.
fn shape(per_word: i64) -> Matrix {
    let (m, n, k) = (ROWS as usize, COLUMNS as usize, (per_word * DEPTH) as usize);
    let storage = StorageType::Scalar(ElemType::Float(kind_of(per_word)));
    Matrix { ident: MatrixIdent::A, m, n, k, storage, layout: MatrixLayout::ColMajor }
}

/// What factors are whose words have so many elements.
fn kind_of(per_word: i64) -> FloatKind {
    if per_word == 2 { FloatKind::BF16 } else { FloatKind::TF32 }
}

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
        self.begin(nest, product);
        let (depth, _) = self.depth(product);
        let per_word = self.factor(product.left.tile).map_or(1, |factor| factor.per_word);
        let depth = self.writer.div(depth, constant(per_word));
        let [left, right] = [&product.left, &product.right].map(|it| self.first_word(it));
        let kept = self.sums.get(&product.sum.tile).cloned();
        self.where_busy(product, |emitter, at| {
            let [left_row, right_row] = [&product.left, &product.right].map(|it| emitter.stride(it));
            let sums = kept.clone().unwrap_or_else(|| emitter.sums_so_far(product, &at));
            // From one column to the next, and from one word that is summed over to the next.
            let (across, along) = if product.right.is_turned { (1, right_row) } else { (right_row, 1) };
            let is_whole = per_word > 1;
            let (of_rows, of_columns, next) = if is_whole {
                (at.of_rows(&mut emitter.writer, ROWS), at.of_rows(&mut emitter.writer, COLUMNS), HALF)
            } else {
                let of_four = at.of_four(&mut emitter.writer);
                (of_four, of_four, 1)
            };
            let rows = emitter.places(left, product, (0, at.own), (of_rows, [left_row, next]));
            let columns = emitter.places(right, product, (1, at.own), (of_columns, [across, next * along]));
            let all_a: Vec<Variable> = rows.iter().map(|_| emitter.words_of(per_word, 4)).collect();
            let all_b: Vec<Variable> = columns.iter().map(|_| emitter.words_of(per_word, 2)).collect();
            let [zero, step] = [0, DEPTH].map(constant);
            emitter.counted(zero, depth, step, |emitter, k| {
                let further = emitter.writer.mul(k, constant(along));
                for (a, place) in all_a.iter().zip(&rows) {
                    let place = emitter.writer.add(*place, k);
                    if is_whole {
                        emitter.fetch_whole(*a, place, 4);
                    } else {
                        emitter.fetch(*a, place, &[0, 8 * left_row, HALF, 8 * left_row + HALF]);
                    }
                }
                let fetch_column = |emitter: &mut Self, number: usize| {
                    let Some((b, place)) = all_b.get(number).zip(columns.get(number)) else { return };
                    let place = emitter.writer.add(*place, further);
                    if is_whole {
                        emitter.fetch_whole(*b, place, 2);
                    } else {
                        emitter.fetch(*b, place, &[0, HALF * along]);
                    }
                };
                // One column is on its way while another is multiplied: more would take registers.
                fetch_column(emitter, 0);
                for (number, registers_b) in all_b.iter().enumerate() {
                    fetch_column(emitter, number + 1);
                    for (registers_a, sums) in all_a.iter().zip(sums.chunks(all_b.len())) {
                        let (matrix, registers_c) = (shape(per_word), sums[number]);
                        let (registers_a, registers_b) = (*registers_a, *registers_b);
                        let operation =
                            CoopMma::ExecuteManual { matrix, registers_a, registers_b, registers_c };
                        let operation = Operation::CoopMma(operation);
                        emitter.writer.scope.register(Instruction::new(operation, registers_c));
                    }
                }
            });
            if kept.is_none() {
                emitter.stored(product, &at, &sums);
            }
        });
    }

    /// Whether a nest puts zeros where sums will be stored that are kept in registers until then.
    pub(super) fn is_emptying(&self, nest: &Nest) -> bool {
        let kept = self.room.kept(self.part_number());
        nest.fold.is_none() && matches!(nest.target, Place::Tile(tile) if kept.contains_key(&tile))
    }

    /// Begins the sums that are kept during a loop.
    pub(super) fn opened(&mut self, var: VarId, body: &[Stmt]) -> Vec<(Nest, Product)> {
        let kept = self.room.kept(self.part_number());
        let is_own = |nest: &&Nest| matches!(nest.target, Place::Tile(tile) if kept.get(&tile) == Some(&var));
        let own: Vec<Nest> = nests(body).filter(is_own).cloned().collect();
        let products = own.into_iter().map(|nest| {
            let product = nest.fold.as_ref().and_then(|folding| self.product_of_tiles(&nest, folding));
            let product = product.expect("only products keep their sums");
            let [along, across] = product.fragments.each;
            let sums = (0..along * across).map(|_| self.empty_sum()).collect();
            self.sums.insert(product.sum.tile, sums);
            (nest, product)
        });
        products.collect()
    }

    /// Stores the sums that were kept during a loop.
    pub(super) fn closed(&mut self, kept: Vec<(Nest, Product)>) {
        for (nest, product) in kept {
            self.wait_to(BTreeSet::new(), Some(product.sum.tile));
            self.begin(&nest, &product);
            let sums = self.sums.remove(&product.sum.tile).unwrap_or_default();
            self.where_busy(&product, |emitter, at| emitter.stored(&product, &at, &sums));
        }
    }

    /// Gives the variables of a product their first values.
    fn begin(&mut self, nest: &Nest, product: &Product) {
        for var in nest.loops.iter().chain([&product.inner]) {
            let start = self.start(*var);
            self.vars.insert(*var, start);
        }
    }

    /// What planes do that compute any fragments of rows that are there; they are told where.
    fn where_busy(&mut self, product: &Product, act: impl FnOnce(&mut Self, At)) {
        let size = constant(i64::from(PLANE));
        let (plane, lane) = (self.writer.div(self.unit, size), self.writer.rem(self.unit, size));
        let fragments = product.fragments;
        let columns = constant(fragments.planes[1]);
        let own = [self.writer.div(plane, columns), self.writer.rem(plane, columns)];
        let at = At { own, lane };
        // Rows lie in order of the last of their variables, which alone may take fewer values than there is room for.
        let all = fragments.planes[0] * fragments.each[0] * ROWS;
        let n_rows = self.n_rows(product).filter(|n_rows| known(*n_rows) != Some(all as u32));
        let are_there = n_rows.map(|n_rows| {
            let first = self.writer.mul(at.own[0], constant(ROWS));
            self.writer.below(first, n_rows)
        });
        let is_own = (fragments.n_planes() < i64::from(THREADS / PLANE))
            .then(|| self.writer.below(plane, constant(fragments.n_planes())));
        self.where_there(is_own, |emitter| emitter.where_there(are_there, |emitter| act(emitter, at)));
    }

    /// How many rows of the left factor are there, where those that are not come last.
    fn n_rows(&mut self, product: &Product) -> Option<Variable> {
        let (last, others) = product.left.own.split_last()?;
        let others: Vec<Variable> = others.iter().map(|var| self.count(*var)).collect();
        let of_one = self.product(&others);
        let count = self.count(*last);
        known(of_one).map(|_| self.writer.mul(count, of_one))
    }

    /// The places of a thread's first words of its plane's fragments along an axis: the thread is in a row of them, and
    /// somewhere along it, and so many words lie between rows, and from there to the next.
    fn places(
        &mut self,
        first: Variable,
        product: &Product,
        (axis, own): (usize, [Variable; 2]),
        (within, steps): ([Variable; 2], [i64; 2]),
    ) -> Vec<Variable> {
        let Fragments { planes, each } = product.fragments;
        let side = steps[0] * [ROWS, COLUMNS][axis];
        let first = self.stepped(first, own[axis], side);
        let first =
            within.into_iter().zip(steps).fold(first, |place, (n, step)| self.stepped(place, n, step));
        (0..each[axis]).map(|i| self.writer.add(first, constant(i * planes[axis] * side))).collect()
    }

    /// The places of a thread's first elements of its plane's sums.
    fn places_of_sums(&mut self, product: &Product, at: &At) -> Vec<Variable> {
        let Fragments { planes, each } = product.fragments;
        let first = self.first_word(&product.sum);
        let column = self.stepped(first, at.own[1], COLUMNS);
        let of_four = at.of_four(&mut self.writer);
        let rows = self.places(column, product, (0, at.own), (of_four, [product.sum.row, 2]));
        let columns = |row| (0..each[1]).map(move |i| (row, i * planes[1] * COLUMNS));
        rows.into_iter().flat_map(columns).map(|(row, i)| self.writer.add(row, constant(i))).collect()
    }

    /// The sums of a plane as they are in memory, or none yet.
    fn sums_so_far(&mut self, product: &Product, at: &At) -> Vec<Variable> {
        let places = self.places_of_sums(product, at);
        let sums = places.into_iter().map(|place| {
            if product.start.is_none() {
                return self.empty_sum();
            }
            let sum = self.sum();
            self.fetch(sum, place, &elements_of_sum(product));
            sum
        });
        sums.collect()
    }

    /// A fragment of zeros.
    fn empty_sum(&mut self) -> Variable {
        let sum = self.sum();
        let zero = self.writer.float_number(0.0);
        (0..4).for_each(|i| self.writer.store(sum, constant(i), zero));
        sum
    }

    /// Stores the sums of a plane.
    fn stored(&mut self, product: &Product, at: &At, sums: &[Variable]) {
        let (places, shared) = (self.places_of_sums(product, at), self.room.shared());
        for (sum, place) in sums.iter().zip(places) {
            for (i, further) in elements_of_sum(product).into_iter().enumerate() {
                let value = self.writer.load(*sum, constant(i as i64));
                let value = self.writer.reinterpreted(U32, value);
                let place = self.writer.add(place, constant(further));
                self.writer.store(shared, place, value);
            }
        }
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

    /// A thread's share of a fragment of sums.
    fn sum(&mut self) -> Variable {
        *self.writer.scope.create_local_array(scalar(F32), 4)
    }

    /// A thread's share of a fragment of a factor: so many words of so many elements.
    fn words_of(&mut self, per_word: i64, n: usize) -> Variable {
        let word = scalar(ElemType::Float(kind_of(per_word))).with_vector_size(per_word as usize);
        *self.writer.scope.create_local_array(word, n)
    }

    /// Loads a thread's share of a fragment from shared memory: words so far behind a place.
    fn fetch(&mut self, fragment: Variable, place: Variable, further: &[i64]) {
        let shared = self.room.shared();
        for (i, further) in further.iter().enumerate() {
            let place = self.writer.add(place, constant(*further));
            let word = self.writer.load(shared, place);
            self.writer.store_reinterpreted(fragment, constant(i as i64), word);
        }
    }

    /// Loads a fragment, or half as many rows of one, from shared memory: each thread tells where half a row begins.
    fn fetch_whole(&mut self, fragment: Variable, offset: Variable, n_words: usize) {
        let (buffer, vector_size, factor) = (self.room.shared(), None, n_words);
        let operation = CoopMma::LoadMatrix { buffer, offset, vector_size, factor, transpose: false };
        self.writer.scope.register(Instruction::new(Operation::CoopMma(operation), fragment));
    }

    /// The word where an element of a tile of factors lies: rows have gaps between them.
    pub(super) fn spread(&mut self, tile: TileId, element: Variable) -> Variable {
        let Some(factor) = self.factor(tile) else { return element };
        let number = self.writer.div(element, constant(factor.row));
        let word = self.writer.div(element, constant(factor.per_word));
        self.stepped(word, number, factor.gap)
    }

    /// A number as matrix units take it: the nearest whose last thirteen bits are zero. NaN stays as it is: with
    /// all bits set, as GPUs make it, it would be carried into the sign.
    pub(super) fn rounded_factor(&mut self, value: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, value);
        let half = constant(1 << 12);
        let rounded = self.writer.add(bits, half);
        let rounded = self.writer.and(rounded, !0x1fff);
        let is_number = self.equals(value, value);
        self.writer.select(is_number, rounded, bits)
    }
}
