//! Conversions between half precisions and single precision, four lanes at a time.
//!
//! In: four F16 or BF16 numbers from memory, or four numbers in single precision. Out: the same in the other type,
//! exact or rounded to nearest even as `half` rounds. NaN stays NaN, with canonical bits. `memory.rs` converts scalars.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I16X8, I32, I64X2};
use cranelift_codegen::ir::{Endianness, InstBuilder, MemFlagsData, Value};

use crate::codegen::cpu::emit::Emitter;
use crate::tensor::dtype::DType;

impl Emitter<'_, '_> {
    /// Four halves from memory as single-precision numbers.
    pub(crate) fn halves(&mut self, dtype: DType, flags: MemFlagsData, address: Value, offset: i32) -> Value {
        let bits = self.builder.ins().sload16x4(flags, address, offset);
        if dtype == DType::BF16 {
            let bits = self.shifted_left(bits, 16);
            return self.as_floats(bits);
        }
        self.widened_lanes(bits)
    }

    /// Stores four single-precision numbers as halves.
    pub(crate) fn store_halves(
        &mut self,
        (dtype, flags): (DType, MemFlagsData),
        value: Value,
        address: Value,
        offset: i32,
    ) {
        let bits = self.narrowed_lanes(dtype, value);
        let packed = self.builder.ins().unarrow(bits, bits);
        debug_assert_eq!(self.builder.func.dfg.value_type(packed), I16X8);
        let flags_of_bits = MemFlagsData::new().with_endianness(Endianness::Little);
        let packed = self.builder.ins().bitcast(I64X2, flags_of_bits, packed);
        let low = self.builder.ins().extractlane(packed, 0);
        self.builder.ins().store(flags, low, address, offset);
    }

    /// Four numbers rounded to a half precision.
    pub(crate) fn rounded_lanes(&mut self, dtype: DType, value: Value) -> Value {
        let bits = self.narrowed_lanes(dtype, value);
        if dtype == DType::BF16 {
            let bits = self.shifted_left(bits, 16);
            return self.as_floats(bits);
        }
        let bits = self.shifted_left(bits, 16);
        let bits = self.shifted_right(bits, 16);
        self.widened_lanes(bits)
    }

    /// The numbers that sign-extended bits of type `F16` stand for.
    fn widened_lanes(&mut self, bits: Value) -> Value {
        let bits = self.shifted_left(bits, 13);
        let kept = self.wholes(bits, 0x8fff_e000_u32 as i32);
        let bits = self.builder.ins().band(bits, kept);
        // The exponent is 112 too small, also for the numbers below the normal ones; the product is exact.
        let small = self.as_floats(bits);
        let scale = self.floats(small, 2f32.powi(112));
        let finite = self.builder.ins().fmul(small, scale);
        let exponent = self.wholes(bits, 0x0f80_0000);
        let own = self.builder.ins().band(bits, exponent);
        let is_other = self.builder.ins().icmp(IntCC::Equal, own, exponent);
        let largest = self.wholes(bits, 0x7f80_0000);
        let other = self.builder.ins().band(is_other, largest);
        let finite = self.as_bits(finite);
        let bits = self.builder.ins().bor(finite, other);
        self.as_floats(bits)
    }

    /// The bits of the nearest halves, each in 32 bits.
    fn narrowed_lanes(&mut self, dtype: DType, value: Value) -> Value {
        let bits = self.as_bits(value);
        let sizes = self.wholes(bits, i32::MAX);
        let size = self.builder.ins().band(bits, sizes);
        let infinity = self.wholes(bits, 0x7f80_0000);
        let is_none = self.builder.ins().icmp(IntCC::SignedGreaterThan, size, infinity);
        let by = if dtype == DType::BF16 { 16 } else { 13 };
        // Half of what is cut off, less one, and one more where the last bit is set: ties go to even.
        let last = self.shifted_right(size, by);
        let one = self.wholes(bits, 1);
        let last = self.builder.ins().band(last, one);
        let half = self.wholes(bits, (1 << (by - 1)) - 1);
        let half = self.builder.ins().iadd(half, last);
        if dtype == DType::BF16 {
            let rounded = self.builder.ins().iadd(bits, half);
            let none = self.wholes(bits, 0x7fc0_0000);
            let rounded = self.blend(is_none, none, rounded);
            let by = self.builder.ins().iconst(I32, 16);
            return self.builder.ins().ushr(rounded, by);
        }
        let rebias = self.wholes(bits, -(112 << 23));
        let normal = self.builder.ins().iadd(size, half);
        let normal = self.builder.ins().iadd(normal, rebias);
        let normal = self.shifted_right(normal, 13);
        let (infinite, overflow) = (self.wholes(bits, 0x7c00), self.wholes(bits, 143 << 23));
        let is_over = self.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, size, overflow);
        let normal = self.blend(is_over, infinite, normal);
        // Below the normal numbers the addition of one half rounds, and leaves the bits at the end.
        let (magic, size_as_float) = (self.floats(value, 0.5), self.as_floats(size));
        let sum = self.builder.ins().fadd(size_as_float, magic);
        let (sum, magic) = (self.as_bits(sum), self.as_bits(magic));
        let small = self.builder.ins().isub(sum, magic);
        let least = self.wholes(bits, 113 << 23);
        let is_small = self.builder.ins().icmp(IntCC::SignedLessThan, size, least);
        let size = self.blend(is_small, small, normal);
        let none = self.wholes(bits, 0x7e00);
        let size = self.blend(is_none, none, size);
        let sign_bit = self.wholes(bits, i32::MIN);
        let sign = self.builder.ins().band(bits, sign_bit);
        let by = self.builder.ins().iconst(I32, 16);
        let sign = self.builder.ins().ushr(sign, by);
        self.builder.ins().bor(size, sign)
    }
}
