//! The bottom layer: small generic tools that know nothing of tensors.
//!
//! [`entity`] gives typed ids and the dense lists they index, [`hash`] a stable structural hash, [`random`] seeded
//! numbers, [`text`] the scanner and the errors shared by the parsers of both text forms; [`amount`] and [`table`] show
//! numbers and rows to people; [`bisect`] finds the first wrong of many steps.
//! Nothing that knows of tensors, graphs or kernels may enter this folder. Start with `entity.rs`.

pub mod amount;
pub mod bisect;
pub mod entity;
pub mod hash;
pub mod random;
pub mod table;
pub mod text;
