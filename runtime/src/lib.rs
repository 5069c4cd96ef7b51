//! Fusebox's runtime: what runs a compiled plan, and what feeds it.
//!
//! In: programs of `fusebox_compiler`, and weight files. Out: [`session::Session`]s that replay programs on a
//! [`device`], with [`weights`] used where they lie in their files.
//! No model is known here: a file's names and metadata are handed on as they are.

#![deny(unsafe_code)]

pub mod buffer;
pub mod device;
pub mod error;
pub mod files;
mod noted;
mod own;
pub mod session;
pub mod threads;
pub mod weights;
