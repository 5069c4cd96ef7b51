//! Rows of quantised weights, unpacked for `many.rs`.
//!
//! In: up to 32 rows and which groups of theirs. Out: a slab: panels of sixteen rows, four elements of each side by
//! side, moved up by 128 where the format has no offset, with the factors and offsets of each 32 elements.
//! A slab is small enough to stay in the second level of the cache while all vectors pass by.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_castps_si128, _mm_setzero_si128, _mm512_castps_si512, _mm512_castsi128_si512,
    _mm512_inserti32x4, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use bytemuck::{Pod, Zeroable};

use crate::codegen::cpu::micro::asking::{LINE, ask_for, ask_later, to_next};
use crate::codegen::cpu::micro::avx512::fours::{
    Order, factors, four, heads, k_factors, order, raised, unit_bytes, unit_groups,
};
use crate::codegen::cpu::micro::avx512::vector::{V, lanes, store_bytes, transposed, wide_lower};
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};
use crate::codegen::cpu::micro::view::{Out, ProductView};

/// Groups of a row that are unpacked at a time.
pub(super) const GROUPS: usize = 32;

/// Rows side by side.
pub(super) const PANEL: usize = 16;

/// 32 elements of each row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(super) struct Group {
    pub(super) panels: [Panel; 2],
}

/// 32 elements of sixteen rows.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Panel {
    pub(super) numbers: [[u8; 64]; 8],
    /// What multiplies each row, or the first half of each; what multiplies the second half, or what is added.
    pub(super) factors: [[u8; 64]; 2],
}

/// Unpacks groups `from..from + n` of rows `r..r + n_rows`. A panel that is not full has its last row several times.
/// What follows the first `n_asked` panels is asked for with them: memory takes as long.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn pack<const S: usize>(
    slab: &mut [Group],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    n_asked: usize,
) {
    let (unit, n_bytes) = const { (unit_groups(Storage::ALL[S]), unit_bytes(Storage::ALL[S])) };
    let is_large = unit == 8;
    let ahead = ahead::<S>(job, (from, n));
    for p in 0..n_rows.div_ceil(PANEL) {
        let mut rows = [job.w.row(r + p * PANEL); PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = job.w.row(r + (p * PANEL + i).min(n_rows - 1));
        }
        for at in 0..n / unit {
            let mut units = [&rows[0].bytes[..0]; PANEL];
            for (unit_of, row) in units.iter_mut().zip(&rows) {
                *unit_of = &row.bytes[(from / unit + at) * n_bytes..][..n_bytes];
                for line in 0..if p < n_asked { n_bytes.div_ceil(LINE) } else { 0 } {
                    ask_for(unit_of, LINE * line + ahead);
                }
            }
            let (fours, _) = slab[unit * at..][..unit].as_chunks_mut::<4>();
            for (half, groups) in fours.iter_mut().enumerate() {
                numbers::<S>(groups, p, &units, half);
            }
            let groups = &mut slab[unit * at..][..unit];
            if is_large {
                large_factors::<S>(groups, p, &units);
            } else {
                small_factors::<S>(groups, p, (&units, &rows), from / unit + at);
            }
        }
        for g in n / unit * unit..n {
            one_group::<S>(&mut slab[g].panels[p], &rows, from + g);
        }
    }
}

/// Bytes from groups `from..from + n` of a row to those that are unpacked next.
#[inline(always)]
fn ahead<const S: usize>(job: &ProductView<'_>, (from, n): (usize, usize)) -> usize {
    let (unit, n_bytes) = const { (unit_groups(Storage::ALL[S]), unit_bytes(Storage::ALL[S])) };
    let piece = (from / unit * n_bytes, n / unit * n_bytes);
    to_next(piece, job.k / 32 / unit * n_bytes, 2 * PANEL * job.w.stride())
}

/// Rows of the second panel that is unpacked next, asked for while vectors are multiplied.
pub(super) struct Next {
    first: *const u8,
    n_rows: usize,
    stride: usize,
}

impl Next {
    /// What vectors `c..c + n_cols` ask for behind groups `from..from + n` of rows from `r` on, each its share.
    #[inline(always)]
    pub(super) fn new<const S: usize>(
        job: &ProductView<'_>,
        r: usize,
        (from, n): (usize, usize),
        (c, n_cols): (usize, usize),
    ) -> Self {
        let (unit, n_bytes) = const { (unit_groups(Storage::ALL[S]), unit_bytes(Storage::ALL[S])) };
        let [start, end] = [c, c + n_cols].map(|c| PANEL * c / job.n_cols);
        let stride = job.w.stride();
        let offset = from / unit * n_bytes + ahead::<S>(job, (from, n)) + (PANEL + start) * stride;
        Self { first: job.w.row(r).bytes.as_ptr().wrapping_add(offset), n_rows: end - start, stride }
    }

    /// Asks for a line of each row while group `g` is multiplied; the lines of a block go with its first groups.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) fn ask<const S: usize>(&self, g: usize) {
        let (unit, n_bytes) = const { (unit_groups(Storage::ALL[S]), unit_bytes(Storage::ALL[S])) };
        let line = LINE * (g % unit);
        if line < n_bytes {
            for row in 0..self.n_rows {
                ask_later(self.first.wrapping_add(row * self.stride + g / unit * n_bytes + line));
            }
        }
    }
}

/// Adds what panels and `C` vectors give to the results of rows `r..r + n_rows` and of vectors from `c` on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn add_panels<const P: usize, const C: usize>(
    out: &Out<'_>,
    sums: &[[V; C]; P],
    (r, n_rows): (usize, usize),
    c: usize,
) {
    for p in 0..P {
        let n = n_rows.saturating_sub(p * PANEL).min(PANEL);
        for i in 0..C {
            let sums = lanes(sums[p][i]);
            if n == PANEL {
                out.add_down(r + p * PANEL, c + i, &sums);
            } else if n > 0 {
                out.add_down(r + p * PANEL, c + i, &sums[..n]);
            }
        }
    }
}

/// The numbers of four groups.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn numbers<const S: usize>(groups: &mut [Group; 4], p: usize, units: &[&[u8]; PANEL], half: usize) {
    let order = const { order(Storage::ALL[S]) };
    let mut fours = [[_mm512_setzero_si512(); PANEL]; 2];
    // Both vectors come from one; else only those of sixteen rows that stay in registers are taken at a time.
    if order == Order::Halves {
        for (i, unit) in units.iter().enumerate() {
            let [a, b] = four::<S>(unit, half);
            (fours[0][i], fours[1][i]) = (raised::<S>(a), raised::<S>(b));
        }
    }
    for i in 0..2 {
        if order == Order::Straight {
            for (row, unit) in fours[i].iter_mut().zip(units) {
                *row = raised::<S>(four::<S>(unit, half)[i]);
            }
        }
        for (j, column) in transposed(&fours[i]).into_iter().enumerate() {
            let (group, step) = match order {
                Order::Straight => (2 * i + j / 8, j % 8),
                Order::Halves => (j / 4, 4 * i + j % 4),
            };
            store_bytes(column, &mut groups[group].panels[p].numbers[step]);
        }
    }
}

/// A group of rows that end before four are full.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn one_group<const S: usize>(panel: &mut Panel, rows: &[Blocks<'_>; PANEL], idx: usize) {
    let storage = const { Storage::ALL[S] };
    let moved = if storage.has_offsets() { 0 } else { 128 };
    for (lane, row) in rows.iter().enumerate() {
        let Unpacked { q, a, b } = row.unpack(storage, idx);
        for (i, q) in q.into_iter().enumerate() {
            panel.numbers[i / 4][4 * lane + i % 4] = q.cast_unsigned().wrapping_add(moved);
        }
        let second = if storage.has_offsets() { b } else { a[1] };
        for (to, factor) in panel.factors.iter_mut().zip([a[0], second]) {
            to.as_chunks_mut().0[lane] = factor.to_le_bytes();
        }
    }
}

/// What belongs to eight groups that are one block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large_factors<const S: usize>(groups: &mut [Group], p: usize, units: &[&[u8]; PANEL]) {
    let mut factors = [_mm512_setzero_si512(); PANEL];
    for (factors, unit) in factors.iter_mut().zip(units) {
        *factors = _mm512_castps_si512(k_factors::<S>(unit));
    }
    for (i, column) in transposed(&factors).into_iter().enumerate() {
        let (group, which) =
            if const { Storage::ALL[S].has_offsets() } { (i % 8, i / 8) } else { (i / 2, i % 2) };
        store_bytes(column, &mut groups[group].panels[p].factors[which]);
    }
}

/// What belongs to four groups that are blocks, the `at`-th four of their rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small_factors<const S: usize>(
    groups: &mut [Group],
    p: usize,
    (units, rows): (&[&[u8]; PANEL], &[Blocks<'_>; PANEL]),
    at: usize,
) {
    let storage = const { Storage::ALL[S] };
    // Of others than these a block begins with two numbers in half precision, or with one.
    let are_single = matches!(storage, Storage::Int8 | Storage::Q4Pairs);
    let mut fours = [_mm_setzero_si128(); PANEL];
    for i in 0..PANEL {
        fours[i] = if are_single {
            _mm_castps_si128(factors::<S>(units[i], &rows[i], at))
        } else {
            heads::<S>(units[i])
        };
    }
    for (group, words) in groups.iter_mut().zip(columns(&fours)) {
        let [first, second] = &mut group.panels[p].factors;
        if are_single {
            store_bytes(words, first);
            continue;
        }
        store_bytes(_mm512_castps_si512(wide_lower(words)), first);
        if storage.has_offsets() {
            store_bytes(_mm512_castps_si512(wide_lower(_mm512_srli_epi32::<16>(words))), second);
        }
    }
}

/// Sixteen rows of four words as columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn columns(rows: &[__m128i; PANEL]) -> [__m512i; 4] {
    let mut fours = [_mm512_setzero_si512(); 4];
    for i in 0..4 {
        let low = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(rows[i]), rows[4 + i]);
        fours[i] = _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(low, rows[8 + i]), rows[12 + i]);
    }
    let [a, b, c, d] = fours;
    let (near, far) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (near_high, far_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(near, far),
        _mm512_unpackhi_epi64(near, far),
        _mm512_unpacklo_epi64(near_high, far_high),
        _mm512_unpackhi_epi64(near_high, far_high),
    ]
}
