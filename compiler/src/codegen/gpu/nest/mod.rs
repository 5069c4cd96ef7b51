//! Nests: which thread does which iterations, and how they load and store together.
//!
//! In: a nest, or consecutive ones that fill tiles. Out: their loops, loads and stores for a workgroup. Each file adds
//! methods to the emitter; numbers come from `value/`, products of tiles go to `mma.rs`.

mod double_buffer;
mod quantise;
mod reduce;
mod routed_rows;
mod thread_mapping;
mod tile_loads;
pub(crate) mod vector_loads;
