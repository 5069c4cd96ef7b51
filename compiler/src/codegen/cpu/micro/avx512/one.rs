//! A vector of 8-bit numbers with rows of quantised weights.
//!
//! In: rows and a rounded vector. Out: their products. Rows go one after another, those of nibbles by fours, and memory
//! is asked for ahead of what is multiplied: it comes fastest in one stream.
//! `vpdpbusd` multiplies numbers without sign by numbers with one, so weights are moved up; what this adds is taken
//! off again by the sums of the vector, which are known.

use std::arch::x86_64::{
    __m512i, _mm_castsi128_ps, _mm_fmadd_ps, _mm_mul_ps, _mm_setzero_ps, _mm256_castsi256_ps,
    _mm512_broadcast_f32x4, _mm512_castps_si512, _mm512_castps128_ps512, _mm512_castps256_ps512,
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mask3_fmadd_ps, _mm512_mul_ps,
    _mm512_permutexvar_epi32, _mm512_permutexvar_ps, _mm512_setr_epi32, _mm512_setzero_si512,
    _mm512_shuffle_f32x4, _mm512_shuffle_i64x2, _mm512_zextps128_ps512,
};
use std::ops::Range;

use crate::codegen::cpu::micro::asking::{ask_ahead, ask_ahead_of};
use crate::codegen::cpu::micro::avx512::fours::{
    Order, factors, factors_of_rows, four, k_factors, moved, offsets_of_rows, order, unit_groups,
};
use crate::codegen::cpu::micro::avx512::vector::{
    EVEN, ODD, V, add, fma, load_bytes, load_half, load_quarter, splat, totals, zero,
};
use crate::codegen::cpu::micro::rounding::Rounded;
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};
use crate::codegen::cpu::micro::view::ProductView;

/// Rows whose sums are added up together.
const ROWS: usize = 4;

/// A vector with all rows, `B` bytes of a row at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn one<const S: usize, const B: usize>(job: &ProductView<'_>) {
    let n_groups = const { unit_groups(Storage::ALL[S]) };
    let has_nibbles = const { matches!(order(Storage::ALL[S]), Order::Halves) };
    let done = job.k / 32 / n_groups * n_groups;
    let x = Rounded::new(job.x.get(0), job.k);
    for r in (0..job.n_rows).step_by(ROWS) {
        let n = ROWS.min(job.n_rows - r);
        let mut sums = [zero(); ROWS];
        if has_nibbles && n == ROWS {
            sums = nibbles::<S, B, ROWS>(job, r, x);
        } else {
            for i in 0..n {
                sums[i] = if n_groups == 8 {
                    large::<S, B>(&job.w.row(r + i), x)
                } else if has_nibbles {
                    nibbles::<S, B, 1>(job, r + i, x)[0]
                } else {
                    bytes::<S, B>(&job.w.row(r + i), x)
                };
            }
        }
        job.out.add_down(r, 0, &totals(sums)[..n]);
        if done < job.k / 32 {
            for i in 0..n {
                job.out.add(r + i, 0, rest::<S>(&job.w.row(r + i), x, done..job.k / 32));
            }
        }
    }
}

/// A row of small blocks of bytes, four at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn bytes<const S: usize, const B: usize>(row: &Blocks<'_>, x: Rounded<'_>) -> V {
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len();
    let (numbers, excess) = (pieces::<128>(x.numbers, n), pieces::<128>(x.excess, n));
    let (scales, totals) = (pieces::<16>(x.scales, n), pieces::<16>(x.sums, n));
    let (mut sums, mut others) = ([zero(); 2], _mm_setzero_ps());
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = factors::<S>(unit, row, at);
        others = _mm_fmadd_ps(own, _mm_castsi128_ps(load_quarter(&totals[at])), others);
        let factors = _mm512_castps128_ps512(_mm_mul_ps(own, _mm_castsi128_ps(load_quarter(&scales[at]))));
        let (numbers, excess) = (numbers[at].as_chunks::<64>().0, excess[at].as_chunks::<64>().0);
        for (i, w) in four::<S>(unit, 0).into_iter().enumerate() {
            sums[i] = fma(dots(w, (&numbers[i], &excess[i])), chosen(factors, &TWOS[i]), sums[i]);
        }
    }
    let factor = splat(-f32::from(moved(const { Storage::ALL[S] })));
    fma(_mm512_zextps128_ps512(others), factor, add(sums[0], sums[1]))
}

/// `R` rows of small blocks of nibbles, from `r` on, four blocks of each at a time: they come so fast that what rows
/// have in common is worth doing once.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const S: usize, const B: usize, const R: usize>(
    job: &ProductView<'_>,
    r: usize,
    x: Rounded<'_>,
) -> [V; R] {
    let storage = const { Storage::ALL[S] };
    let n = job.w.row(r).bytes.len() / B;
    let mut rows = [pieces::<B>(job.w.row(r).bytes, n); R];
    for i in 1..R {
        rows[i] = pieces::<B>(job.w.row(r + i).bytes, n);
    }
    let (numbers, excess) = (pieces::<128>(x.numbers, n), pieces::<128>(x.excess, n));
    let (scales, totals) = (pieces::<16>(x.scales, n), pieces::<16>(x.sums, n));
    let (mut sums, mut others) = ([zero(); R], zero());
    let start = job.w.row(r).bytes.as_ptr();
    for at in 0..n {
        // In the order in which rows lie, one after another.
        ask_ahead_of(start.wrapping_add(at * R * B), R * B);
        let mut units = [&rows[0][at]; R];
        for i in 1..R {
            units[i] = &rows[i][at];
        }
        let own = factors_of_rows::<S, B, R>(units);
        // What weights are moved up by is an offset as well.
        let added = if storage.has_offsets() { offsets_of_rows::<S, B, R>(units) } else { own };
        others = fma(added, four_times(&totals[at]), others);
        let factors = _mm512_mul_ps(own, four_times(&scales[at]));
        let (numbers, excess) = (numbers[at].as_chunks::<64>().0, excess[at].as_chunks::<64>().0);
        let [numbers, excess] = [halves(&numbers[0], &numbers[1]), halves(&excess[0], &excess[1])];
        for i in 0..R {
            let w = four::<S>(units[i], 0);
            let mut both = _mm512_setzero_si512();
            for x in [numbers, excess] {
                both = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(both, w[0], x[0]), w[1], x[1]);
            }
            sums[i] = fma(_mm512_cvtepi32_ps(both), chosen(factors, &FOURS[i]), sums[i]);
        }
    }
    let factor = splat(if storage.has_offsets() { 1.0 } else { -f32::from(moved(storage)) });
    for i in 0..R {
        sums[i] = _mm512_mask3_fmadd_ps(others, factor, sums[i], 0xf << (4 * i));
    }
    sums
}

/// A row of large blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large<const S: usize, const B: usize>(row: &Blocks<'_>, x: Rounded<'_>) -> V {
    let storage = const { Storage::ALL[S] };
    let is_q6_k = matches!(storage, Storage::Q6K);
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len();
    let (numbers, excess) = (pieces::<256>(x.numbers, n), pieces::<256>(x.excess, n));
    let (scales, totals) = (pieces::<32>(x.scales, n), pieces::<32>(x.sums, n));
    let halves = pieces::<64>(x.halves, n);
    let (mut sums, mut others) = ([zero(); 2], zero());
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = k_factors::<S>(unit);
        let (first, second) = (four::<S>(unit, 0), four::<S>(unit, 1));
        let scales = load_eight(&scales[at]);
        let factors = if is_q6_k {
            let factors = _mm512_mul_ps(own, twice(scales));
            others = fma(_mm512_cvtepi32_ps(load_bytes(&halves[at])), factors, others);
            factors
        } else {
            let both = _mm512_shuffle_f32x4::<0b01_00_01_00>(scales, load_eight(&totals[at]));
            let factors = _mm512_mul_ps(own, both);
            others = add(others, factors);
            factors
        };
        let (numbers, excess) = (numbers[at].as_chunks::<64>().0, excess[at].as_chunks::<64>().0);
        for (i, w) in [first[0], first[1], second[0], second[1]].into_iter().enumerate() {
            let chosen = chosen(factors, if is_q6_k { &FOURS[i] } else { &TWOS[i] });
            sums[i % 2] = fma(dots(w, (&numbers[i], &excess[i])), chosen, sums[i % 2]);
        }
    }
    // Sums of halves come 128 times as large; only the upper lanes hold offsets, and they are taken off.
    let (lanes, factor) = if is_q6_k { (0xffff, f32::from(moved(storage)) / 128.0) } else { (0xff00, -1.0) };
    _mm512_mask3_fmadd_ps(others, splat(factor), add(sums[0], sums[1]), lanes)
}

/// What belongs to each of so many units: slices of one length, so that it is checked once.
#[inline(always)]
pub(super) fn pieces<const L: usize>(of: &[u8], n: usize) -> &[[u8; L]] {
    &of.as_chunks::<L>().0[..n]
}

/// Eight numbers; what stands in the other lanes is not said.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn load_eight(x: &[u8; 32]) -> V {
    _mm512_castps256_ps512(_mm256_castsi256_ps(load_half(x)))
}

/// The first eight lanes, each twice.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn twice(x: V) -> V {
    _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), x)
}

/// Each of four factors for four lanes, from the `4 * i`-th on.
pub(super) const FOURS: [[u8; 64]; 4] = [places(0, 4, 1), places(4, 4, 1), places(8, 4, 1), places(12, 4, 1)];

/// Each of two factors for eight lanes, from the `2 * i`-th on.
const TWOS: [[u8; 64]; 4] = [places(0, 8, 1), places(2, 8, 1), places(4, 8, 1), places(6, 8, 1)];

/// Factors for so many lanes each, a step apart.
pub(super) const fn places(first: usize, n_lanes: usize, step: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        out[4 * lane] = (first + lane / n_lanes * step) as u8;
        lane += 1;
    }
    out
}

/// The factors of lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn chosen(factors: V, places: &[u8; 64]) -> V {
    // The compiler makes two shuffles of one that it takes for a permutation of numbers.
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(load_bytes(places), _mm512_castps_si512(factors)))
}

/// Four numbers, four times.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn four_times(x: &[u8; 16]) -> V {
    _mm512_broadcast_f32x4(_mm_castsi128_ps(load_quarter(x)))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dots(w: __m512i, (numbers, excess): (&[u8; 64], &[u8; 64])) -> V {
    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, load_bytes(numbers));
    _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sums, w, load_bytes(excess)))
}

/// The first halves of four groups, and the second ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves(first: &[u8; 64], second: &[u8; 64]) -> [__m512i; 2] {
    let (first, second) = (load_bytes(first), load_bytes(second));
    [_mm512_shuffle_i64x2::<EVEN>(first, second), _mm512_shuffle_i64x2::<ODD>(first, second)]
}

/// The groups of a row that fill no step.
#[cold]
pub(super) fn rest<const S: usize>(row: &Blocks<'_>, x: Rounded<'_>, groups: Range<usize>) -> f32 {
    let storage = const { Storage::ALL[S] };
    let mut sum = 0.0;
    for idx in groups {
        let Unpacked { q, a, b } = row.unpack(storage, idx);
        let mut halves = [0; 2];
        for (i, q) in q.iter().enumerate() {
            let [near, more] = [x.numbers(idx), x.excess(idx)].map(|x| i32::from(x[i].cast_signed()));
            halves[i / 16] += i32::from(*q) * (near + more);
        }
        sum += (a[0] * halves[0] as f32 + a[1] * halves[1] as f32) * x.scale(idx) + b * x.sum(idx);
    }
    sum
}
