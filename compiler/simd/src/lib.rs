//! Micro-kernels: hand-written GEMV, GEMM, weighted sums and activation quantisation for each instruction set.
//!
//! In: the address of an argument struct of `abi.rs`, which a compiler's code or anyone else fills in: addresses,
//! strides, sizes. Strides are never negative; sizes may be zero or negative, which means no work.
//! Out: `out += W * x`, quantised activations, or encoded blocks. No state is kept; any thread may call.
//!
//! What multiplies a weight depends on its format, the level and the number of activation columns:
//!
//! ```text
//! weights    level            columns  activations      entry                  file                    unpacked by
//! blocks     avx512*, amx        1..2  Int8Gemv         gemv_int8              gemv                    unpack_blocks
//!            avx512*            3..16  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            avx512*             17..  Int8Rows         gemm_int8_rows         gemm_packed, tile_32x6  pack_int8
//!            amx                 3..4  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            amx                5..15  Int8Amx          gemm_int8_amx          gemm_amx_int8           unpack_blocks
//!            amx (some)         5..15  Int8Interleaved  gemm_int8_interleaved  gemm_small              unpack_rows
//!            amx                 16..  Bf16Tiles, 1     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//!            avx2                 few  Int8Rows         gemm_int8_rows         gemm_small_int8/16    unpack_int8/16
//!            avx2                more  Int8Rows         gemm_int8_rows         gemm_packed, tile_16x4  pack_panels
//!            neon, portable       all  Int8Rows         gemm_int8_rows         generic                 block_formats
//! Q2_K       avx512*, amx        3..  Int8Rows         gemm_int8_rows         gemm_packed             pack_int8
//!            other levels          all  single           gemm_f32               generic                 block_formats
//! BF16       avx512-bf16          5..  Bf16Tiles, 1     gemm_bf16              gemm_bf16               pack_bf16
//!            amx                 16..  Bf16Tiles, 1     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//! F16        amx                 16..  Bf16Tiles, 2     gemm_bf16_amx          gemm_amx_bf16           pack_bf16
//! F16, BF16  other x86           16..  Int14            gemm_int14             gemm_int14              generic/int14
//! plain      avx512*, amx    8../64..  single           gemm_f32_packed        gemm_f32                gemm_f32
//!   short    avx512*, amx         ..7  single           gemm_f32_packed        gemm_short              -
//!            all                 rest  single           gemm_f32               generic                 -
//! ```
//!
//! A program for up to sixteen columns that gets one or two multiplies them as a program for two does.
//! `avx512*` is avx512 and avx512-bf16; files other than `generic` are in the folder of the level.
//! [`activation_layout`] chooses the row of the table, and [`Table`] has the entries of a level.
//! `layout/` says how weights and activations lie in memory, `view.rs` turns addresses into slices, so that the kernels
//! are safe code; `prefetch.rs` prefetches, `routed.rs` groups activations by expert. Tests hold the bytes of every
//! layout of activations against `layout/activations.rs`, and products against those of the same rounded numbers.
//!
//! A level is chosen once; a product then takes three steps:
//!
//! ```
//! use fusebox_simd::{GROUP, GemmArgs, Level, Storage, activation_bytes, activation_layout};
//! use fusebox_simd::{quantise_activations, table};
//!
//! // Two rows of 64 weights of format Q8_0, whose scales are one: a row of ones, and a row of twos.
//! let (level, k) = (Level::host(), 64);
//! let block = |q: u8| [&[0, 60][..], &[q; 32]].concat();
//! let w = [block(1), block(1), block(2), block(2)].concat();
//! let x: Vec<f32> = (0..k).map(|i| i as f32).collect();
//!
//! let layout = activation_layout(level, Storage::Q8_0, GROUP, 1).expect("a layout of bytes");
//! let mut rounded = vec![0_u8; activation_bytes(layout, 1, k)];
//! // SAFETY: the memory is as large as the layout says.
//! unsafe { quantise_activations(level, layout, (x.as_ptr().cast(), rounded.as_mut_ptr()), (1, k)) };
//!
//! let mut out = [0.0_f32; 2];
//! let job = GemmArgs {
//!     w: w.as_ptr(),
//!     scales: w.as_ptr(),
//!     x: rounded.as_ptr(),
//!     out: out.as_mut_ptr(),
//!     w_row: Storage::Q8_0.bytes(k) as i64,
//!     scales_row: 0,
//!     x_col: k as i64,
//!     out_row: 1,
//!     out_col: 2,
//!     n_rows: 2,
//!     n_cols: 1,
//!     k: k as i64,
//!     storage: Storage::Q8_0.number(),
//!     group: GROUP as i64,
//!     columns: std::ptr::null(),
//!     n_parts: 0,
//!     next: std::ptr::null(),
//! };
//! // SAFETY: the struct describes the memory above.
//! unsafe { (table(level).quantised_functions(layout).product)(&raw const job) };
//! // 0 + 1 + ... + 63 is 2016; rounding to bytes costs less than one in a hundred.
//! assert!((out[0] - 2016.0).abs() < 20.0 && (out[1] - 4032.0).abs() < 40.0);
//! ```

#![expect(
    clippy::inline_always,
    reason = "what has no instructions of its own takes those of its caller's level"
)]
#![expect(clippy::needless_range_loop, reason = "loops over arrays of vectors, all of them unrolled")]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "some forms are of one kind of processor")
)]

mod abi;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod generic;
mod layout;
mod level;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod routed;
#[cfg(target_arch = "x86_64")]
mod stack_buffer;
#[cfg(test)]
mod tests;
mod view;

pub use abi::{
    ActivationLayout, Bf16Args, Bf16Functions, Column, EncodeArgs, GROUP, GemmArgs, QuantiseArgs,
    QuantisedFunctions, RoutedGemmArgs, RoutedRow, Table, WeightedSumArgs,
};
pub use dispatch::{
    ROUTED_GEMM, activation_layout, activation_layout_scattered, evict, prefetch_first, prepare,
    quantise_activations, read, routing_bytes, table,
};
pub use layout::block_formats::Storage;
pub use layout::sizes::activation_bytes;
pub use level::Level;
