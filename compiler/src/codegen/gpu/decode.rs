//! Elements of quantised blocks as instructions.
//!
//! In: a tensor as `layout.rs` arranges it and the number of an element. Out: the element, by the formulas and in the
//! order of arithmetic of `tensor::quant::decode`.
//! One element is decoded at a time; `wide.rs` decodes sixteen bytes of them.

use cubecl_core::ir::{Arithmetic, Bitwise, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::layout::{What, place};
use crate::codegen::gpu::writer::{F32, constant, known};
use crate::kernel::Param;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A tensor, and a block and an element of it.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    pub(super) format: Format,
    pub(super) n_elements: usize,
    pub(super) list: Variable,
    pub(super) block: Variable,
    pub(super) i: Variable,
}

impl Emitter<'_> {
    /// One element of a quantised tensor.
    pub(super) fn decode(&mut self, param: &Param, list: Variable, element: Variable) -> Variable {
        let (format, n_elements) = (param.format, param.shape.max_len());
        let len = constant(format.block_len() as i64);
        let (block, i) = (self.writer.div(element, len), self.writer.rem(element, len));
        let spot = Spot { format, n_elements, list, block, i };
        match format {
            Format::Q4_0 => self.centred(spot, false, 8.0),
            Format::Q4_1 => self.shifted(spot, false),
            Format::Q5_0 => self.centred(spot, true, 16.0),
            Format::Q5_1 => self.shifted(spot, true),
            Format::Q8_0 | Format::Int8 { .. } => {
                let d = self.scale(spot);
                let q = self.byte(spot, What::Elements, i);
                let q = self.with_sign(q);
                self.times(d, q)
            }
            Format::Q4K => self.q4_k(spot, false),
            Format::Q5K => self.q4_k(spot, true),
            Format::Q6K => self.q6_k(spot),
            Format::Q4Pairs => self.q4_pairs(spot),
            Format::F32 | Format::F16 | Format::BF16 | Format::I32 => {
                unreachable!("plain elements are loaded as they are")
            }
        }
    }

    /// `d * (q - middle)`
    fn centred(&mut self, spot: Spot, has_fifth: bool, middle: f32) -> Variable {
        let d = self.scale(spot);
        let q = self.quantum(spot, has_fifth);
        let middle = self.writer.float_number(middle);
        let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
        self.times(d, q)
    }

    /// `d * (q - 8)`, where two neighbours share a byte.
    fn q4_pairs(&mut self, spot: Spot) -> Variable {
        let d = self.scale(spot);
        let (byte, is_high) = (self.writer.shift_right(spot.i, 1), self.writer.and(spot.i, 1));
        let byte = self.byte(spot, What::Elements, byte);
        let shift = self.writer.shift_left(is_high, 2);
        let q = self.some_bits(byte, shift, 15);
        let q = self.writer.cast(F32, q);
        let middle = self.writer.float_number(8.0);
        let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
        self.times(d, q)
    }

    /// `d * q + m`
    fn shifted(&mut self, spot: Spot, has_fifth: bool) -> Variable {
        let [d, m] = self.scale_and_offset(spot);
        let q = self.quantum(spot, has_fifth);
        let product = self.times(d, q);
        self.writer.arithmetic(Arithmetic::Add, product, m)
    }

    /// Four bits of element `i` of 32, and the fifth where there is one.
    fn quantum(&mut self, spot: Spot, has_fifth: bool) -> Variable {
        let (column, high) = (self.writer.and(spot.i, 15), self.writer.shift_right(spot.i, 4));
        let byte = self.byte(spot, What::Elements, column);
        let shift = self.writer.shift_left(high, 2);
        let mut q = self.some_bits(byte, shift, 15);
        if has_fifth {
            let zero = constant(0);
            let word = self.word(spot, What::High, zero);
            let fifth = self.some_bits(word, spot.i, 1);
            q = self.joined(q, fifth);
        }
        self.writer.cast(F32, q)
    }

    /// `scale * q - offset`, of eight groups of 32 elements.
    fn q4_k(&mut self, spot: Spot, has_fifth: bool) -> Variable {
        let (group, column) = (self.writer.shift_right(spot.i, 5), self.writer.and(spot.i, 31));
        let [scale, offset] = self.group_of_k(spot, group);
        let pair = self.writer.shift_right(group, 1);
        let row = self.writer.shift_left(pair, 5);
        let byte = self.writer.add(row, column);
        let byte = self.byte(spot, What::Elements, byte);
        let odd = self.writer.and(group, 1);
        let shift = self.writer.shift_left(odd, 2);
        let mut q = self.some_bits(byte, shift, 15);
        if has_fifth {
            let high = self.byte(spot, What::High, column);
            let fifth = self.some_bits(high, group, 1);
            q = self.joined(q, fifth);
        }
        let q = self.writer.cast(F32, q);
        let product = self.times(scale, q);
        self.writer.arithmetic(Arithmetic::Sub, product, offset)
    }

    /// What multiplies the elements of a group, and what is then taken off.
    pub(super) fn group_of_k(&mut self, spot: Spot, group: Variable) -> [Variable; 2] {
        // Groups 4 to 7 keep their upper two bits with groups 0 to 3.
        let partner = self.writer.and(group, 3);
        let four = constant(4);
        let next = self.writer.add(group, four);
        let [own, next, spare] = [group, next, partner].map(|byte| self.byte(spot, What::Groups, byte));
        let is_first = self.writer.below(group, four);
        let whole = [own, next].map(|byte| self.writer.and(byte, 63));
        let low = [self.writer.and(next, 15), self.writer.shift_right(next, 4)];
        let high = [spare, own].map(|byte| self.writer.shift_right(byte, 6));
        let scales = self.scale_and_offset(spot);
        [0, 1].map(|k| {
            let parted = self.joined(low[k], high[k]);
            let number = self.writer.select(is_first, whole[k], parted);
            let number = self.writer.cast(F32, number);
            self.times(scales[k], number)
        })
    }

    fn q6_k(&mut self, spot: Spot) -> Variable {
        let half = self.writer.shift_right(spot.i, 7);
        let row = self.writer.shift_right(spot.i, 5);
        let (row, column) = (self.writer.and(row, 3), self.writer.and(spot.i, 31));
        let high = self.writer.shift_left(half, 5);
        let high = self.writer.add(high, column);
        let high = self.byte(spot, What::High, high);
        let shift = self.writer.shift_left(row, 1);
        let high = self.some_bits(high, shift, 3);
        let (odd, two) = (self.writer.and(row, 1), self.writer.shift_left(half, 1));
        let low = self.writer.add(two, odd);
        let low = self.writer.shift_left(low, 5);
        let low = self.writer.add(low, column);
        let low = self.byte(spot, What::Elements, low);
        let shift = self.writer.shift_right(row, 1);
        let shift = self.writer.shift_left(shift, 2);
        let low = self.some_bits(low, shift, 15);
        let q = self.joined(low, high);
        let q = self.writer.cast(F32, q);
        let middle = self.writer.float_number(32.0);
        let q = self.writer.arithmetic(Arithmetic::Sub, q, middle);
        let group = self.writer.shift_right(spot.i, 4);
        let scale = self.byte(spot, What::Groups, group);
        let (d, scale) = (self.scale(spot), self.with_sign(scale));
        let scale = self.times(d, scale);
        self.times(scale, q)
    }

    /// The one scale of a block.
    pub(super) fn scale(&mut self, spot: Spot) -> Variable {
        let Spot { format, n_elements, list, block, .. } = spot;
        if let Format::Int8 { .. } | Format::Q4Pairs = format {
            let zero = constant(0);
            let word = self.word(spot, What::Scales, zero);
            return self.writer.reinterpreted(F32, word);
        }
        let (start, _) = place(format, n_elements, What::Scales);
        let bits = self.half_of_words(list, start / 4, block);
        self.widened(DType::F16, bits)
    }

    /// The scale and the offset of a block.
    pub(super) fn scale_and_offset(&mut self, spot: Spot) -> [Variable; 2] {
        let zero = constant(0);
        let both = self.word(spot, What::Scales, zero);
        let (low, high) = (self.writer.and(both, 0xffff), self.writer.shift_right(both, 16));
        [low, high].map(|bits| self.widened(DType::F16, bits))
    }

    /// A word of a field of a block.
    pub(super) fn word(&mut self, spot: Spot, what: What, number: Variable) -> Variable {
        let (start, bytes) = place(spot.format, spot.n_elements, what);
        let [first, size] = [start / 4, bytes / 4].map(|number| constant(number as i64));
        let word = self.writer.mul(spot.block, size);
        let word = self.writer.add(word, first);
        let word = self.writer.add(word, number);
        self.writer.load(spot.list, word)
    }

    /// A byte of a field of a block.
    pub(super) fn byte(&mut self, spot: Spot, what: What, number: Variable) -> Variable {
        let (start, bytes) = place(spot.format, spot.n_elements, what);
        let [first, size] = [start / 4, bytes].map(|number| constant(number as i64));
        let byte = self.writer.mul(spot.block, size);
        let byte = self.writer.add(byte, number);
        let word = self.writer.shift_right(byte, 2);
        let word = self.writer.add(word, first);
        let word = self.writer.load(spot.list, word);
        let place = self.writer.and(byte, 3);
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

    /// `low | high << 4`
    fn joined(&mut self, low: Variable, high: Variable) -> Variable {
        let high = self.writer.shift_left(high, 4);
        self.writer.or(low, high)
    }

    /// The number that the lowest eight bits stand for.
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
