//! Vectors rounded to 8 bits a number.
//!
//! In: vectors in single precision. Out: rows as `rounding.rs` has them, bit for bit.

use std::arch::x86_64::{
    __m128i, _mm256_add_epi32, _mm256_castsi128_si256, _mm256_dpbusd_epi32, _mm256_extract_epi32,
    _mm256_inserti128_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi32, _mm512_and_si512,
    _mm512_castps_si512, _mm512_cvtepi32_epi8, _mm512_cvtps_epi32, _mm512_max_epu32, _mm512_mul_ps,
    _mm512_reduce_max_epu32, _mm512_set1_epi32, _mm512_setzero_si512,
};

use crate::codegen::cpu::micro::avx512::vector::{load, splat, store_half};
use crate::codegen::cpu::micro::rounding::{Row, row_bytes, scale_of};
use crate::codegen::cpu::micro::view::QuantiseView;

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn round(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for (c, row) in job.out.chunks_exact_mut(row_bytes(k)).enumerate().take(job.n_cols) {
        let x = job.x[c * job.x_col..][..4 * k].as_chunks::<128>().0;
        let mut row = Row::new(row, k);
        let n = job.group / 32;
        for (idx, x) in x.chunks(n).enumerate() {
            let (scale, by) = scale_of(largest(x));
            for (i, x) in x.iter().enumerate() {
                let (numbers, halves) = rounded(x, by);
                row.put(idx * n + i, numbers, scale, halves);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn largest(x: &[[u8; 128]]) -> f32 {
    let mut most = _mm512_setzero_si512();
    for x in x.as_flattened().as_chunks::<64>().0 {
        let size = _mm512_and_si512(_mm512_castps_si512(load(x)), _mm512_set1_epi32(i32::MAX));
        most = _mm512_max_epu32(most, size);
    }
    f32::from_bits(_mm512_reduce_max_epu32(most))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rounded(x: &[u8; 128], by: f32) -> ([u8; 32], [i32; 2]) {
    let (x, _) = x.as_chunks::<64>();
    let first = whole(&x[0], by);
    let second = whole(&x[1], by);
    let both = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(first), second);
    let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), both);
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
    let mut numbers = [0; 32];
    store_half(both, &mut numbers);
    (numbers, [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)])
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn whole(x: &[u8; 64], by: f32) -> __m128i {
    _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(load(x), splat(by))))
}
