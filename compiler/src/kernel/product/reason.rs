//! Why no micro-kernel computes a sum of products.
//!
//! In: the check of `product.rs` that a nest did not pass. Out: a [`Reason`], which reads as the end of a sentence.
//! Reasons are ordered by how far the nest got: of two ways to see its factors, the larger reason is the one to tell.

use std::fmt;

use crate::tensor::quant::Format;

/// Why a sum of products runs as generated code, the earliest check first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Micro-kernels add in an order of their own.
    Exact,
    /// A term is more than the product of two elements.
    Terms,
    /// The bounds of a loop depend on another loop of the nest.
    Bounds,
    /// The sums are not stored in single precision.
    Sums(Format),
    /// No micro-kernel multiplies these two formats.
    Formats(Format, Format),
    /// The sum does not run along the rows of both factors.
    Strides,
    /// Rows of this length, or of a length that varies, are not whole blocks of the format.
    Rows(Option<i64>, Format),
    /// Rows may start inside a block of the format.
    Start(Format),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = |format: &Format| format!("whole blocks of {} ({format})", format.block_len());
        match self {
            Self::Exact => f.write_str("exact numbers are computed one after another"),
            Self::Terms => f.write_str("the terms of the sum are not products of two elements"),
            Self::Bounds => f.write_str("the bounds of a loop depend on another loop"),
            Self::Sums(format) => write!(f, "the sums are stored as {format}, not as f32"),
            Self::Formats(w, x) => write!(f, "no micro-kernel multiplies {w} with {x}"),
            Self::Strides => f.write_str("the elements of a sum are not adjacent in both factors"),
            Self::Rows(Some(n), format) => write!(f, "rows of {n} elements are not {}", blocks(format)),
            Self::Rows(None, format) => write!(f, "rows of varying length are not {}", blocks(format)),
            Self::Start(format) => write!(f, "rows do not start at {}", blocks(format)),
        }
    }
}
