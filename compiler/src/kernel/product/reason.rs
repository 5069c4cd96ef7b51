//! Why a nest is no product of matrices.
//!
//! In: the check of [`Product`](super::Product) that it did not pass. Out: a [`Reason`], which reads as the end of a
//! sentence.
//! Reasons are ordered by how far the nest got: of two ways to see its factors, the larger reason is the one to tell.

use std::fmt;

use crate::tensor::quant::Format;

/// Why a nest is no product, the earliest check first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Micro-kernels add in an order of their own.
    Exact,
    /// It was left as it is: by a pass without fuel.
    Unselected,
    /// A term is more than the product of two elements.
    Terms,
    /// The bounds of a loop depend on another loop of the nest.
    Bounds,
    /// The sums are not stored in single precision.
    Sums(Format),
    /// Products are of a weight of any floating-point format and activations in single precision.
    Formats(Format, Format),
    /// The sum does not run along the rows of both factors.
    Strides,
    /// Rows of this length, or of a length that varies, are not whole blocks of the format.
    Rows(Option<i64>, Format),
    /// Rows may start inside a block of the format.
    Start(Format),
    /// The loops that it names do not select a matrix.
    Routing,
    /// Tiles are not whole fragments of MMAs.
    Fragments,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = |format: &Format| format!("whole blocks of {} ({format})", format.block_len());
        match self {
            Self::Exact => f.write_str("exact numbers are computed one after another"),
            Self::Unselected => f.write_str("it was left as it is"),
            Self::Terms => f.write_str("the terms of the sum are not products of two elements"),
            Self::Bounds => f.write_str("the bounds of a loop depend on another loop"),
            Self::Sums(format) => write!(f, "the sums are stored as {format}, not as f32"),
            Self::Formats(w, x) => write!(f, "no micro-kernel multiplies {w} with {x}"),
            Self::Strides => f.write_str("the elements of a sum are not adjacent in both factors"),
            Self::Rows(Some(n), format) => write!(f, "rows of {n} elements are not {}", blocks(format)),
            Self::Rows(None, format) => write!(f, "rows of varying length are not {}", blocks(format)),
            Self::Start(format) => write!(f, "rows do not start at {}", blocks(format)),
            Self::Routing => f.write_str("no number from memory selects a matrix by these loops"),
            Self::Fragments => f.write_str("the tiles are not whole fragments of an MMA"),
        }
    }
}
