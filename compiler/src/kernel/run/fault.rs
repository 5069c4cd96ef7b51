//! What can go wrong while a kernel is interpreted.
//!
//! A fault of a kernel that verifies is a bug of the compiler, unless the caller's buffers or symbols are wrong.
//! Each fault carries the place in the spelling of the text form. `mod.rs` raises them.

use thiserror::Error;

use crate::kernel::run::memory::Number;
use crate::tensor::dtype::DType;
use crate::tensor::label::Label;

/// Why a kernel stopped.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// An index is not inside its axis.
    #[error("element {index:?} of {place}, which has {dims:?} elements")]
    OutOfBounds {
        /// The buffer or tile.
        place: String,
        /// The indices, outermost first.
        index: Vec<i64>,
        /// The sizes it is laid out for.
        dims: Vec<i64>,
    },
    /// A task read an element of a tile that it has not written.
    #[error("element {element} of {place} is read before this task wrote it")]
    Unwritten {
        /// The tile.
        place: String,
        /// The element in storage order.
        element: usize,
    },
    /// Two tasks wrote one element.
    #[error("element {element} of {place} is written by two tasks")]
    TwoWriters {
        /// The buffer.
        place: String,
        /// The element in storage order.
        element: usize,
    },
    /// A symbol has no value.
    #[error("symbol {name} has no value, one is needed")]
    MissingSymbol {
        /// The symbol.
        name: Label,
    },
    /// A symbol's value is outside of its range, on which every proof rests.
    #[error("symbol {name} is {value}, it must be in {min}..{max}")]
    SymbolOutside {
        /// The symbol.
        name: Label,
        /// Its value.
        value: i64,
        /// The smallest value possible.
        min: i64,
        /// The largest value possible.
        max: i64,
    },
    /// A buffer gave a number of another type than the kernel expects.
    #[error("{place} holds {found:?}, {expected} is needed")]
    Mismatch {
        /// The buffer.
        place: String,
        /// What it gave.
        found: Number,
        /// The type of the kernel's buffer.
        expected: DType,
    },
    /// A buffer is smaller than the kernel's shape says, or not for writing.
    #[error("{place} has no element {element} that could be {access}")]
    NoElement {
        /// The buffer.
        place: String,
        /// The element in storage order.
        element: usize,
        /// `loaded` or `stored`.
        access: &'static str,
    },
    /// The scalars of a nest have no types; the kernel was not verified.
    #[error("{what}")]
    Untyped {
        /// What does not fit.
        what: String,
    },
}
