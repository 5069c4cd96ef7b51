//! Values: indices, scalars, and elements of buffers and tiles as code.
//!
//! In: an expression of a nest, or a place. Out: a value that holds it, or a store. Each file adds methods to the
//! emitter, and none makes a loop.

mod approx;
mod decode;
mod half_precision;
mod index;
pub(crate) mod math;
mod memory;
mod scalar;
