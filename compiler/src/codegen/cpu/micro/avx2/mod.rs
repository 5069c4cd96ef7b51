//! Products with 256 bits: AVX2, FMA and F16C.
//!
//! In: addresses of descriptions. Out: as `mod.rs` of the folder above says. Only a processor that has these
//! instructions may call these functions; the table is asked for by level, and a level is checked when it is chosen.
//! `few.rs` and `bytes.rs` multiply quantised weights with a few vectors, `many.rs` with many, and `words.rs` rows of
//! 16-bit numbers with many; the last two share the assembly of `quads.rs`. `fours.rs` and `pairs.rs` know the block
//! formats, `pack.rs` and `round.rs` prepare the two sides, and `vector.rs` is what everything here is made of.

use bytemuck::{cast_ref, cast_slice};

use crate::codegen::cpu::micro::asking::{ask_straight as ask_ahead, ask_straight as ask_alone};
use crate::codegen::cpu::micro::encode::blocks;
use crate::codegen::cpu::micro::forms::{padded, single_forms};
use crate::codegen::cpu::micro::unpack::{Storage, Unpacked, of_format, widened};
use crate::codegen::cpu::micro::view::{self, MixView, ProductView};
use crate::codegen::cpu::micro::{Encode, GROUP, Mix, Product, Quantise, Table, Whole};

mod bytes;
mod few;
mod fours;
mod many;
mod pack;
mod pairs;
mod quads;
mod round;
mod vector;
mod words;

use vector::{N, V, add, fma, lanes, load, splat, total, totals, wide_bf16, wide_f16, wide_i8, zero};

pub(super) const TABLE: Table = Table {
    single,
    quantised,
    quantise,
    mix,
    encode,
    large_group: GROUP,
    sixteens: None,
    lanes: None,
    eights: None,
    words: Some(Whole { quantise: words, product: by_words }),
    halves: None,
};

single_forms! { #[target_feature(enable = "avx2,fma,f16c")] tile 4 by 2, tall 4, wide 4 }

#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn quantise(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Bytes) }) else { return };
    round::round(&mut job);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn quantised(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Bytes) }) else { return };
    of_format!(job, product::<S, B>(&job));
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn words(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Words) }) else { return };
    words::round(&mut job);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe extern "C" fn by_words(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Words) }) else { return };
    match job.w.storage {
        Storage::F16 => words::product::<{ Storage::F16 as usize }>(&job),
        Storage::BF16 => words::product::<{ Storage::BF16 as usize }>(&job),
        _ => unreachable!("`rounding` asks for words with no other format"),
    }
}

/// Weights of a format, of which `B` bytes are taken at a time.
#[target_feature(enable = "avx2,fma,f16c")]
fn product<const S: usize, const B: usize>(job: &ProductView<'_>) {
    if job.n_cols > const { few_of(Storage::ALL[S]) } {
        many::all::<S>(job);
    } else if const { pairs::byte_bits(Storage::ALL[S]).is_some() } {
        bytes::few::<S, B>(job);
    } else {
        few::few::<S, B>(job);
    }
}

/// Vectors for which unpacking a weight into panels takes longer than it saves.
const fn few_of(storage: Storage) -> usize {
    match storage {
        Storage::Q8_0 | Storage::Int8 => 8,
        Storage::Q6K => 4,
        _ => 2,
    }
}
