//! Vectorised global loads: 16 bytes (`uint4`) at a time, decoded in registers.
//!
//! In: the vector loads of a nest, as `kernel/vector_loads.rs` has them. Out: instructions, one piece at a time.
//! Where a quantised element is only multiplied, its scale multiplies the sum of a group and not each element, and an
//! offset (minimum) multiplies the sum of the other factor: `Σ (d·q - m)·x = d·Σ q·x - m·Σ x`. Buffers read so are
//! bound a second time, as arrays of vectors. Nests that fill tiles load the same way: `tile_loads.rs`.

use std::collections::BTreeMap;

use cubecl_core::ir::{Arithmetic, Type, Variable};
use fusebox_formats::Code;

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::value::decode::PackedTensor;
use crate::codegen::gpu::value::layout::FieldKind;
use crate::codegen::gpu::writer::{F32, I32, U32, constant, scalar};
use crate::graph::op::{Binary, Fold};
use crate::kernel::vector_loads::{VectorLoads, are_aligned, elements_per_vector, first_of_piece};
use crate::kernel::{Expr, ExprId, Folding, Nest, ParamId, Place, TileId};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// The loaded words of a piece.
pub(crate) type LoadedVectors = BTreeMap<ExprId, PackedWords>;

/// The words of a piece of one buffer, as stored.
pub(crate) struct PackedWords {
    packed: PackedTensor,
    vectors: Vec<[Variable; 4]>,
    high: Vec<Variable>,
    /// The word with the sub-block scales of 32 elements, for K-quants.
    group: Option<Variable>,
    /// The word with the scales of a block.
    scales: Option<Variable>,
}

impl PackedWords {
    /// All of them, in order.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Variable> {
        let Self { vectors, high, group, scales, .. } = self;
        vectors.iter_mut().flatten().chain(high).chain(group).chain(scales)
    }
}

/// The elements of a piece, decoded.
struct DecodedPiece {
    values: Vec<Variable>,
    /// Scales and offsets still to be applied, one pair for each equal share of the piece, in order.
    scales: Vec<[Option<Variable>; 2]>,
}

/// `uint4`.
pub(crate) fn vector_type() -> Type {
    scalar(U32).with_vector_size(4)
}

/// Whether blocks have an offset (minimum) that is subtracted.
fn has_offset(format: Format) -> bool {
    matches!(format, Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K)
}

/// What the bits of quants stand for.
fn format_code(format: Format) -> Option<Code> {
    format.blocks().map(|blocks| blocks.quanta.code)
}

impl Emitter<'_> {
    /// Loads a piece, which begins at a value of its variable.
    pub(crate) fn load_piece(&mut self, vectors: &VectorLoads, base: Variable) -> LoadedVectors {
        let mut loaded = LoadedVectors::new();
        for (id, (param, _)) in &vectors.loads {
            let element = self.element_of_piece(vectors, *id, base);
            loaded.insert(*id, self.words((*param, element), vectors.len));
        }
        loaded
    }

    /// The first element of a load's piece.
    fn element_of_piece(&mut self, vectors: &VectorLoads, load: ExprId, base: Variable) -> Variable {
        let first = self.index(&vectors.loads[&load].1);
        self.writer.add(first, base)
    }

    /// Folds a piece into the running result.
    pub(crate) fn fold_piece(
        &mut self,
        (nest, folding): (&Nest, &Folding),
        (vectors, loaded): (&VectorLoads, &LoadedVectors),
        (base, before): (Variable, Variable),
        known: &dyn Fn(ExprId) -> Option<Variable>,
    ) -> Variable {
        let var = *folding.loops.last().expect("a fold has loops");
        let mut decoded: BTreeMap<ExprId, DecodedPiece> = BTreeMap::new();
        // An offset can be deferred for one load only.
        let has_offset = |words: &PackedWords| has_offset(words.packed.format);
        let is_lone = loaded.values().filter(|words| has_offset(words)).count() == 1;
        for (id, words) in loaded {
            let is_factor = folding.fold == Fold::Sum && is_factor(nest, nest.value, *id);
            let can_wait = is_factor && (is_lone || !has_offset(words));
            let element = self.element_of_piece(vectors, *id, base);
            decoded.insert(*id, self.decoded((words, element), vectors.len, can_wait));
        }
        for (id, (tile, first)) in &vectors.tiles {
            if self.piece_len(*tile) == Some(vectors.len) {
                let first = self.index(first);
                let element = self.writer.add(first, base);
                let values = self.piece_of_tile(*tile, element, vectors.len);
                decoded.insert(*id, DecodedPiece { values, scales: Vec::new() });
            }
        }
        let n_shares = decoded.values().map(|own| own.scales.len()).max().unwrap_or(0).max(1);
        let one = self.writer.float_number(1.0);
        let mut after = before;
        for share in 0..n_shares {
            let waiting = decoded.iter().filter(|(_, own)| !own.scales.is_empty());
            let waiting: Vec<(ExprId, [Option<Variable>; 2])> =
                waiting.map(|(id, own)| (*id, own.scales[share * own.scales.len() / n_shares])).collect();
            let taken_off = waiting.iter().find_map(|(id, [_, offset])| offset.map(|offset| (*id, offset)));
            let (mut sum, mut others): (Option<Variable>, Option<Variable>) = (None, None);
            let len = vectors.len as usize / n_shares;
            for i in share * len..(share + 1) * len {
                let value = self.writer.add(base, constant(i as i64));
                self.vars.insert(var, value);
                let of = |id| decoded.get(&id).map(|own| own.values[i]).or_else(|| known(id));
                let x = self.scalar_with(nest, nest.value, &of);
                sum = Some(sum.map_or(x, |sum| self.fold(folding.fold, sum, x)));
                if let Some((id, _)) = taken_off {
                    let of = |other| if other == id { Some(one) } else { of(other) };
                    let x = self.scalar_with(nest, nest.value, &of);
                    others = Some(others.map_or(x, |sum| self.fold(folding.fold, sum, x)));
                }
            }
            let mut sum = sum.expect("a piece has elements");
            let scales = |with: Option<ExprId>| {
                let own = waiting.iter().filter(move |(id, _)| with.is_none_or(|other| *id != other));
                own.filter_map(|(_, [scale, _])| *scale)
            };
            for scale in scales(None) {
                sum = self.times(sum, scale);
            }
            if let Some(((id, offset), others)) = taken_off.zip(others) {
                let mut others = self.times(others, offset);
                for scale in scales(Some(id)) {
                    others = self.times(others, scale);
                }
                sum = self.writer.arithmetic(Arithmetic::Sub, sum, others);
            }
            after = self.fold(folding.fold, after, sum);
        }
        after
    }

    /// Stores a piece to the tile that a nest fills.
    pub(crate) fn store_piece(
        &mut self,
        nest: &Nest,
        vectors: &VectorLoads,
        base: Variable,
        loaded: &LoadedVectors,
    ) {
        let (Some(&var), Place::Tile(tile)) = (nest.loops.last(), nest.target) else { return };
        let run = if self.are_runs(nest, vectors, 8) { 8 } else { 4 };
        if let Some(words) = self.copied_words(nest, tile, loaded) {
            for (number, words) in words.chunks(run as usize / 2).enumerate() {
                let value = self.writer.add(base, constant(number as i64 * run));
                self.vars.insert(var, value);
                let element = self.element(nest.target, &nest.at);
                self.store_words(tile, element, words);
            }
            return;
        }
        let decoded = loaded.iter().map(|(id, words)| {
            let element = self.element_of_piece(vectors, *id, base);
            (*id, self.decoded((words, element), vectors.len, false))
        });
        let decoded: BTreeMap<ExprId, DecodedPiece> = decoded.collect();
        for first in (0..vectors.len).step_by(run as usize) {
            let mut values = Vec::new();
            for i in (first..first + run).rev() {
                let value = self.writer.add(base, constant(i));
                self.vars.insert(var, value);
                let of = |id| decoded.get(&id).map(|own| own.values[i as usize]);
                values.push(self.scalar_with(nest, nest.value, &of));
            }
            values.reverse();
            // The variable has the value of the first element.
            let element = self.element(nest.target, &nest.at);
            self.store_run(tile, element, &values);
        }
    }

    /// Whether pieces consist of aligned runs of `n` elements.
    fn are_runs(&self, nest: &Nest, vectors: &VectorLoads, n: i64) -> bool {
        let dims = self.kernel.dims(self.part, nest.target);
        let first = nest.loops.last().and_then(|var| first_of_piece(&dims, &nest.at, *var));
        vectors.len % n == 0 && first.is_some_and(|first| are_aligned(self.part, &first, n))
    }

    /// The words that a nest copies unchanged: bf16 pairs from a buffer into a tile of bf16 pairs.
    fn copied_words(&self, nest: &Nest, tile: TileId, loaded: &LoadedVectors) -> Option<Vec<Variable>> {
        let Expr::Cast(DType::F32, load) = nest.exprs[nest.value] else { return None };
        let words = loaded.get(&load).filter(|words| words.packed.format == Format::BF16)?;
        self.is_in_pairs(tile).then(|| words.vectors.iter().flatten().copied().collect())
    }

    /// A piece of an interleaved tile, from an element on.
    fn piece_of_tile(&mut self, tile: TileId, element: Variable, len: i64) -> Vec<Variable> {
        let first = self.interleaved(tile, element);
        let first = self.bounded(tile, first);
        let stride = self.quad_stride(tile);
        let word = |i: i64| i / 4 * stride + i % 4;
        (0..len).map(|i| self.load_word_of_tile(tile, first, word(i))).collect()
    }

    /// Loads the words of a piece of a buffer, from an element on.
    fn words(&mut self, (param, element): (ParamId, Variable), len: i64) -> PackedWords {
        let (format, n_elements) =
            (self.kernel.params[param].format, self.kernel.params[param].shape.max_len());
        let packed = PackedTensor { format, n_elements, list: self.params[param].list };
        let list = self.params[param].vectors.expect("what is read as vectors is bound so");
        let per_vector = match format.plain() {
            Some(dtype) => 16 / dtype.bytes() as i64,
            None => elements_per_vector(format).expect("what is read as vectors has a natural length"),
        };
        let start = self.writer.div(element, constant(per_vector));
        let vectors = (0..len / per_vector).map(|number| {
            let at = self.writer.add(start, constant(number));
            self.vector(list, at)
        });
        let vectors = vectors.collect();
        let (mut high, mut group) = (Vec::new(), None);
        match format {
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
                let run = self.writer.shift_right(element, 5);
                high.push(self.word(packed, FieldKind::High, run));
            }
            Format::Q6K => {
                let first = self.writer.shift_right(element, 4);
                for half in 0..2 {
                    let word = self.writer.add(first, constant(half));
                    high.push(self.word(packed, FieldKind::High, word));
                }
            }
            _ => {}
        }
        if let Format::Q4K | Format::Q5K | Format::Q6K = format {
            group = Some(self.group_word(packed, element));
        }
        let groups = format.blocks().and_then(|blocks| blocks.groups.as_ref());
        if let (Format::IQ4XS, Some(groups)) = (format, groups) {
            // Its bits lie in two words: put together here, they are one.
            let (scale, _) = self.numbers_of_group(packed, groups, element);
            group = Some(self.writer.reinterpreted(U32, scale));
        }
        let scales = format.plain().is_none().then(|| self.scale_word(packed, element));
        PackedWords { packed, vectors, high, group, scales }
    }

    /// Decodes words; scales may be deferred to the sum.
    fn decoded(
        &mut self,
        (words, element): (&PackedWords, Variable),
        len: i64,
        can_wait: bool,
    ) -> DecodedPiece {
        let format = words.packed.format;
        if let Some(dtype) = format.plain() {
            let all = words.vectors.iter().flatten().copied().collect::<Vec<_>>();
            let values = all.into_iter().flat_map(|word| self.plain_of_word(dtype, word)).collect();
            return DecodedPiece { values, scales: Vec::new() };
        }
        let values = self.quants(words);
        let of_block = words.scales.map_or(Vec::new(), |word| self.scales_in(words.packed, word, element));
        let group = words.group.map(|word| match format {
            Format::IQ4XS => self.writer.reinterpreted(F32, word),
            _ => self.group_in(word, element),
        });
        let scales: Vec<[Option<Variable>; 2]> = match (format, group) {
            (Format::IQ4XS, Some(number)) => vec![[Some(self.times(of_block[0], number)), None]],
            (Format::Q6K, Some(bits)) => {
                let halves = [bits, self.writer.shift_right(bits, 8)];
                let numbers = halves.map(|half| self.with_sign(half));
                numbers.map(|number| [Some(self.times(of_block[0], number)), None]).to_vec()
            }
            (_, Some(bits)) => {
                let [scale, offset] = self.scales_of_k([of_block[0], of_block[1]], bits);
                vec![[Some(scale), Some(offset)]]
            }
            (Format::Q4_1 | Format::Q5_1, None) => {
                let zero = self.writer.float_number(0.0);
                let offset = self.writer.arithmetic(Arithmetic::Sub, zero, of_block[1]);
                vec![[Some(of_block[0]), Some(offset)]]
            }
            (_, None) => vec![[Some(of_block[0]), None]],
        };
        if can_wait {
            return DecodedPiece { values, scales };
        }
        let share = len as usize / scales.len();
        let scaled = values.into_iter().enumerate().map(|(i, q)| {
            let [scale, offset] = scales[i / share];
            let x = scale.map_or(q, |scale| self.times(scale, q));
            offset.map_or(x, |offset| self.writer.arithmetic(Arithmetic::Sub, x, offset))
        });
        DecodedPiece { values: scaled.collect(), scales: Vec::new() }
    }

    /// The integer quants of a piece, as floats.
    fn quants(&mut self, words: &PackedWords) -> Vec<Variable> {
        let all: Vec<Variable> = words.vectors.iter().flatten().copied().collect();
        let middle = match words.packed.format {
            Format::Q8_0 | Format::Int8 { .. } => {
                let bytes: Vec<Variable> = all.into_iter().flat_map(|word| self.bytes(word)).collect();
                return bytes.into_iter().map(|byte| self.with_sign(byte)).collect();
            }
            Format::Q4_0 => Some(8.0),
            Format::Q5_0 => Some(16.0),
            Format::Q6K => Some(32.0),
            _ => None,
        };
        let table = match format_code(words.packed.format) {
            Some(Code::Table(table)) => Some(table),
            _ => None,
        };
        let middle = middle.map(|middle| self.writer.float_number(middle));
        let mut values = Vec::new();
        for half in 0..2 {
            for (number, word) in all.iter().enumerate() {
                let low = self.writer.shift_right(*word, 4 * half);
                let low = self.writer.and(low, 0x0f0f_0f0f);
                let four = match self.high_of(words, half, number as u32) {
                    Some(high) => self.writer.or(low, high),
                    None => low,
                };
                for byte in self.bytes(four) {
                    let byte = self.writer.and(byte, 255);
                    if let Some(table) = table {
                        values.push(self.value_of_table(table, byte));
                        continue;
                    }
                    let q = self.writer.cast(F32, byte);
                    values
                        .push(middle.map_or(q, |middle| self.writer.arithmetic(Arithmetic::Sub, q, middle)));
                }
            }
        }
        values
    }

    /// The high bits of four quants, shifted into their bytes.
    fn high_of(&mut self, words: &PackedWords, half: u32, number: u32) -> Option<Variable> {
        match words.packed.format {
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
                let four = self.writer.shift_right(words.high[0], 16 * half + 4 * number);
                let four = self.writer.and(four, 15);
                // Bit `k` goes to byte `k`.
                let spread = self.writer.mul(four, constant(0x0020_4081));
                let spread = self.writer.and(spread, 0x0101_0101);
                Some(self.writer.shift_left(spread, 4))
            }
            Format::Q6K => {
                let high = self.writer.shift_right(words.high[half as usize], 2 * number);
                let high = self.writer.and(high, 0x0303_0303);
                Some(self.writer.shift_left(high, 4))
            }
            _ => None,
        }
    }

    /// The elements in a word of a plain format.
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

    /// The four bytes of a word, each with the higher ones above it.
    fn bytes(&mut self, word: Variable) -> [Variable; 4] {
        [0, 8, 16, 24].map(|by| self.writer.shift_right(word, by))
    }

    /// The four words of a vector.
    fn vector(&mut self, list: Variable, at: Variable) -> [Variable; 4] {
        let vector = self.writer.load(list, at);
        [0, 1, 2, 3].map(|number| self.writer.component(vector, number))
    }
}

/// Whether a value is a product that has a load as one factor, and nowhere else.
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
