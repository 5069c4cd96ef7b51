//! 256-bit vectors: loads, stores, shuffles and the arithmetic that `generic.rs` needs.
//!
//! In and out: byte arrays and vectors. Only `mod.rs` of this folder accesses memory in another way.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _mm_add_ps, _mm_cvtsi64_si128, _mm_cvtss_f32, _mm_hadd_ps, _mm_loadu_si128,
    _mm_storeu_ps, _mm_unpacklo_ps, _mm256_add_epi32, _mm256_add_ps, _mm256_broadcastsi128_si256,
    _mm256_castps256_ps128, _mm256_castsi256_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_hadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_set_m128i, _mm256_set1_ps,
    _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_unpackhi_epi32,
    _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
};

/// Numbers of a vector.
pub(super) const N: usize = 8;

pub(super) type V = __m256;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn zero() -> V {
    _mm256_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn splat(x: f32) -> V {
    _mm256_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load(x: &[u8; 4 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_loadu_ps(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_bytes(x: &[u8; 32]) -> __m256i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_half(x: &[u8; 16]) -> __m128i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

/// Four numbers in both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_four_twice(x: &[u8; 16]) -> V {
    _mm256_castsi256_ps(load_twice(x))
}

/// Sixteen bytes, and other ones in the upper half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_both(a: &[u8; 16], b: &[u8; 16]) -> __m256i {
    _mm256_set_m128i(load_half(b), load_half(a))
}

/// Sixteen bytes in both halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn load_twice(x: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(load_half(x))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn store_bytes(a: __m256i, out: &mut [u8; 32]) {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn wide_f16(x: &[u8; 2 * N]) -> V {
    _mm256_cvtph_ps(load_half(x))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn wide_bf16(x: &[u8; 2 * N]) -> V {
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load_half(x))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn wide_i8(x: [u8; N]) -> V {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(x))))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn fma(a: V, b: V, c: V) -> V {
    _mm256_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn add(a: V, b: V) -> V {
    _mm256_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn lanes(a: V) -> [f32; N] {
    let mut out = [0.0; N];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), a) };
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn horizontal_sum(a: V) -> f32 {
    let sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let sum = _mm_hadd_ps(sum, sum);
    _mm_cvtss_f32(_mm_hadd_ps(sum, sum))
}

/// The horizontal sums of four registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn sum_each_of_4([a, b, c, d]: [V; 4]) -> [f32; 4] {
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    let all = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut out = [0.0; 4];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), all) };
    out
}

/// The sums of four vectors of integers: a lane for each half of each. Horizontal additions would take more steps.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn four_sums([a, b, c, d]: [__m256i; 4]) -> __m256i {
    let a = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let b = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}

/// The sums of the halves of two vectors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn row_totals(a: V, b: V) -> [f32; 4] {
    let sums = _mm256_hadd_ps(a, b);
    let sums = _mm256_hadd_ps(sums, sums);
    let all = _mm_unpacklo_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let mut out = [0.0; 4];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), all) };
    out
}

/// Eight rows of eight words as columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn transposed(rows: &[__m256i; 8]) -> [__m256i; 8] {
    let (mut first, mut last) = ([rows[0]; 4], [rows[0]; 4]);
    for i in 0..4 {
        first[i] = _mm256_permute2x128_si256::<0x20>(rows[i], rows[4 + i]);
        last[i] = _mm256_permute2x128_si256::<0x31>(rows[i], rows[4 + i]);
    }
    let ([a, b, c, d], [e, f, g, h]) = (columns(first), columns(last));
    [a, b, c, d, e, f, g, h]
}

/// Eight rows of four words as columns. The `i`-th row shares a register with row `i + 4`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn columns([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let [ab, cd] = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
    let [ab_last, cd_last] = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
    [
        _mm256_unpacklo_epi64(ab, cd),
        _mm256_unpackhi_epi64(ab, cd),
        _mm256_unpacklo_epi64(ab_last, cd_last),
        _mm256_unpackhi_epi64(ab_last, cd_last),
    ]
}
