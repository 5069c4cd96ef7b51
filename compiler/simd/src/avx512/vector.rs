//! 512-bit vectors: loads, stores, shuffles and the arithmetic that `generic.rs` needs.
//!
//! In and out: byte arrays and vectors. No other file of this folder accesses memory through intrinsics.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512, __m512bh, __m512i, _mm_loadu_si128, _mm_storeu_si128, _mm256_loadu_si256,
    _mm256_storeu_si256, _mm512_add_ps, _mm512_castpd_ps, _mm512_castps_pd, _mm512_castps_si512,
    _mm512_castsi512_ps, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps,
    _mm512_cvtepu16_epi32, _mm512_cvtph_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_i32gather_epi32,
    _mm512_loadu_ps, _mm512_loadu_si512, _mm512_maskz_loadu_epi8, _mm512_permutexvar_epi32,
    _mm512_reduce_add_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_shuffle_f32x4, _mm512_shuffle_i64x2, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpackhi_pd, _mm512_unpackhi_ps,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_unpacklo_pd, _mm512_unpacklo_ps,
};
use std::mem::transmute;

/// Numbers of a vector.
pub(super) const N: usize = 16;

pub(super) type V = __m512;

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn zero() -> V {
    _mm512_setzero_ps()
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn splat(x: f32) -> V {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load(x: &[u8; 4 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_bytes(x: &[u8; 64]) -> __m512i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
}

/// Up to 64 bytes; zeros follow the last of them.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_up_to(x: &[u8]) -> __m512i {
    // Where nothing is mapped, a load takes hundreds of cycles, even if its mask is empty.
    if x.is_empty() {
        return _mm512_setzero_si512();
    }
    let mask = if x.len() < 64 { (1 << x.len()) - 1 } else { u64::MAX };
    // SAFETY: the mask has no byte after the last, and no other byte is read.
    unsafe { _mm512_maskz_loadu_epi8(mask, x.as_ptr().cast()) }
}

/// The same as an array.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn padded(x: &[u8]) -> [u8; 64] {
    let mut out = [0; 64];
    store_bytes(load_up_to(x), &mut out);
    out
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_half(x: &[u8; 32]) -> __m256i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_quarter(x: &[u8; 16]) -> __m128i {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn store(a: V, out: &mut [f32; N]) {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), a) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn store_bytes(a: __m512i, out: &mut [u8; 64]) {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn store_half(a: __m256i, out: &mut [u8; 32]) {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn store_quarter(a: __m128i, out: &mut [u8; 16]) {
    // SAFETY: the array is as long as the vector.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), a) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn lanes_of_quarter(a: __m128i) -> [u32; 4] {
    let mut out = [0; 16];
    store_quarter(a, &mut out);
    let mut lanes = [0; 4];
    for (to, lane) in lanes.iter_mut().zip(out.as_chunks().0) {
        *to = u32::from_le_bytes(*lane);
    }
    lanes
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn wide_f16(x: &[u8; 2 * N]) -> V {
    _mm512_cvtph_ps(load_half(x))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn wide_bf16(x: &[u8; 2 * N]) -> V {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load_half(x))))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn wide_i8(x: [u8; N]) -> V {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_quarter(&x)))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn fma(a: V, b: V, c: V) -> V {
    _mm512_fmadd_ps(a, b, c)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add(a: V, b: V) -> V {
    _mm512_add_ps(a, b)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn lanes(a: V) -> [f32; N] {
    let mut out = [0.0; N];
    store(a, &mut out);
    out
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn horizontal_sum(a: V) -> f32 {
    _mm512_reduce_add_ps(a)
}

/// `out[lane] = numbers[places[lane]]`
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn permute(numbers: V, places: &[u8; 64]) -> V {
    // In assembly: the compiler would split this shuffle in two.
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(load_bytes(places), _mm512_castps_si512(numbers)))
}

/// The horizontal sums of four registers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn sum_each_of_4([a, b, c, d]: [V; 4]) -> [f32; 4] {
    let ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    let cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    let even = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
    let odd = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
    // Each quarter holds one part of each total.
    let quarters = _mm512_add_ps(even, odd);
    let halves = _mm512_add_ps(quarters, _mm512_shuffle_f32x4::<0b01_00_11_10>(quarters, quarters));
    let all = _mm512_add_ps(halves, _mm512_shuffle_f32x4::<0b10_11_00_01>(halves, halves));
    let [a, b, c, d, ..] = lanes(all);
    [a, b, c, d]
}

/// The horizontal sums of sixteen registers, in their order.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn sum_each_of_16(x: &[V; N]) -> V {
    let mut quarters = [zero(); 4];
    for i in 0..4 {
        let pair = |a, b| _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        let (ab, cd) = (pair(x[4 * i], x[4 * i + 1]), pair(x[4 * i + 2], x[4 * i + 3]));
        let even = _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd));
        let odd = _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd));
        // Each quarter holds one part of four totals.
        quarters[i] = _mm512_add_ps(even, odd);
    }
    let add_quarters =
        |a, b| _mm512_add_ps(_mm512_shuffle_f32x4::<EVEN>(a, b), _mm512_shuffle_f32x4::<ODD>(a, b));
    let [a, b, c, d] = quarters;
    add_quarters(add_quarters(a, b), add_quarters(c, d))
}

/// Quarters 0 and 2 of two vectors, and 1 and 3.
pub(super) const EVEN: i32 = 0b10_00_10_00;
pub(super) const ODD: i32 = 0b11_01_11_01;

/// Sixteen rows of sixteen words as columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn transpose(rows: &[__m512i; 16]) -> [__m512i; 16] {
    let (mut a, mut b) = (*rows, *rows);
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Now each quarter of `b[4 * i + j]` holds word `j` of that quarter of rows `4 * i..4 * i + 4`.
    for i in 0..4 {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for j in 0..4 {
        let near_even = _mm512_shuffle_i64x2::<EVEN>(b[j], b[4 + j]);
        let near_odd = _mm512_shuffle_i64x2::<ODD>(b[j], b[4 + j]);
        let far_even = _mm512_shuffle_i64x2::<EVEN>(b[8 + j], b[12 + j]);
        let far_odd = _mm512_shuffle_i64x2::<ODD>(b[8 + j], b[12 + j]);
        a[j] = _mm512_shuffle_i64x2::<EVEN>(near_even, far_even);
        a[4 + j] = _mm512_shuffle_i64x2::<EVEN>(near_odd, far_odd);
        a[8 + j] = _mm512_shuffle_i64x2::<ODD>(near_even, far_even);
        a[12 + j] = _mm512_shuffle_i64x2::<ODD>(near_odd, far_odd);
    }
    a
}

/// Sixteen vectors of numbers as columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn transpose_f32(rows: &[V; N]) -> [V; N] {
    let (mut words, mut out) = ([_mm512_setzero_si512(); N], *rows);
    for i in 0..N {
        words[i] = _mm512_castps_si512(rows[i]);
    }
    for (out, words) in out.iter_mut().zip(transpose(&words)) {
        *out = _mm512_castsi512_ps(words);
    }
    out
}

/// Sixteen places.
#[derive(Clone, Copy)]
pub(super) struct Places {
    offsets: __m512i,
    last: usize,
}

impl Places {
    /// The starts of some rows, `stride` bytes apart.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) fn new(stride: usize, rows: &[usize; N]) -> Self {
        let last = stride * rows.iter().max().expect("sixteen rows");
        assert!(i32::try_from(last).is_ok(), "rows that are not longer than memory");
        let offsets = rows.map(|row| ((row * stride) as i32).to_le_bytes());
        Self { offsets: load_bytes(offsets.as_flattened().as_array().expect("a line")), last }
    }
}

/// Gathers a 32-bit word from each of sixteen places, relative to byte `from`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gather(bytes: &[u8], from: usize, places: &Places) -> __m512i {
    assert!(from + places.last + 4 <= bytes.len(), "words that are there");
    let start = bytes[from..].as_ptr();
    // SAFETY: no place is after the last, whose word ends with the bytes.
    unsafe { _mm512_i32gather_epi32::<1>(places.offsets, start.cast()) }
}

/// The lower halves of words, which are half-precision numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn wide_lower(words: __m512i) -> V {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// Adds the products of pairs of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_dot(mut sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // In assembly: the compiler makes two instructions of its intrinsic.
    // SAFETY: whoever calls has the instruction, which meets no memory.
    unsafe {
        asm!(
            "vpdpwssd {sums}, {a}, {b}",
            sums = inout(zmm_reg) sums,
            a = in(zmm_reg) a,
            b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Four bytes, broadcast to every lane.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn broadcast_4_bytes(four: [u8; 4]) -> __m512i {
    _mm512_set1_epi32(i32::from_le_bytes(four))
}

/// Adds the products of pairs of bfloat16 numbers.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn dot_pairs(sum: V, a: __m512i, b: __m512i) -> V {
    // SAFETY: any bits are 32 bfloat16 numbers.
    let a = unsafe { transmute::<__m512i, __m512bh>(a) };
    // SAFETY: as above.
    let b = unsafe { transmute::<__m512i, __m512bh>(b) };
    _mm512_dpbf16_ps(sum, a, b)
}
