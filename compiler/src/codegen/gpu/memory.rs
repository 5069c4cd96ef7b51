//! Elements of buffers and tiles as instructions.
//!
//! In: a place and an index for each axis. Out: the element decoded, or stored in the type of its place.
//! No access is checked here: `verify` has proven every index inside its axis, and devices that buffers are as long as
//! their shapes.
//! A language without half precisions has two of them in a word: what writes one leaves the other as it is, whoever
//! else may be writing that.

use std::ptr;

use cubecl_core::ir::{Builtin, ElemType, FloatKind, StorageType, Type, Variable};

use crate::codegen::gpu::Language;
use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::room::Spot;
use crate::codegen::gpu::writer::{F32, I32, U32, scalar};
use crate::kernel::index::Index;
use crate::kernel::{Access, Param, Part, Place, TileId};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A buffer as a kernel has it.
#[derive(Clone, Copy)]
pub(super) struct Array {
    pub(super) list: Variable,
    /// The same as vectors of words, where folds read it so.
    pub(super) vectors: Option<Variable>,
}

/// What a buffer is declared to hold.
pub(super) fn declared(language: Language, param: &Param) -> Type {
    match param.format {
        Format::F32 => scalar(F32),
        Format::I32 => scalar(I32),
        Format::F16 if language.has_halves() => scalar(ElemType::Float(FloatKind::F16)),
        Format::BF16 if language.has_halves() => scalar(ElemType::Float(FloatKind::BF16)),
        Format::F16 | Format::BF16 if param.access == Access::Write => Type::new(StorageType::Atomic(U32)),
        Format::F16
        | Format::BF16
        | Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Q4Pairs
        | Format::Int8 { .. } => scalar(U32),
    }
}

impl Emitter<'_> {
    /// The element of a place, decoded.
    pub(super) fn load(&mut self, from: Place, at: &[Index]) -> Variable {
        let element = self.element(from, at);
        match from {
            Place::Tile(tile) => self.load_tile(tile, element),
            Place::Param(id) => {
                let (param, list) = (&self.kernel.params[id], self.params[id].list);
                match param.format.plain() {
                    None => self.decode(param, list, element),
                    Some(DType::F32 | DType::I32) => self.writer.load(list, element),
                    Some(DType::F16 | DType::BF16) if self.language.has_halves() => {
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

    /// Sixteen bits of an array of words, by their number behind a first word.
    pub(super) fn half_of_words(&mut self, list: Variable, first: usize, number: Variable) -> Variable {
        let word = self.writer.shift_right(number, 1);
        let first = self.writer.number(first as i64);
        let word = self.writer.add(word, first);
        let word = self.writer.load(list, word);
        let odd = self.writer.and(number, 1);
        let shift = self.writer.shift_left(odd, 4);
        let shifted = self.writer.shift_right_by(word, shift);
        self.writer.and(shifted, 0xffff)
    }

    fn load_tile(&mut self, tile: TileId, element: Variable) -> Variable {
        let elem = self.elem_of(tile);
        match self.spot(tile) {
            Spot::Shared(offset) => {
                let offset = self.writer.number(offset as i64);
                let element = self.writer.add(element, offset);
                let list = self.room.shared(elem);
                self.writer.load(list, element)
            }
            Spot::Scratch(offset) => {
                let (list, word) = self.scratch_word(offset, element);
                let word = self.writer.load(list, word);
                self.writer.reinterpreted(elem, word)
            }
        }
    }

    /// Stores a number as an element of a place.
    pub(super) fn store(&mut self, target: Place, at: &[Index], value: Variable) {
        let element = self.element(target, at);
        match target {
            Place::Tile(tile) => self.store_tile(tile, element, value),
            Place::Param(id) => {
                let (dtype, list) = (self.kernel.params[id].format.dtype(), self.params[id].list);
                match dtype {
                    DType::F32 | DType::I32 => self.writer.store(list, element, value),
                    DType::F16 | DType::BF16 if self.language.has_halves() => {
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
    fn store_half(&mut self, list: Variable, element: Variable, bits: Variable) {
        let odd = self.writer.and(element, 1);
        let one = self.writer.number(1);
        let is_upper = self.equals(odd, one);
        let upper = self.writer.shift_left(bits, 16);
        let bits = self.writer.select(is_upper, upper, bits);
        let [low, high] = [0xffff, 0xffff_0000].map(|mask| self.writer.number(mask));
        let others = self.writer.select(is_upper, low, high);
        let word = self.writer.shift_right(element, 1);
        self.writer.store_bits(list, word, others, bits);
    }

    fn store_tile(&mut self, tile: TileId, element: Variable, value: Variable) {
        let value = match self.part.tiles[tile].dtype {
            DType::F32 | DType::I32 => value,
            dtype @ (DType::F16 | DType::BF16) => self.rounded(dtype, value),
        };
        match self.spot(tile) {
            Spot::Shared(offset) => {
                let offset = self.writer.number(offset as i64);
                let element = self.writer.add(element, offset);
                let list = self.room.shared(self.elem_of(tile));
                self.writer.store(list, element, value);
            }
            Spot::Scratch(offset) => {
                let (list, word) = self.scratch_word(offset, element);
                let value = self.writer.reinterpreted(U32, value);
                self.writer.store(list, word, value);
            }
        }
    }

    /// The scratch buffer, and which of its words an element of a tile is.
    fn scratch_word(&mut self, offset: usize, element: Variable) -> (Variable, Variable) {
        let list = self.scratch.expect("a kernel whose tiles spill has a scratch buffer");
        let [size, offset] =
            [self.room.scratch_words(), offset].map(|number| self.writer.number(number as i64));
        let own = self.writer.builtin(Builtin::CubePosX);
        let start = self.writer.mul(own, size);
        let start = self.writer.add(start, offset);
        (list, self.writer.add(start, element))
    }

    fn spot(&self, tile: TileId) -> Spot {
        let is_own = |part: &Part| ptr::eq(part, self.part);
        let number = self.kernel.parts.iter().position(is_own);
        self.room.spot(number.expect("the part is one of the kernel's"), tile)
    }

    fn elem_of(&self, tile: TileId) -> ElemType {
        if self.part.tiles[tile].dtype.is_float() { F32 } else { I32 }
    }

    /// The number of an element in storage order.
    fn element(&mut self, place: Place, at: &[Index]) -> Variable {
        let dims: Vec<i64> = match place {
            Place::Param(id) => self.kernel.params[id].shape.iter().map(|(_, size)| size.most()).collect(),
            Place::Tile(id) => self.part.tiles[id].dims.iter().map(|dim| *dim as i64).collect(),
        };
        let mut element = Index::constant(0);
        for (axis, index) in at.iter().enumerate() {
            let stride = dims[axis + 1..].iter().product();
            element = element.plus(&index.times(stride));
        }
        self.index(&element)
    }
}
