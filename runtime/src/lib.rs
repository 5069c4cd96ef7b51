//! Fusebox's runtime: runs compiled programs on weight files.
//!
//! In: programs of `fusebox_compiler`, and weight files. Out: [`session::engine::Engine`]s, which replay programs on a
//! [`device`] for many sequences, with [`weights`] used where they are mapped.
//! No model is known here: a file's names and metadata are passed on as they are.

#![deny(unsafe_code)]

pub mod buffer;
pub mod device;
pub mod error;
pub mod files;
mod own;
pub mod session;
mod signal_list;
pub mod threads;
pub mod weights;
