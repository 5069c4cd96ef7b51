//! Quantises activations to the layout `Int8Rows`.
//!
//! In: columns in single precision. Out: rows as `int8_rows.rs` describes them: 16-bit numbers, of each 32 first the
//! even ones, then the odd ones, as `unpack_int16.rs` has weights; and clamped bytes in their own order.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_add_epi32, _mm_cvtsi128_si32, _mm_max_epu32, _mm_min_epu32, _mm_shuffle_epi32,
    _mm256_add_epi16, _mm256_and_si256, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_castsi256_si128,
    _mm256_cmpeq_epi32, _mm256_cvtps_epi32, _mm256_extracti128_si256, _mm256_madd_epi16, _mm256_max_epi16,
    _mm256_max_epu32, _mm256_min_epi16, _mm256_movemask_ps, _mm256_mul_ps, _mm256_or_si256,
    _mm256_packs_epi32, _mm256_permutevar8x32_epi32, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setr_epi32,
    _mm256_setzero_si256, _mm256_shuffle_ps, _mm256_slli_epi16, _mm256_sub_epi16, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

use crate::avx2::vector::{V, load, load_bytes, splat, store_bytes};
use crate::layout::int8_rows::quantise_with;
use crate::view::QuantiseView;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantise(job: &mut QuantiseView<'_>) {
    quantise_with(
        job,
        |_, _| 0,
        |x| largest(x),
        |row, idx, x, (scale, by)| {
            let words = rounded(x, by);
            row.put_wide(idx, stored(words), sum(words), scale);
            let (numbers, excess, large) = bytes(words);
            row.put_line(idx, numbers, excess, large);
        },
    );
}

/// The largest absolute value of 32 numbers, and the largest outside its run of four, as bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest(x: &[u8; 128]) -> (u32, u32) {
    let (x, _) = x.as_chunks::<32>();
    let (a, b) = (of_twos(size(&x[0]), size(&x[1])), of_twos(size(&x[2]), size(&x[3])));
    // Each lane is the largest of four neighbours.
    let fours = _mm256_max_epu32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (a, b) = (_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
    let (most, others) = (_mm_max_epu32(a, b), _mm_min_epu32(a, b));
    let (most, others) = folded(most, others, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let others = _mm_max_epu32(others, _mm_shuffle_epi32::<0b01_00_11_10>(others));
    let (most, others) = folded(most, others, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    let others = _mm_max_epu32(others, _mm_shuffle_epi32::<0b10_11_00_01>(others));
    (_mm_cvtsi128_si32(most).cast_unsigned(), _mm_cvtsi128_si32(others).cast_unsigned())
}

/// The larger of each two; the smaller is one of the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn folded(most: __m128i, others: __m128i, second: __m128i) -> (__m128i, __m128i) {
    (_mm_max_epu32(most, second), _mm_max_epu32(others, _mm_min_epu32(most, second)))
}

/// Absolute values of eight numbers, as bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn size(x: &[u8; 32]) -> __m256i {
    _mm256_and_si256(load_bytes(x), _mm256_set1_epi32(i32::MAX))
}

/// The larger ones of each four of two vectors: two of the first, two of the second.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_twos(a: __m256i, b: __m256i) -> __m256i {
    _mm256_max_epu32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b))
}

/// Even numbers as words, then odd ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rounded(x: &[u8; 128], by: f32) -> [__m256i; 2] {
    let (x, by) = (x.as_chunks::<32>().0, splat(by));
    let first = [whole(&x[0], by), whole(&x[1], by)];
    let second = [whole(&x[2], by), whole(&x[3], by)];
    let even = joined(chosen::<0b10_00_10_00>(first), chosen::<0b10_00_10_00>(second));
    let odd = joined(chosen::<0b11_01_11_01>(first), chosen::<0b11_01_11_01>(second));
    [even, odd]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn stored(words: [__m256i; 2]) -> [u8; 64] {
    let mut numbers = [0; 64];
    for (words, half) in words.into_iter().zip(numbers.as_chunks_mut().0) {
        store_bytes(words, half);
    }
    numbers
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum([even, odd]: [__m256i; 2]) -> i32 {
    let sums = _mm256_madd_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(1));
    let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b01_00_11_10>(sums));
    let sums = _mm_add_epi32(sums, _mm_shuffle_epi32::<0b10_11_00_01>(sums));
    _mm_cvtsi128_si32(sums)
}

/// Numbers clamped to ±127 in their order; their excess, and the run of four that has one.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bytes(words: [__m256i; 2]) -> ([u8; 32], [[u8; 4]; 8], usize) {
    let (mut near, mut excess) = (words, words);
    for i in 0..2 {
        near[i] = _mm256_min_epi16(words[i], _mm256_set1_epi16(127));
        near[i] = _mm256_max_epi16(near[i], _mm256_set1_epi16(-127));
        excess[i] = _mm256_sub_epi16(words[i], near[i]);
    }
    let (mut numbers, mut excesses) = ([0; 32], [[0; 4]; 8]);
    store_bytes(by_turns(near), &mut numbers);
    let excess = by_turns(excess);
    store_bytes(excess, bytemuck::cast_mut(&mut excesses));
    let is_none = _mm256_castsi256_ps(_mm256_cmpeq_epi32(excess, _mm256_setzero_si256()));
    let large = (!_mm256_movemask_ps(is_none)).trailing_zeros() as usize % 8;
    (numbers, excesses, large)
}

/// Bytes of even words and odd ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_turns([even, odd]: [__m256i; 2]) -> __m256i {
    _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(0xff)), _mm256_slli_epi16::<8>(odd))
}

/// Eight numbers as whole ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn whole(x: &[u8; 32], by: V) -> V {
    _mm256_castsi256_ps(_mm256_cvtps_epi32(_mm256_mul_ps(load(x), by)))
}

/// Two of each half of two vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn chosen<const WHICH: i32>([a, b]: [V; 2]) -> __m256i {
    _mm256_castps_si256(_mm256_shuffle_ps::<WHICH>(a, b))
}

/// As words, in their order.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn joined(first: __m256i, second: __m256i) -> __m256i {
    let places = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi32(first, second), places)
}
