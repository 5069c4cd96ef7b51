//! Bytes of quantised activations in each layout.
//!
//! In: a layout, columns, and elements of each. Out: bytes, padding included.

use crate::abi::{ActivationLayout, GROUP};
use crate::layout::int8_rows;

/// Bytes of quantised activations.
pub fn activation_bytes(activation_layout: ActivationLayout, n_cols: usize, k: usize) -> usize {
    match activation_layout {
        ActivationLayout::Int8Rows { .. } => int8_rows_bytes(n_cols, k),
        ActivationLayout::Int8Gemv => int8_gemv_bytes(n_cols, k),
        // One or two columns are stored as for GEMV.
        ActivationLayout::Int8Interleaved => {
            int8_interleaved_bytes(n_cols, k).max(int8_gemv_bytes(n_cols.min(2), k))
        }
        ActivationLayout::Int8Amx { .. } => int8_amx_bytes(n_cols, k),
        ActivationLayout::Int14 => int14_bytes(n_cols, k),
        ActivationLayout::Bf16Tiles { n_parts } => bf16_tiles_bytes(n_cols, k, n_parts as usize),
    }
}

/// Bytes of `Bf16Tiles`: tiles of sixteen columns by 32 elements.
pub(crate) fn bf16_tiles_bytes(n_cols: usize, k: usize, n_parts: usize) -> usize {
    n_parts * n_cols.div_ceil(16) * k.div_ceil(32) * 1024
}

/// Bytes of the pieces of an `Int8Gemv` row, as `avx512/quantise_gemv.rs` lists them.
pub(crate) fn int8_gemv_pieces(k: usize) -> [usize; 6] {
    let ends = |n: usize| n.next_multiple_of(64);
    let all = k.next_multiple_of(128);
    [all, all, ends(k / 8), ends(k / 8), ends(k / 8), (k / 256).div_ceil(4) * SUPER_BLOCK_ACTIVATION_BYTES]
}

/// Bytes of the last piece of such a row for four super-blocks.
pub(crate) const SUPER_BLOCK_ACTIVATION_BYTES: usize = 2368;

/// Bytes of `Int8Gemv`.
pub(crate) fn int8_gemv_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * int8_gemv_pieces(k).into_iter().sum::<usize>()
}

/// Bytes of `Int8Interleaved`: for each 32 elements of eight columns four lines of numbers and a line of scales.
pub(crate) fn int8_interleaved_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP) * (4 + 1) * 64
}

/// Bytes of `Int8Amx`: for each 32 elements of eight columns, padded to four times as many, four lines of numbers, four
/// of their excess, a line of scales and a line of sums.
pub(crate) fn int8_amx_bytes(n_cols: usize, k: usize) -> usize {
    n_cols.div_ceil(8) * (k / GROUP).next_multiple_of(4) * (8 + 1 + 1) * 64
}

/// Bytes of `Int14`: a line for each 32 elements, then a scale for each.
pub(crate) fn int14_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * (k.div_ceil(GROUP) * (2 * GROUP + 4)).next_multiple_of(64)
}

/// Bytes of `Int8Rows`.
pub(crate) fn int8_rows_bytes(n_cols: usize, k: usize) -> usize {
    n_cols * int8_rows::row_bytes(k)
}
