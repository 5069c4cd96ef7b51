//! Loads and stores of single elements of buffers and tiles.
//!
//! In: a place and an index for each axis. Out: the element decoded, or stored in the type of its place. No access is
//! checked: `verify` has proven every index inside its axis, and devices check that buffers are as long as their
//! shapes. A language without 16-bit floats packs two into a word, which stores update atomically: another thread may
//! be writing the other half.

use std::ptr;

use cubecl_core::ir::{Builtin, ElemType, FloatKind, StorageType, Type, Variable};

use crate::codegen::gpu::dialect::Language;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::tiles::shared_memory::Placement;
use crate::codegen::gpu::writer::{F32, I32, U32, builtin, constant, scalar};
use crate::kernel::index::{Index, element_of};
use crate::kernel::product::operands::OperandLayout;
use crate::kernel::{Access, Param, Part, Place, TileId};
use crate::tensor::dtype::DType;

/// The element type that a buffer is declared with.
pub(crate) fn declared(language: Language, param: &Param) -> Type {
    match param.format.plain() {
        Some(DType::F32) => scalar(F32),
        Some(DType::I32) => scalar(I32),
        Some(DType::F16) if language.has_halves() => scalar(ElemType::Float(FloatKind::F16)),
        Some(DType::BF16) if language.has_halves() => scalar(ElemType::Float(FloatKind::BF16)),
        Some(DType::F16 | DType::BF16) | None if param.access == Access::Write => {
            Type::new(StorageType::Atomic(U32))
        }
        Some(DType::F16 | DType::BF16) | None => scalar(U32),
    }
}

impl Emitter<'_> {
    /// The element of a place, decoded.
    pub(crate) fn load(&mut self, from: Place, at: &[Index]) -> Variable {
        let element = self.element(from, at);
        match from {
            Place::Tile(tile) => self.load_tile(tile, element),
            Place::Param(id) => {
                let (param, list) = (&self.kernel.params[id], self.params[id].list);
                match param.format.plain() {
                    None => self.decode(param, list, element),
                    Some(DType::F32 | DType::I32) => self.writer.load(list, element),
                    Some(DType::F16 | DType::BF16) if self.dialect.language.has_halves() => {
                        let half = self.writer.load(list, element);
                        self.writer.cast(F32, half)
                    }
                    Some(dtype @ (DType::F16 | DType::BF16)) => {
                        let bits = self.half_of_words(list, 0, element);
                        self.widened(dtype, bits)
                    }
                }
            }
        }
    }

    /// Sixteen bits of an array of words, by their index from a first word on.
    pub(crate) fn half_of_words(&mut self, list: Variable, first: usize, number: Variable) -> Variable {
        let word = self.word_of_half(list, first, number);
        self.half_of_word(word, number)
    }

    /// The word that holds them.
    pub(crate) fn word_of_half(&mut self, list: Variable, first: usize, number: Variable) -> Variable {
        let word = self.writer.shift_right(number, 1);
        let first = constant(first as i64);
        let word = self.writer.add(word, first);
        self.writer.load(list, word)
    }

    /// The low half of a word for an even number, the high half for an odd one.
    pub(crate) fn half_of_word(&mut self, word: Variable, number: Variable) -> Variable {
        let odd = self.writer.and(number, 1);
        let shift = self.writer.shift_left(odd, 4);
        let shifted = self.writer.shift_right_by(word, shift);
        self.writer.and(shifted, 0xffff)
    }

    fn load_tile(&mut self, tile: TileId, element: Variable) -> Variable {
        let place = self.interleaved(tile, element);
        let value = self.load_word_of_tile(tile, place, 0);
        if !self.is_in_pairs(tile) {
            return value;
        }
        let word = self.writer.reinterpreted(U32, value);
        let bits = self.half_of_word(word, element);
        self.widened(DType::BF16, bits)
    }

    /// The number at an address of a tile, `further` words on.
    pub(crate) fn load_word_of_tile(&mut self, tile: TileId, place: Variable, further: i64) -> Variable {
        let (list, word) = self.tile_word(tile, place);
        let word = self.writer.add(word, constant(further));
        let word = self.writer.load(list, word);
        let elem = if self.part.tiles[tile].dtype.is_float() { F32 } else { I32 };
        self.writer.reinterpreted(elem, word)
    }

    /// The piece length of a tile, where it is interleaved.
    pub(crate) fn piece_len(&self, tile: TileId) -> Option<i64> {
        self.memory.piece(self.part_number(), tile)
    }

    /// Words from one four elements of a piece to the next four, in an interleaved tile.
    pub(crate) fn quad_stride(&self, tile: TileId) -> i64 {
        let row = self.part.tiles[tile].dims.last().map_or(1, |dim| *dim as i64);
        self.piece_len(tile).map_or(4, |len| row / len * 4)
    }

    /// The address of an element in its tile.
    pub(crate) fn interleaved(&mut self, tile: TileId, element: Variable) -> Variable {
        let Some(len) = self.piece_len(tile) else { return self.padded_address(tile, element) };
        let dims = &self.part.tiles[tile].dims;
        let row = constant(dims.last().map_or(1, |dim| *dim as i64));
        let (number, along) = if dims.len() == 1 {
            (constant(0), element)
        } else {
            (self.writer.div(element, row), self.writer.rem(element, row))
        };
        let (piece, i) = (self.writer.div(along, constant(len)), self.writer.rem(along, constant(len)));
        let (quad, rest) = (self.writer.shift_right(i, 2), self.writer.and(i, 3));
        let start = self.writer.mul(number, row);
        let quad = self.writer.mul(quad, constant(self.quad_stride(tile)));
        let piece = self.writer.shift_left(piece, 2);
        let place = self.writer.add(start, quad);
        let place = self.writer.add(place, piece);
        self.writer.add(place, rest)
    }

    /// Stores a number as an element of a place.
    pub(crate) fn store(&mut self, target: Place, at: &[Index], value: Variable) {
        let element = self.element(target, at);
        match target {
            Place::Tile(tile) => self.store_tile(tile, element, value),
            Place::Param(id) => {
                let (dtype, list) = (self.kernel.params[id].format.dtype(), self.params[id].list);
                match dtype {
                    DType::F32 | DType::I32 => self.writer.store(list, element, value),
                    DType::F16 | DType::BF16 if self.dialect.language.has_halves() => {
                        let half = self.writer.cast(list.elem_type(), value);
                        self.writer.store(list, element, half);
                    }
                    DType::F16 | DType::BF16 => {
                        let bits = self.narrowed(dtype, value);
                        self.store_half(list, element, bits);
                    }
                }
            }
        }
    }

    /// Stores sixteen bits to an array of words.
    pub(crate) fn store_half(&mut self, list: Variable, element: Variable, bits: Variable) {
        let odd = self.writer.and(element, 1);
        let one = constant(1);
        let is_upper = self.equals(odd, one);
        let upper = self.writer.shift_left(bits, 16);
        let bits = self.writer.select(is_upper, upper, bits);
        let [low, high] = [0xffff, 0xffff_0000].map(constant);
        let others = self.writer.select(is_upper, low, high);
        let word = self.writer.shift_right(element, 1);
        self.writer.store_bits(list, word, others, bits);
    }

    pub(crate) fn store_tile(&mut self, tile: TileId, element: Variable, value: Variable) {
        let place = self.interleaved(tile, element);
        let word = self.as_element(tile, value);
        self.store_word_of_tile(tile, (place, 0), word);
    }

    /// Stores a run of four or eight elements of a tile, from a multiple of as many on.
    pub(crate) fn store_run(&mut self, tile: TileId, element: Variable, values: &[Variable]) {
        let words: Vec<Variable> = if self.is_in_pairs(tile) {
            values.chunks_exact(2).map(|two| self.packed_bf16(two[0], two[1])).collect()
        } else {
            values.iter().map(|value| self.as_element(tile, *value)).collect()
        };
        self.store_words(tile, element, &words);
    }

    /// Stores two, four or eight consecutive words of a tile, from an element on.
    pub(crate) fn store_words(&mut self, tile: TileId, element: Variable, words: &[Variable]) {
        let place = self.interleaved(tile, element);
        let place = self.bounded(tile, place);
        // Rows begin at multiples of four words.
        let place = self.writer.and(place, !(words.len().min(4) as u32 - 1));
        for (further, word) in words.iter().enumerate() {
            let further = further as i64;
            let further = further / 4 * self.quad_stride(tile) + further % 4;
            self.store_word_of_tile(tile, (place, further), *word);
        }
    }

    /// Whether a tile holds bf16 pairs.
    pub(crate) fn is_in_pairs(&self, tile: TileId) -> bool {
        self.operand_layout(tile).is_some_and(|layout| layout.per_word == 2)
    }

    /// An address in a tile, masked: so the compiler sees that it cannot wrap, and merges neighbouring stores.
    pub(crate) fn bounded(&mut self, tile: TileId, place: Variable) -> Variable {
        let len = self.memory.len(self.part_number(), tile);
        self.writer.and(place, (len.next_power_of_two() - 1) as u32)
    }

    /// A number as an element of a tile with one word an element.
    fn as_element(&mut self, tile: TileId, value: Variable) -> Variable {
        match self.part.tiles[tile].dtype {
            DType::F32 if self.operand_layout(tile).is_some() => self.round_to_tf32(value),
            DType::F32 | DType::I32 => value,
            dtype @ (DType::F16 | DType::BF16) => self.rounded_to_half(dtype, value),
        }
    }

    /// Stores a word at an address of a tile, `further` words on.
    fn store_word_of_tile(&mut self, tile: TileId, (place, further): (Variable, i64), word: Variable) {
        let (list, at) = self.tile_word(tile, place);
        let at = self.writer.add(at, constant(further));
        let word = self.writer.reinterpreted(list.elem_type(), word);
        self.writer.store(list, at, word);
    }

    /// The array that a tile lies in, and the word of an address in it.
    pub(crate) fn tile_word(&mut self, tile: TileId, place: Variable) -> (Variable, Variable) {
        match self.placement(tile) {
            Placement::Shared(offset) => {
                (self.memory.shared(), self.writer.add(place, constant(offset as i64)))
            }
            Placement::Scratch(offset) => {
                let list = self.scratch.expect("a kernel whose tiles spill has a scratch buffer");
                let size = constant(self.memory.scratch_words() as i64);
                let start = self.writer.mul(builtin(Builtin::CubePosX), size);
                let start = self.writer.add(start, constant(offset as i64));
                (list, self.writer.add(start, place))
            }
        }
    }

    /// The layout of a tile that is an operand of an MMA.
    pub(crate) fn operand_layout(&self, tile: TileId) -> Option<OperandLayout> {
        self.memory.operand_layout(self.part_number(), tile)
    }

    pub(crate) fn placement(&self, tile: TileId) -> Placement {
        self.memory.placement(self.part_number(), tile)
    }

    /// Whether two tiles overlap in memory.
    pub(crate) fn overlap(&self, one: TileId, other: TileId) -> bool {
        self.memory.overlap(self.part_number(), one, other)
    }

    pub(crate) fn part_number(&self) -> usize {
        let is_own = |part: &Part| ptr::eq(part, self.part);
        self.kernel.parts.iter().position(is_own).expect("the part is one of the kernel's")
    }

    /// The number of an element in storage order.
    pub(crate) fn element(&mut self, place: Place, at: &[Index]) -> Variable {
        let element = element_of(&self.kernel.dims(self.part, place), at);
        self.index(&element)
    }
}
