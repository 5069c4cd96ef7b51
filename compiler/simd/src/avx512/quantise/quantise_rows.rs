//! Quantises activations to the layout `Int8Rows`.
//!
//! In: columns in single precision. Out: rows as `int8_rows.rs` describes them, bit for bit. Groups are quantised four
//! at a time (`quantise_four_groups.rs`), except those of qwen3.c checkpoints.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm256_add_epi32, _mm256_castsi128_si256, _mm256_dpbusd_epi32,
    _mm256_extract_epi32, _mm256_inserti128_si256, _mm256_set1_epi8, _mm256_setzero_si256,
    _mm256_shuffle_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_cmpeq_epi32_mask,
    _mm512_cvtepi32_epi8, _mm512_cvtps_epi32, _mm512_mask_max_epu32, _mm512_maskz_mov_epi32,
    _mm512_max_epi32, _mm512_max_epu32, _mm512_min_epi32, _mm512_mul_ps, _mm512_reduce_max_epu32,
    _mm512_set1_epi32, _mm512_shuffle_epi32, _mm512_sub_epi32,
};
use std::array;

use crate::avx512::quantise::quantise_four_groups;
use crate::avx512::vector::{V, load, splat, store_half};
use crate::layout::int8_rows::{Group, Row, quantise_with};
use crate::view::QuantiseView;

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn quantise(job: &mut QuantiseView<'_>) {
    let n = job.group / 32;
    let first = |row: &mut Row<'_>, x: &[[u8; 128]]| four_groups_at_a_time(row, x, n);
    let both = |x: &[u8; 128]| {
        let (_, size, others) = largest(x);
        (size, others)
    };
    quantise_with(job, first, both, |row, idx, x, (scale, by)| {
        let (large, ..) = largest(x);
        row.put(idx, rounded(x, by), scale, large);
    });
}

/// Quantises the groups that can go four at a time, if `n` of 32 numbers share a scale; returns the number of scales.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn four_groups_at_a_time(row: &mut Row<'_>, x: &[[u8; 128]], n: usize) -> usize {
    let (fours, _) = x.as_chunks();
    let mut places = row.fours();
    match n {
        1 => {
            for (place, x) in places.zip(fours) {
                quantise_four_groups::quantise([place], array::from_ref(x));
            }
            4 * fours.len()
        }
        8 => {
            let (eights, _) = fours.as_chunks();
            for x in eights {
                let mut place = || places.next().expect("a place for each four");
                quantise_four_groups::quantise([place(), place()], x);
            }
            eights.len()
        }
        _ => 0,
    }
}

/// The run of four of 32 numbers with the largest absolute value, that value, and the largest of the others, as bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn largest(x: &[u8; 128]) -> (usize, u32, u32) {
    let (x, _) = x.as_chunks::<64>();
    let (first, second) = (of_fours(&x[0]), of_fours(&x[1]));
    let most = _mm512_reduce_max_epu32(_mm512_max_epu32(first, second));
    let all = _mm512_set1_epi32(most.cast_signed());
    let are_most = [_mm512_cmpeq_epi32_mask(first, all), _mm512_cmpeq_epi32_mask(second, all)];
    let are_most = u32::from(are_most[0]) | u32::from(are_most[1]) << 16;
    let large = are_most.trailing_zeros() / 4;
    let others = !(0b1111 << (4 * large));
    let first = _mm512_maskz_mov_epi32(others as u16, first);
    let both = _mm512_mask_max_epu32(first, (others >> 16) as u16, first, second);
    (large as usize, most, _mm512_reduce_max_epu32(both))
}

/// Absolute values, as bits.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn sizes(x: &[u8; 64]) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(load(x)), _mm512_set1_epi32(i32::MAX))
}

/// The largest absolute value of each four numbers, as bits, in each of their lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_fours(x: &[u8; 64]) -> __m512i {
    across_fours(sizes(x))
}

/// The same of each four of 32 numbers and the four that are sixteen further on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn of_two_fours(x: &[u8; 128]) -> __m512i {
    let (x, _) = x.as_chunks::<64>();
    across_fours(_mm512_max_epu32(sizes(&x[0]), sizes(&x[1])))
}

/// The maximum of each four lanes, in each of them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn across_fours(a: __m512i) -> __m512i {
    let twos = _mm512_max_epu32(a, _mm512_shuffle_epi32::<0b10_11_00_01>(a));
    _mm512_max_epu32(twos, _mm512_shuffle_epi32::<0b01_00_11_10>(twos))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn rounded(x: &[u8; 128], by: f32) -> Group {
    let Parts { near, excess, fours } = parts(x, splat(by));
    let sums = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b10_11_00_01>(fours));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
    let mut group = Group {
        numbers: [0; 32],
        excess: [0; 32],
        halves: [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)],
    };
    store_half(near, &mut group.numbers);
    store_half(excess, &mut group.excess);
    group
}

/// 32 quantised numbers.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    /// Clamped to ±127.
    pub(crate) near: __m256i,
    pub(crate) excess: __m256i,
    /// The sum of each run of four.
    pub(crate) fours: __m256i,
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn parts(x: &[u8; 128], by: V) -> Parts {
    let (x, _) = x.as_chunks::<64>();
    let whole = [whole(&x[0], by), whole(&x[1], by)];
    let ((first, more), (second, still_more)) = (halved(whole[0]), halved(whole[1]));
    let (near, excess) = (joined(first, second), joined(more, still_more));
    let fours = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), near);
    Parts { near, excess, fours: _mm256_dpbusd_epi32(fours, _mm256_set1_epi8(1), excess) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn joined(a: __m128i, b: __m128i) -> __m256i {
    _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b)
}

/// Rounded to integers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn whole(x: &[u8; 64], by: V) -> __m512i {
    _mm512_cvtps_epi32(_mm512_mul_ps(load(x), by))
}

/// Numbers clamped to ±127, and their excess.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halved(whole: __m512i) -> (__m128i, __m128i) {
    let near = _mm512_max_epi32(_mm512_min_epi32(whole, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
    (_mm512_cvtepi32_epi8(near), _mm512_cvtepi32_epi8(_mm512_sub_epi32(whole, near)))
}
