//! Values: indices, scalars, and elements of buffers and tiles as instructions.
//!
//! In: an expression of a nest, or a place. Out: a variable of a thread that holds it, or a store. Each file adds
//! methods to the emitter, and none knows which thread runs what: that is `nest/`.

mod approx;
pub(crate) mod decode;
mod half_precision;
mod index;
pub mod layout;
pub(crate) mod memory;
mod scalar;
