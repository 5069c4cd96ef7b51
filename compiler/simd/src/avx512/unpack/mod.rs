//! Unpacks weights for products with 512 bits: into vectors, rows or panels.
//!
//! In: rows of blocks or of plain numbers. Out: their numbers as a product takes them, with scales and offsets beside
//! them.

pub(super) mod last_blocks;
pub(super) mod pack_bf16;
pub(super) mod pack_int8;
pub(super) mod unpack_blocks;
pub(super) mod unpack_rows;
