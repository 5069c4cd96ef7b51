//! Conversions to and from f16 and bf16.
//!
//! In: an `f32`, or sixteen bits. Out: the `f32` rounded to the nearest 16-bit number, ties to even; its bits; or the
//! `f32` that bits stand for. A language with the type converts there and back. Without it, integer arithmetic does the
//! same; no step makes a subnormal `f32`, because many devices flush those to zero.

use cubecl_core::ir::{Arithmetic, Bitwise, Comparison, ElemType, FloatKind, UIntKind, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{F32, U32, constant};
use crate::tensor::dtype::DType;

impl Emitter<'_> {
    /// An `f32` rounded to a 16-bit type.
    pub(crate) fn rounded_to_half(&mut self, dtype: DType, x: Variable) -> Variable {
        if self.dialect.language.has_halves() {
            let half = self.writer.cast(elem_of(dtype), x);
            return self.writer.cast(F32, half);
        }
        let bits = self.narrowed(dtype, x);
        self.widened(dtype, bits)
    }

    /// Two numbers rounded to bf16 and packed in a word, the first in the low half.
    pub(crate) fn packed_bf16(&mut self, low: Variable, high: Variable) -> Variable {
        let [low, high] = [low, high].map(|x| {
            let half = self.writer.cast(elem_of(DType::BF16), x);
            let short = self.writer.reinterpreted(ElemType::UInt(UIntKind::U16), half);
            self.writer.cast(U32, short)
        });
        let high = self.writer.shift_left(high, 16);
        self.writer.or(low, high)
    }

    /// The `f32` that sixteen bits stand for.
    pub(crate) fn widened(&mut self, dtype: DType, bits: Variable) -> Variable {
        if dtype == DType::BF16 {
            let bits = self.writer.shift_left(bits, 16);
            return self.writer.reinterpreted(F32, bits);
        }
        if self.dialect.language.has_halves() {
            let short = self.writer.cast(ElemType::UInt(UIntKind::U16), bits);
            let half = self.writer.reinterpreted(elem_of(dtype), short);
            return self.writer.cast(F32, half);
        }
        let sign = self.writer.and(bits, 0x8000);
        let sign = self.writer.shift_left(sign, 16);
        let size = self.writer.and(bits, 0x7fff);
        let shifted = self.writer.shift_left(size, 13);
        let rebias = constant(112 << 23);
        let normal = self.writer.add(shifted, rebias);
        // Infinities and NaNs have the largest exponent in either type.
        let infinite = self.writer.add(normal, rebias);
        let [least, largest] = [0x0400, 0x7c00].map(constant);
        let is_other = self.writer.compare(Comparison::GreaterEqual, size, largest);
        let normal = self.writer.select(is_other, infinite, normal);
        let small = self.writer.cast(F32, size);
        let thread = self.writer.float_number(2f32.powi(-24));
        let small = self.writer.arithmetic(Arithmetic::Mul, small, thread);
        let small = self.writer.reinterpreted(U32, small);
        let is_small = self.writer.below(size, least);
        let size = self.writer.select(is_small, small, normal);
        let bits = self.writer.or(size, sign);
        self.writer.reinterpreted(F32, bits)
    }

    /// The bits of the nearest 16-bit number.
    pub(crate) fn narrowed(&mut self, dtype: DType, x: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, x);
        let size = self.writer.and(bits, 0x7fff_ffff);
        let infinity = constant(0x7f80_0000);
        let is_none = self.writer.below(infinity, size);
        let by = if dtype == DType::BF16 { 16 } else { 13 };
        // Round to nearest even: add half of the cut-off unit less one, plus the last bit kept.
        let last = self.writer.shift_right(size, by);
        let last = self.writer.and(last, 1);
        let half = constant((1 << (by - 1)) - 1);
        let half = self.writer.add(half, last);
        if dtype == DType::BF16 {
            let rounded = self.writer.add(bits, half);
            let rounded = self.writer.shift_right(rounded, 16);
            let none = constant(0x7fc0);
            return self.writer.select(is_none, none, rounded);
        }
        let rebias = constant(112 << 23);
        let normal = self.writer.add(size, half);
        let normal = self.writer.sub(normal, rebias);
        let normal = self.writer.shift_right(normal, 13);
        let [infinite, overflow, least, none] = [0x7c00, 143 << 23, 113 << 23, 0x7e00].map(constant);
        let is_over = self.writer.compare(Comparison::GreaterEqual, size, overflow);
        let normal = self.writer.select(is_over, infinite, normal);
        // For subnormals, adding 0.5 rounds and leaves the bits at the end.
        let (magic, whole) = (self.writer.float_number(0.5), constant(i64::from(0.5f32.to_bits())));
        let float = self.writer.reinterpreted(F32, size);
        let sum = self.writer.arithmetic(Arithmetic::Add, float, magic);
        let sum = self.writer.reinterpreted(U32, sum);
        let small = self.writer.sub(sum, whole);
        let is_small = self.writer.below(size, least);
        let size = self.writer.select(is_small, small, normal);
        let size = self.writer.select(is_none, none, size);
        let mask = constant(0x8000_0000);
        let sign = self.writer.bits(Bitwise::BitwiseAnd, bits, mask);
        let sign = self.writer.shift_right(sign, 16);
        self.writer.or(size, sign)
    }
}

fn elem_of(dtype: DType) -> ElemType {
    ElemType::Float(if dtype == DType::BF16 { FloatKind::BF16 } else { FloatKind::F16 })
}
