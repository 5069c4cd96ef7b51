//! Polynomial `exp`, `ln`, `sin` and `cos`, for languages with imprecise math functions.
//!
//! In: an `f32`. Out: the function, within a few ulp. WGSL and Metal allow a sine that is off by a thousandth, and
//! angles of a few turns only. The formulas are those of the CPU; range reduction needs no FMA, because the parts of π
//! have few bits.

use std::f64::consts::FRAC_PI_2;

use cubecl_core::ir::{Arithmetic, BinaryOperator, Bitwise, Comparison, Variable};

use crate::codegen::gpu::emit::Emitter;
use crate::codegen::gpu::writer::{F32, I32, U32, constant};
use crate::codegen::polynomials::{COS, EXP, LN, LN_2, SIN};

impl Emitter<'_> {
    /// `e^x`
    pub(crate) fn exp(&mut self, x: Variable) -> Variable {
        let inside = self.at(Arithmetic::Min, x, 88.8);
        let inside = self.at(Arithmetic::Max, inside, -87.3);
        let (rounded, n) = self.nearest_multiple(inside, std::f32::consts::LOG2_E);
        let r = self.less(inside, n, &LN_2);
        let p = self.polynomial(r, &EXP);
        let square = self.times(r, r);
        let p = self.mul_add(p, square, r);
        let p = self.at(Arithmetic::Add, p, 1.0);
        // Half of the exponent each, so that neither power is subnormal or infinite.
        let rounded = self.writer.signed(rounded);
        let half = self.writer.shift_right(rounded, 1);
        let other = self.writer.arithmetic(Arithmetic::Sub, rounded, half);
        let [a, b] = [half, other].map(|n| self.power_of_two(n));
        let p = self.times(p, a);
        let p = self.times(p, b);
        let (least, zero) = (self.writer.float_number(-87.3), self.writer.float_number(0.0));
        let is_tiny = self.writer.compare(Comparison::Lower, x, least);
        self.writer.select(is_tiny, zero, p)
    }

    /// The natural logarithm.
    pub(crate) fn ln(&mut self, x: Variable) -> Variable {
        let bits = self.writer.reinterpreted(U32, x);
        // Normalises the mantissa to lie between √½ and √2.
        let root = constant(0x3f35_04f3);
        let above = self.writer.sub(bits, root);
        let above = self.writer.signed(above);
        let exponent = self.writer.shift_right(above, 23);
        let whole = self.writer.unsigned(exponent);
        let whole = self.writer.shift_left(whole, 23);
        let rest = self.writer.sub(bits, whole);
        let rest = self.writer.reinterpreted(F32, rest);
        let f = self.at(Arithmetic::Sub, rest, 1.0);
        let exponent = self.writer.cast(F32, exponent);
        let square = self.times(f, f);
        let cube = self.times(f, square);
        let p = self.polynomial(f, &LN);
        let p = self.times(p, cube);
        let low = self.at(Arithmetic::Mul, exponent, LN_2[1]);
        let p = self.writer.arithmetic(Arithmetic::Add, p, low);
        let half = self.at(Arithmetic::Mul, square, 0.5);
        let p = self.writer.arithmetic(Arithmetic::Sub, p, half);
        let p = self.writer.arithmetic(Arithmetic::Add, f, p);
        let high = self.at(Arithmetic::Mul, exponent, LN_2[0]);
        let finite = self.writer.arithmetic(Arithmetic::Add, p, high);
        let [infinite, lowest, none] =
            [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].map(|y| self.writer.float_number(y));
        let zero = self.writer.float_number(0.0);
        let is_finite = self.writer.compare(Comparison::Lower, x, infinite);
        let is_zero = self.writer.compare(Comparison::Equal, x, zero);
        let is_below = self.writer.compare(Comparison::Lower, x, zero);
        let result = self.writer.select(is_finite, finite, x);
        let result = self.writer.select(is_zero, lowest, result);
        self.writer.select(is_below, none, result)
    }

    /// The sine. It loses precision beyond angles of some tens of thousands.
    pub(crate) fn sin(&mut self, x: Variable) -> Variable {
        let (quarter, sin, cos) = self.sin_and_cos(x);
        self.turned(quarter, sin, cos)
    }

    /// The cosine: the sine a quarter turn later.
    pub(crate) fn cos(&mut self, x: Variable) -> Variable {
        let (quarter, sin, cos) = self.sin_and_cos(x);
        let one = constant(1);
        let next = self.writer.add(quarter, one);
        self.turned(next, sin, cos)
    }

    /// Range reduction: the number of quarter turns, and the sine and cosine of the remainder.
    fn sin_and_cos(&mut self, x: Variable) -> (Variable, Variable, Variable) {
        let (quarter, n) = self.nearest_multiple(x, std::f32::consts::FRAC_2_PI);
        let r = self.less(x, n, &quarter_turn());
        let r = self.at(Arithmetic::Min, r, 1.0);
        let r = self.at(Arithmetic::Max, r, -1.0);
        let square = self.times(r, r);
        let sin = self.polynomial(square, &SIN);
        let cube = self.times(r, square);
        let sin = self.mul_add(sin, cube, r);
        let cos = self.polynomial(square, &COS);
        let fourth = self.times(square, square);
        let half = self.at(Arithmetic::Mul, square, 0.5);
        let one = self.writer.float_number(1.0);
        let start = self.writer.arithmetic(Arithmetic::Sub, one, half);
        (quarter, sin, self.mul_add(cos, fourth, start))
    }

    /// The sine of an angle, from its number of quarter turns and the sine and cosine of the remainder.
    fn turned(&mut self, quarter: Variable, sin: Variable, cos: Variable) -> Variable {
        let parity = self.writer.and(quarter, 1);
        let zero = constant(0);
        let is_even = self.equals(parity, zero);
        let size = self.writer.select(is_even, sin, cos);
        let size = self.writer.reinterpreted(U32, size);
        let sign = self.writer.and(quarter, 2);
        let sign = self.writer.shift_left(sign, 30);
        let bits = self.writer.bits(Bitwise::BitwiseXor, size, sign);
        self.writer.reinterpreted(F32, bits)
    }

    /// The integer nearest to `x · by`, as an integer and as a float.
    fn nearest_multiple(&mut self, x: Variable, by: f32) -> (Variable, Variable) {
        // Adding and subtracting a large number would round as well, but drivers simplify it away.
        let scaled = self.at(Arithmetic::Mul, x, by);
        let n = self.writer.function(Arithmetic::Round, scaled);
        let whole = self.writer.cast(I32, n);
        (self.writer.unsigned(whole), n)
    }

    /// `x - n · part` for every part.
    fn less(&mut self, x: Variable, n: Variable, parts: &[f32]) -> Variable {
        parts.iter().fold(x, |rest, part| {
            let product = self.at(Arithmetic::Mul, n, *part);
            self.writer.arithmetic(Arithmetic::Sub, rest, product)
        })
    }

    fn polynomial(&mut self, x: Variable, factors: &[f32]) -> Variable {
        let (first, rest) = factors.split_first().expect("a polynomial has factors");
        let first = self.writer.float_number(*first);
        rest.iter().fold(first, |sum, factor| {
            let product = self.times(sum, x);
            self.at(Arithmetic::Add, product, *factor)
        })
    }

    /// 2ⁿ
    fn power_of_two(&mut self, n: Variable) -> Variable {
        let n = self.writer.unsigned(n);
        let (exponent, bias) = (self.writer.shift_left(n, 23), constant(127 << 23));
        let bits = self.writer.add(exponent, bias);
        self.writer.reinterpreted(F32, bits)
    }

    fn mul_add(&mut self, a: Variable, b: Variable, c: Variable) -> Variable {
        let product = self.times(a, b);
        self.writer.arithmetic(Arithmetic::Add, product, c)
    }

    /// An operation with a constant.
    fn at(&mut self, f: fn(BinaryOperator) -> Arithmetic, x: Variable, number: f32) -> Variable {
        let number = self.writer.float_number(number);
        self.writer.arithmetic(f, x, number)
    }
}

/// π/2 in parts of eight bits, whose products with 16-bit numbers are exact, and the remainder.
fn quarter_turn() -> [f32; 4] {
    let mut rest = FRAC_PI_2;
    let mut part = || {
        let bits = (rest as f32).to_bits() & 0xffff_0000;
        rest -= f64::from(f32::from_bits(bits));
        f32::from_bits(bits)
    };
    let [first, second, third] = [part(), part(), part()];
    [first, second, third, rest as f32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_turn_is_the_sum_of_its_parts() {
        let parts = quarter_turn();
        let sum: f64 = parts.iter().map(|part| f64::from(*part)).sum();
        assert!((sum - FRAC_PI_2).abs() < 1e-15);
        for part in &parts[..3] {
            // The product with the largest 16-bit number needs no rounding.
            let exact = f64::from(*part) * 65_535.0;
            assert_eq!(f64::from(*part * 65_535.0), exact);
        }
    }
}
