//! Dequantises single elements of block formats.
//!
//! In: a tensor repacked by `layout.rs` and an element's number. Out: the element, with the formulas and the order of
//! arithmetic of `tensor::quant::decode`. `vector_loads.rs` decodes whole pieces.

use cubecl_core::ir::{Arithmetic, Bitwise, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::layout::{FieldKind, field_offset};
use crate::codegen::gpu::writer::{F32, constant, known};
use crate::kernel::Param;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A tensor in a block format, and where it lies.
#[derive(Clone, Copy)]
pub(super) struct PackedTensor {
    pub(super) format: Format,
    pub(super) n_elements: usize,
    pub(super) list: Variable,
}

/// Whether a block has one f16 scale and nothing else, so that two scales share a word.
fn is_half_scaled(format: Format) -> bool {
    matches!(format, Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Q6K)
}

impl Emitter<'_> {
    /// One element of a quantised tensor.
    pub(super) fn decode(&mut self, param: &Param, list: Variable, element: Variable) -> Variable {
        let packed = PackedTensor { format: param.format, n_elements: param.shape.max_len(), list };
        match packed.format {
            Format::Q4_0 => self.centred(packed, element, 8.0),
            Format::Q5_0 => self.centred(packed, element, 16.0),
            Format::Q4_1 | Format::Q5_1 => {
                let [d, m] = self.scale_and_offset(packed, element);
                let q = self.quant(packed, element);
                let product = self.times(d, q);
                self.writer.arithmetic(Arithmetic::Add, product, m)
            }
            Format::Q8_0 | Format::Int8 { .. } => {
                let d = self.scale(packed, element);
                let q = self.byte(packed, FieldKind::Elements, element);
                let q = self.with_sign(q);
                self.times(d, q)
            }
            Format::Q4K | Format::Q5K => {
                let scales = self.scale_and_offset(packed, element);
                let word = self.group_word(packed, element);
                let bits = self.group_in(word, element);
                let [scale, offset] = self.scales_of_k(scales, bits);
                let q = self.quant(packed, element);
                let product = self.times(scale, q);
                self.writer.arithmetic(Arithmetic::Sub, product, offset)
            }
            Format::Q6K => {
                let d = self.scale(packed, element);
                let sixteenth = self.writer.shift_right(element, 4);
                let scale = self.byte(packed, FieldKind::Groups, sixteenth);
                let scale = self.with_sign(scale);
                let scale = self.times(d, scale);
                let q = self.quant(packed, element);
                let middle = self.writer.float_number(32.0);
                let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
                self.times(scale, q)
            }
            Format::Q4Pairs => self.q4_pairs(packed, element),
            Format::F32 | Format::F16 | Format::BF16 | Format::I32 => {
                unreachable!("plain elements are loaded as they are")
            }
        }
    }

    /// `d · (q - middle)`
    fn centred(&mut self, packed: PackedTensor, element: Variable, middle: f32) -> Variable {
        let d = self.scale(packed, element);
        let q = self.quant(packed, element);
        let middle = self.writer.float_number(middle);
        let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
        self.times(d, q)
    }

    /// `d · (q - 8)`, where neighbouring elements share a byte.
    fn q4_pairs(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let d = self.scale(packed, element);
        let (byte, is_high) = (self.writer.shift_right(element, 1), self.writer.and(element, 1));
        let byte = self.byte(packed, FieldKind::Elements, byte);
        let shift = self.writer.shift_left(is_high, 2);
        let q = self.some_bits(byte, shift, 15);
        let q = self.writer.cast(F32, q);
        let middle = self.writer.float_number(8.0);
        let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
        self.times(d, q)
    }

    /// The quant of an element, four to six bits: 32 elements have their low bits in sixteen bytes.
    fn quant(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let (run, column) = (self.writer.shift_right(element, 5), self.writer.and(element, 15));
        let byte = self.writer.shift_left(run, 4);
        let byte = self.writer.add(byte, column);
        let byte = self.byte(packed, FieldKind::Elements, byte);
        let half = self.writer.shift_right(element, 4);
        let half = self.writer.and(half, 1);
        let shift = self.writer.shift_left(half, 2);
        let low = self.some_bits(byte, shift, 15);
        let high = match packed.format {
            Format::Q5_0 | Format::Q5_1 | Format::Q5K => {
                let word = self.word(packed, FieldKind::High, run);
                let i = self.writer.and(element, 31);
                Some(self.some_bits(word, i, 1))
            }
            Format::Q6K => {
                let word = self.writer.shift_right(element, 4);
                let word = self.word(packed, FieldKind::High, word);
                let (quad, k) = (self.writer.shift_right(column, 2), self.writer.and(column, 3));
                let (two, eight) = (self.writer.shift_left(quad, 1), self.writer.shift_left(k, 3));
                let shift = self.writer.add(two, eight);
                Some(self.some_bits(word, shift, 3))
            }
            _ => None,
        };
        let q = match high {
            Some(high) => {
                let high = self.writer.shift_left(high, 4);
                self.writer.or(low, high)
            }
            None => low,
        };
        self.writer.cast(F32, q)
    }

    /// The word with the sub-block scales of 32 elements.
    pub(super) fn group_word(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let start = field_offset(packed.format, packed.n_elements, FieldKind::Groups);
        let run = self.writer.shift_right(element, 5);
        self.word_of_half(packed.list, start / 4, run)
    }

    /// The sub-block scale and offset of 32 elements: sixteen bits of a word.
    pub(super) fn group_in(&mut self, word: Variable, element: Variable) -> Variable {
        let run = self.writer.shift_right(element, 5);
        self.half_of_word(word, run)
    }

    /// The scale of 32 elements of a K-quant, and their offset (minimum).
    pub(super) fn scales_of_k(&mut self, scales: [Variable; 2], bits: Variable) -> [Variable; 2] {
        let (low, high) = (self.writer.and(bits, 255), self.writer.shift_right(bits, 8));
        let numbers = [low, high].map(|number| self.writer.cast(F32, number));
        [0, 1].map(|k| self.times(scales[k], numbers[k]))
    }

    /// The scale of an element's block.
    fn scale(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let word = self.scale_word(packed, element);
        self.scales_in(packed, word, element)[0]
    }

    /// The scale and the offset of an element's block.
    fn scale_and_offset(&mut self, packed: PackedTensor, element: Variable) -> [Variable; 2] {
        let word = self.scale_word(packed, element);
        let both = self.scales_in(packed, word, element);
        [both[0], both[1]]
    }

    /// The word with the scale of an element's block, and its offset if it has one.
    pub(super) fn scale_word(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let PackedTensor { format, n_elements, list } = packed;
        let block = self.block_of(packed, element);
        if !is_half_scaled(format) {
            return self.word(packed, FieldKind::Scales, block);
        }
        let start = field_offset(format, n_elements, FieldKind::Scales);
        self.word_of_half(list, start / 4, block)
    }

    /// The scale in a word, and the offset if there is one.
    pub(super) fn scales_in(
        &mut self,
        packed: PackedTensor,
        word: Variable,
        element: Variable,
    ) -> Vec<Variable> {
        match packed.format {
            Format::Int8 { .. } | Format::Q4Pairs => vec![self.writer.reinterpreted(F32, word)],
            format if is_half_scaled(format) => {
                let block = self.block_of(packed, element);
                let bits = self.half_of_word(word, block);
                vec![self.widened(DType::F16, bits)]
            }
            _ => {
                let both = [self.writer.and(word, 0xffff), self.writer.shift_right(word, 16)];
                both.map(|bits| self.widened(DType::F16, bits)).to_vec()
            }
        }
    }

    fn block_of(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let len = constant(packed.format.block_len() as i64);
        self.writer.div(element, len)
    }

    /// A word of a field, by its number among those of all blocks.
    pub(super) fn word(&mut self, packed: PackedTensor, what: FieldKind, number: Variable) -> Variable {
        let start = field_offset(packed.format, packed.n_elements, what);
        let word = self.writer.add(number, constant((start / 4) as i64));
        self.writer.load(packed.list, word)
    }

    /// A byte of a field, by its number among those of all blocks.
    fn byte(&mut self, packed: PackedTensor, what: FieldKind, number: Variable) -> Variable {
        let word = self.writer.shift_right(number, 2);
        let word = self.word(packed, what, word);
        let place = self.writer.and(number, 3);
        let shift = self.writer.shift_left(place, 3);
        self.some_bits(word, shift, 255)
    }

    fn some_bits(&mut self, x: Variable, shift: Variable, mask: u32) -> Variable {
        let shifted = match known(shift) {
            Some(by) => self.writer.shift_right(x, by),
            None => self.writer.bits(Bitwise::ShiftRight, x, shift),
        };
        self.writer.and(shifted, mask)
    }

    /// The lowest eight bits as a signed number.
    pub(super) fn with_sign(&mut self, byte: Variable) -> Variable {
        let top = self.writer.shift_left(byte, 24);
        let top = self.writer.signed(top);
        let whole = self.writer.shift_right(top, 24);
        self.writer.cast(F32, whole)
    }

    pub(super) fn times(&mut self, a: Variable, b: Variable) -> Variable {
        self.writer.arithmetic(Arithmetic::Mul, a, b)
    }
}
