//! Rows of quantised weights, unpacked for `many.rs` and `panels.rs`.
//!
//! In: up to 32 rows and which groups of theirs. Out: a slab: panels of sixteen rows, four elements of each side by
//! side, moved up by 128 where the format has no offset, with the factors and offsets of each 32 elements.
//! A slab is small enough to stay in the second level of the cache while all vectors pass by.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_castps_si128, _mm512_castps_si512, _mm512_castsi128_si512, _mm512_inserti32x4,
    _mm512_setzero_si512, _mm512_srli_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use bytemuck::{Pod, Zeroable};

use crate::codegen::cpu::micro::asking::{LINE, Share, ask_for, to_next};
use crate::codegen::cpu::micro::avx512::fours::{
    Order, are_nibbles, both, factors, four, heads, k_factors, k_steps, low_and_high, order, raised,
};
use crate::codegen::cpu::micro::avx512::tail::{FOUR, last_row, last_units};
use crate::codegen::cpu::micro::avx512::vector::{V, lanes, store_bytes, transposed, wide_lower};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::unpack::{Blocks, Storage};
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
    /// What multiplies each row, or the first half of each; what multiplies the second half, or what is added. Offsets
    /// of large blocks may be steps instead: each of the first four groups has those of two, and the fifth their size.
    pub(super) factors: [[u8; 64]; 2],
}

/// Unpacks groups `from..from + n` of rows `r..r + n_rows`, of which a unit has `B` bytes; offsets of large blocks
/// perhaps as `STEPS`. A panel that is not full has its last row several times. What follows the first `n_asked` panels
/// is asked for with them: memory takes as long.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn pack<const S: usize, const B: usize, const STEPS: bool>(
    slab: &mut [Group],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    n_asked: usize,
) {
    const { assert!(B == Storage::ALL[S].unit_bytes()) };
    let unit = const { Storage::ALL[S].unit_groups() };
    let ahead = ahead::<S>(job, (from, n));
    for p in 0..n_rows.div_ceil(PANEL) {
        let place = |i: usize| r + (p * PANEL + i).min(n_rows - 1);
        let mut rows = [&[][..]; PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = job.w.row(place(i)).bytes.as_chunks::<B>().0;
        }
        for at in 0..n / unit {
            let mut units = [&rows[0][0]; PANEL];
            for (unit_of, row) in units.iter_mut().zip(&rows) {
                *unit_of = &row[from / unit + at];
                if p < n_asked {
                    for line in 0..B.div_ceil(LINE) {
                        ask_for(*unit_of, LINE * line + ahead);
                    }
                }
            }
            let groups = &mut slab[unit * at..][..unit];
            one_unit::<S, B, STEPS>(groups, p, &units, |i| (job.w.row(place(i)), from / unit + at));
        }
        if n % unit > 0 {
            let at = from / unit + n / unit;
            let mut rooms = [const { Room::<[u8; B], 1>::new() }; PANEL];
            let (mut units, mut scales) = ([&[0; B]; PANEL], [[[0; 4]; FOUR]; PANEL]);
            for (i, (room, unit)) in rooms.iter_mut().zip(&mut units).enumerate() {
                let row = &job.w.row(place(i));
                if p < n_asked {
                    ask_for(&row.bytes[B * at..], ahead);
                }
                [*unit] = last_units(row, job.w.from_row(place(i)), at, room).each_ref();
                last_row(*unit, row, at, &mut scales[i]);
            }
            let own = |i: usize| Blocks { bytes: units[i], scales: scales[i].as_flattened(), group: 32 };
            one_unit::<S, B, STEPS>(&mut slab[n / unit * unit..][..unit], p, &units, |i| (own(i), 0));
        }
    }
}

/// Unpacks a unit of each row of a panel; `place` tells a row, and which four of it these are.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn one_unit<'a, const S: usize, const B: usize, const STEPS: bool>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
    place: impl Fn(usize) -> (Blocks<'a>, usize),
) {
    for (half, groups) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        numbers::<S, B>(groups, p, units, half);
    }
    if const { Storage::ALL[S].is_large() } {
        large_factors::<S, B, STEPS>(groups, p, units);
    } else {
        small_factors::<S, B>(groups, p, units, place);
    }
}

/// Bytes from groups `from..from + n` of a row to those that are unpacked next.
#[inline(always)]
fn ahead<const S: usize>(job: &ProductView<'_>, (from, n): (usize, usize)) -> usize {
    let n_bytes = |n_groups: usize| const { Storage::ALL[S] }.bytes(32 * n_groups);
    to_next((n_bytes(from), n_bytes(n)), n_bytes(job.k / 32), 2 * PANEL * job.w.stride())
}

/// Rows of the second panel that is unpacked next, asked for while vectors are multiplied.
pub(super) struct Next(Share);

impl Next {
    /// What vectors `c..c + n_cols` ask for behind groups `from..from + n` of rows from `r` on, each its share.
    #[inline(always)]
    pub(super) fn new<const S: usize, const B: usize>(
        job: &ProductView<'_>,
        r: usize,
        (from, n): (usize, usize),
        columns: (usize, usize),
    ) -> Self {
        let unit = const { Storage::ALL[S].unit_groups() };
        let stride = job.w.stride();
        let offset = from / unit * B + ahead::<S>(job, (from, n)) + PANEL * stride;
        let start = job.w.row(r).bytes.as_ptr().wrapping_add(offset);
        Self(Share::new(start, (PANEL, stride), columns, job.n_cols))
    }

    /// Asks for a line of each row while group `g` is multiplied; the lines of a block go with its first groups.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) fn ask<const S: usize, const B: usize>(&self, g: usize) {
        let unit = const { Storage::ALL[S].unit_groups() };
        let line = LINE * (g % unit);
        if line < B {
            self.0.ask(g / unit * B + line);
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
    let mut columns = [[[0.0; PANEL]; P]; C];
    for (c, column) in columns.iter_mut().enumerate() {
        for (p, panel) in column.iter_mut().enumerate() {
            *panel = lanes(sums[p][c]);
        }
    }
    if n_rows == P * PANEL && out.add_block(r, c, &columns) {
        return;
    }
    for (i, column) in columns.iter().enumerate() {
        out.add_down(r, c + i, &column.as_flattened()[..n_rows]);
    }
}

/// The numbers of four groups.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn numbers<const S: usize, const B: usize>(
    groups: &mut [Group; 4],
    p: usize,
    units: &[&[u8; B]; PANEL],
    half: usize,
) {
    match const { order(Storage::ALL[S]) } {
        _ if const { are_nibbles(Storage::ALL[S]) } => nibbles::<S, B>(groups, p, units, half),
        Order::Straight => {
            straight::<S, B, 0>(groups, p, units, half);
            straight::<S, B, 1>(groups, p, units, half);
        }
        Order::Halves => halves::<S, B>(groups, p, units, half),
    }
}

/// One of the two vectors of each row: as many as stay in registers, in a frame of its own.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn straight<const S: usize, const B: usize, const I: usize>(
    groups: &mut [Group; 4],
    p: usize,
    units: &[&[u8; B]; PANEL],
    half: usize,
) {
    let mut rows = [_mm512_setzero_si512(); PANEL];
    for (row, unit) in rows.iter_mut().zip(units) {
        *row = raised::<S>(four::<S>(*unit, half)[I]);
    }
    for (j, column) in transposed(&rows).into_iter().enumerate() {
        store_bytes(column, &mut groups[2 * I + j / 8].panels[p].numbers[j % 8]);
    }
}

/// Both vectors of each row, which come from one.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn halves<const S: usize, const B: usize>(
    groups: &mut [Group; 4],
    p: usize,
    units: &[&[u8; B]; PANEL],
    half: usize,
) {
    let mut rows = [[_mm512_setzero_si512(); PANEL]; 2];
    for (i, unit) in units.iter().enumerate() {
        let [a, b] = four::<S>(*unit, half);
        (rows[0][i], rows[1][i]) = (raised::<S>(a), raised::<S>(b));
    }
    for (i, rows) in rows.iter().enumerate() {
        for (j, column) in transposed(rows).into_iter().enumerate() {
            store_bytes(column, &mut groups[j / 4].panels[p].numbers[4 * i + j % 4]);
        }
    }
}

/// The same of nibbles: they are turned while two share a byte, which is half of the work.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const S: usize, const B: usize>(
    groups: &mut [Group; 4],
    p: usize,
    units: &[&[u8; B]; PANEL],
    half: usize,
) {
    let is_large = const { Storage::ALL[S].is_large() };
    let mut rows = [_mm512_setzero_si512(); PANEL];
    for (row, unit) in rows.iter_mut().zip(units) {
        *row = both::<S>(*unit, half);
    }
    for (j, both) in transposed(&rows).into_iter().enumerate() {
        for (i, four) in low_and_high(both).into_iter().enumerate() {
            let (group, step) = if is_large { (j / 8 * 2 + i, j % 8) } else { (j / 4, 4 * i + j % 4) };
            store_bytes(raised::<S>(four), &mut groups[group].panels[p].numbers[step]);
        }
    }
}

/// What belongs to eight groups that are one block, in a frame of its own as well.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large_factors<const S: usize, const B: usize, const STEPS: bool>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
) {
    let has_offsets = const { Storage::ALL[S].has_offsets() };
    let mut factors = [_mm512_setzero_si512(); PANEL];
    for (factors, unit) in factors.iter_mut().zip(units) {
        let own = if STEPS && has_offsets { k_steps(*unit) } else { k_factors::<S>(*unit) };
        *factors = _mm512_castps_si512(own);
    }
    for (i, column) in transposed(&factors).into_iter().enumerate() {
        let (group, which) = if has_offsets { (i % 8, i / 8) } else { (i / 2, i % 2) };
        store_bytes(column, &mut groups[group].panels[p].factors[which]);
    }
}

/// What belongs to four groups that are blocks; `place` tells a row, and which four of it these are.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small_factors<'a, const S: usize, const B: usize>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
    place: impl Fn(usize) -> (Blocks<'a>, usize),
) {
    let storage = const { Storage::ALL[S] };
    let mut fours = [_mm512_setzero_si512(); 4];
    for (i, four) in fours.iter_mut().enumerate() {
        let low = _mm512_castsi128_si512(firsts::<S, B>(units[i], || place(i)));
        let low = _mm512_inserti32x4::<1>(low, firsts::<S, B>(units[4 + i], || place(4 + i)));
        let most = _mm512_inserti32x4::<2>(low, firsts::<S, B>(units[8 + i], || place(8 + i)));
        *four = _mm512_inserti32x4::<3>(most, firsts::<S, B>(units[12 + i], || place(12 + i)));
    }
    for (group, words) in groups.iter_mut().zip(columns(fours)) {
        let [first, second] = &mut group.panels[p].factors;
        if are_single(storage) {
            store_bytes(words, first);
            continue;
        }
        store_bytes(_mm512_castps_si512(wide_lower(words)), first);
        if storage.has_offsets() {
            store_bytes(_mm512_castps_si512(wide_lower(_mm512_srli_epi32::<16>(words))), second);
        }
    }
}

/// Whether a block has one factor, in single precision; else it begins with two in half precision, or with one.
const fn are_single(storage: Storage) -> bool {
    matches!(storage, Storage::Int8 | Storage::Q4Pairs)
}

/// A word of each of four blocks: a factor, or what it begins with.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn firsts<'a, const S: usize, const B: usize>(
    unit: &[u8; B],
    place: impl FnOnce() -> (Blocks<'a>, usize),
) -> __m128i {
    if const { are_single(Storage::ALL[S]) } {
        let (row, at) = place();
        _mm_castps_si128(factors::<S>(unit, &row, at))
    } else {
        heads::<S>(unit)
    }
}

/// Sixteen rows of four words as columns; each vector has every fourth row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn columns([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (near, far) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (near_high, far_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(near, far),
        _mm512_unpackhi_epi64(near, far),
        _mm512_unpacklo_epi64(near_high, far_high),
        _mm512_unpackhi_epi64(near_high, far_high),
    ]
}
