//! Quantises activations for products with 512 bits.
//!
//! In: columns in single precision. Out: the same columns in the layout of a product, one file a layout.

pub(super) mod quantise_amx;
mod quantise_four_groups;
pub(super) mod quantise_gemv;
pub(super) mod quantise_interleaved;
pub(super) mod quantise_rows;
