//! The functions of single elements, as numbers of double precision.
//!
//! In: elements of any type as `f64`, which holds each of them exactly. Out: the result before it is rounded to its
//! type; [`round`] does that. Whole numbers wrap around at 32 bits.
//! The same as `reference/element.rs`, word for word: two meanings of one function would make every comparison void.

use crate::graph::op::{Binary, Fold, Unary};
use crate::tensor::dtype::DType;

/// A function of one element, not rounded.
pub(super) fn unary(f: Unary, x: f64) -> f64 {
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
pub(super) fn binary(f: Binary, dtype: DType, a: f64, b: f64) -> f64 {
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
pub(super) fn identity(fold: Fold, dtype: DType) -> f64 {
    match fold {
        Fold::Sum => 0.0,
        Fold::Max if dtype == DType::I32 => f64::from(i32::MIN),
        Fold::Max => f64::NEG_INFINITY,
    }
}

/// Folds one more element in, not rounded.
pub(super) fn fold(fold: Fold, dtype: DType, so_far: f64, x: f64) -> f64 {
    match fold {
        Fold::Sum => binary(Binary::Add, dtype, so_far, x),
        Fold::Max => binary(Binary::Max, dtype, so_far, x),
    }
}

/// An element in another type: to whole numbers what follows the point is cut off, the nearest is taken of what is
/// too large, and 0 of what is not a number.
pub(super) fn cast(to: DType, x: f64) -> f64 {
    match to {
        DType::F32 | DType::F16 | DType::BF16 => round(to, x),
        DType::I32 => f64::from(x as i32),
    }
}

/// The nearest number that a type can hold; a whole number of more than 32 bits wraps around.
pub(super) fn round(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => f64::from(dtype.round(x as f32)),
        DType::I32 => wrapped(x as i64),
    }
}

/// The low 32 bits of a whole number, with their sign.
pub(super) fn wrapped(x: i64) -> f64 {
    f64::from(x as i32)
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
