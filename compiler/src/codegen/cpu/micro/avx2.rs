//! Products with 256 bits: AVX2, FMA and F16C.
//!
//! In: addresses of descriptions. Out: as `mod.rs` says. Only a processor that has them may call these functions; the
//! table is asked for by level, and a level is checked when it is chosen.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_add_ps, _mm_cvtss_f32, _mm_hadd_ps, _mm_loadu_si128, _mm_prefetch,
    _mm_set1_ps, _mm256_abs_epi8, _mm256_add_epi32, _mm256_add_ps, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_extractf128_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set_m128, _mm256_set1_epi16, _mm256_set1_ps, _mm256_setzero_ps, _mm256_sign_epi8,
    _mm256_slli_epi32, _mm256_storeu_ps,
};

use crate::codegen::cpu::micro::forms::{row_forms, single_forms};
use crate::codegen::cpu::micro::rounding::{self, Rounded};
use crate::codegen::cpu::micro::unpack::{Storage, Unpacked, widened};
use crate::codegen::cpu::micro::view::{self, MixView, ProductView, bytes_of};
use crate::codegen::cpu::micro::{Mix, Product, Quantise, Table};

pub(super) const TABLE: Table = Table { single, quantised, quantise, mix, exps: None, halves: None };

const N: usize = 8;

type V = __m256;

single_forms! { #[target_feature(enable = "avx2,fma,f16c")] tile 4 by 2, mix 4 }
row_forms! { #[target_feature(enable = "avx2,fma,f16c")] }

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn zero() -> V {
    _mm256_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn splat(x: f32) -> V {
    _mm256_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(x: &[u8; 4 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_loadu_ps(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn wide_f16(x: &[u8; 2 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(x.as_ptr().cast()) })
}

/// Asks for the memory so many bytes behind the start of a piece.
#[inline]
#[target_feature(enable = "sse")]
fn ask_for(piece: &[u8], n_bytes: usize) {
    // Asking reads nothing, so any address will do.
    _mm_prefetch::<_MM_HINT_T0>(piece.as_ptr().wrapping_add(n_bytes).cast());
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn wide_bf16(x: &[u8; 2 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    let bits = _mm256_cvtepu16_epi32(unsafe { _mm_loadu_si128(x.as_ptr().cast()) });
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fma(a: V, b: V, c: V) -> V {
    _mm256_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(a: V, b: V) -> V {
    _mm256_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lanes(a: V) -> [f32; N] {
    let mut out = [0.0; N];
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), a) };
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total(a: V) -> f32 {
    let sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let sum = _mm_hadd_ps(sum, sum);
    _mm_cvtss_f32(_mm_hadd_ps(sum, sum))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn totals(all: [V; 4]) -> [f32; 4] {
    let mut out = [0.0; 4];
    for (out, own) in out.iter_mut().zip(all) {
        *out = total(own);
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn blank() -> V {
    zero()
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total_of(sum: V) -> f32 {
    total(sum)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot(w: &[i8; 32], [x, excess]: [&[u8; 32]; 2], a: [f32; 2], sum: V) -> V {
    // SAFETY: the array is as long as the vector.
    let w: __m256i = unsafe { _mm256_loadu_si256(w.as_ptr().cast()) };
    // SAFETY: the array is as long as the vector.
    let x: __m256i = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
    // SAFETY: the array is as long as the vector.
    let excess: __m256i = unsafe { _mm256_loadu_si256(excess.as_ptr().cast()) };
    // Two products of a number of at most 128 and one of at most 127 fit 16 bits.
    let size = _mm256_abs_epi8(w);
    let fours = _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w)), _mm256_set1_epi16(1));
    let more =
        _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(excess, w)), _mm256_set1_epi16(1));
    let fours = _mm256_add_epi32(fours, more);
    let a = _mm256_set_m128(_mm_set1_ps(a[1]), _mm_set1_ps(a[0]));
    _mm256_fmadd_ps(_mm256_cvtepi32_ps(fours), a, sum)
}
