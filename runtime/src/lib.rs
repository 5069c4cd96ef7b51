//! Fusebox's runtime: what feeds a compiled plan, and will run it on a device.
//!
//! In: weight files; later plans of `fusebox_compiler`. Out: [`weights`] as bytes with shapes and formats.
//! Nothing runs here yet: plans are interpreted by `fusebox_compiler::schedule::run`.
//! No model is known here: a file's names and metadata are handed on as they are.

#![deny(unsafe_code)]

pub mod error;
pub mod weights;
