//! A few vectors with rows of quantised weights, 16 bits a number on both sides.
//!
//! In: rows and rounded vectors. Out: their products. Rows go one after another, and memory is asked for ahead of
//! what is multiplied. A weight becomes a number with a sign once for all vectors, so there is nothing to take off, and
//! no number of a vector is too large. What is unpacked stays in registers.
//! Four groups are multiplied side by side: a quarter of a vector register belongs to each.

use std::arch::x86_64::{
    __m512i, _mm_castsi128_ps, _mm_fmadd_ps, _mm_mul_ps, _mm_setzero_ps, _mm256_castsi256_ps,
    _mm512_castps128_ps512, _mm512_castps256_ps512, _mm512_castsi512_si256, _mm512_cvtepi8_epi16,
    _mm512_cvtepi32_ps, _mm512_extracti64x4_epi64, _mm512_mask3_fmadd_ps, _mm512_mul_ps,
    _mm512_permutex2var_epi64, _mm512_permutexvar_epi64, _mm512_permutexvar_ps, _mm512_set1_epi8,
    _mm512_setr_epi32, _mm512_setr_epi64, _mm512_setzero_si512, _mm512_shuffle_f32x4, _mm512_sub_epi8,
    _mm512_zextps128_ps512,
};
use std::ops::Range;

use crate::codegen::cpu::micro::asking::ask_ahead;
use crate::codegen::cpu::micro::avx512::fours::{
    Order, are_nibbles, factors, four, k_factors, moved, offsets, order, unit_groups,
};
use crate::codegen::cpu::micro::avx512::one::pieces;
use crate::codegen::cpu::micro::avx512::vector::{
    V, add, add_dots, chosen, fma, load_half, load_quarter, splat, totals, zero,
};
use crate::codegen::cpu::micro::rounding::Rounded;
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};
use crate::codegen::cpu::micro::view::ProductView;

/// Rows whose sums are added up together.
const ROWS: usize = 4;

/// The factors of the first and of the second sixteen elements of four groups, those of a half of a unit each.
const EVENS: [[u8; 64]; 2] = [places(0, 4, 2), places(8, 4, 2)];
const ODDS: [[u8; 64]; 2] = [places(1, 4, 2), places(9, 4, 2)];

/// Each of four factors for four lanes, from the `4 * i`-th on.
const FOURS: [[u8; 64]; 2] = [places(0, 4, 1), places(4, 4, 1)];

/// Whether so many vectors are few: unpacking into panels takes longer than it saves. Nibbles are unpacked fast.
pub(super) const fn are_few(storage: Storage, n_cols: usize) -> bool {
    n_cols <= if are_nibbles(storage) { 2 } else { 4 }
}

/// Few vectors with all rows, `B` bytes of a row at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn few<const S: usize, const B: usize>(job: &ProductView<'_>) {
    match job.n_cols {
        1 => rows::<S, B, 1>(job),
        2 => rows::<S, B, 2>(job),
        3..=4 if const { are_few(Storage::ALL[S], 4) } => rows::<S, B, 4>(job),
        n_cols => unreachable!("{n_cols} vectors are not few"),
    }
}

/// All rows with up to `C` vectors. Where there are fewer, the last is multiplied several times.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rows<const S: usize, const B: usize, const C: usize>(job: &ProductView<'_>) {
    let n_groups = const { unit_groups(Storage::ALL[S]) };
    let done = job.k / 32 / n_groups * n_groups;
    let mut x = [Rounded::new(job.x.get(0), job.k); C];
    for c in 1..C {
        x[c] = Rounded::new(job.x.get(c.min(job.n_cols - 1)), job.k);
    }
    for r in (0..job.n_rows).step_by(ROWS) {
        let n = ROWS.min(job.n_rows - r);
        let mut sums = [[zero(); ROWS]; C];
        for i in 0..n {
            let row = job.w.row(r + i);
            let own = if n_groups == 8 { large::<S, B, C>(&row, &x) } else { small::<S, B, C>(&row, &x) };
            for c in 0..C {
                sums[c][i] = own[c];
            }
        }
        for c in 0..job.n_cols.min(C) {
            job.out.add_down(r, c, &totals(sums[c])[..n]);
            if done < job.k / 32 {
                for i in 0..n {
                    job.out.add(r + i, c, rest::<S>(&job.w.row(r + i), x[c], done..job.k / 32));
                }
            }
        }
    }
}

/// A row of small blocks, four at a time.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small<const S: usize, const B: usize, const C: usize>(row: &Blocks<'_>, x: &[Rounded<'_>; C]) -> [V; C] {
    let storage = const { Storage::ALL[S] };
    let units = row.bytes.as_chunks::<B>().0;
    let (mut numbers, mut scales, mut totals) = ([&[][..]; C], [&[][..]; C], [&[][..]; C]);
    for c in 0..C {
        numbers[c] = pieces::<256>(x[c].fours, units.len());
        (scales[c], totals[c]) =
            (pieces::<16>(x[c].scales, units.len()), pieces::<16>(x[c].sums, units.len()));
    }
    let (mut sums, mut others) = ([zero(); C], [_mm_setzero_ps(); C]);
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = factors::<S>(unit, row, at);
        let added = if storage.has_offsets() { offsets::<S>(unit) } else { own };
        let w = words::<S>(unit, 0);
        for c in 0..C {
            if storage.has_offsets() {
                others[c] = _mm_fmadd_ps(added, _mm_castsi128_ps(load_quarter(&totals[c][at])), others[c]);
            }
            let factors = _mm_mul_ps(own, _mm_castsi128_ps(load_quarter(&scales[c][at])));
            let factors = chosen(_mm512_castps128_ps512(factors), &FOURS[0]);
            let first = dots(_mm512_setzero_si512(), w, &numbers[c][at], 0);
            let both = _mm512_cvtepi32_ps(dots(first, w, &numbers[c][at], 1));
            sums[c] = fma(both, factors, sums[c]);
        }
    }
    for c in 0..C {
        sums[c] = add(sums[c], _mm512_zextps128_ps512(others[c]));
    }
    sums
}

/// A row of large blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large<const S: usize, const B: usize, const C: usize>(row: &Blocks<'_>, x: &[Rounded<'_>; C]) -> [V; C] {
    let is_q6_k = matches!(const { Storage::ALL[S] }, Storage::Q6K);
    let units = row.bytes.as_chunks::<B>().0;
    let (mut numbers, mut scales, mut totals) = ([&[][..]; C], [&[][..]; C], [&[][..]; C]);
    for c in 0..C {
        numbers[c] = pieces::<512>(x[c].fours, units.len());
        (scales[c], totals[c]) =
            (pieces::<32>(x[c].scales, units.len()), pieces::<32>(x[c].sums, units.len()));
    }
    let (mut sums, mut others) = ([zero(); C], [zero(); C]);
    for (at, unit) in units.iter().enumerate() {
        ask_ahead(unit);
        let own = k_factors::<S>(unit);
        // One half after the other: both do not fit into registers.
        for half in 0..2 {
            let w = words::<S>(unit, half);
            for c in 0..C {
                let numbers = numbers[c][at].as_chunks::<256>().0[half].as_array().expect("four groups");
                let scales = load_eight(&scales[c][at]);
                let none = _mm512_setzero_si512();
                let first = dots(none, w, numbers, 0);
                if is_q6_k {
                    let factors = _mm512_mul_ps(own, twice(scales));
                    let second = dots(none, w, numbers, 1);
                    sums[c] = fma(_mm512_cvtepi32_ps(first), chosen(factors, &EVENS[half]), sums[c]);
                    sums[c] = fma(_mm512_cvtepi32_ps(second), chosen(factors, &ODDS[half]), sums[c]);
                } else {
                    let both = _mm512_shuffle_f32x4::<0b01_00_01_00>(scales, load_eight(&totals[c][at]));
                    let factors = _mm512_mul_ps(own, both);
                    if half == 0 {
                        others[c] = add(others[c], factors);
                    }
                    let both = dots(first, w, numbers, 1);
                    sums[c] = fma(_mm512_cvtepi32_ps(both), chosen(factors, &FOURS[half]), sums[c]);
                }
            }
        }
    }
    // Only the upper lanes hold offsets, and they are taken off.
    for c in 0..C {
        sums[c] = _mm512_mask3_fmadd_ps(others[c], splat(-1.0), sums[c], if is_q6_k { 0 } else { 0xff00 });
    }
    sums
}

/// Four groups as numbers of 16 bits with a sign: the first eight of each group, the next eight, and so on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn words<const S: usize>(unit: &[u8], half: usize) -> [__m512i; 4] {
    let storage = const { Storage::ALL[S] };
    let by = _mm512_set1_epi8(moved(storage).cast_signed());
    let [a, b] = four::<S>(unit, half);
    let (a, b) = (_mm512_sub_epi8(a, by), _mm512_sub_epi8(b, by));
    let eights = match order(storage) {
        Order::Straight => [
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13), b),
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15), b),
        ],
        Order::Halves => {
            let places = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
            [_mm512_permutexvar_epi64(places, a), _mm512_permutexvar_epi64(places, b)]
        }
    };
    let mut out = [_mm512_setzero_si512(); 4];
    for (i, eights) in eights.into_iter().enumerate() {
        out[2 * i] = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(eights));
        out[2 * i + 1] = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64::<1>(eights));
    }
    out
}

/// Sums of products of the first two or the last two eights of four groups, those of each group in a quarter of the
/// lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dots(sums: __m512i, w: [__m512i; 4], numbers: &[u8; 256], half: usize) -> __m512i {
    let (numbers, _) = numbers.as_chunks::<128>();
    add_dots(sums, [w[2 * half], w[2 * half + 1]], &numbers[half])
}

/// Factors for so many lanes each, a step apart.
const fn places(first: usize, n_lanes: usize, step: usize) -> [u8; 64] {
    let mut out = [0; 64];
    let mut lane = 0;
    while lane < 16 {
        out[4 * lane] = (first + lane / n_lanes * step) as u8;
        lane += 1;
    }
    out
}

/// Eight numbers; what stands in the other lanes is not said.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn load_eight(x: &[u8; 32]) -> V {
    _mm512_castps256_ps512(_mm256_castsi256_ps(load_half(x)))
}

/// The first eight lanes, each twice.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn twice(x: V) -> V {
    _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), x)
}

/// The groups of a row that fill no step.
#[cold]
fn rest<const S: usize>(row: &Blocks<'_>, x: Rounded<'_>, groups: Range<usize>) -> f32 {
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
