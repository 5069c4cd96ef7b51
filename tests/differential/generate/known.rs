//! Bounds of the numbers of a value, known before any of them is computed.

use fusebox_compiler::tensor::dtype::DType;

/// What is known of the numbers of a value.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) least: f64,
    pub(super) most: f64,
    /// Whether every order of computing it gives the same bits.
    pub(super) exact: bool,
}

pub(super) fn known(least: f64, most: f64, exact: bool) -> Known {
    Known { least, most, exact }
}

/// What is known of an input or a state.
pub(super) fn given(dtype: DType) -> Known {
    if dtype == DType::I32 { known(0.0, 7.0, true) } else { known(-1.0, 1.0, true) }
}

/// The least and the largest of some numbers.
pub(super) fn hull(ends: &[f64]) -> (f64, f64) {
    (
        ends.iter().copied().fold(f64::INFINITY, f64::min),
        ends.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    )
}
