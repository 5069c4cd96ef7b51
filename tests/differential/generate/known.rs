//! Bounds of the numbers of a value, known before any of them is computed.

use fusebox_compiler::tensor::dtype::DType;
use fusebox_compiler::tensor::quant::Format;

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

impl Known {
    /// What is known of numbers that may be of either value.
    pub(super) fn or(self, other: Self) -> Self {
        known(self.least.min(other.least), self.most.max(other.most), self.exact && other.exact)
    }

    /// What is known of these numbers once they are stored in blocks: each is off by half a step, or by one where it
    /// would be one more than the last, and the step is of half precision.
    pub(super) fn in_blocks(self, format: Format) -> Self {
        let step = format.written_steps().map_or(0.0, |steps| 1.0 / f64::from(steps));
        let off = self.most.max(-self.least) * (step + 0.001);
        known(self.least - off, self.most + off, false)
    }
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
