//! Folds that read sixteen bytes of memory at a time.
//!
//! In: a nest whose innermost folded loop runs along the elements of buffers it reads. Out: for each piece of that loop
//! the elements of all such buffers, loaded as vectors and decoded in registers.
//! Where a quantised element is only multiplied, the scale that a piece shares multiplies the sum of the piece instead
//! of each element. Buffers are bound a second time for it, as arrays of vectors.

use std::collections::BTreeMap;

use cubecl_core::ir::{Arithmetic, Type, Variable};

use crate::codegen::gpu::decode::Spot;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::layout::{What, place};
use crate::codegen::gpu::writer::{F32, I32, U32, constant, scalar};
use crate::graph::op::{Binary, Fold};
use crate::kernel::index::{Atom, Index};
use crate::kernel::{
    Access, Expr, ExprId, Folding, Kernel, Nest, ParamId, Part, Place, Range, Stmt, TileId, VarId,
};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A fold that reads vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wide {
    /// Elements of a piece.
    pub(super) len: i64,
    /// Pieces of the innermost loop.
    pub(super) n_pieces: i64,
    /// The loads that are vectors, with the first element of a piece where the loop's variable is zero.
    loads: BTreeMap<ExprId, (ParamId, Index)>,
    /// The same of tiles.
    tiles: BTreeMap<ExprId, (TileId, Index)>,
}

/// The elements of a piece in registers.
pub(super) struct Decoded {
    values: Vec<Variable>,
    /// What still multiplies each of them.
    scale: Option<Variable>,
}

/// The type of a buffer that is read as vectors.
pub(super) fn vectors() -> Type {
    scalar(U32).with_vector_size(4)
}

/// The buffers of a kernel that folds read as vectors.
pub(super) fn read_as_vectors(kernel: &Kernel) -> Vec<ParamId> {
    let folds = kernel.parts.iter().flat_map(|part| folds(kernel, part));
    let mut found: Vec<ParamId> =
        folds.flat_map(|wide| wide.loads.into_values().map(|(param, _)| param)).collect();
    found.sort();
    found.dedup();
    found
}

/// The tiles of a part whose pieces threads read, with the elements of a piece where all agree on that.
pub(super) fn interleaved(kernel: &Kernel, part: &Part) -> BTreeMap<TileId, i64> {
    let mut found: BTreeMap<TileId, Option<i64>> = BTreeMap::new();
    for Wide { len, tiles, .. } in folds(kernel, part) {
        for (tile, _) in tiles.into_values() {
            let is_whole = part.tiles[tile].dims.last().is_some_and(|dim| (*dim as i64) % len == 0);
            let own = is_whole.then_some(len);
            let agreed = found.entry(tile).or_insert(own);
            *agreed = agreed.filter(|_| *agreed == own);
        }
    }
    // Pieces of four are in order already.
    found.into_iter().filter_map(|(tile, len)| Some((tile, len.filter(|len| *len > 4)?))).collect()
}

/// The folds of a part that read vectors.
fn folds(kernel: &Kernel, part: &Part) -> Vec<Wide> {
    let mut found = Vec::new();
    let mut pending: Vec<&Stmt> = part.body.iter().collect();
    while let Some(stmt) = pending.pop() {
        match stmt {
            Stmt::Loop { body, .. } => pending.extend(body),
            Stmt::Nest(nest) => {
                found.extend(nest.fold.as_ref().and_then(|folding| wide(kernel, part, nest, folding)));
            }
        }
    }
    found
}

/// Whether a fold can read vectors, and which.
pub(super) fn wide(kernel: &Kernel, part: &Part, nest: &Nest, folding: &Folding) -> Option<Wide> {
    let var = *folding.loops.last()?;
    let Range::Whole { len: n } = &part.vars[var].range else { return None };
    let n = n.as_const()?;
    let (mut loads, mut tiles) = (BTreeMap::new(), BTreeMap::new());
    let mut len = 1;
    for (id, expr) in nest.exprs.iter() {
        let Expr::Load { from, at } = expr else { continue };
        let Some(first) = first_of_piece(&dims_of(kernel, part, *from), at, var) else { continue };
        match from {
            Place::Tile(tile) => {
                tiles.insert(id, (*tile, first));
            }
            Place::Param(param) if kernel.params[*param].access == Access::Read => {
                if let Some(natural) = natural(kernel.params[*param].format) {
                    loads.insert(id, (*param, first));
                    len = len.max(natural);
                }
            }
            Place::Param(_) => {}
        }
    }
    let is_whole = |index: &Index| {
        index.offset() % len == 0 && index.terms().iter().all(|(_, factor)| factor % len == 0)
    };
    loads.retain(|_, (_, first)| is_whole(first));
    tiles.retain(|_, (_, first)| is_whole(first));
    let n_pieces = n / len;
    (!loads.is_empty() && n % len == 0 && n_pieces > 1).then_some(Wide { len, n_pieces, loads, tiles })
}

/// How many elements sixteen bytes are, about; a piece of any of them is of one block, with one scale.
fn natural(format: Format) -> Option<i64> {
    match format {
        Format::F32 | Format::I32 => Some(4),
        Format::F16 | Format::BF16 => Some(8),
        Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K => Some(16),
        Format::Int8 { group } => (group % 16 == 0).then_some(16),
        Format::Q4Pairs => None,
    }
}

/// The sizes that a place is laid out for.
pub(super) fn dims_of(kernel: &Kernel, part: &Part, place: Place) -> Vec<i64> {
    match place {
        Place::Param(id) => kernel.params[id].shape.iter().map(|(_, size)| size.most()).collect(),
        Place::Tile(id) => part.tiles[id].dims.iter().map(|dim| *dim as i64).collect(),
    }
}

/// The number of an element in storage order.
pub(super) fn element_of(dims: &[i64], at: &[Index]) -> Index {
    let axes = at.iter().enumerate();
    axes.fold(Index::constant(0), |element, (axis, index)| {
        element.plus(&index.times(dims[axis + 1..].iter().product()))
    })
}

/// The element that a load reads where a variable is zero, if it reads the next one for each next value.
fn first_of_piece(dims: &[i64], at: &[Index], var: VarId) -> Option<Index> {
    let element = element_of(dims, at);
    let first = element.minus(&Index::var(var));
    let is_next = element.terms().contains(&(Atom::Var(var), 1)) && !first.uses_var(|own| own == var);
    is_next.then_some(first)
}

impl Emitter<'_> {
    /// Folds one piece into what is there so far.
    pub(super) fn fold_piece(
        &mut self,
        (nest, folding): (&Nest, &Folding),
        wide: &Wide,
        (piece, before): (Variable, Variable),
        known: &dyn Fn(ExprId) -> Option<Variable>,
    ) -> Variable {
        let var = *folding.loops.last().expect("a fold has loops");
        let len = constant(wide.len);
        let base = self.writer.mul(piece, len);
        let mut decoded: BTreeMap<ExprId, Decoded> = BTreeMap::new();
        for (id, (param, first)) in &wide.loads {
            let first = self.index(first);
            let element = self.writer.add(first, base);
            let is_factor = folding.fold == Fold::Sum && is_factor(nest, nest.value, *id);
            decoded.insert(*id, self.piece((*param, element), wide.len as usize, is_factor));
        }
        for (id, (tile, first)) in &wide.tiles {
            if self.piece_len(*tile) == Some(wide.len) {
                let first = self.index(first);
                let element = self.writer.add(first, base);
                let values = self.piece_of_tile(*tile, element, wide.len);
                decoded.insert(*id, Decoded { values, scale: None });
            }
        }
        let mut sum: Option<Variable> = None;
        for i in 0..wide.len {
            let i_number = constant(i);
            let value = self.writer.add(base, i_number);
            self.vars.insert(var, value);
            let of = |id| decoded.get(&id).map(|own| own.values[i as usize]).or_else(|| known(id));
            let x = self.scalar_with(nest, nest.value, &of);
            sum = Some(sum.map_or(x, |sum| self.fold(folding.fold, sum, x)));
        }
        let sum = sum.expect("a piece has elements");
        let scales = decoded.values().filter_map(|own| own.scale);
        let scaled = scales.fold(sum, |sum, scale| self.times(sum, scale));
        self.fold(folding.fold, before, scaled)
    }

    /// The elements of a piece of an interleaved tile from one on.
    fn piece_of_tile(&mut self, tile: TileId, element: Variable, len: i64) -> Vec<Variable> {
        let first = self.interleaved(tile, element);
        let stride = self.quad_stride(tile);
        let word = |i: i64| i / 4 * stride + i % 4;
        (0..len).map(|i| self.load_word_of_tile(tile, first, word(i))).collect()
    }

    /// The elements of a piece from one on.
    fn piece(&mut self, (param, element): (ParamId, Variable), len: usize, is_factor: bool) -> Decoded {
        let format = self.kernel.params[param].format;
        let list = self.params[param].vectors.expect("what is read as vectors is bound so");
        if let Some(dtype) = format.plain() {
            let per_vector = 16 / dtype.bytes();
            let size = constant(per_vector as i64);
            let start = self.writer.div(element, size);
            let mut values = Vec::new();
            for number in 0..len / per_vector {
                let number = constant(number as i64);
                let at = self.writer.add(start, number);
                let words = self.vector(list, at);
                values.extend(words.into_iter().flat_map(|word| self.plain_of_word(dtype, word)));
            }
            return Decoded { values, scale: None };
        }
        let n_elements = self.kernel.params[param].shape.max_len();
        let block_len = constant(format.block_len() as i64);
        let (block, i) = (self.writer.div(element, block_len), self.writer.rem(element, block_len));
        let spot = Spot { format, n_elements, list: self.params[param].list, block, i };
        self.quantised(spot, list, is_factor)
    }

    /// The numbers that a word of plain elements holds.
    fn plain_of_word(&mut self, dtype: DType, word: Variable) -> Vec<Variable> {
        match dtype {
            DType::F32 => vec![self.writer.reinterpreted(F32, word)],
            DType::I32 => vec![self.writer.cast(I32, word)],
            DType::F16 | DType::BF16 => {
                let (low, high) = (self.writer.and(word, 0xffff), self.writer.shift_right(word, 16));
                [low, high].map(|bits| self.widened(dtype, bits)).to_vec()
            }
        }
    }

    /// Sixteen elements of a block.
    fn quantised(&mut self, spot: Spot, list: Variable, is_factor: bool) -> Decoded {
        let format = spot.format;
        let half = self.writer.shift_right(spot.i, 4);
        match format {
            Format::Q8_0 | Format::Int8 { .. } => {
                let words = self.vector_of(spot, list, What::Elements, half);
                let bytes = self.bytes(&words);
                let values = bytes.map(|byte| self.with_sign(byte)).collect();
                let scale = self.scale(spot);
                self.scaled(values, scale, is_factor)
            }
            Format::Q4_0 | Format::Q5_0 => {
                let values = self.quanta(spot, list, half);
                let middle = self.writer.float_number(if format == Format::Q4_0 { 8.0 } else { 16.0 });
                let centred = values.into_iter();
                let values = centred.map(|q| self.writer.arithmetic(Arithmetic::Sub, q, middle)).collect();
                let scale = self.scale(spot);
                self.scaled(values, scale, is_factor)
            }
            Format::Q4_1 | Format::Q5_1 => {
                let values = self.quanta(spot, list, half);
                let [d, m] = self.scale_and_offset(spot);
                let values = values.into_iter().map(|q| {
                    let product = self.times(d, q);
                    self.writer.arithmetic(Arithmetic::Add, product, m)
                });
                Decoded { values: values.collect(), scale: None }
            }
            Format::Q4K | Format::Q5K => self.piece_of_k(spot, list, half),
            Format::Q6K => self.piece_of_q6_k(spot, list, half, is_factor),
            Format::F32 | Format::F16 | Format::BF16 | Format::I32 | Format::Q4Pairs => {
                unreachable!("these have no pieces of sixteen in blocks")
            }
        }
    }

    /// Sixteen elements of four bits of a block of 32, and the fifth where there is one.
    fn quanta(&mut self, spot: Spot, list: Variable, half: Variable) -> Vec<Variable> {
        let zero = constant(0);
        let words = self.vector_of(spot, list, What::Elements, zero);
        let shift = self.writer.shift_left(half, 2);
        let words = words.map(|word| self.writer.shift_right_by(word, shift));
        let fifths = matches!(spot.format, Format::Q5_0 | Format::Q5_1).then(|| {
            let high = self.word(spot, What::High, zero);
            self.writer.shift_right_by(high, spot.i)
        });
        let mut values = Vec::new();
        for (i, byte) in self.bytes(&words).enumerate().collect::<Vec<_>>() {
            let low = self.writer.and(byte, 15);
            let q = match fifths {
                Some(fifths) => {
                    let fifth = self.writer.shift_right(fifths, i as u32);
                    let fifth = self.writer.and(fifth, 1);
                    let fifth = self.writer.shift_left(fifth, 4);
                    self.writer.or(low, fifth)
                }
                None => low,
            };
            values.push(self.writer.cast(F32, q));
        }
        values
    }

    /// Half of a group of 32 elements of four or five bits.
    fn piece_of_k(&mut self, spot: Spot, list: Variable, half: Variable) -> Decoded {
        let group = self.writer.shift_right(half, 1);
        let side = self.writer.and(half, 1);
        let pair = self.writer.shift_right(group, 1);
        let row = self.writer.shift_left(pair, 1);
        let row = self.writer.add(row, side);
        let words = self.vector_of(spot, list, What::Elements, row);
        let odd = self.writer.and(group, 1);
        let shift = self.writer.shift_left(odd, 2);
        let low = words.map(|word| self.writer.shift_right_by(word, shift));
        let high = (spot.format == Format::Q5K).then(|| {
            let words = self.vector_of(spot, list, What::High, side);
            words.map(|word| self.writer.shift_right_by(word, group))
        });
        let [scale, offset] = self.group_of_k(spot, group);
        let high: Option<Vec<Variable>> = high.map(|words| self.bytes(&words).collect());
        let mut values = Vec::new();
        for (i, byte) in self.bytes(&low).enumerate().collect::<Vec<_>>() {
            let mut q = self.writer.and(byte, 15);
            if let Some(high) = &high {
                let fifth = self.writer.and(high[i], 1);
                let fifth = self.writer.shift_left(fifth, 4);
                q = self.writer.or(q, fifth);
            }
            let q = self.writer.cast(F32, q);
            let product = self.times(scale, q);
            values.push(self.writer.arithmetic(Arithmetic::Sub, product, offset));
        }
        Decoded { values, scale: None }
    }

    /// A group of sixteen elements of six bits.
    fn piece_of_q6_k(&mut self, spot: Spot, list: Variable, group: Variable, is_factor: bool) -> Decoded {
        // Each half of a block has four rows of two groups: rows 0 and 1 are low nibbles, rows 2 and 3 high ones.
        let (half, side) = (self.writer.shift_right(group, 3), self.writer.and(group, 1));
        let row = self.writer.shift_right(group, 1);
        let row = self.writer.and(row, 3);
        let odd = self.writer.and(row, 1);
        let [four, two] = [2, 1].map(|by| self.writer.shift_left(half, by));
        let of_low = self.writer.shift_left(odd, 1);
        let of_low = self.writer.add(of_low, side);
        let of_low = self.writer.add(four, of_low);
        let of_high = self.writer.add(two, side);
        let low = self.vector_of(spot, list, What::Elements, of_low);
        let high = self.vector_of(spot, list, What::High, of_high);
        let shift = self.writer.shift_right(row, 1);
        let shift = self.writer.shift_left(shift, 2);
        let low = low.map(|word| self.writer.shift_right_by(word, shift));
        let shift = self.writer.shift_left(row, 1);
        let high = high.map(|word| self.writer.shift_right_by(word, shift));
        let high: Vec<Variable> = self.bytes(&high).collect();
        let middle = self.writer.float_number(32.0);
        let mut values = Vec::new();
        for (i, byte) in self.bytes(&low).enumerate().collect::<Vec<_>>() {
            let (low, high) = (self.writer.and(byte, 15), self.writer.and(high[i], 3));
            let high = self.writer.shift_left(high, 4);
            let q = self.writer.or(low, high);
            let q = self.writer.cast(F32, q);
            values.push(self.writer.arithmetic(Arithmetic::Sub, q, middle));
        }
        let scale = self.byte(spot, What::Groups, group);
        let (d, scale) = (self.scale(spot), self.with_sign(scale));
        let scale = self.times(d, scale);
        self.scaled(values, scale, is_factor)
    }

    /// Elements that a scale multiplies, now or when they are summed.
    fn scaled(&mut self, values: Vec<Variable>, scale: Variable, is_factor: bool) -> Decoded {
        if is_factor {
            return Decoded { values, scale: Some(scale) };
        }
        let values = values.into_iter().map(|q| self.times(scale, q)).collect();
        Decoded { values, scale: None }
    }

    /// The bytes of words, each with what stands above it.
    fn bytes(&mut self, words: &[Variable; 4]) -> std::vec::IntoIter<Variable> {
        let mut bytes = Vec::new();
        for word in words {
            bytes.extend([0, 8, 16, 24].map(|by| self.writer.shift_right(*word, by)));
        }
        bytes.into_iter()
    }

    /// Sixteen bytes of a field of a block.
    fn vector_of(&mut self, spot: Spot, list: Variable, what: What, number: Variable) -> [Variable; 4] {
        let (start, bytes) = place(spot.format, spot.n_elements, what);
        let [first, size] = [start / 16, bytes / 16].map(|number| constant(number as i64));
        let at = self.writer.mul(spot.block, size);
        let at = self.writer.add(at, first);
        let at = self.writer.add(at, number);
        self.vector(list, at)
    }

    /// The words of an element of an array of vectors.
    fn vector(&mut self, list: Variable, at: Variable) -> [Variable; 4] {
        let vector = self.writer.load(list, at);
        [0, 1, 2, 3].map(|number| self.writer.component(vector, number))
    }
}

/// Whether a value is a product with a load as one factor, which stands nowhere else in it.
fn is_factor(nest: &Nest, value: ExprId, load: ExprId) -> bool {
    if value == load {
        return true;
    }
    let Expr::Binary(Binary::Mul, a, b) = &nest.exprs[value] else { return false };
    let uses = |id: ExprId| reaches(nest, id, load);
    match (uses(*a), uses(*b)) {
        (true, false) => is_factor(nest, *a, load),
        (false, true) => is_factor(nest, *b, load),
        (true, true) | (false, false) => false,
    }
}

/// Whether a value is computed from another.
fn reaches(nest: &Nest, value: ExprId, other: ExprId) -> bool {
    value == other || nest.exprs[value].operands().into_iter().any(|operand| reaches(nest, operand, other))
}
