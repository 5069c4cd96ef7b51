//! Fusion: which operations share a kernel, and why the others do not.
//!
//! In: a verified graph. Out: a [`Partition`](merge::Partition): regions in order, and a barrier with its reason for
//! every value that is written to memory. Nothing here knows of loops: a `Price`, which `kernel/` implements, says what
//! a kernel would cost. Read `cut.rs`, then `merge.rs`.

pub mod barrier;
pub(crate) mod cut;
pub mod fused;
pub(crate) mod group;
pub mod hazard;
pub mod merge;
pub(crate) mod price;
pub(crate) mod verify;
