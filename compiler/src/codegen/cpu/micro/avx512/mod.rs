//! Products with 512 bits and dot products of bytes: AVX-512 F, BW, VL, VNNI.
//!
//! In: addresses of descriptions. Out: as `mod.rs` of the folder above says. Only a processor that has these
//! instructions may call these functions; the table is asked for by level, and a level is checked when it is chosen.
//! `one.rs` multiplies quantised weights with one vector, `many.rs` with many; `fours.rs` knows the block formats,
//! `pack.rs` and `round.rs` prepare the two sides, and `vector.rs` is what everything here is made of.

use crate::codegen::cpu::micro::forms::single_forms;
use crate::codegen::cpu::micro::unpack::{Storage, widened};
use crate::codegen::cpu::micro::view::{self, MixView, ProductView, bytes_of};
use crate::codegen::cpu::micro::{Mix, Product, Quantise, Table};

mod fours;
mod many;
mod one;
mod pack;
mod round;
mod vector;

use fours::unit_bytes;
use vector::{N, V, add, fma, lanes, load, splat, total, totals, wide_bf16, wide_f16, zero};

pub(super) const TABLE: Table = Table { single, quantised, quantise, mix };

single_forms! { #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")] tile 4 by 4, mix 4 }

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn quantise(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job) }) else { return };
    round::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn quantised(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, true) }) else { return };
    match job.w.storage {
        Storage::F32 | Storage::F16 | Storage::BF16 => unreachable!("plain weights take plain vectors"),
        // Each format has code of its own.
        Storage::Q8_0 => of_format::<{ Storage::Q8_0 as usize }, 136>(&job),
        Storage::Q4_0 => of_format::<{ Storage::Q4_0 as usize }, 72>(&job),
        Storage::Int8 => of_format::<{ Storage::Int8 as usize }, 128>(&job),
        Storage::Q4_1 => of_format::<{ Storage::Q4_1 as usize }, 80>(&job),
        Storage::Q5_0 => of_format::<{ Storage::Q5_0 as usize }, 88>(&job),
        Storage::Q5_1 => of_format::<{ Storage::Q5_1 as usize }, 96>(&job),
        Storage::Q4K => of_format::<{ Storage::Q4K as usize }, 144>(&job),
        Storage::Q5K => of_format::<{ Storage::Q5K as usize }, 176>(&job),
        Storage::Q6K => of_format::<{ Storage::Q6K as usize }, 210>(&job),
    }
}

/// Vectors for which unpacking a weight into panels takes longer than it saves.
const FEW: usize = 4;

/// Weights of a format, of which `B` bytes are taken at a time.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_format<const S: usize, const B: usize>(job: &ProductView<'_>) {
    const { assert!(B == unit_bytes(Storage::ALL[S])) };
    if job.n_cols <= FEW { one::one_by_one::<S, B>(job) } else { many::all::<S>(job) }
}
