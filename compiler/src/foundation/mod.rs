//! The bottom layer: small generic tools that know nothing of tensors.
//!
//! [`entity`] gives typed ids and the dense lists they index, [`hash`] a stable structural hash, [`random`] seeded
//! numbers, [`text`] the scanner and the errors shared by the parsers of both text forms.
//! Nothing that knows of tensors, graphs or kernels may enter this folder. Start with `entity.rs`.

pub mod entity;
pub mod hash;
pub mod random;
pub mod text;
