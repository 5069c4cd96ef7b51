//! Packs rows of quantised weights into panels, for `gemm_packed.rs`.
//!
//! In: up to sixteen rows, and a range of their groups of 32 elements. Out: a slab of groups of two panels of eight
//! rows, with two 16-bit or four 8-bit elements of each row side by side, and the scales and offsets of each 32
//! elements. A slab stays in the cache while all columns pass.

use std::arch::x86_64::{__m256i, _mm256_castps_si256, _mm256_setzero_si256};

use bytemuck::{Pod, Zeroable};

use crate::avx2::unpack_int8::{byte_bits, unpack_pair};
use crate::avx2::unpack_int16::{pair_offsets, pair_scales, scale_and_offset, unpack_32, unpack_128};
use crate::avx2::vector::{columns, store_bytes, transposed};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::prefetch::prefetch_line;
use crate::view::GemmView;

/// Groups of a slab.
pub(super) const GROUPS: usize = 32;

/// Rows side by side.
pub(super) const PANEL: usize = 8;

/// 32 elements of each row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(32))]
pub(super) struct Group {
    pub(super) panels: [Panel; 2],
}

/// 32 elements of eight rows.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(super) struct Panel {
    /// Words fill them all, bytes the first half.
    pub(super) numbers: [[u8; 32]; 16],
    pub(super) factors: [u8; 32],
    pub(super) offsets: [u8; 32],
}

/// Unpacks groups `from..from + n` of rows `r..r + n_rows`. A panel that is not full has its last row several times.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn pack<const S: usize>(
    slab: &mut [Group; GROUPS],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
) {
    let (unit, n_bytes) = const { (Storage::ALL[S].unit_groups(), Storage::ALL[S].unit_bytes()) };
    for p in 0..n_rows.div_ceil(PANEL) {
        let mut rows = [job.w.row(r + p * PANEL); PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = job.w.row(r + (p * PANEL + i).min(n_rows - 1));
        }
        for at in 0..n / unit {
            let mut units = [&rows[0].bytes[..0]; PANEL];
            for (unit_of, row) in units.iter_mut().zip(&rows) {
                *unit_of = &row.bytes[(from / unit + at) * n_bytes..][..n_bytes];
                // The rows of the next panel: memory takes as long as unpacking these.
                for line in 0..n_bytes.div_ceil(64) {
                    prefetch_line(unit_of, 64 * line + PANEL * job.w.stride());
                }
            }
            for half in 0..unit / 4 {
                let four = at * (unit / 4) + half;
                let groups = &mut slab[4 * four..][..4];
                four_groups::<S>(groups, p, &units, half, &rows, from / 4 + four);
            }
        }
        for g in n / unit * unit..n {
            one_group::<S>(&mut slab[g].panels[p], &rows, from + g);
        }
    }
}

/// Four groups of each row, the `at`-th.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn four_groups<const S: usize>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8]; PANEL],
    half: usize,
    rows: &[BlockRow<'_>; PANEL],
    at: usize,
) {
    let (mut a, mut b) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    for i in 0..4 {
        let (units, rows) = ([units[i], units[4 + i]], [&rows[i], &rows[4 + i]]);
        let own = pair_scales::<S>(units, half, rows, at);
        a[i] = _mm256_castps_si256(own);
        b[i] = _mm256_castps_si256(pair_offsets::<S>(units, half, own));
    }
    let (a, b) = (columns(a), columns(b));
    for (g, group) in groups.iter_mut().enumerate() {
        store_bytes(a[g], &mut group.panels[p].factors);
        store_bytes(b[g], &mut group.panels[p].offsets);
    }
    if const { byte_bits(Storage::ALL[S]).is_some() } {
        for (g, group) in groups.iter_mut().enumerate() {
            put_bytes::<S>(&mut group.panels[p], units, half, g);
        }
        return;
    }
    let mut fours = [[[_mm256_setzero_si256(); PANEL]; 2]; 4];
    for i in 0..PANEL {
        for (g, numbers) in unpack_128::<S>(units[i], half).into_iter().enumerate() {
            (fours[g][0][i], fours[g][1][i]) = (numbers[0], numbers[1]);
        }
    }
    for (g, group) in groups.iter_mut().enumerate() {
        put(&mut group.panels[p], &fours[g]);
    }
}

/// A group of each row where rows end before four are full.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn one_group<const S: usize>(panel: &mut Panel, rows: &[BlockRow<'_>; PANEL], idx: usize) {
    let n_bytes = const { Storage::ALL[S].block().1 };
    let mut blocks = [&rows[0].bytes[..0]; PANEL];
    for (i, row) in rows.iter().enumerate() {
        blocks[i] = &row.bytes[idx * n_bytes..][..n_bytes];
        let (a, b) = scale_and_offset::<S>(row, idx);
        panel.factors[4 * i..][..4].copy_from_slice(&a.to_le_bytes());
        panel.offsets[4 * i..][..4].copy_from_slice(&b.to_le_bytes());
    }
    if const { byte_bits(Storage::ALL[S]).is_some() } {
        put_bytes::<S>(panel, &blocks, 0, 0);
        return;
    }
    let mut halves = [[_mm256_setzero_si256(); PANEL]; 2];
    for i in 0..PANEL {
        [halves[0][i], halves[1][i]] = unpack_32::<S>(blocks[i]);
    }
    put(panel, &halves);
}

/// Stores halves of groups as columns.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn put(panel: &mut Panel, halves: &[[__m256i; PANEL]; 2]) {
    for (half, to) in halves.iter().zip(panel.numbers.as_chunks_mut::<8>().0) {
        for (column, to) in transposed(half).into_iter().zip(to) {
            store_bytes(column, to);
        }
    }
}

/// The same of bytes, of which pairs of rows are columns sooner.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn put_bytes<const S: usize>(panel: &mut Panel, units: &[&[u8]; PANEL], half: usize, g: usize) {
    let mut halves = [[_mm256_setzero_si256(); 4]; 2];
    for i in 0..4 {
        [halves[0][i], halves[1][i]] = unpack_pair::<S>([units[i], units[4 + i]], half, g);
    }
    for (half, to) in halves.into_iter().zip(panel.numbers.as_chunks_mut::<4>().0) {
        for (column, to) in columns(half).into_iter().zip(to) {
            store_bytes(column, to);
        }
    }
}
