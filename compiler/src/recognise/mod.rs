//! What nests are to a device: products of matrices, of tiles for tensor cores, the operands of these, vector loads.
//!
//! In: a part of a kernel and one of its nests. Out: the form that it has, or nothing. A form is found and never made:
//! `prepare/` gives kernels the forms that pay, `codegen/` emits them. No device is known here but by its constants.

pub(crate) mod mma_operands;
pub(crate) mod product;
pub(crate) mod tile_product;
#[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "sources load more than passes look at"))]
pub(crate) mod vector_loads;

/// Threads of a workgroup (thread block), which share the iterations of a nest.
pub const THREADS: u32 = 256;
