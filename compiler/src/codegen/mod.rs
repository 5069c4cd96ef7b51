//! Machine code for kernels.
//!
//! In: a kernel that verifies. Out: code that stores what the interpreter in `kernel::run` would store.
//! Each backend is a folder behind a feature and is found by its own name; what is not built is not there. Nothing
//! here chooses what to fuse or how to tile: a kernel says that already.
//! `cpu/` makes code for the processor it runs on.

#[cfg(feature = "cpu")]
pub mod cpu;
