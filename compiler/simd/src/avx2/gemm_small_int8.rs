//! Quantised GEMM for one or two columns, with weights of up to 5 bits.
//!
//! In: rows, and activations in the layout `Int8Rows`. Out: their products. Two rows share a register
//! (`unpack_int8.rs`) and are multiplied with sixteen activations that are in both of its halves, and in the same way
//! with the excess above 127. One column is multiplied with two pairs of rows at a time, as loads are the bottleneck:
//! it is loaded once for both. Two columns are multiplied with one pair. Weights are prefetched in the order of rows.

use std::arch::x86_64::{
    __m256i, _mm_set1_ps, _mm256_add_epi16, _mm256_cvtepi32_ps, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_mul_ps, _mm256_set_m128, _mm256_set1_epi16, _mm256_setzero_si256,
};

use crate::avx2::unpack_int8::{Pair, unpack_pair};
use crate::avx2::unpack_int16::{pair_offsets, pair_scales, scale_and_offset, zero_point};
use crate::avx2::vector::{V, add, fma, four_sums, load_four_twice, load_twice, row_totals, splat, zero};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::layout::int8_rows::Int8Row;
use crate::prefetch::prefetch_linear_at;
use crate::view::GemmView;

/// A few columns with all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn few<const S: usize, const B: usize>(job: &GemmView<'_>) {
    for c in (0..job.n_cols).step_by(2) {
        if c + 1 < job.n_cols {
            for r in (0..job.n_rows).step_by(2) {
                some::<S, B, 1, 2>(job, r, c);
            }
        } else {
            for r in (0..job.n_rows).step_by(4) {
                some::<S, B, 2, 1>(job, r, c);
            }
        }
    }
}

/// Adds the products of `P` pairs of rows, from `r` on, with `C` columns, from `c` on. Missing rows repeat the last.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn some<const S: usize, const B: usize, const P: usize, const C: usize>(
    job: &GemmView<'_>,
    r: usize,
    c: usize,
) {
    let storage = const { Storage::ALL[S] };
    let (n_groups, n_halves) = const { (Storage::ALL[S].unit_groups(), Storage::ALL[S].unit_groups() / 4) };
    let n = (2 * P).min(job.n_rows - r);
    let mut rows = [[job.w.row(r); 2]; P];
    for i in 1..2 * P {
        rows[i / 2][i % 2] = job.w.row(r + i.min(n - 1));
    }
    let x = Int8Row::some::<C>(&job.x, c, job.k);
    let n_units = job.k / 32 / n_groups;
    let mut fours = [Fours::new(x[0], n_units * n_halves); C];
    for j in 1..C {
        fours[j] = Fours::new(x[j], n_units * n_halves);
    }
    let mut units = [[rows[0][0].bytes.as_chunks::<B>().0; 2]; P];
    for p in 0..P {
        for i in 0..2 {
            units[p][i] = &rows[p][i].bytes.as_chunks().0[..n_units];
        }
    }
    let start = rows[0][0].bytes.as_ptr();
    let mut sums = [[zero(); P]; C];
    for i in 0..n_units {
        // One row after another.
        prefetch_linear_at(start.wrapping_add(2 * P * B * i), 2 * P * B);
        for half in 0..n_halves {
            let at = n_halves * i + half;
            let mut dots = [[[_mm256_setzero_si256(); 4]; P]; C];
            for g in 0..4 {
                for p in 0..P {
                    let w = unpack_pair::<S>([&units[p][0][i], &units[p][1][i]], half, g);
                    for j in 0..C {
                        dots[j][p][g] = dot(w, &fours[j].lines[at][g], &fours[j].excess[at][g]);
                    }
                }
            }
            for p in 0..P {
                let units = [units[p][0][i].as_slice(), &units[p][1][i]];
                let a = pair_scales::<S>(units, half, [&rows[p][0], &rows[p][1]], at);
                for j in 0..C {
                    let (scales, totals) =
                        (load_four_twice(&fours[j].scales[at]), load_four_twice(&fours[j].sums[at]));
                    let dots = _mm256_cvtepi32_ps(four_sums(dots[j][p]));
                    sums[j][p] = if storage.has_offsets() {
                        let sum = fma(pair_offsets::<S>(units, half, a), totals, sums[j][p]);
                        fma(_mm256_mul_ps(a, scales), dots, sum)
                    } else {
                        let start = _mm256_mul_ps(totals, splat(-f32::from(zero_point(storage))));
                        fma(a, fma(dots, scales, start), sums[j][p])
                    };
                }
            }
        }
    }
    for idx in n_units * n_groups..job.k / 32 {
        for p in 0..P {
            let own = one_group::<S, C>(&rows[p], x, idx);
            for j in 0..C {
                sums[j][p] = add(sums[j][p], own[j]);
            }
        }
    }
    for j in 0..C {
        job.out.add_down(r, c + j, &row_totals(sums[j][0], sums[j][P - 1])[..n]);
    }
}

/// The parts of a column, four groups at a time.
#[derive(Clone, Copy)]
struct Fours<'a> {
    /// Bytes clamped to ±127, and the tail of each group.
    lines: &'a [[[u8; 64]; 4]],
    /// The excess of the bytes.
    excess: &'a [[[u8; 32]; 4]],
    scales: &'a [[u8; 16]],
    sums: &'a [[u8; 16]],
}

impl<'a> Fours<'a> {
    /// The first `n` times four groups.
    #[inline(always)]
    fn new(x: Int8Row<'a>, n: usize) -> Self {
        Self {
            lines: &x.bytes.as_chunks().0.as_chunks().0[..n],
            excess: &x.tails.as_chunks().0.as_chunks().0[..n],
            scales: &x.scales.as_chunks().0[..n],
            sums: &x.sums.as_chunks().0[..n],
        }
    }
}

/// Sums of four of 32 products each: 16 bits hold those of weights up to 31 with activations up to 127, and with the
/// excess of two activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot(w: Pair, line: &[u8; 64], excess: &[u8; 32]) -> __m256i {
    let (near, far) = (line.as_chunks::<16>().0, excess.as_chunks::<16>().0);
    let first = _mm256_add_epi16(
        _mm256_maddubs_epi16(w[0], load_twice(&near[0])),
        _mm256_maddubs_epi16(w[0], load_twice(&far[0])),
    );
    let last = _mm256_add_epi16(
        _mm256_maddubs_epi16(w[1], load_twice(&near[1])),
        _mm256_maddubs_epi16(w[1], load_twice(&far[1])),
    );
    _mm256_madd_epi16(_mm256_add_epi16(first, last), _mm256_set1_epi16(1))
}

/// A group of a pair of rows that fills no unit.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_group<const S: usize, const C: usize>(
    rows: &[BlockRow<'_>; 2],
    x: [Int8Row<'_>; C],
    idx: usize,
) -> [V; C] {
    let n_bytes = const { Storage::ALL[S].block().1 };
    let from = idx * n_bytes;
    let blocks = [&rows[0].bytes[from..from + n_bytes], &rows[1].bytes[from..from + n_bytes]];
    let w = unpack_pair::<S>(blocks, 0, 0);
    let [(a0, b0), (a1, b1)] = [scale_and_offset::<S>(&rows[0], idx), scale_and_offset::<S>(&rows[1], idx)];
    let mut sums = [zero(); C];
    for c in 0..C {
        let (scale, sum, x) = (x[c].scale(idx), x[c].sum(idx), x[c].lines(idx, 1));
        let dots = _mm256_cvtepi32_ps(dot(w, &x.bytes[0], &x.excess[0]));
        let a = _mm256_set_m128(_mm_set1_ps(a1 * scale), _mm_set1_ps(a0 * scale));
        // Every lane has its part of the sum.
        let b = _mm256_set_m128(_mm_set1_ps(b1 * sum / 4.0), _mm_set1_ps(b0 * sum / 4.0));
        sums[c] = fma(dots, a, b);
    }
    sums
}
