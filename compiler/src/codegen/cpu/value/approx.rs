//! Functions of single-precision numbers as polynomials.
//!
//! In: a number, or a vector of four. Out: its `exp`, `ln`, `sin`, `cos`, `rsqrt` or `recip`, within a few units in the
//! last place, with infinities, zeros and NaN where they belong; nothing is called.
//! The same instructions serve one lane and four, so a result does not depend on where in a loop it was computed.
//! With `Numbers::Exact`, `math.rs` is called instead; `tests.rs` measures how far off these are.

use std::f64::consts::FRAC_PI_2;

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F32, F32X4, I32, I32X4};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value};
use fusebox_simd::Level;

use crate::codegen::cpu::emit::Emitter;
use crate::codegen::cpu::value::math::Function;
use crate::codegen::polynomials::{COS, EXP, LN, LN_2, ROUNDER, SIN};
use crate::graph::op::Scalar;

impl Emitter<'_, '_> {
    /// `e^x`; results below the normal numbers lose bits gradually.
    pub(crate) fn exp(&mut self, x: Value) -> Value {
        let x = self.at_most(x, 88.8);
        let x = self.at_least(x, -104.5);
        let (rounded, n) = self.nearest_multiple(x, std::f32::consts::LOG2_E);
        let r = self.less(x, n, &LN_2);
        let p = self.polynomial(r, &EXP);
        let square = self.builder.ins().fmul(r, r);
        let p = self.mul_add(p, square, r);
        let one = self.floats(x, 1.0);
        let p = self.builder.ins().fadd(p, one);
        // Half of the exponent each, so that neither power leaves the normal numbers.
        let half = self.shifted_right(rounded, 1);
        let other = self.builder.ins().isub(rounded, half);
        let [a, b] = [half, other].map(|n| self.power_of_two(n));
        let p = self.builder.ins().fmul(p, a);
        self.builder.ins().fmul(p, b)
    }

    /// The natural logarithm.
    pub(crate) fn ln(&mut self, x: Value) -> Value {
        let (zero, least) = (self.floats(x, 0.0), self.floats(x, f32::MIN_POSITIVE));
        let is_tiny = self.builder.ins().fcmp(FloatCC::LessThan, x, least);
        let scale = self.floats(x, 8_388_608.0);
        let scaled = self.builder.ins().fmul(x, scale);
        let scaled = self.blend(is_tiny, scaled, x);
        let bits = self.as_bits(scaled);
        // The exponent that leaves a mantissa between the roots of one half and of two.
        let root = self.wholes(x, 0x3f35_04f3);
        let above = self.builder.ins().isub(bits, root);
        let exponent = self.shifted_right(above, 23);
        let whole = self.shifted_left(exponent, 23);
        let rest = self.builder.ins().isub(bits, whole);
        let (rest, one) = (self.as_floats(rest), self.floats(x, 1.0));
        let f = self.builder.ins().fsub(rest, one);
        let exponent = self.float(exponent);
        let shift = self.floats(x, 23.0);
        let shift = self.blend(is_tiny, shift, zero);
        let exponent = self.builder.ins().fsub(exponent, shift);
        let square = self.builder.ins().fmul(f, f);
        let cube = self.builder.ins().fmul(f, square);
        let p = self.polynomial(f, &LN);
        let p = self.builder.ins().fmul(p, cube);
        let low = self.floats(x, LN_2[1]);
        let p = self.mul_add(exponent, low, p);
        let half = self.floats(x, -0.5);
        let p = self.mul_add(square, half, p);
        let p = self.builder.ins().fadd(f, p);
        let high = self.floats(x, LN_2[0]);
        let finite = self.mul_add(exponent, high, p);
        let [infinite, lowest, none] =
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|y| self.floats(x, y));
        let is_finite = self.builder.ins().fcmp(FloatCC::LessThan, x, infinite);
        let is_zero = self.builder.ins().fcmp(FloatCC::Equal, x, zero);
        let is_below = self.builder.ins().fcmp(FloatCC::LessThan, x, zero);
        let result = self.blend(is_finite, finite, x);
        let result = self.blend(is_zero, lowest, result);
        self.blend(is_below, none, result)
    }

    /// `1 / √x`, rounded twice.
    pub(crate) fn reciprocal_root(&mut self, x: Value) -> Value {
        let root = self.builder.ins().sqrt(x);
        self.recip(root)
    }

    /// `1 / x`
    pub(crate) fn recip(&mut self, x: Value) -> Value {
        let one = self.floats(x, 1.0);
        self.builder.ins().fdiv(one, x)
    }

    /// The sine. Beyond angles of some millions it is some number between -1 and 1.
    pub(crate) fn sin(&mut self, x: Value) -> Value {
        if !self.has_fma() {
            return self.each_lane(x, |emitter, x| emitter.call(Function::Sin, x));
        }
        let (quarter, sin, cos) = self.sin_and_cos(x);
        self.turned(quarter, sin, cos)
    }

    /// The cosine, which is the sine a quarter of a turn later.
    pub(crate) fn cos(&mut self, x: Value) -> Value {
        if !self.has_fma() {
            return self.each_lane(x, |emitter, x| emitter.call(Function::Cos, x));
        }
        let (quarter, sin, cos) = self.sin_and_cos(x);
        let one = self.wholes(x, 1);
        let next = self.builder.ins().iadd(quarter, one);
        self.turned(next, sin, cos)
    }

    /// The number of quarter turns of an angle, and the sine and the cosine of the remainder.
    fn sin_and_cos(&mut self, x: Value) -> (Value, Value, Value) {
        let (quarter, n) = self.nearest_multiple(x, std::f32::consts::FRAC_2_PI);
        // The first difference is exact: a fused product is not rounded, and the remainder has a short mantissa.
        let high = FRAC_PI_2 as f32;
        let middle = (FRAC_PI_2 - f64::from(high)) as f32;
        let low = (FRAC_PI_2 - f64::from(high) - f64::from(middle)) as f32;
        let r = self.less(x, n, &[high, middle, low]);
        let r = self.at_most(r, 1.0);
        let r = self.at_least(r, -1.0);
        let square = self.builder.ins().fmul(r, r);
        let sin = self.polynomial(square, &SIN);
        let cube = self.builder.ins().fmul(r, square);
        let sin = self.mul_add(sin, cube, r);
        let cos = self.polynomial(square, &COS);
        let fourth = self.builder.ins().fmul(square, square);
        let (one, half) = (self.floats(x, 1.0), self.floats(x, -0.5));
        let start = self.mul_add(square, half, one);
        (quarter, sin, self.mul_add(cos, fourth, start))
    }

    /// The sine of an angle, from its number of quarter turns and the sine and the cosine of the remainder.
    fn turned(&mut self, quarter: Value, sin: Value, cos: Value) -> Value {
        let [one, two, zero] = [1, 2, 0].map(|number| self.wholes(quarter, number));
        let parity = self.builder.ins().band(quarter, one);
        let is_even = self.builder.ins().icmp(IntCC::Equal, parity, zero);
        let (sin, cos) = (self.as_bits(sin), self.as_bits(cos));
        let size = self.blend(is_even, sin, cos);
        let sign = self.builder.ins().band(quarter, two);
        let sign = self.shifted_left(sign, 30);
        let bits = self.builder.ins().bxor(size, sign);
        self.as_floats(bits)
    }

    /// The integer nearest to `x · by`: in the low bits of the first result, and as a float, the second.
    fn nearest_multiple(&mut self, x: Value, by: f32) -> (Value, Value) {
        let (by, rounder) = (self.floats(x, by), self.floats(x, ROUNDER));
        let rounded = self.mul_add(x, by, rounder);
        let n = self.builder.ins().fsub(rounded, rounder);
        (self.as_bits(rounded), n)
    }

    /// `x - n · part` for every part.
    fn less(&mut self, x: Value, n: Value, parts: &[f32]) -> Value {
        parts.iter().fold(x, |rest, part| {
            let part = self.floats(x, -part);
            self.mul_add(n, part, rest)
        })
    }

    fn polynomial(&mut self, x: Value, factors: &[f32]) -> Value {
        let (first, rest) = factors.split_first().expect("a polynomial has factors");
        let first = self.floats(x, *first);
        rest.iter().fold(first, |sum, factor| {
            let factor = self.floats(x, *factor);
            self.mul_add(sum, x, factor)
        })
    }

    /// Two to the power in the low bits of a number.
    fn power_of_two(&mut self, n: Value) -> Value {
        let (exponent, bias) = (self.shifted_left(n, 23), self.wholes(n, 127 << 23));
        let bits = self.builder.ins().iadd(exponent, bias);
        self.as_floats(bits)
    }

    /// `a · b + c`, rounded once where the processor can.
    pub(crate) fn mul_add(&mut self, a: Value, b: Value, c: Value) -> Value {
        if self.has_fma() {
            return self.builder.ins().fma(a, b, c);
        }
        let product = self.builder.ins().fmul(a, b);
        self.builder.ins().fadd(product, c)
    }

    pub(crate) fn has_fma(&self) -> bool {
        match self.cpu.level {
            Level::Amx | Level::Avx512Bf16 | Level::Avx512 | Level::Avx2 | Level::Neon => true,
            Level::Portable => false,
        }
    }

    /// The smaller; NaN stays.
    fn at_most(&mut self, x: Value, most: f32) -> Value {
        let most = self.floats(x, most);
        let is_beyond = self.builder.ins().fcmp(FloatCC::LessThan, most, x);
        self.blend(is_beyond, most, x)
    }

    /// The larger; NaN stays.
    fn at_least(&mut self, x: Value, least: f32) -> Value {
        let least = self.floats(x, least);
        let is_beyond = self.builder.ins().fcmp(FloatCC::LessThan, x, least);
        self.blend(is_beyond, least, x)
    }

    /// The first where a comparison holds, else the second; lane by lane.
    pub(crate) fn blend(&mut self, holds: Value, a: Value, b: Value) -> Value {
        if !self.is_vector(a) {
            return self.builder.ins().select(holds, a, b);
        }
        let mask = if self.is_float(a) { self.as_floats(holds) } else { holds };
        self.builder.ins().bitselect(mask, a, b)
    }

    /// A number in every lane that `like` has.
    pub(crate) fn floats(&mut self, like: Value, x: f32) -> Value {
        let x = self.constant(Scalar::float(x));
        self.spread(like, x)
    }

    /// A whole number in every lane that `like` has.
    pub(crate) fn wholes(&mut self, like: Value, number: i32) -> Value {
        let number = self.constant(Scalar::I32(number));
        self.spread(like, number)
    }

    fn spread(&mut self, like: Value, x: Value) -> Value {
        if self.is_vector(like) { self.splat(x) } else { x }
    }

    /// Four times the same number.
    pub(crate) fn splat(&mut self, x: Value) -> Value {
        let ty = if self.is_float(x) { F32X4 } else { I32X4 };
        self.builder.ins().splat(ty, x)
    }

    pub(crate) fn as_bits(&mut self, x: Value) -> Value {
        let ty = if self.is_vector(x) { I32X4 } else { I32 };
        self.builder.ins().bitcast(ty, MemFlagsData::new(), x)
    }

    pub(crate) fn as_floats(&mut self, x: Value) -> Value {
        let ty = if self.is_vector(x) { F32X4 } else { F32 };
        self.builder.ins().bitcast(ty, MemFlagsData::new(), x)
    }

    pub(crate) fn shifted_left(&mut self, x: Value, by: i64) -> Value {
        let by = self.builder.ins().iconst(I32, by);
        self.builder.ins().ishl(x, by)
    }

    /// Shifted with its sign.
    pub(crate) fn shifted_right(&mut self, x: Value, by: i64) -> Value {
        let by = self.builder.ins().iconst(I32, by);
        self.builder.ins().sshr(x, by)
    }

    /// A function of scalars for every lane.
    fn each_lane(&mut self, x: Value, mut f: impl FnMut(&mut Self, Value) -> Value) -> Value {
        if !self.is_vector(x) {
            return f(self, x);
        }
        let lanes = [0, 1, 2, 3].map(|lane| {
            let x = self.builder.ins().extractlane(x, lane);
            f(self, x)
        });
        self.gathered(lanes)
    }

    /// A vector of four scalars.
    pub(crate) fn gathered(&mut self, lanes: [Value; 4]) -> Value {
        let first = self.splat(lanes[0]);
        (1..4)
            .fold(first, |vector, lane| self.builder.ins().insertlane(vector, lanes[usize::from(lane)], lane))
    }
}
