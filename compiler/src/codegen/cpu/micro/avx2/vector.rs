//! Vectors of 256 bits: to and from memory, and the arithmetic of `forms.rs`.
//!
//! In and out: arrays of bytes and vectors. Memory is met here and nowhere else in this folder but for `mod.rs`.

use std::arch::x86_64::{
    __m128, __m128i, __m256, __m256i, _mm_add_ps, _mm_cvtss_f32, _mm_hadd_ps, _mm_loadu_ps, _mm_loadu_si128,
    _mm_storeu_ps, _mm256_add_ps, _mm256_broadcastsi128_si256, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_hadd_ps,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_permute2x128_si256, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64,
    _mm256_unpacklo_epi32, _mm256_unpacklo_epi64,
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
pub(super) fn load_four(x: &[u8; 16]) -> __m128 {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_loadu_ps(x.as_ptr().cast()) }
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
pub(super) fn total(a: V) -> f32 {
    let sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let sum = _mm_hadd_ps(sum, sum);
    _mm_cvtss_f32(_mm_hadd_ps(sum, sum))
}

/// What four vectors add up to.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn totals([a, b, c, d]: [V; 4]) -> [f32; 4] {
    let halves = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    let all = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps::<1>(halves));
    let mut out = [0.0; 4];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_storeu_ps(out.as_mut_ptr(), all) };
    out
}

/// Eight rows of eight words as columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn transposed(rows: &[__m256i; 8]) -> [__m256i; 8] {
    let (mut a, mut b, mut out) = (*rows, *rows, *rows);
    for i in 0..4 {
        a[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Now each half of `b[4 * i + j]` holds word `j` of that half of rows `4 * i..4 * i + 4`.
    for i in 0..2 {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for j in 0..4 {
        out[j] = _mm256_permute2x128_si256::<0x20>(b[j], b[4 + j]);
        out[4 + j] = _mm256_permute2x128_si256::<0x31>(b[j], b[4 + j]);
    }
    out
}
