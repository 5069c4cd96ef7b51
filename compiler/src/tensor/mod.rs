//! What a tensor is: element types, stored formats, symbolic sizes, named shapes and values.
//!
//! Every axis of a tensor has a name, and a shape is an ordered list of names with sizes; the order says how the
//! tensor lies in memory and nothing else.
//! Nothing here knows of operations. Read `shape.rs`, then `sym.rs`.

pub mod dtype;
pub mod label;
pub mod quant;
pub mod shape;
pub mod sym;
pub mod value;
