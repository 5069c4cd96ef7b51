//! Micro-kernels with 256 bits: AVX2, FMA and F16C.
//!
//! In: addresses of argument structs. Out: see `lib.rs`. Only a processor with these instructions
//! may call these functions: a table is taken by level, and a level is checked when it is chosen.
//!
//! ```text
//! kernel                 columns                    activations from    weights from
//! gemm_small_int8.rs     up to 2, formats <= 5 bit  quantise_rows.rs    unpack_int8.rs
//! gemm_small_int16.rs    up to 8 (Q6_K up to 4)     quantise_rows.rs    unpack_int16.rs
//! gemm_packed.rs         more                       quantise_rows.rs    pack_panels.rs
//! gemm_int14.rs          F16, BF16 from 16 on       generic/int14.rs    generic/int14.rs
//! ```
//!
//! The last two share the inner loop of `tile_16x4.rs`. `vector.rs` has loads, stores and arithmetic.

use bytemuck::{cast_ref, cast_slice};

use crate::abi::{EncodeArgs, GROUP, GemmArgs, QuantiseArgs, QuantisedFunctions, Table, WeightedSumArgs};
use crate::generic::{entries, padded, single_forms};
use crate::layout::block_formats::{DequantisedBlock, Storage, for_format, some_numbers, widened};
use crate::layout::encode_blocks::blocks;
use crate::prefetch::{
    prefetch_linear as prefetch_row, prefetch_linear as prefetch_stream,
    prefetch_rows_linear as prefetch_one_of_rows, prefetch_rows_linear as prefetch_rows,
};
use crate::view::{self, GemmView, WeightedSumView};

mod gemm_int14;
mod gemm_packed;
mod gemm_small_int16;
mod gemm_small_int8;
mod pack_panels;
mod quantise_rows;
mod tile_16x4;
mod unpack_int16;
mod unpack_int8;
mod vector;

use vector::{
    N, V, add, fma, horizontal_sum, lanes, load, splat, sum_each_of_4, wide_bf16, wide_f16, wide_i8, zero,
};

pub(super) const TABLE: Table = Table {
    gemm_f32,
    gemm_int8_rows,
    quantise_int8_rows,
    weighted_sum,
    encode,
    super_block_group: GROUP,
    int8_gemv: None,
    int8_interleaved: None,
    int8_amx: None,
    int14: Some(QuantisedFunctions { quantise: quantise_int14, product: gemm_int14 }),
    bf16: None,
};

single_forms! { #[target_feature(enable = "avx2,fma,f16c")] tile 4 by 2, tall 4, wide 4 }

entries! {
    [target_feature(enable = "avx2,fma,f16c")]

    quantise_int8_rows: quantise(QuantiseArgs, Int8Rows) |mut job| quantise_rows::quantise(&mut job);
    gemm_int8_rows: gemm(GemmArgs, Int8Rows) |job| for_format!(job, by 32, product::<S, B>(&job));
    quantise_int14: quantise(QuantiseArgs, Int14) |mut job| gemm_int14::quantise(&mut job);
    gemm_int14: gemm(GemmArgs, Int14) |job| for_format!(job, [F16 BF16], gemm_int14::gemm::<S>(&job));
}

/// Weights of a format, `B` bytes at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn product<const S: usize, const B: usize>(job: &GemmView<'_>) {
    if job.n_cols > const { few_of(Storage::ALL[S]) } {
        gemm_packed::gemm::<S>(job);
    } else if const { unpack_int8::byte_bits(Storage::ALL[S]).is_some() } {
        gemm_small_int8::few::<S, B>(job);
    } else {
        gemm_small_int16::few::<S, B>(job);
    }
}

/// Columns up to which packing takes longer than it saves.
const fn few_of(storage: Storage) -> usize {
    match storage {
        Storage::Q8_0 | Storage::Int8 | Storage::IQ4NL | Storage::IQ4XS | Storage::MXFP4 => 8,
        Storage::Q3K | Storage::Q6K => 4,
        _ => 2,
    }
}
