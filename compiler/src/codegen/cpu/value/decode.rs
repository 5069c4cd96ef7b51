//! Elements of quantised blocks as code.
//!
//! In: the start of a tensor and the number of an element. Out: the element, by the row of its format in
//! `fusebox_formats` and in the order of arithmetic of `Blocks::decode`, so that results are equal bit by
//! bit. One element is decoded at a time: this is right for every kernel and fast for none. Code for whole blocks may
//! take the place of a nest, never of this.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use fusebox_formats::{Blocks, Code, Factor, FactorKind, Groups, Numbers, Plane};

use crate::codegen::cpu::emit::{CONSTANT, Emitter};
use crate::graph::op::Scalar;
use crate::tensor::quant::Format;

impl Emitter<'_, '_> {
    /// One element of a quantised tensor.
    pub(crate) fn decode(&mut self, format: Format, base: Value, element: Value, n_elements: i64) -> Value {
        let (block, i) = self.split(element, format.block_len() as i64);
        let Some(blocks) = format.blocks() else { return self.int8(base, element, block, n_elements) };
        let offset = self.builder.ins().imul_imm_s(block, format.block_bytes() as i64);
        let block = self.builder.ins().iadd(base, offset);
        self.element_of_block(blocks, block, i)
    }

    /// Element `i` of a block.
    fn element_of_block(&mut self, blocks: &Blocks, block: Value, i: Value) -> Value {
        let mut scale = self.factor(blocks.scale, block);
        let mut offset = blocks.offset.map(|offset| self.factor(offset, block));
        if let Some(Groups { len, scales, offsets }) = &blocks.groups {
            let group = self.builder.ins().ushr_imm_u(i, i64::from(len.ilog2()));
            let n_groups = blocks.len / len;
            let own = self.number(scales, (block, group), n_groups);
            scale = self.builder.ins().fmul(scale, own);
            if let (Some(whole), Some(offsets)) = (offset, offsets) {
                let own = self.number(offsets, (block, group), n_groups);
                offset = Some(self.builder.ins().fmul(whole, own));
            }
        }
        let q = self.number(&blocks.quanta, (block, i), blocks.len);
        let product = self.builder.ins().fmul(scale, q);
        match offset {
            None => product,
            Some(offset) if blocks.groups.is_some() => self.builder.ins().fsub(product, offset),
            Some(offset) => self.builder.ins().fadd(product, offset),
        }
    }

    /// The scale or the offset of a block.
    fn factor(&mut self, Factor { at, kind }: Factor, block: Value) -> Value {
        match kind {
            FactorKind::F16 => self.half(block, at as i32),
            FactorKind::F32 => self.builder.ins().load(F32, CONSTANT, block, at as i32),
            FactorKind::HalfE8M0 => {
                let e = self.unsigned(I8, CONSTANT, block, at as i32);
                let less = self.builder.ins().iadd_imm_s(e, -1);
                let normal = self.builder.ins().ishl_imm_u(less, 23);
                let least = self.builder.ins().iconst(I32, 0x0020_0000);
                let small = self.builder.ins().ishl(least, e);
                let is_small = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, e, 2);
                let bits = self.builder.ins().select(is_small, small, normal);
                self.builder.ins().bitcast(F32, MemFlagsData::new(), bits)
            }
        }
    }

    /// Number `i` of the first `n` of a block.
    fn number(&mut self, Numbers { planes, code }: &Numbers, (block, i): (Value, Value), n: usize) -> Value {
        if let (Code::Signed, [plane]) = (code, planes) {
            let address = self.builder.ins().iadd(block, i);
            return self.signed_byte(address, plane.at as i32);
        }
        let bits = planes.iter().map(|plane| self.bits(plane, (block, i), n)).collect::<Vec<_>>();
        let bits = bits.into_iter().reduce(|low, high| self.builder.ins().bor(low, high));
        let bits = bits.expect("numbers have bits");
        match code {
            Code::From(0) | Code::Signed => self.float(bits),
            Code::From(zero) => {
                let (q, zero) = (self.float(bits), self.constant(Scalar::float(f32::from(*zero))));
                self.builder.ins().fsub(q, zero)
            }
            Code::Table(table) => self.value_of_table(table, bits),
        }
    }

    /// The bits of number `i` in a plane, at their place.
    fn bits(&mut self, plane: &Plane, (block, i): (Value, Value), n: usize) -> Value {
        let Plane { at, width, per_byte, stride, step, first, to, .. } = *plane;
        let n_rows = n.div_ceil(width);
        let column = if n_rows == 1 { i } else { self.builder.ins().band_imm_u(i, width as i64 - 1) };
        let row = self.builder.ins().ushr_imm_u(i, i64::from(width.ilog2()));
        let layer = self.builder.ins().band_imm_u(row, per_byte as i64 - 1);
        let run = self.builder.ins().ushr_imm_u(row, i64::from(per_byte.ilog2()));
        let mut address = block;
        let parts = [(column, 1, width > 1), (layer, step, per_byte > 1), (run, stride, n_rows > per_byte)];
        for (number, bytes, is_there) in parts {
            if is_there && bytes > 0 {
                let offset = self.builder.ins().imul_imm_s(number, bytes as i64);
                address = self.builder.ins().iadd(address, offset);
            }
        }
        let byte = self.unsigned(I8, CONSTANT, address, at as i32);
        let shift = self.builder.ins().imul_imm_s(layer, i64::from(plane.bits));
        let shift = self.builder.ins().iadd_imm_s(shift, i64::from(first));
        let shifted = self.builder.ins().ushr(byte, shift);
        let bits = self.builder.ins().band_imm_u(shifted, i64::from(plane.mask()));
        if to == 0 { bits } else { self.builder.ins().ishl_imm_u(bits, i64::from(to)) }
    }

    /// One of sixteen values: eight of them are the bytes of a word.
    fn value_of_table(&mut self, table: &[i8; 16], bits: Value) -> Value {
        let (halves, _) = table.as_chunks::<8>();
        let words = [0, 1].map(|half: usize| {
            let word = i64::from_le_bytes(halves[half].map(i8::cast_unsigned));
            self.builder.ins().iconst(I64, word)
        });
        let is_upper = self.builder.ins().icmp_imm_u(IntCC::UnsignedGreaterThan, bits, 7);
        let word = self.builder.ins().select(is_upper, words[1], words[0]);
        let place = self.builder.ins().band_imm_u(bits, 7);
        let shift = self.builder.ins().ishl_imm_u(place, 3);
        let shifted = self.builder.ins().ushr(word, shift);
        let byte = self.builder.ins().ireduce(I8, shifted);
        let whole = self.builder.ins().sextend(I32, byte);
        self.float(whole)
    }

    /// Half precision to single precision.
    pub(crate) fn widened_f16(&mut self, bits: Value) -> Value {
        let sign = self.builder.ins().band_imm_u(bits, 0x8000);
        let sign = self.builder.ins().ishl_imm_u(sign, 16);
        let rest = self.builder.ins().band_imm_u(bits, 0x7fff);
        let rest = self.builder.ins().ishl_imm_u(rest, 13);
        // The exponent is 112 too small, also for the numbers below the normal ones; the product is exact.
        let small = self.builder.ins().bitcast(F32, MemFlagsData::new(), rest);
        let scale = self.constant(Scalar::float(2f32.powi(112)));
        let finite = self.builder.ins().fmul(small, scale);
        let finite = self.builder.ins().bitcast(I32, MemFlagsData::new(), finite);
        let other = self.builder.ins().bor_imm_u(rest, 0x7f80_0000);
        let is_other = self.builder.ins().icmp_imm_u(IntCC::UnsignedGreaterThanOrEqual, rest, 0x0f80_0000);
        let size = self.builder.ins().select(is_other, other, finite);
        let bits = self.builder.ins().bor(size, sign);
        self.builder.ins().bitcast(F32, MemFlagsData::new(), bits)
    }

    fn int8(&mut self, base: Value, element: Value, group: Value, n_elements: i64) -> Value {
        let address = self.builder.ins().iadd(base, element);
        let q = self.signed_byte(address, 0);
        let scales = self.builder.ins().iadd_imm_s(base, n_elements);
        let offset = self.builder.ins().imul_imm_s(group, 4);
        let address = self.builder.ins().iadd(scales, offset);
        let d = self.builder.ins().load(F32, CONSTANT, address, 0);
        self.builder.ins().fmul(d, q)
    }

    pub(crate) fn half(&mut self, block: Value, offset: i32) -> Value {
        let bits = self.unsigned(I16, CONSTANT, block, offset);
        self.widened_f16(bits)
    }

    fn signed_byte(&mut self, address: Value, offset: i32) -> Value {
        let byte = self.builder.ins().load(I8, CONSTANT, address, offset);
        let whole = self.builder.ins().sextend(I32, byte);
        self.float(whole)
    }
}
