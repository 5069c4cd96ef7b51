//! Micro-kernels with 512 bits: AVX-512 F, BW, VL and VNNI, optionally BF16 and AMX.
//!
//! In: addresses of argument structs. Out: see `lib.rs`, which lists the kernel for each format and
//! number of columns. Only a processor with these instructions may call these functions: a table is taken by level, and
//! a level is checked when it is chosen.
//!
//! ```text
//! kernel                   activations from            weights from
//! gemv.rs                  quantise_gemv.rs            unpack_blocks.rs, last_blocks.rs
//! gemm_small.rs            quantise_interleaved.rs     unpack_rows.rs
//! gemm_packed.rs           quantise_rows.rs            pack_int8.rs
//!   tile_32x6.rs             quantise_four_groups.rs
//! gemm_int14.rs            generic/int14.rs            generic/int14.rs
//! gemm_bf16.rs             bf16_tiles.rs               pack_bf16.rs
//! gemm_f32.rs              as they are                 gemm_f32.rs
//! gemm_short.rs            as they are                 gemm_f32.rs
//! gemm_amx_int8.rs         quantise_amx.rs             unpack_blocks.rs
//! gemm_amx_bf16.rs         bf16_tiles.rs               pack_bf16.rs
//! ```
//!
//! Files of `quantise/`, `unpack/` and `amx/` are named without their folder. `amx/mod.rs` wraps the AMX instructions,
//! `vector.rs` all other loads, stores and arithmetic; `single.rs` has what all levels share.

use crate::abi::{
    Bf16Args, Bf16Functions, GemmArgs, INTERLEAVED_COLS, MIN_COLS_PACKED, MIN_COLS_TILED, QuantiseArgs,
    QuantisedFunctions, Table, WeightedSumArgs,
};
use crate::generic::entries;
use crate::layout::block_formats::{SUPER_BLOCK, Storage, for_format};
use crate::view;

mod amx;
mod gemm_bf16;
mod gemm_f32;
mod gemm_int14;
mod gemm_packed;
mod gemm_short;
mod gemm_small;
mod gemv;
mod quantise;
mod single;
mod tile_32x6;
mod unpack;
mod vector;

use amx::{Bytes, Unit, bf16_tiles, gemm_amx_bf16, gemm_amx_int8};
use quantise::{quantise_amx, quantise_gemv, quantise_interleaved, quantise_rows};
use single::{LONG, encode, gemm_f32, weighted_sum};
use vector::N;

pub(super) const TABLE: Table = Table {
    gemm_f32: gemm_f32_packed,
    gemm_int8_rows,
    quantise_int8_rows,
    weighted_sum: weighted_sum_packed,
    encode,
    super_block_group: SUPER_BLOCK,
    int8_gemv: Some(QuantisedFunctions { quantise: quantise_int8_gemv, product: gemv_int8 }),
    int8_interleaved: Some(QuantisedFunctions {
        quantise: quantise_int8_interleaved,
        product: gemm_int8_interleaved,
    }),
    int8_amx: None,
    int14: Some(QuantisedFunctions { quantise: quantise_int14, product: gemm_int14 }),
    bf16: None,
};

/// With dot products of bfloat16 numbers.
pub(super) const TABLE_BF16: Table = Table {
    bf16: Some(Bf16Functions {
        to_bf16_tiles,
        product: gemm_bf16,
        weighted_sum: weighted_sum_packed,
        min_cols: MIN_COLS_TILED,
        n_parts: bf16_parts,
    }),
    ..TABLE
};

/// With AMX.
pub(super) const TABLE_AMX: Table = Table {
    int8_amx: Some(QuantisedFunctions { quantise: quantise_int8_amx, product: gemm_int8_amx }),
    bf16: Some(Bf16Functions {
        to_bf16_tiles,
        product: gemm_bf16_amx,
        weighted_sum: weighted_sum_amx,
        min_cols: MIN_COLS_PACKED,
        n_parts: amx_bf16_parts,
    }),
    ..TABLE
};

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C-unwind" fn gemm_f32_packed(address: *const GemmArgs) {
    // SAFETY: the caller passes a valid argument struct.
    let Some(job) = (unsafe { view::gemm(address, view::Layout::F32) }) else { return };
    let pays = gemm_f32::pays(job.n_cols, job.k);
    let is_plain = matches!(job.w.storage, Storage::F32 | Storage::F16 | Storage::BF16);
    if is_plain && pays {
        for_format!(job, [F32 F16 BF16], gemm_f32::gemm::<S>(&job));
    } else if is_plain && job.k < LONG {
        for_format!(job, [F32 F16 BF16], gemm_short::gemm::<S>(&job));
    } else {
        // SAFETY: as above.
        unsafe { gemm_f32(address) };
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C-unwind" fn weighted_sum_packed(address: *const WeightedSumArgs) {
    // SAFETY: the caller passes a valid argument struct.
    let Some(job) = (unsafe { view::weighted_sum(address) }) else { return };
    let are_many = job.n_cols >= gemm_f32::MANY_MIXED && job.n.is_multiple_of(2 * N);
    let pays = are_many && job.p_row == size_of::<f32>();
    match job.v.storage {
        Storage::F32 if pays => gemm_f32::weighted_sum::<{ Storage::F32 as usize }>(&job),
        Storage::F16 if pays => gemm_f32::weighted_sum::<{ Storage::F16 as usize }>(&job),
        Storage::BF16 if pays => gemm_f32::weighted_sum::<{ Storage::BF16 as usize }>(&job),
        Storage::Q8_0 if pays => gemm_f32::weighted_sum::<{ Storage::Q8_0 as usize }>(&job),
        Storage::Q4_0 if pays => gemm_f32::weighted_sum::<{ Storage::Q4_0 as usize }>(&job),
        // SAFETY: as above.
        _ => unsafe { weighted_sum(address) },
    }
}

entries! {
    [target_feature(enable = "avx512bw,avx512vl,avx512vnni")]

    quantise_int8_rows: quantise(QuantiseArgs, Int8Rows) |mut job| quantise_rows::quantise(&mut job);
    gemm_int8_rows: gemm(GemmArgs, Int8Rows) |job| for_format!(job, gemm_packed::gemm::<S, B>(&job));

    quantise_int8_gemv: quantise(QuantiseArgs, Int8Gemv) |mut job| quantise_gemv::quantise(&mut job);
    gemv_int8: gemm(GemmArgs, Int8Gemv) |job| for_format!(job, gemv::gemv::<S, B>(&job));

    quantise_int8_amx: quantise(QuantiseArgs, Int8Amx) |mut job| quantise_amx::quantise(&mut job);
    gemm_int8_amx: gemm(GemmArgs, Int8Amx) |job| {
        // SAFETY: the table belongs to a level that has AMX and the permission.
        let unit = &unsafe { Bytes::new() };
        // Those that `has_amx_int8` has.
        for_format!(job, [Q8_0 Q4_0 Int8 Q4_1 Q5_0 Q5_1 Q4K Q5K Q4Pairs], gemm_amx_int8::gemm::<S, B>(unit, &job));
    };

    quantise_int14: quantise(QuantiseArgs, Int14) |mut job| gemm_int14::quantise(&mut job);
    gemm_int14: gemm(GemmArgs, Int14) |job| for_format!(job, [F16 BF16], gemm_int14::gemm::<S>(&job));

    to_bf16_tiles: bf16(Bf16Args) |mut job| bf16_tiles::convert(&mut job);
    gemm_bf16_amx: gemm(GemmArgs, Bf16Tiles) |job| {
        // SAFETY: the table belongs to a level that has AMX and the permission.
        let unit = &unsafe { Unit::new() };
        match job.w.storage {
            Storage::F32 => unreachable!("`amx_bf16_parts` has no such format"),
            Storage::F16 if job.k <= SHORT => {
                for_format!(job, [F16], gemm_amx_bf16::gemm::<S, 256, 2, 4, 0>(unit, &job));
            }
            Storage::F16 => for_format!(job, [F16], gemm_amx_bf16::gemm::<S, 256, 2, 32, 0>(unit, &job)),
            Storage::BF16 => for_format!(job, [BF16], gemm_amx_bf16::gemm::<S, 256, 1, 32, 0>(unit, &job)),
            Storage::Q8_0 | Storage::Q4_0 if job.k <= SHORT => {
                for_format!(job, [Q8_0 Q4_0], gemm_amx_bf16::gemm::<S, B, 1, 4, 4>(unit, &job));
            }
            _ => for_format!(job, by 32, gemm_amx_bf16::gemm::<S, B, 1, 32, 8>(unit, &job)),
        }
    };
}

entries! {
    [target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]

    gemm_bf16: gemm(GemmArgs, Bf16Tiles) |job| for_format!(job, [BF16], gemm_bf16::gemm::<S>(&job));
}

/// A program for more columns may get fewer than this: each takes a GEMV then, because interleaved columns take as long
/// as eight.
const MIN_COLS_INTERLEAVED: i64 = *INTERLEAVED_COLS.start() as i64;

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C-unwind" fn quantise_int8_interleaved(job: *const QuantiseArgs) {
    // SAFETY: the caller passes a valid argument struct.
    if unsafe { &*job }.n_cols < MIN_COLS_INTERLEAVED {
        // SAFETY: as above; the memory suffices for either layout.
        return unsafe { quantise_int8_gemv(job) };
    }
    // SAFETY: as above.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Int8Interleaved) }) else { return };
    quantise_interleaved::quantise(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C-unwind" fn gemm_int8_interleaved(job: *const GemmArgs) {
    // SAFETY: the caller passes a valid argument struct.
    if unsafe { &*job }.n_cols < MIN_COLS_INTERLEAVED {
        // SAFETY: as above; these columns were quantised for it.
        return unsafe { gemv_int8(job) };
    }
    // SAFETY: as above.
    let Some(job) = (unsafe { view::gemm(job, view::Layout::Int8Interleaved) }) else { return };
    for_format!(job, by 32, gemm_small::gemm::<S, B>(&job));
}

/// Whether the processor has AMX and this process may use it.
pub(super) fn has_amx() -> bool {
    amx::is_there()
}

/// One part for BF16; F16 would need two, which is slower than `Int14`.
fn bf16_parts(storage: Storage) -> Option<i64> {
    (storage == Storage::BF16).then_some(1)
}

/// Quantised weights lose nothing with one part: their activations would be quantised to 8 bits otherwise.
fn amx_bf16_parts(storage: Storage) -> Option<i64> {
    match storage {
        Storage::F32 => None,
        Storage::F16 => Some(2),
        _ => (!storage.has_two_offsets()).then_some(1),
    }
}

/// Columns from which a weighted sum with AMX is faster.
const MANY_MIXED: usize = 8;

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C-unwind" fn weighted_sum_amx(address: *const WeightedSumArgs) {
    // SAFETY: the caller passes a valid argument struct.
    let Some(job) = (unsafe { view::weighted_sum(address) }) else { return };
    let has_amx = matches!(job.v.storage, Storage::F16 | Storage::Q8_0 | Storage::Q4_0);
    if !has_amx || job.n_cols < MANY_MIXED || job.p_row != size_of::<f32>() {
        // SAFETY: as above.
        return unsafe { weighted_sum_packed(address) };
    }
    // SAFETY: the table belongs to a level that has AMX and the permission.
    let unit = &unsafe { Unit::new() };
    match job.v.storage {
        Storage::F16 => gemm_amx_bf16::weighted_sum::<{ Storage::F16 as usize }>(unit, &job),
        Storage::Q8_0 => gemm_amx_bf16::weighted_sum::<{ Storage::Q8_0 as usize }>(unit, &job),
        _ => gemm_amx_bf16::weighted_sum::<{ Storage::Q4_0 as usize }>(unit, &job),
    }
}

/// Rows up to this length are short: those of attention.
const SHORT: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{ActivationLayout, GROUP};
    use crate::dispatch::quantise_activations;
    use crate::layout::sizes::activation_bytes;
    use crate::level::Level;
    use crate::tests::{Factors, TOLERANCE, decoded};

    #[test]
    fn a_group_of_no_unit_is_multiplied_without_tiles() {
        if !Level::Avx512.is_supported() {
            return;
        }
        for storage in [Storage::Q8_0, Storage::Q4_1] {
            let (n_rows, k) = (29, 96);
            let x: Vec<f32> = (0..8 * k).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            let mut w: Vec<u8> = (0..storage.bytes(n_rows * k)).map(|i| (i * 89 % 251) as u8).collect();
            for block in w.chunks_mut(storage.block().1) {
                // One as a scale and, where there is one, as an offset.
                block[..4].copy_from_slice(&[0, 60, 0, 60]);
            }
            let layout = ActivationLayout::Int8Amx { group: GROUP };
            let mut rounded = vec![0_u8; activation_bytes(layout, 8, k)];
            // SAFETY: the vectors are there, and the room for them; the level rounds without tiles.
            unsafe {
                quantise_activations(Level::Amx, layout, (x.as_ptr().cast(), rounded.as_mut_ptr()), (8, k));
            }
            let mut out = [0.0_f32; 8];
            let job = GemmArgs {
                w: w.as_ptr(),
                scales: w.as_ptr(),
                x: rounded.as_ptr(),
                out: out.as_mut_ptr(),
                w_row: storage.bytes(k) as i64,
                scales_row: 0,
                x_col: k as i64,
                out_row: 0,
                out_col: 0,
                n_rows: n_rows as i64,
                n_cols: 8,
                k: k as i64,
                storage: storage.number(),
                group: GROUP as i64,
                columns: std::ptr::null(),
                n_parts: 0,
                next: std::ptr::null(),
            };
            // SAFETY: the argument struct describes the memory above.
            let job = unsafe { view::gemm(&raw const job, view::Layout::Int8Amx) }.unwrap();
            // SAFETY: the level is supported.
            let sums = unsafe { for_format!(job, [Q8_0 Q4_1], gemm_amx_int8::without_tiles::<S, B>(&job)) };
            let decoded = decoded((storage, GROUP), &w, n_rows * k);
            for (r, c) in (0..n_rows).flat_map(|r| (0..8).map(move |c| (r, c))) {
                let actual = f64::from(sums[r % 16][r / 16 * 8 + c]);
                let w = Factors::of_row(Some(layout), storage, &job.w.row(r), &decoded[r * k..][..k]);
                let (exact, size) = w.product(&Factors::of_column(Some(layout), 8, &x[c * k..][..k]));
                assert!((actual - exact).abs() <= TOLERANCE * size, "{storage:?} {r} {c} {actual} {exact}");
            }
        }
    }
}
