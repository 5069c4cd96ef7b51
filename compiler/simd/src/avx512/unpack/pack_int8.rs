//! Packs rows of quantised weights into panels, for `gemm_packed.rs` and `pack_bf16.rs`.
//!
//! In: up to 32 rows, and a range of their groups of 32 elements. Out: a slab of groups, each of two panels:
//!
//! ```text
//! panel   = 16 rows x 32 elements
//! numbers = [row 0: e0 e1 e2 e3 | row 1: e0 e1 e2 e3 | ... | row 15], [the same of e4..e8], ... 8 lines of 64 bytes
//! factors = [scale of each row: 16 x f32], [offset, or scale of the second 16 elements: 16 x f32]
//! ```
//!
//! Bytes have the zero point 128 unless the format has offsets. A slab stays in the second cache while all columns
//! pass.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_and_si128, _mm_castps_si128, _mm_cvtph_ps, _mm_cvtsi32_si128, _mm_set1_epi8,
    _mm_srli_epi16, _mm_unpackhi_epi8, _mm_unpacklo_epi8, _mm256_set_m128i, _mm512_castps_si512,
    _mm512_castsi128_si512, _mm512_castsi256_si512, _mm512_castsi512_si256, _mm512_inserti32x4,
    _mm512_inserti64x4, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_unpackhi_epi32,
    _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use bytemuck::{Pod, Zeroable};

use crate::avx512::unpack::last_blocks::{FOUR, last_row, last_units};
use crate::avx512::unpack::unpack_blocks::{
    Order, block_heads, block_scales, has_nibble_pairs, k_block_scales, k_block_scales_and_steps,
    low_and_high, nibbles_128, order, to_zero_point_128, unpack_128,
};
use crate::avx512::vector::{V, lanes, load_quarter, store_bytes, transpose, wide_lower};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::prefetch::{LINE, PrefetchShare, distance_to_next, prefetch_line};
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, Out};

/// Groups of a slab.
pub(crate) const GROUPS: usize = 32;

/// Rows side by side.
pub(crate) const PANEL: usize = 16;

/// 32 elements of each row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(crate) struct Group {
    pub(crate) panels: [Panel; 2],
}

/// 32 elements of sixteen rows.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
pub(crate) struct Panel {
    pub(crate) numbers: [[u8; 64]; 8],
    /// The scale of each row, or of its first sixteen elements; the scale of the second sixteen, or the offset. Offsets
    /// of super-blocks may be integers instead: the first four groups have those of two groups each, the fifth has
    /// `dmin`. Of `Q2_K` they are bytes: scale and offset of the first sixteen elements, then of the second; and `d` in
    /// the first group, `dmin` in the second.
    pub(crate) factors: [[u8; 64]; 2],
}

/// Unpacks groups `from..from + n` of rows `r..r + n_rows`, of which a unit has `B` bytes; with `STEPS`, offsets of
/// super-blocks stay integers. Missing rows of a panel repeat the last. What follows the first `n_prefetched` panels is
/// prefetched here, the rest by [`Next`].
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn pack<const S: usize, const B: usize, const STEPS: bool>(
    slab: &mut [Group],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    n_prefetched: usize,
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
                if p < n_prefetched {
                    for line in 0..B.div_ceil(LINE) {
                        prefetch_line(*unit_of, LINE * line + ahead);
                    }
                }
            }
            let groups = &mut slab[unit * at..][..unit];
            one_unit::<S, B, STEPS>(groups, p, &units, |i| (job.w.row(place(i)), from / unit + at));
        }
        if n % unit > 0 {
            let at = from / unit + n / unit;
            let mut buffers = [const { StackBuffer::<[u8; B], 1>::new() }; PANEL];
            let (mut units, mut scales) = ([&[0; B]; PANEL], [[[0; 4]; FOUR]; PANEL]);
            for (i, (buffer, unit)) in buffers.iter_mut().zip(&mut units).enumerate() {
                let row = &job.w.row(place(i));
                if p < n_prefetched {
                    prefetch_line(&row.bytes[B * at..], ahead);
                }
                [*unit] = last_units(row, job.w.rows_from(place(i)), at, buffer).each_ref();
                last_row(*unit, row, at, &mut scales[i]);
            }
            let own = |i: usize| BlockRow { bytes: units[i], scales: scales[i].as_flattened(), group: 32 };
            one_unit::<S, B, STEPS>(&mut slab[n / unit * unit..][..unit], p, &units, |i| (own(i), 0));
        }
    }
}

/// Unpacks a unit of each row of a panel; `place` returns the row and the index of its unit.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn one_unit<'a, const S: usize, const B: usize, const STEPS: bool>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
    place: impl Fn(usize) -> (BlockRow<'a>, usize),
) {
    for (half, groups) in groups.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        numbers::<S, B>(groups, p, units, half);
    }
    if const { Storage::ALL[S].has_two_offsets() } {
        byte_factors(groups, p, units.map(|unit| unit.as_array().expect("a block")));
    } else if const { Storage::ALL[S].is_super_block() } {
        large_factors::<S, B, STEPS>(groups, p, units);
    } else {
        small_factors::<S, B>(groups, p, units, place);
    }
}

/// Bytes from groups `from..from + n` of a row to those that are unpacked next.
#[inline(always)]
fn ahead<const S: usize>(job: &GemmView<'_>, (from, n): (usize, usize)) -> usize {
    let n_bytes = |n_groups: usize| const { Storage::ALL[S] }.bytes(32 * n_groups);
    distance_to_next((n_bytes(from), n_bytes(n)), n_bytes(job.k / 32), 2 * PANEL * job.w.stride())
}

/// Prefetches the second of the next two panels while columns are multiplied.
pub(crate) struct Next(PrefetchShare);

impl Next {
    /// The share of some columns, after groups `from..from + n` of rows from `r` on.
    #[inline(always)]
    pub(crate) fn new<const S: usize, const B: usize>(
        job: &GemmView<'_>,
        r: usize,
        (from, n): (usize, usize),
        columns: (usize, usize),
    ) -> Self {
        let unit = const { Storage::ALL[S].unit_groups() };
        let stride = job.w.stride();
        let offset = from / unit * B + ahead::<S>(job, (from, n)) + PANEL * stride;
        let start = job.w.row(r).bytes.as_ptr().wrapping_add(offset);
        Self(PrefetchShare::new(start, (PANEL, stride), columns, job.n_cols))
    }

    /// Prefetches a line of each row while group `g` is multiplied; the lines of a unit go with its first groups.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(crate) fn prefetch<const S: usize, const B: usize>(&self, g: usize) {
        let unit = const { Storage::ALL[S].unit_groups() };
        let line = LINE * (g % unit);
        if line < B {
            self.0.prefetch(g / unit * B + line);
        }
    }
}

/// Adds accumulators of panels and `C` columns to the results of rows `r..r + n_rows` and columns from `c` on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn add_panels<const P: usize, const C: usize>(
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
        _ if const { has_nibble_pairs(Storage::ALL[S]) } => nibbles::<S, B>(groups, p, units, half),
        Order::Sequential => {
            straight::<S, B, 0>(groups, p, units, half);
            straight::<S, B, 1>(groups, p, units, half);
        }
        Order::SplitHalves => halves::<S, B>(groups, p, units, half),
    }
}

/// One of the two registers of each row; not inlined, so that all of them stay in registers.
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
        *row = to_zero_point_128::<S>(unpack_128::<S>(*unit, half)[I]);
    }
    for (j, column) in transpose(&rows).into_iter().enumerate() {
        store_bytes(column, &mut groups[2 * I + j / 8].panels[p].numbers[j % 8]);
    }
}

/// Both registers of each row, which are unpacked from the same bytes.
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
        let [a, b] = unpack_128::<S>(*unit, half);
        (rows[0][i], rows[1][i]) = (to_zero_point_128::<S>(a), to_zero_point_128::<S>(b));
    }
    for (i, rows) in rows.iter().enumerate() {
        for (j, column) in transpose(rows).into_iter().enumerate() {
            store_bytes(column, &mut groups[j / 4].panels[p].numbers[4 * i + j % 4]);
        }
    }
}

/// The same for nibbles: they are transposed while two share a byte, which halves the work.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const S: usize, const B: usize>(
    groups: &mut [Group; 4],
    p: usize,
    units: &[&[u8; B]; PANEL],
    half: usize,
) {
    let is_super_block = const { Storage::ALL[S].is_super_block() };
    let mut rows = [_mm512_setzero_si512(); PANEL];
    for (row, unit) in rows.iter_mut().zip(units) {
        *row = nibbles_128::<S>(*unit, half);
    }
    for (j, both) in transpose(&rows).into_iter().enumerate() {
        for (i, four) in low_and_high(both).into_iter().enumerate() {
            let (group, step) = if is_super_block { (j / 8 * 2 + i, j % 8) } else { (j / 4, 4 * i + j % 4) };
            store_bytes(to_zero_point_128::<S>(four), &mut groups[group].panels[p].numbers[step]);
        }
    }
}

/// The scales and offsets of a super-block; not inlined either.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large_factors<const S: usize, const B: usize, const STEPS: bool>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
) {
    let has_offsets = const { Storage::ALL[S].has_offsets() };
    let has_two_scales = const { Storage::ALL[S].has_two_scales() };
    let mut factors = [_mm512_setzero_si512(); PANEL];
    for (factors, unit) in factors.iter_mut().zip(units) {
        let own =
            if STEPS && has_offsets { k_block_scales_and_steps(*unit) } else { k_block_scales::<S>(*unit) };
        *factors = _mm512_castps_si512(own);
    }
    for (i, column) in transpose(&factors).into_iter().enumerate() {
        let (group, which) = if has_two_scales { (i / 2, i % 2) } else { (i % 8, i / 8) };
        store_bytes(column, &mut groups[group].panels[p].factors[which]);
    }
}

/// The scales and offsets of a `Q2_K` block; not inlined either.
#[inline(never)]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn byte_factors(groups: &mut [Group], p: usize, units: [&[u8; 84]; PANEL]) {
    let mut factors = [_mm512_setzero_si512(); PANEL];
    for (factors, unit) in factors.iter_mut().zip(units) {
        let both = load_quarter(unit[..16].as_array().expect("16 bytes"));
        let four_bits = _mm_set1_epi8(15);
        let scales = _mm_and_si128(both, four_bits);
        let offsets = _mm_and_si128(_mm_srli_epi16::<4>(both), four_bits);
        let pairs = _mm256_set_m128i(_mm_unpackhi_epi8(scales, offsets), _mm_unpacklo_epi8(scales, offsets));
        let two = _mm_cvtph_ps(_mm_cvtsi32_si128(i32::from_le_bytes(*unit[80..].first_chunk().expect("4"))));
        let two = _mm512_castsi128_si512(_mm_castps_si128(two));
        *factors = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pairs), _mm512_castsi512_si256(two));
    }
    for (i, column) in transpose(&factors).into_iter().enumerate().take(GROUPS_AND_FACTORS) {
        store_bytes(column, &mut groups[i % 8].panels[p].factors[i / 8]);
    }
}

/// The eight groups of a super-block, then `d` and `dmin`.
const GROUPS_AND_FACTORS: usize = 8 + 2;

/// The scales and offsets of four blocks; `place` returns the row and the index of its unit.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small_factors<'a, const S: usize, const B: usize>(
    groups: &mut [Group],
    p: usize,
    units: &[&[u8; B]; PANEL],
    place: impl Fn(usize) -> (BlockRow<'a>, usize),
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

/// Whether a block has one scale, which is not in half precision; else it starts with one or two numbers in half
/// precision.
const fn are_single(storage: Storage) -> bool {
    matches!(storage, Storage::Int8 | Storage::Q4Pairs | Storage::MXFP4)
}

/// One 32-bit word of each of four blocks: its scale, or its first four bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn firsts<'a, const S: usize, const B: usize>(
    unit: &[u8; B],
    place: impl FnOnce() -> (BlockRow<'a>, usize),
) -> __m128i {
    if const { are_single(Storage::ALL[S]) } {
        let (row, at) = place();
        _mm_castps_si128(block_scales::<S>(unit, &row, at))
    } else {
        block_heads::<S>(unit)
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
