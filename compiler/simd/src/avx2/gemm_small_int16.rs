//! Quantised GEMM for a few columns, with weights of 8 and 6 bits.
//!
//! In: rows, and activations in the layout `Int8Rows`. Out: their products. Rows are read and prefetched one after
//! another: memory bandwidth is highest with one stream. Unpacked weights stay in registers for up to four columns.
//! Both sides have 16 bits: `vpmaddwd` multiplies two pairs and adds them, and cannot overflow. `gemm_small_int8.rs` is
//! for formats with fewer bits.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set_m128,
    _mm256_setzero_si256,
};

use crate::avx2::unpack_int16::{Group, factors, scale_and_offset, unpack_32, unpack_128};
use crate::avx2::vector::{V, fma, four_sums, load_bytes, load_four_twice, splat, sum_each_of_4, zero};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::layout::int8_rows::Int8Row;
use crate::prefetch::prefetch_linear;
use crate::view::GemmView;

/// Rows whose accumulators are reduced together.
const ROWS: usize = 4;

/// A few columns with all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn few<const S: usize, const B: usize>(job: &GemmView<'_>) {
    for r in (0..job.n_rows).step_by(ROWS) {
        let mut c = 0;
        while c < job.n_cols {
            c += match job.n_cols - c {
                4.. => some::<S, B, 4>(job, r, c),
                2.. => some::<S, B, 2>(job, r, c),
                _ => some::<S, B, 1>(job, r, c),
            };
        }
    }
}

/// The numbers, scales and sums of a column, four groups at a time.
#[derive(Clone, Copy)]
struct Fours<'a> {
    words: &'a [[[u8; 64]; 4]],
    scales: &'a [[u8; 16]],
}

impl<'a> Fours<'a> {
    /// The first `n` times four groups.
    #[inline(always)]
    fn new(x: Int8Row<'a>, n: usize) -> Self {
        Self { words: &x.wide.as_chunks().0.as_chunks().0[..n], scales: &x.scales.as_chunks().0[..n] }
    }
}

/// Adds the products of a few rows with `C` columns, from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn some<const S: usize, const B: usize, const C: usize>(job: &GemmView<'_>, r: usize, c: usize) -> usize {
    let n_groups = const { Storage::ALL[S].unit_groups() };
    let (n, done) = (ROWS.min(job.n_rows - r), job.k / 32 / n_groups * n_groups);
    let x = Int8Row::some::<C>(&job.x, c, job.k);
    let mut fours = [Fours::new(x[0], done / 4); C];
    for j in 1..C {
        fours[j] = Fours::new(x[j], done / 4);
    }
    let mut sums = [[zero(); ROWS]; C];
    for i in 0..n {
        let row = job.w.row(r + i);
        let mut own = units::<S, B, C>(&row, fours);
        for idx in done..job.k / 32 {
            one_group::<S, C>(&row, x, idx, &mut own);
        }
        for j in 0..C {
            sums[j][i] = own[j];
        }
    }
    for j in 0..C {
        job.out.add_down(r, c + j, &sum_each_of_4(sums[j])[..n]);
    }
    C
}

/// A row, `B` bytes at a time.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn units<const S: usize, const B: usize, const C: usize>(row: &BlockRow<'_>, x: [Fours<'_>; C]) -> [V; C] {
    let units = row.bytes.as_chunks::<B>().0;
    let n_halves = const { Storage::ALL[S].unit_groups() / 4 };
    let mut sums = [zero(); C];
    for (i, unit) in units.iter().enumerate() {
        prefetch_linear(unit);
        for half in 0..n_halves {
            let at = n_halves * i + half;
            let a = factors::<S>(unit, row, at);
            let a = _mm256_set_m128(a, a);
            let w = unpack_128::<S>(unit, half);
            for c in 0..C {
                let mut dots = [_mm256_setzero_si256(); 4];
                for g in 0..4 {
                    dots[g] = dot(w[g], &x[c].words[at][g]);
                }
                let by = _mm256_mul_ps(a, load_four_twice(&x[c].scales[at]));
                sums[c] = fma(_mm256_cvtepi32_ps(four_sums(dots)), by, sums[c]);
            }
        }
    }
    sums
}

/// Sums of the products of 32 numbers, four of them a lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot(w: Group, x: &[u8; 64]) -> __m256i {
    let (x, _) = x.as_chunks();
    let [a, b] = [_mm256_madd_epi16(w[0], load_bytes(&x[0])), _mm256_madd_epi16(w[1], load_bytes(&x[1]))];
    _mm256_add_epi32(a, b)
}

/// A group of a row that fills no unit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_group<const S: usize, const C: usize>(
    row: &BlockRow<'_>,
    x: [Int8Row<'_>; C],
    idx: usize,
    sums: &mut [V; C],
) {
    let n_bytes = const { Storage::ALL[S].block().1 };
    let w = unpack_32::<S>(&row.bytes[idx * n_bytes..][..n_bytes]);
    let (a, _) = scale_and_offset::<S>(row, idx);
    for c in 0..C {
        let dots = _mm256_cvtepi32_ps(dot(w, x[c].wide(idx)));
        sums[c] = fma(dots, splat(a * x[c].scale(idx)), sums[c]);
    }
}
