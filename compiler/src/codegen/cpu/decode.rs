//! Elements of quantised blocks as code.
//!
//! In: the start of a tensor and the number of an element. Out: the element, by the formulas and in the order of
//! arithmetic of `tensor::quant::decode`, so that results are equal bit by bit.
//! One element is decoded at a time: this is right for every kernel and fast for none. Code for whole blocks may take
//! the place of a nest, never of this.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{F32, I8, I16, I32};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::memory::CONSTANT;
use crate::graph::op::Scalar;
use crate::tensor::quant::Format;

/// An element of a block: where the block starts, and which of its elements.
#[derive(Clone, Copy)]
struct Spot {
    block: Value,
    i: Value,
}

impl Emitter<'_, '_> {
    /// One element of a quantised tensor.
    pub(super) fn decode(&mut self, format: Format, base: Value, element: Value, n_elements: i64) -> Value {
        let (block, i) = self.split(element, format.block_len() as i64);
        if let Format::Int8 { .. } = format {
            return self.int8(base, element, block, n_elements);
        }
        let offset = self.builder.ins().imul_imm_s(block, format.block_bytes() as i64);
        let spot = Spot { block: self.builder.ins().iadd(base, offset), i };
        match format {
            Format::Q4_0 => self.centred(spot, 2, None, 8.0),
            Format::Q4_1 => self.shifted(spot, 4, None),
            Format::Q5_0 => self.centred(spot, 6, Some(2), 16.0),
            Format::Q5_1 => self.shifted(spot, 8, Some(4)),
            Format::Q8_0 => self.q8_0(spot),
            Format::Q4K => self.q4_k(spot, 16, None),
            Format::Q5K => self.q4_k(spot, 48, Some(16)),
            Format::Q6K => self.q6_k(spot),
            Format::Q4Pairs => self.q4_pairs(spot),
            Format::F32 | Format::F16 | Format::BF16 | Format::I32 | Format::Int8 { .. } => {
                unreachable!("plain elements are loaded as they are")
            }
        }
    }

    /// Half precision to single precision.
    pub(super) fn widened_f16(&mut self, bits: Value) -> Value {
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

    fn q8_0(&mut self, Spot { block, i }: Spot) -> Value {
        let d = self.half(block, 0);
        let address = self.builder.ins().iadd(block, i);
        let q = self.signed_byte(address, 2);
        self.builder.ins().fmul(d, q)
    }

    fn q4_pairs(&mut self, Spot { block, i }: Spot) -> Value {
        let d = self.builder.ins().load(F32, CONSTANT, block, 16);
        let byte = self.builder.ins().ushr_imm_u(i, 1);
        let is_high = self.builder.ins().band_imm_u(i, 1);
        let shift = self.builder.ins().ishl_imm_u(is_high, 2);
        let q = self.bits(block, byte, 0, shift, 15);
        let q = self.float(q);
        let middle = self.constant(Scalar::float(8.0));
        let q = self.builder.ins().fsub(q, middle);
        self.builder.ins().fmul(d, q)
    }

    /// `d * (q - middle)`
    fn centred(&mut self, spot: Spot, qs: i32, qh: Option<i32>, middle: f32) -> Value {
        let d = self.half(spot.block, 0);
        let q = self.quantum(spot, qs, qh);
        let middle = self.constant(Scalar::float(middle));
        let q = self.builder.ins().fsub(q, middle);
        self.builder.ins().fmul(d, q)
    }

    /// `d * q + m`
    fn shifted(&mut self, spot: Spot, qs: i32, qh: Option<i32>) -> Value {
        let (d, m) = (self.half(spot.block, 0), self.half(spot.block, 2));
        let q = self.quantum(spot, qs, qh);
        let product = self.builder.ins().fmul(d, q);
        self.builder.ins().fadd(product, m)
    }

    /// Four bits of element `i` of 32, and the fifth where there is one.
    fn quantum(&mut self, Spot { block, i }: Spot, qs: i32, qh: Option<i32>) -> Value {
        let column = self.builder.ins().band_imm_u(i, 15);
        let high = self.builder.ins().ushr_imm_u(i, 4);
        let shift = self.builder.ins().ishl_imm_u(high, 2);
        let mut q = self.bits(block, column, qs, shift, 15);
        if let Some(qh) = qh {
            let byte = self.builder.ins().ushr_imm_u(i, 3);
            let bit = self.builder.ins().band_imm_u(i, 7);
            let fifth = self.bits(block, byte, qh, bit, 1);
            q = self.joined(q, fifth);
        }
        self.float(q)
    }

    /// `scale * q - offset`, of eight groups of 32 elements; `qh` is where the fifth bits are.
    fn q4_k(&mut self, Spot { block, i }: Spot, qs: i32, qh: Option<i32>) -> Value {
        let group = self.builder.ins().ushr_imm_u(i, 5);
        let column = self.builder.ins().band_imm_u(i, 31);
        let (scale, offset) = self.scale_and_offset(block, group);
        let pair = self.builder.ins().ushr_imm_u(group, 1);
        let row = self.builder.ins().ishl_imm_u(pair, 5);
        let byte = self.builder.ins().iadd(row, column);
        let is_odd = self.builder.ins().band_imm_u(group, 1);
        let shift = self.builder.ins().ishl_imm_u(is_odd, 2);
        let mut q = self.bits(block, byte, qs, shift, 15);
        if let Some(qh) = qh {
            let fifth = self.bits(block, column, qh, group, 1);
            q = self.joined(q, fifth);
        }
        let q = self.float(q);
        let product = self.builder.ins().fmul(scale, q);
        self.builder.ins().fsub(product, offset)
    }

    /// The scale of a group, and the offset that is subtracted after it.
    fn scale_and_offset(&mut self, block: Value, group: Value) -> (Value, Value) {
        let none = self.whole(0);
        // Groups 4 to 7 keep their upper two bits with groups 0 to 3.
        let partner = self.builder.ins().band_imm_u(group, 3);
        let (own, next) = (self.bits(block, group, 4, none, 255), self.bits(block, group, 8, none, 255));
        let spare = self.bits(block, partner, 4, none, 255);
        let first = [own, next].map(|byte| self.builder.ins().band_imm_u(byte, 63));
        let low = [self.builder.ins().band_imm_u(next, 15), self.builder.ins().ushr_imm_u(next, 4)];
        let high = [spare, own].map(|byte| self.builder.ins().ushr_imm_u(byte, 6));
        let is_first = self.builder.ins().icmp_imm_u(IntCC::UnsignedLessThan, group, 4);
        let number = [0, 1].map(|k| {
            let second = self.joined(low[k], high[k]);
            let number = self.builder.ins().select(is_first, first[k], second);
            let number = self.float(number);
            let d = self.half(block, 2 * k as i32);
            self.builder.ins().fmul(d, number)
        });
        (number[0], number[1])
    }

    fn q6_k(&mut self, Spot { block, i }: Spot) -> Value {
        let half = self.builder.ins().ushr_imm_u(i, 7);
        let row = self.builder.ins().ushr_imm_u(i, 5);
        let row = self.builder.ins().band_imm_u(row, 3);
        let column = self.builder.ins().band_imm_u(i, 31);
        let high = self.builder.ins().ishl_imm_u(half, 5);
        let high = self.builder.ins().iadd(high, column);
        let shift = self.builder.ins().ishl_imm_u(row, 1);
        let top = self.bits(block, high, 128, shift, 3);
        let is_odd = self.builder.ins().band_imm_u(row, 1);
        let two = self.builder.ins().ishl_imm_u(half, 1);
        let low = self.builder.ins().iadd(two, is_odd);
        let low = self.builder.ins().ishl_imm_u(low, 5);
        let low = self.builder.ins().iadd(low, column);
        let shift = self.builder.ins().ushr_imm_u(row, 1);
        let shift = self.builder.ins().ishl_imm_u(shift, 2);
        let q = self.bits(block, low, 0, shift, 15);
        let q = self.joined(q, top);
        let q = self.float(q);
        let middle = self.constant(Scalar::float(32.0));
        let q = self.builder.ins().fsub(q, middle);
        let group = self.builder.ins().ushr_imm_u(i, 4);
        let address = self.builder.ins().iadd(block, group);
        let (d, scale) = (self.half(block, 208), self.signed_byte(address, 192));
        let scale = self.builder.ins().fmul(d, scale);
        self.builder.ins().fmul(scale, q)
    }

    /// Some bits of a byte of a block.
    fn bits(&mut self, block: Value, byte: Value, offset: i32, shift: Value, mask: i64) -> Value {
        let address = self.builder.ins().iadd(block, byte);
        let byte = self.unsigned(I8, CONSTANT, address, offset);
        let shifted = self.builder.ins().ushr(byte, shift);
        self.builder.ins().band_imm_u(shifted, mask)
    }

    /// `low | high << 4`
    fn joined(&mut self, low: Value, high: Value) -> Value {
        let high = self.builder.ins().ishl_imm_u(high, 4);
        self.builder.ins().bor(low, high)
    }

    pub(super) fn half(&mut self, block: Value, offset: i32) -> Value {
        let bits = self.unsigned(I16, CONSTANT, block, offset);
        self.widened_f16(bits)
    }

    fn signed_byte(&mut self, address: Value, offset: i32) -> Value {
        let byte = self.builder.ins().load(I8, CONSTANT, address, offset);
        let whole = self.builder.ins().sextend(I32, byte);
        self.float(whole)
    }
}
