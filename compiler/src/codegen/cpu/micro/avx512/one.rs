//! A vector of 8-bit numbers with rows of quantised weights.
//!
//! In: rows and a rounded vector. Out: their products. Rows go one after another, and memory is asked for ahead of
//! what is multiplied: it comes fastest in one stream.
//! `vpdpbusd` multiplies numbers without sign by numbers with one, so weights are moved up; what this adds is taken
//! off again by the sums of the vector, which are known.

use std::arch::x86_64::{
    __m512i, _mm_castsi128_ps, _mm_fmadd_ps, _mm_mul_ps, _mm_setzero_ps, _mm256_castsi256_ps,
    _mm512_castps_si512, _mm512_castps128_ps512, _mm512_castps256_ps512, _mm512_castsi512_ps,
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mask3_fmadd_ps, _mm512_mul_ps, _mm512_permutexvar_epi32,
    _mm512_permutexvar_ps, _mm512_setr_epi32, _mm512_setzero_si512, _mm512_shuffle_f32x4,
    _mm512_shuffle_i64x2, _mm512_zextps128_ps512,
};
use std::ops::Range;

use crate::codegen::cpu::micro::asking::ask_ahead;
use crate::codegen::cpu::micro::avx512::fours::{
    Order, factors, four, k_factors, moved, offsets, order, unit_groups,
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
    let done = job.k / 32 / n_groups * n_groups;
    let x = Rounded::new(job.x.get(0), job.k);
    for r in (0..job.n_rows).step_by(ROWS) {
        let n = ROWS.min(job.n_rows - r);
        let mut sums = [zero(); ROWS];
        for i in 0..n {
            let row = job.w.row(r + i);
            sums[i] = if n_groups == 8 { large::<S, B>(&row, x) } else { small::<S, B>(&row, x) };
        }
        job.out.add_down(r, 0, &totals(sums)[..n]);
        if done < job.k / 32 {
            for i in 0..n {
                job.out.add(r + i, 0, rest::<S>(&job.w.row(r + i), x, done..job.k / 32));
            }
        }
    }
}

/// A row of small blocks, four at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small<const S: usize, const B: usize>(row: &Blocks<'_>, x: Rounded<'_>) -> V {
    let storage = const { Storage::ALL[S] };
    let units = row.bytes.as_chunks::<B>().0;
    let n = units.len();
    let (numbers, excess) = (pieces::<128>(x.numbers, n), pieces::<128>(x.excess, n));
    let (scales, totals) = (pieces::<16>(x.scales, n), pieces::<16>(x.sums, n));
    let (mut sums, mut others) = ([zero(); 2], _mm_setzero_ps());
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = factors::<S>(unit, row, at);
        // What weights are moved up by is an offset as well.
        let added = if storage.has_offsets() { offsets::<S>(unit) } else { own };
        let [a, b] = four::<S>(unit, 0);
        others = _mm_fmadd_ps(added, _mm_castsi128_ps(load_quarter(&totals[at])), others);
        let factors = _mm512_castps128_ps512(_mm_mul_ps(own, _mm_castsi128_ps(load_quarter(&scales[at]))));
        let (numbers, excess) = (numbers[at].as_chunks::<64>().0, excess[at].as_chunks::<64>().0);
        match order(storage) {
            Order::Straight => {
                sums[0] = fma(dots(a, (&numbers[0], &excess[0])), chosen::<S, 0>(factors), sums[0]);
                sums[1] = fma(dots(b, (&numbers[1], &excess[1])), chosen::<S, 1>(factors), sums[1]);
            }
            Order::Halves => {
                let both = halves([a, b], (&numbers[0], &numbers[1]), _mm512_setzero_si512());
                let both = halves([a, b], (&excess[0], &excess[1]), both);
                sums[0] = fma(_mm512_cvtepi32_ps(both), chosen::<S, 0>(factors), sums[0]);
            }
        }
    }
    let factor = splat(if storage.has_offsets() { 1.0 } else { -f32::from(moved(storage)) });
    fma(_mm512_zextps128_ps512(others), factor, add(sums[0], sums[1]))
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
        sums[0] = fma(dots(first[0], (&numbers[0], &excess[0])), chosen::<S, 0>(factors), sums[0]);
        sums[1] = fma(dots(first[1], (&numbers[1], &excess[1])), chosen::<S, 1>(factors), sums[1]);
        sums[0] = fma(dots(second[0], (&numbers[2], &excess[2])), chosen::<S, 2>(factors), sums[0]);
        sums[1] = fma(dots(second[1], (&numbers[3], &excess[3])), chosen::<S, 3>(factors), sums[1]);
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

/// The factors of the lanes of the `P`-th 64 elements of a unit.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn chosen<const S: usize, const P: usize>(factors: V) -> V {
    let places = load_bytes(const { &places(Storage::ALL[S], P) });
    // The compiler makes two shuffles of one that it takes for a permutation of numbers.
    _mm512_castsi512_ps(_mm512_permutexvar_epi32(places, _mm512_castps_si512(factors)))
}

const fn places(storage: Storage, pair: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        out[4 * lane] = match storage {
            Storage::Q6K => 4 * pair + lane / 4,
            storage if matches!(order(storage), Order::Halves) => lane / 4,
            _ => 2 * pair + lane / 8,
        } as u8;
        lane += 1;
    }
    out
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dots(w: __m512i, (numbers, excess): (&[u8; 64], &[u8; 64])) -> V {
    let sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, load_bytes(numbers));
    _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(sums, w, load_bytes(excess)))
}

/// Adds the products of first and second halves of four groups.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves([low, high]: [__m512i; 2], (first, second): (&[u8; 64], &[u8; 64]), sums: __m512i) -> __m512i {
    let (first, second) = (load_bytes(first), load_bytes(second));
    let sums = _mm512_dpbusd_epi32(sums, low, _mm512_shuffle_i64x2::<EVEN>(first, second));
    _mm512_dpbusd_epi32(sums, high, _mm512_shuffle_i64x2::<ODD>(first, second))
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
