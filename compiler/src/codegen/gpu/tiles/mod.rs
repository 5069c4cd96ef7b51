//! Tiles: where those of a task lie, and for how long.
//!
//! In: the parts of a kernel. Out: a placement for each tile: registers, shared memory or scratch. Nothing is emitted
//! here but the declaration of shared memory.

pub(crate) mod accumulators;
mod live_ranges;
pub(crate) mod shared_memory;
