//! Products with 512 bits and dot products of bytes: AVX-512 F, BW, VL, VNNI.
//!
//! In: addresses of descriptions. Out: as `mod.rs` of the folder above says. Only a processor that has these
//! instructions may call these functions; the table is asked for by level, and a level is checked when it is chosen.
//! `one.rs` multiplies quantised weights with one vector at a time that `sixteens.rs` has rounded, `few.rs` with a few
//! that `lanes.rs` has, `many.rs` with many; `fours.rs` knows the block formats, `strips.rs` prepares rows for a few,
//! and `pack.rs` and `round.rs` the two sides for many, the latter with `abreast.rs`.
//! `words.rs` multiplies rows of 16-bit numbers with many vectors, or `dots.rs` where they are bfloat16 numbers and the
//! processor knows those; `singles.rs` does it in single precision, for states. With AMX, `bytes.rs` multiplies what
//! `eights.rs` has rounded, and `tiles.rs` what `halves.rs` has; `amx.rs` is the unit. `vector.rs` is what everything
//! here is made of.

use bytemuck::{cast_ref, cast_slice};

use crate::codegen::cpu::micro::asking::{ask_ahead, ask_alone};
use crate::codegen::cpu::micro::encode::blocks;
use crate::codegen::cpu::micro::forms::single_forms;
use crate::codegen::cpu::micro::unpack::{Storage, Unpacked, of_format, widened};
use crate::codegen::cpu::micro::view::{self, MixView, ProductView};
use crate::codegen::cpu::micro::{
    Encode, FEW, Halve, Halves, LARGE, MANY, Mix, Product, Quantise, Table, Whole,
};

mod abreast;
mod amx;
mod bytes;
mod dots;
mod eights;
mod few;
mod fours;
mod halves;
mod lanes;
mod many;
mod one;
mod pack;
mod panels;
mod round;
mod singles;
mod sixes;
mod sixteens;
mod strips;
mod tail;
mod tiles;
mod vector;
mod words;

use amx::{Bytes, Unit};
use vector::{N, V, add, fma, lanes, load, padded, splat, total, totals, wide_bf16, wide_f16, wide_i8, zero};

pub(super) const TABLE: Table = Table {
    single: by_panels,
    quantised,
    quantise,
    mix: mix_by_panels,
    encode,
    large_group: LARGE,
    sixteens: Some(Whole { quantise: sixteens, product: by_sixteens }),
    lanes: Some(Whole { quantise: lanes_of, product: by_lanes }),
    eights: None,
    words: Some(Whole { quantise: words, product: by_words }),
    halves: None,
};

/// With dot products of bfloat16 numbers.
pub(super) const WITH_HALVES: Table = Table {
    halves: Some(Halves {
        halve,
        product: by_dots,
        mix: mix_by_panels,
        least: FEW,
        n_parts: n_parts_of_dots,
    }),
    ..TABLE
};

/// With tiles.
pub(super) const WITH_TILES: Table = Table {
    eights: Some(Whole { quantise: eights, product: by_bytes }),
    halves: Some(Halves {
        halve,
        product: by_tiles,
        mix: mix_by_tiles,
        least: MANY,
        n_parts: n_parts_of_tiles,
    }),
    ..TABLE
};

single_forms! { #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")] tile 4 by 4, tall 8, wide 8 }

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_panels(address: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(address, view::Layout::Single) }) else { return };
    let pays = singles::pays(job.n_cols, job.k);
    match job.w.storage {
        Storage::F32 if pays => singles::product::<{ Storage::F32 as usize }>(&job),
        Storage::F16 if pays => singles::product::<{ Storage::F16 as usize }>(&job),
        Storage::BF16 if pays => singles::product::<{ Storage::BF16 as usize }>(&job),
        // SAFETY: as above.
        _ => unsafe { single(address) },
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn mix_by_panels(address: *const Mix) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::mix(address) }) else { return };
    let are_many = job.n_cols >= singles::MANY_MIXED && job.n.is_multiple_of(2 * N);
    let pays = are_many && job.p_row == size_of::<f32>();
    match job.v.storage {
        Storage::F32 if pays => singles::mixture::<{ Storage::F32 as usize }>(&job),
        Storage::F16 if pays => singles::mixture::<{ Storage::F16 as usize }>(&job),
        Storage::BF16 if pays => singles::mixture::<{ Storage::BF16 as usize }>(&job),
        Storage::Q8_0 if pays => singles::mixture::<{ Storage::Q8_0 as usize }>(&job),
        // SAFETY: as above.
        _ => unsafe { mix(address) },
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn quantise(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Bytes) }) else { return };
    round::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn quantised(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Bytes) }) else { return };
    of_format!(job, many::all::<S, B>(&job));
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn sixteens(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Sixteens) }) else { return };
    sixteens::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_sixteens(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Sixteens) }) else { return };
    of_format!(job, one::one::<S, B>(&job));
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn lanes_of(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Lanes) }) else { return };
    lanes::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_lanes(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Lanes) }) else { return };
    of_format!(job, few::product::<S, B>(&job));
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn eights(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Eights) }) else { return };
    eights::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_bytes(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Eights) }) else { return };
    // SAFETY: the table is asked for by a level that has tiles and the permission.
    let unit = &unsafe { Bytes::new() };
    // `has_eights` has no Q6_K.
    of_format!(job, [Q8_0 Q4_0 Int8 Q4_1 Q5_0 Q5_1 Q4K Q5K Q4Pairs], bytes::product::<S, B>(unit, &job));
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn words(job: *const Quantise) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::quantise(job, view::Layout::Words) }) else { return };
    words::round(&mut job);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_words(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Words) }) else { return };
    match job.w.storage {
        Storage::F16 => words::product::<{ Storage::F16 as usize }>(&job),
        Storage::BF16 => words::product::<{ Storage::BF16 as usize }>(&job),
        _ => unreachable!("`rounding` asks for words with no other format"),
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn halve(job: *const Halve) {
    // SAFETY: generated code promises what the view asks for.
    let Some(mut job) = (unsafe { view::halve(job) }) else { return };
    halves::halve(&mut job);
}

/// Whether there are tiles, and this process may use them.
pub(super) fn has_tiles() -> bool {
    amx::is_there()
}

/// A bfloat16 number is a part; two parts are slower than words.
fn n_parts_of_dots(storage: Storage) -> Option<i64> {
    (storage == Storage::BF16).then_some(1)
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
unsafe extern "C" fn by_dots(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Halves) }) else { return };
    match job.w.storage {
        Storage::BF16 => dots::product::<{ Storage::BF16 as usize }>(&job),
        _ => unreachable!("`n_parts_of_dots` has no other format"),
    }
}

/// Blocks lose nothing by one part: their vectors would else be rounded to 8 bits.
fn n_parts_of_tiles(storage: Storage) -> Option<i64> {
    match storage {
        Storage::F32 => None,
        Storage::F16 => Some(2),
        _ => Some(1),
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn by_tiles(job: *const Product) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::product(job, view::Layout::Halves) }) else { return };
    // SAFETY: the table is asked for by a level that has tiles and the permission.
    let unit = &unsafe { Unit::new() };
    match job.w.storage {
        Storage::F32 => unreachable!("`n_parts_of_tiles` has no such format"),
        Storage::F16 if job.k <= SHORT => {
            tiles::product::<{ Storage::F16 as usize }, 256, 2, 4, 0>(unit, &job);
        }
        Storage::F16 => tiles::product::<{ Storage::F16 as usize }, 256, 2, 32, 0>(unit, &job),
        Storage::BF16 => tiles::product::<{ Storage::BF16 as usize }, 256, 1, 32, 0>(unit, &job),
        Storage::Q8_0 if job.k <= SHORT => {
            of_format!(job, [Q8_0], tiles::product::<S, B, 1, 4, 4>(unit, &job));
        }
        _ => of_format!(job, tiles::product::<S, B, 1, 32, 8>(unit, &job)),
    }
}

/// Columns from which on a mixture by tiles is faster.
const MANY_MIXED: usize = 8;

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
unsafe extern "C" fn mix_by_tiles(address: *const Mix) {
    // SAFETY: generated code promises what the view asks for.
    let Some(job) = (unsafe { view::mix(address) }) else { return };
    let has_tiles = matches!(job.v.storage, Storage::F16 | Storage::Q8_0);
    if !has_tiles || job.n_cols < MANY_MIXED || job.p_row != size_of::<f32>() {
        // SAFETY: as above.
        return unsafe { mix_by_panels(address) };
    }
    // SAFETY: the table is asked for by a level that has tiles and the permission.
    let unit = &unsafe { Unit::new() };
    match job.v.storage {
        Storage::F16 => tiles::mixture::<{ Storage::F16 as usize }>(unit, &job),
        _ => tiles::mixture::<{ Storage::Q8_0 as usize }>(unit, &job),
    }
}

/// Elements of rows that are short: those of attention.
const SHORT: usize = 128;
