//! How weights and activations lie in memory, for all levels.
//!
//! In: a format, or a layout of activations. Out: its blocks, rows and bytes, and the portable code that reads or
//! writes them; `view.rs` makes slices of memory by these rules.

#[cfg(test)]
pub(super) mod activations;
pub(super) mod block_formats;
pub(super) mod encode_blocks;
#[cfg(target_arch = "x86_64")]
pub(super) mod int14_rows;
pub(super) mod int8_rows;
pub(crate) mod sizes;
