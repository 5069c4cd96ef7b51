//! What the integration tests share: files to read and to write, models to run, a report of what is skipped.
//!
//! In: paths and sizes. Out: checkpoints, sessions, errors of logits. Nothing here is a test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that does not hold panics, its helpers too")]

pub mod gguf;
pub mod given;
#[cfg(unix)]
pub mod guarded;
pub mod oracles;
pub mod own;
pub mod packing;
pub mod plain;
pub mod run;
pub mod skip;
pub mod slow;
