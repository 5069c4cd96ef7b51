//! Dequantises single elements of block formats.
//!
//! In: a tensor repacked by `layout.rs` and an element's number. Out: the element, with the formulas and the order of
//! arithmetic of `Blocks::decode`. Formats whose fields are repacked have code of their own, all others follow
//! from their row of `fusebox_formats`. `vector_loads.rs` decodes whole pieces.

use cubecl_core::ir::{Arithmetic, Bitwise, Variable};
use fusebox_formats::{Blocks, Code, Factor, FactorKind, Groups, Numbers, Plane};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::value::layout::{FieldKind, field_bytes, field_offset, field_start};
use crate::codegen::gpu::writer::{F32, constant, known};
use crate::kernel::Param;
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;

/// A tensor in a block format, and where it lies.
#[derive(Clone, Copy)]
pub(crate) struct PackedTensor {
    pub(crate) format: Format,
    pub(crate) n_elements: usize,
    pub(crate) list: Variable,
}

/// Whether a block has one f16 scale and nothing else, so that two scales share a word.
fn is_half_scaled(format: Format) -> bool {
    let is_half = |blocks: &Blocks| blocks.offset.is_none() && blocks.scale.kind == FactorKind::F16;
    format.blocks().is_some_and(is_half)
}

/// Whether a block has a scale of one byte and nothing else, so that four scales share a word.
fn has_byte_scales(format: Format) -> bool {
    format.blocks().is_some_and(|blocks| blocks.scale.kind == FactorKind::HalfE8M0)
}

impl Emitter<'_> {
    /// One element of a quantised tensor.
    pub(crate) fn decode(&mut self, param: &Param, list: Variable, element: Variable) -> Variable {
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
            Format::F32
            | Format::F16
            | Format::BF16
            | Format::I32
            | Format::Q2K
            | Format::Q3K
            | Format::IQ4NL
            | Format::IQ4XS
            | Format::MXFP4 => {
                let blocks = packed.format.blocks().expect("plain elements are loaded as they are");
                self.element_of_block(packed, blocks, element)
            }
        }
    }

    /// An element of a format whose fields keep the order of the file, by its row of `fusebox_formats`.
    fn element_of_block(&mut self, packed: PackedTensor, blocks: &Blocks, element: Variable) -> Variable {
        let block = self.block_of(packed, element);
        let i = self.writer.and(element, blocks.len as u32 - 1);
        let mut scale = self.factor(packed, block, blocks.scale);
        let mut offset = blocks.offset.map(|offset| self.factor(packed, block, offset));
        if let Some(groups) = &blocks.groups {
            let (own, others) = self.numbers_of_group(packed, groups, element);
            scale = self.times(scale, own);
            offset = offset.zip(others).map(|(offset, own)| self.times(offset, own));
        }
        let kinds = [FieldKind::Elements, FieldKind::High];
        let q = self.number(packed, &blocks.quanta, kinds, (block, i), blocks.len);
        let product = self.times(scale, q);
        match offset {
            None => product,
            Some(offset) if blocks.groups.is_some() => {
                self.writer.arithmetic(Arithmetic::Sub, product, offset)
            }
            Some(offset) => self.writer.arithmetic(Arithmetic::Add, product, offset),
        }
    }

    /// The scale and the offset of an element's group, in a field that keeps the order of the file.
    pub(crate) fn numbers_of_group(
        &mut self,
        packed: PackedTensor,
        groups: &Groups,
        element: Variable,
    ) -> (Variable, Option<Variable>) {
        let block = self.block_of(packed, element);
        let n = packed.format.block_len() / groups.len;
        let group = self.writer.shift_right(element, groups.len.ilog2());
        let group = self.writer.and(group, n as u32 - 1);
        let kinds = [FieldKind::Groups; 2];
        let scale = self.number(packed, &groups.scales, kinds, (block, group), n);
        let offsets = groups.offsets.as_ref();
        (scale, offsets.map(|offsets| self.number(packed, offsets, kinds, (block, group), n)))
    }

    /// The scale or the offset of a block.
    fn factor(&mut self, packed: PackedTensor, block: Variable, factor: Factor) -> Variable {
        let n_bytes = field_bytes(packed.format, FieldKind::Scales);
        let from = factor.at - field_start(packed.format, FieldKind::Scales);
        let first = self.writer.mul(block, constant(n_bytes as i64));
        let first = self.writer.add(first, constant(from as i64));
        match factor.kind {
            FactorKind::F16 => {
                let start = field_offset(packed.format, packed.n_elements, FieldKind::Scales);
                let number = self.writer.shift_right(first, 1);
                let bits = self.half_of_words(packed.list, start / 4, number);
                self.widened(DType::F16, bits)
            }
            FactorKind::F32 => {
                let word = self.writer.shift_right(first, 2);
                let word = self.word(packed, FieldKind::Scales, word);
                self.writer.reinterpreted(F32, word)
            }
            FactorKind::HalfE8M0 => {
                let e = self.byte(packed, FieldKind::Scales, first);
                self.scale_of_e8m0(e)
            }
        }
    }

    /// `2^(e - 128)`, as `half_e8m0` has it.
    pub(crate) fn scale_of_e8m0(&mut self, e: Variable) -> Variable {
        let less = self.writer.arithmetic(Arithmetic::Sub, e, constant(1));
        let normal = self.writer.shift_left(less, 23);
        let [zero, one] = [0, 1].map(constant);
        let [is_zero, is_one] = [self.equals(e, zero), self.equals(e, one)];
        let bits = self.writer.select(is_one, constant(0x0040_0000), normal);
        let bits = self.writer.select(is_zero, constant(0x0020_0000), bits);
        self.writer.reinterpreted(F32, bits)
    }

    /// Number `i` of the first `n` of a block; its planes lie in these fields.
    fn number(
        &mut self,
        packed: PackedTensor,
        numbers: &Numbers,
        kinds: [FieldKind; 2],
        (block, i): (Variable, Variable),
        n: usize,
    ) -> Variable {
        let mut bits: Option<Variable> = None;
        for (plane, what) in numbers.planes.iter().zip(kinds) {
            let own = self.bits_of_plane(packed, plane, what, (block, i), n);
            bits = Some(bits.map_or(own, |bits| self.writer.or(bits, own)));
        }
        let bits = bits.expect("numbers have bits");
        match numbers.code {
            Code::Signed => self.with_sign(bits),
            Code::From(0) => self.writer.cast(F32, bits),
            Code::From(zero) => {
                let q = self.writer.cast(F32, bits);
                let zero = self.writer.float_number(f32::from(zero));
                self.writer.arithmetic(Arithmetic::Sub, q, zero)
            }
            Code::Table(table) => self.value_of_table(table, bits),
        }
    }

    /// The bits of number `i` in a plane, at their place.
    fn bits_of_plane(
        &mut self,
        packed: PackedTensor,
        plane: &Plane,
        what: FieldKind,
        (block, i): (Variable, Variable),
        n: usize,
    ) -> Variable {
        let Plane { at, width, per_byte, stride, step, first, to, .. } = *plane;
        let from = at - field_start(packed.format, what);
        let n_bytes = field_bytes(packed.format, what);
        let column = self.writer.and(i, width as u32 - 1);
        let row = self.writer.shift_right(i, width.ilog2());
        let layer = self.writer.and(row, per_byte as u32 - 1);
        let run = self.writer.shift_right(row, per_byte.ilog2());
        let start = self.writer.mul(block, constant(n_bytes as i64));
        let mut byte = self.writer.add(start, constant(from as i64));
        let is_many = n > width * per_byte;
        for (number, bytes, is_there) in
            [(column, 1, width > 1), (layer, step, per_byte > 1), (run, stride, is_many)]
        {
            if is_there && bytes > 0 {
                let offset = self.writer.mul(number, constant(bytes as i64));
                byte = self.writer.add(byte, offset);
            }
        }
        let byte = self.byte(packed, what, byte);
        let shift = self.writer.mul(layer, constant(i64::from(plane.bits)));
        let shift = self.writer.add(shift, constant(i64::from(first)));
        let bits = self.some_bits(byte, shift, plane.mask().into());
        self.writer.shift_left(bits, to)
    }

    /// One of sixteen values: four of them are the bytes of a word.
    pub(crate) fn value_of_table(&mut self, table: &[i8; 16], bits: Variable) -> Variable {
        let words: Vec<Variable> = table
            .as_chunks::<4>()
            .0
            .iter()
            .map(|four| constant(i64::from(u32::from_le_bytes(four.map(i8::cast_unsigned)))))
            .collect();
        let quarter = self.writer.shift_right(bits, 2);
        let [odd, upper] = [1, 2].map(|mask| self.writer.and(quarter, mask));
        let zero = constant(0);
        let [is_even, is_lower] = [self.equals(odd, zero), self.equals(upper, zero)];
        let lower = self.writer.select(is_even, words[0], words[1]);
        let higher = self.writer.select(is_even, words[2], words[3]);
        let word = self.writer.select(is_lower, lower, higher);
        let place = self.writer.and(bits, 3);
        let shift = self.writer.shift_left(place, 3);
        let byte = self.some_bits(word, shift, 255);
        self.with_sign(byte)
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
    pub(crate) fn group_word(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let start = field_offset(packed.format, packed.n_elements, FieldKind::Groups);
        let run = self.writer.shift_right(element, 5);
        self.word_of_half(packed.list, start / 4, run)
    }

    /// The sub-block scale and offset of 32 elements: sixteen bits of a word.
    pub(crate) fn group_in(&mut self, word: Variable, element: Variable) -> Variable {
        let run = self.writer.shift_right(element, 5);
        self.half_of_word(word, run)
    }

    /// The scale of 32 elements of a K-quant, and their offset (minimum).
    pub(crate) fn scales_of_k(&mut self, scales: [Variable; 2], bits: Variable) -> [Variable; 2] {
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
    pub(crate) fn scale_word(&mut self, packed: PackedTensor, element: Variable) -> Variable {
        let PackedTensor { format, n_elements, list } = packed;
        let block = self.block_of(packed, element);
        if has_byte_scales(format) {
            let word = self.writer.shift_right(block, 2);
            return self.word(packed, FieldKind::Scales, word);
        }
        if !is_half_scaled(format) {
            return self.word(packed, FieldKind::Scales, block);
        }
        let start = field_offset(format, n_elements, FieldKind::Scales);
        self.word_of_half(list, start / 4, block)
    }

    /// The scale in a word, and the offset if there is one.
    pub(crate) fn scales_in(
        &mut self,
        packed: PackedTensor,
        word: Variable,
        element: Variable,
    ) -> Vec<Variable> {
        match packed.format {
            Format::Int8 { .. } | Format::Q4Pairs => vec![self.writer.reinterpreted(F32, word)],
            format if has_byte_scales(format) => {
                let block = self.block_of(packed, element);
                let place = self.writer.and(block, 3);
                let shift = self.writer.shift_left(place, 3);
                let e = self.some_bits(word, shift, 255);
                vec![self.scale_of_e8m0(e)]
            }
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
    pub(crate) fn word(&mut self, packed: PackedTensor, what: FieldKind, number: Variable) -> Variable {
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
    pub(crate) fn with_sign(&mut self, byte: Variable) -> Variable {
        let top = self.writer.shift_left(byte, 24);
        let top = self.writer.signed(top);
        let whole = self.writer.shift_right(top, 24);
        self.writer.cast(F32, whole)
    }

    pub(crate) fn times(&mut self, a: Variable, b: Variable) -> Variable {
        self.writer.arithmetic(Arithmetic::Mul, a, b)
    }
}
