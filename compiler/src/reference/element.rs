//! The functions of single elements, as numbers of double precision.
//!
//! In: elements of any type as `f64`, which holds each of them exactly. Out: the result before it is rounded to its
//! type; [`round`] does that. Whole numbers wrap around at 32 bits.
//! `Max` and `Min` pass over NaN: `max(NaN, x)` is `x`. The sign of a zero is never promised, and a
//! comparison with NaN is false.
//! The evaluator and the interpreter of kernels both compute with these.

use crate::graph::op::{Binary, Fold, Unary};
use crate::tensor::dtype::DType;

/// A function of one element, not rounded.
pub(crate) fn unary(f: Unary, x: f64) -> f64 {
    match f {
        Unary::Neg => -x,
        Unary::Exp => x.exp(),
        Unary::Ln => x.ln(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.sqrt().recip(),
        Unary::Recip => x.recip(),
    }
}

/// A function of two elements of one type, not rounded; a comparison gives 0 or 1.
pub(crate) fn binary(f: Binary, dtype: DType, a: f64, b: f64) -> f64 {
    let is_whole = dtype == DType::I32;
    match f {
        Binary::Add if is_whole => f64::from((a as i32).wrapping_add(b as i32)),
        Binary::Sub if is_whole => f64::from((a as i32).wrapping_sub(b as i32)),
        Binary::Mul if is_whole => f64::from((a as i32).wrapping_mul(b as i32)),
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Lt => truth(a < b),
        Binary::Le => truth(a <= b),
        Binary::Eq => truth(a == b),
    }
}

/// What folding starts from, and what folding nothing gives.
pub(crate) fn identity(fold: Fold, dtype: DType) -> f64 {
    fold.identity(dtype).number()
}

/// Folds one more element in, not rounded.
pub(crate) fn fold(fold: Fold, dtype: DType, so_far: f64, x: f64) -> f64 {
    match fold {
        Fold::Sum => binary(Binary::Add, dtype, so_far, x),
        Fold::Max => binary(Binary::Max, dtype, so_far, x),
    }
}

/// An element in another type. A whole number loses what follows the point; it is the nearest there is where the
/// element is too large, and 0 for NaN.
pub(crate) fn cast(to: DType, x: f64) -> f64 {
    match to {
        DType::F32 | DType::F16 | DType::BF16 => round(to, x),
        DType::I32 => f64::from(x as i32),
    }
}

/// The nearest number that a type can hold; a whole number of more than 32 bits wraps around.
pub(crate) fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => f64::from(dtype.round(x as f32)),
        DType::I32 => wrapped(x as i64),
    }
}

/// The low 32 bits of a whole number, with their sign.
pub(crate) fn wrapped(x: i64) -> f64 {
    f64::from(x as i32)
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unary_functions_of_a_quarter() {
        let known = [
            (Unary::Neg, -0.25),
            (Unary::Exp, 1.284_025_416_687_741_5),
            (Unary::Ln, -1.386_294_361_119_890_6),
            (Unary::Sin, 0.247_403_959_254_522_94),
            (Unary::Cos, 0.968_912_421_710_644_7),
            (Unary::Sqrt, 0.5),
            (Unary::Rsqrt, 2.0),
            (Unary::Recip, 4.0),
        ];
        assert_eq!(known.map(|(f, _)| f), *Unary::ALL);
        for (f, expected) in known {
            assert!((unary(f, 0.25) - expected).abs() < 1e-15, "{}", f.name());
        }
    }

    #[test]
    fn binary_functions_of_floats() {
        let known = [5.0, -1.0, 6.0, 2.0 / 3.0, 3.0, 2.0, 1.0, 1.0, 0.0];
        for (f, expected) in Binary::ALL.iter().zip(known) {
            assert_eq!(binary(*f, DType::F32, 2.0, 3.0), expected, "{}", f.name());
        }
    }

    #[test]
    fn whole_numbers_wrap_around() {
        let (most, least) = (f64::from(i32::MAX), f64::from(i32::MIN));
        assert_eq!(binary(Binary::Add, DType::I32, most, 1.0), least);
        assert_eq!(binary(Binary::Sub, DType::I32, least, 1.0), most);
        // 2147483647² = 2^62 - 2^32 + 1, which double precision does not hold.
        assert_eq!(binary(Binary::Mul, DType::I32, most, most), 1.0);
        assert_eq!(round(DType::I32, unary(Unary::Neg, least)), least);
        assert_eq!(wrapped((1 << 32) + 5), 5.0);
    }

    #[test]
    fn max_passes_over_what_is_not_a_number() {
        assert_eq!(binary(Binary::Max, DType::F32, f64::NAN, -1.0), -1.0);
        assert_eq!(binary(Binary::Min, DType::F32, -1.0, f64::NAN), -1.0);
        assert_eq!(binary(Binary::Eq, DType::F32, f64::NAN, f64::NAN), 0.0);
        assert_eq!(fold(Fold::Max, DType::F32, identity(Fold::Max, DType::F32), f64::NAN), f64::NEG_INFINITY);
        assert_eq!(identity(Fold::Max, DType::I32), f64::from(i32::MIN));
    }

    #[test]
    fn casts_to_whole_numbers_cut_and_saturate() {
        let cut = [-1.9, 1.9, 3e9, -3e9, f64::NAN].map(|x| cast(DType::I32, x));
        assert_eq!(cut, [-1.0, 1.0, f64::from(i32::MAX), f64::from(i32::MIN), 0.0]);
        assert_eq!(cast(DType::F32, 16_777_217.0), 16_777_216.0);
        assert_eq!(cast(DType::BF16, 1.01), 1.007_812_5);
        assert_eq!(cast(DType::F16, 1e6), f64::INFINITY);
    }
}
