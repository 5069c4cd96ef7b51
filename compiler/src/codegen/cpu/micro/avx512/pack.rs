//! Rows of quantised weights, unpacked for `many.rs`.
//!
//! In: up to 32 rows and which groups of theirs. Out: a slab: panels of sixteen rows, four elements of each side by
//! side, moved up by 128 where the format has no offset, with the factors and offsets of each 32 elements.
//! A slab is small enough to stay in the second level of the cache while all vectors pass by.

use std::arch::x86_64::{_mm512_castps_si512, _mm512_setr_epi32, _mm512_setzero_si512, _mm512_srli_epi32};

use crate::codegen::cpu::micro::asking::{ask_for, to_next};
use crate::codegen::cpu::micro::avx512::fours::{
    Order, four, k_factors, order, raised, unit_bytes, unit_groups,
};
use crate::codegen::cpu::micro::avx512::vector::{V, lanes, store_bytes, transposed, wide_lower};
use crate::codegen::cpu::micro::unpack::{Blocks, Storage, Unpacked};
use crate::codegen::cpu::micro::view::{Out, ProductView};

/// Groups of a row that are unpacked at a time.
pub(super) const GROUPS: usize = 32;

/// Rows side by side.
pub(super) const PANEL: usize = 16;

/// 32 elements of each row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Group {
    pub(super) panels: [Panel; 2],
}

/// 32 elements of sixteen rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Panel {
    pub(super) numbers: [[u8; 64]; 8],
    /// What multiplies each row, or the first half of each; what multiplies the second half, or what is added.
    pub(super) factors: [[u8; 64]; 2],
}

impl Group {
    pub(super) const EMPTY: Self =
        Self { panels: [Panel { numbers: [[0; 64]; 8], factors: [[0; 64]; 2] }; 2] };
}

/// Unpacks groups `from..from + n` of rows `r..r + n_rows`. A panel that is not full has its last row several times.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn pack<const S: usize>(
    slab: &mut [Group],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
) {
    let (unit, n_bytes) = const { (unit_groups(Storage::ALL[S]), unit_bytes(Storage::ALL[S])) };
    let is_large = unit == 8;
    let piece = (from / unit * n_bytes, n / unit * n_bytes);
    let ahead = to_next(piece, job.k / 32 / unit * n_bytes, 2 * PANEL * job.w.stride());
    for p in 0..n_rows.div_ceil(PANEL) {
        let mut rows = [job.w.row(r + p * PANEL); PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = job.w.row(r + (p * PANEL + i).min(n_rows - 1));
        }
        for at in 0..n / unit {
            let mut units = [&rows[0].bytes[..0]; PANEL];
            for (unit_of, row) in units.iter_mut().zip(&rows) {
                *unit_of = &row.bytes[(from / unit + at) * n_bytes..][..n_bytes];
                // What is unpacked next: memory takes as long as unpacking this.
                for line in 0..n_bytes.div_ceil(64) {
                    ask_for(unit_of, 64 * line + ahead);
                }
            }
            let (fours, _) = slab[unit * at..][..unit].as_chunks_mut::<4>();
            for (half, groups) in fours.iter_mut().enumerate() {
                numbers::<S>(groups, p, &units, half);
            }
            if is_large {
                large_factors::<S>(&mut slab[unit * at..][..unit], p, &units);
            }
        }
        for g in n / unit * unit..n {
            one_group::<S>(&mut slab[g].panels[p], &rows, from + g);
        }
        if !is_large {
            for g in 0..n {
                small_factors::<S>(&mut slab[g].panels[p], &rows, from + g);
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
    let mut fours = [[_mm512_setzero_si512(); PANEL]; 2];
    for (i, unit) in units.iter().enumerate() {
        let [a, b] = four::<S>(unit, half);
        (fours[0][i], fours[1][i]) = (raised::<S>(a), raised::<S>(b));
    }
    for (i, four) in fours.iter().enumerate() {
        for (j, column) in transposed(four).into_iter().enumerate() {
            let (group, step) = match const { order(Storage::ALL[S]) } {
                Order::Straight => (2 * i + j / 8, j % 8),
                Order::Halves => (j / 4, 4 * i + j % 4),
            };
            store_bytes(column, &mut groups[group].panels[p].numbers[step]);
        }
    }
}

/// The numbers of a group of a row that ends before four are full.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn one_group<const S: usize>(panel: &mut Panel, rows: &[Blocks<'_>; PANEL], idx: usize) {
    let storage = const { Storage::ALL[S] };
    let moved = if storage.has_offsets() { 0 } else { 128 };
    for (lane, row) in rows.iter().enumerate() {
        let Unpacked { q, .. } = row.unpack(storage, idx);
        for (i, q) in q.into_iter().enumerate() {
            panel.numbers[i / 4][4 * lane + i % 4] = q.cast_unsigned().wrapping_add(moved);
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

/// What belongs to a group that is a block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small_factors<const S: usize>(panel: &mut Panel, rows: &[Blocks<'_>; PANEL], idx: usize) {
    let storage = const { Storage::ALL[S] };
    if matches!(storage, Storage::Int8 | Storage::Q4Pairs) {
        for (to, row) in panel.factors[0].as_chunks_mut::<4>().0.iter_mut().zip(rows) {
            *to = row.unpack(storage, idx).a[0].to_le_bytes();
        }
        return;
    }
    let n_bytes = storage.block().1;
    // One by one: out of a loop the compiler makes loads with masks.
    let word =
        |lane: usize| i32::from_le_bytes(*rows[lane].bytes[idx * n_bytes..].first_chunk().expect("a block"));
    let words = _mm512_setr_epi32(
        word(0),
        word(1),
        word(2),
        word(3),
        word(4),
        word(5),
        word(6),
        word(7),
        word(8),
        word(9),
        word(10),
        word(11),
        word(12),
        word(13),
        word(14),
        word(15),
    );
    let halves = [words, _mm512_srli_epi32::<16>(words)];
    for (to, halves) in panel.factors.iter_mut().zip(halves).take(if storage.has_offsets() { 2 } else { 1 }) {
        let wide = _mm512_castps_si512(wide_lower(halves));
        store_bytes(wide, to);
    }
}
