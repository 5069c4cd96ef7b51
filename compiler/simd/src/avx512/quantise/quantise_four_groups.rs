//! Quantises four groups of 32 activations at once.
//!
//! In: 128 numbers, or 256 that share a scale. Out: the layout of `int8_rows.rs`, bit for bit. Values that exist once
//! for a group are computed in one lane for each of the four groups, so that none waits for another.

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _CMP_GE_OQ, _mm_add_epi32, _mm_castps_si128, _mm_castsi128_ps,
    _mm_cmp_ps_mask, _mm_cvtepi32_ps, _mm_cvtsi128_si64, _mm_div_ps, _mm_maskz_div_ps, _mm_max_epu32,
    _mm_mul_ps, _mm_packs_epi32, _mm_set1_epi32, _mm_set1_ps, _mm_setr_epi32, _mm_setzero_si128,
    _mm_shuffle_epi32, _mm_slli_epi32, _mm_sub_epi32, _mm_unpackhi_epi32, _mm_unpackhi_epi64,
    _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm256_add_epi32, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_set_m128i, _mm256_setzero_si256, _mm256_slli_epi32, _mm256_sub_epi32,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
    _mm512_castsi512_si128, _mm512_cmpeq_epi32_mask, _mm512_cmpneq_epi32_mask, _mm512_maskz_mov_epi32,
    _mm512_max_epu32, _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_i64x2, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use crate::avx512::quantise::quantise_rows::{Parts, parts, sizes};
use crate::avx512::vector::{lanes_of_quarter, splat, store_half};
use crate::layout::int8_rows::Four;

/// Quantises four groups, or eight that share a scale.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn quantise<const F: usize>(out: [Four<'_>; F], x: &[[[u8; 128]; 4]; F]) {
    const { assert!(F == 1 || F == 2) };
    let (mut most, mut large) = ([_mm_setzero_si128(); F], [_mm_setzero_si128(); F]);
    for i in 0..F {
        (most[i], large[i]) = held(&x[i]);
    }
    if F == 2 {
        let all = _mm_max_epu32(most[0], most[F - 1]);
        let all = _mm_max_epu32(all, _mm_shuffle_epi32::<0b10_11_00_01>(all));
        most = [_mm_max_epu32(all, _mm_shuffle_epi32::<0b01_00_11_10>(all)); F];
    }
    for (i, out) in out.into_iter().enumerate() {
        put(out, &x[i], (most[i], large[i]));
    }
}

/// The range that the scale of each group must cover (`int8_rows.rs`), and the run of four with its largest number.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn held(x: &[[u8; 128]; 4]) -> (__m128i, __m128i) {
    let (most, large, others) = largest(x);
    let most = _mm_mul_ps(_mm_set1_ps(0.5), _mm_castsi128_ps(most));
    (_mm_max_epu32(_mm_castps_si128(most), others), large)
}

/// Quantises groups with these ranges, whose largest numbers are in these runs of four.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put(out: Four<'_>, x: &[[u8; 128]; 4], (most, large): (__m128i, __m128i)) {
    let Four { numbers, tails, sums: own_sums } = out;
    let most = _mm_castsi128_ps(most);
    let scales = _mm_div_ps(most, _mm_set1_ps(127.0));
    let are_scales = _mm_cmp_ps_mask::<_CMP_GE_OQ>(scales, _mm_set1_ps(f32::MIN_POSITIVE));
    let by = lanes_of_quarter(_mm_castps_si128(_mm_maskz_div_ps(are_scales, _mm_set1_ps(1.0), scales)));
    let steps = lanes_of_quarter(large);
    let mut fours = [_mm256_setzero_si256(); 4];
    let mut beyond = [0; 4];
    for g in 0..4 {
        let Parts { near, excess, fours: sums } = parts(&x[g], splat(f32::from_bits(by[g])));
        store_half(near, &mut numbers[g]);
        let mut all = [0; 32];
        store_half(excess, &mut all);
        beyond[g] = i32::from_le_bytes(all.as_chunks().0[steps[g] as usize % 8]);
        fours[g] = sums;
    }
    let sums = sums(fours);
    let moved = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32::<7>(sums));
    let (first, second) = (_mm256_castsi256_si128(moved), _mm256_extracti128_si256::<1>(moved));
    let both = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    *own_sums = _mm_cvtsi128_si64(_mm_packs_epi32(both, both)).to_le_bytes();
    let sums = _mm_castps_si128(_mm_mul_ps(_mm_cvtepi32_ps(both), scales));
    let scales = _mm_castps_si128(scales);
    let beyond = _mm_setr_epi32(beyond[0], beyond[1], beyond[2], beyond[3]);
    let ahead = transpose_f32([_mm_add_epi32(first, second), scales, beyond, _mm_slli_epi32::<6>(large)]);
    let upper = transpose_f32([first, second, sums, _mm_setzero_si128()]);
    for g in 0..4 {
        store_half(_mm256_set_m128i(upper[g], ahead[g]), &mut tails[g]);
    }
}

/// For each group its largest absolute value, the run of four that has it, and the largest value outside that run.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn largest(x: &[[u8; 128]; 4]) -> (__m128i, __m128i, __m128i) {
    // A quarter of the lanes has the same run of four of all groups. Of equal ones the first counts.
    let ranks = [
        _mm512_setr_epi32(8, 8, 8, 8, 7, 7, 7, 7, 6, 6, 6, 6, 5, 5, 5, 5),
        _mm512_setr_epi32(4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1),
    ];
    let mut fours = [_mm512_setzero_si512(); 2];
    for half in 0..2 {
        let mut all = [_mm512_setzero_si512(); 4];
        for g in 0..4 {
            all[g] = sizes(&x[g].as_chunks().0[half]);
        }
        fours[half] = of_fours(all);
    }
    let most = across(_mm512_max_epu32(fours[0], fours[1]));
    let mut rank = [_mm512_setzero_si512(); 2];
    for half in 0..2 {
        rank[half] = _mm512_maskz_mov_epi32(_mm512_cmpeq_epi32_mask(fours[half], most), ranks[half]);
    }
    let rank = across(_mm512_max_epu32(rank[0], rank[1]));
    for half in 0..2 {
        fours[half] = _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(ranks[half], rank), fours[half]);
    }
    let others = across(_mm512_max_epu32(fours[0], fours[1]));
    let large = _mm_sub_epi32(_mm_set1_epi32(8), _mm512_castsi512_si128(rank));
    (_mm512_castsi512_si128(most), large, _mm512_castsi512_si128(others))
}

/// The maxima of each four lanes of four vectors: those of a vector are in one lane of each quarter.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn of_fours([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let near = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let far = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_max_epu32(_mm512_unpacklo_epi64(near, far), _mm512_unpackhi_epi64(near, far))
}

/// The maximum of all quarters, in each of them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn across(a: __m512i) -> __m512i {
    let twos = _mm512_max_epu32(a, _mm512_shuffle_i64x2::<0b10_11_00_01>(a, a));
    _mm512_max_epu32(twos, _mm512_shuffle_i64x2::<0b01_00_11_10>(twos, twos))
}

/// The sums of each four lanes of four vectors: those of a vector are in one lane of each half.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn sums([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let near = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let far = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(near, far), _mm256_unpackhi_epi64(near, far))
}

/// Four vectors as columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn transpose_f32([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
    let (near, far) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
    let (near_high, far_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(near, far),
        _mm_unpackhi_epi64(near, far),
        _mm_unpacklo_epi64(near_high, far_high),
        _mm_unpackhi_epi64(near_high, far_high),
    ]
}
