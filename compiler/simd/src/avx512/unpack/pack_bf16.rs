//! Packs rows of weights into tiles of bfloat16, for `gemm_bf16.rs` and `gemm_amx_bf16.rs`.
//!
//! In: up to 32 rows, and a range of their steps of 32 elements. Out: [`Panels`]: for each step two tiles of sixteen
//! rows:
//!
//! ```text
//! tile = [row 0: e0 e1 | row 1: e0 e1 | ... | row 15: e0 e1], [the same of e2 e3], ... 16 lines of 64 bytes
//! ```
//!
//! Quantised rows are packed by `pack_int8.rs` first, which knows their formats. F16 does not fit one bfloat16 number:
//! the rounding error goes into a second set of panels.

use std::arch::x86_64::{
    __m512i, _mm512_castsi512_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_ternarylogic_epi32,
};

use bytemuck::AnyBitPattern;

use crate::avx512::amx::Tile;
use crate::avx512::amx::bf16_tiles::{STEP, joined, paired, split};
use crate::avx512::single::wide_numbers;
use crate::avx512::unpack::pack_int8::{Group, PANEL, Panel, pack};
use crate::avx512::vector::{V, fma, load, load_bytes, splat, store_bytes, transpose, wide_f16};
use crate::layout::block_formats::Storage;
use crate::layout::int14_rows::padded;
use crate::prefetch::{distance_to_next, prefetch_line};
use crate::view::{GemmView, WeightedSumView};

/// `N` steps of 32 elements of 32 rows.
#[derive(Clone, Copy, AnyBitPattern)]
#[repr(C, align(64))]
pub(crate) struct Panels<const N: usize> {
    pub(crate) steps: [[Tile; 2]; N],
}

impl<const N: usize> Panels<N> {
    pub(crate) const EMPTY: Self = Self { steps: [[[[0; 64]; 16]; 2]; N] };
}

/// Packs steps `from..from + n` of rows `r..r + n_rows`, with second parts if there are panels for them.
/// Missing rows of a panel repeat the last.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn unpack<const S: usize, const B: usize, const N: usize>(
    parts: &mut [Panels<N>],
    slab: &mut [Group],
    job: &GemmView<'_>,
    rows: (usize, usize),
    (from, n): (usize, usize),
) {
    if matches!(const { Storage::ALL[S] }, Storage::F16 | Storage::BF16) {
        let ahead = distance_to_next((2 * STEP * from, 2 * STEP * n), 2 * job.k, 2 * PANEL * job.w.stride());
        return plain::<S, N>(parts, job, rows, (from, n), Some(ahead));
    }
    // A small slab stays in the first cache.
    for first in (0..n).step_by(slab.len()) {
        let n = slab.len().min(n - first);
        pack::<S, B, false>(slab, job, rows, (from + first, n), 2);
        for (group, tiles) in slab[..n].iter().zip(&mut parts[0].steps[first..]) {
            for (panel, tile) in group.panels.iter().zip(tiles).take(rows.1.div_ceil(PANEL)) {
                widen::<S>(panel, tile);
            }
        }
    }
}

/// Dequantises the bytes of a panel to bfloat16.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn widen<const S: usize>(panel: &Panel, tile: &mut Tile) {
    let storage = const { Storage::ALL[S] };
    let has_two_scales = storage.has_two_scales();
    let (lines, _) = tile.as_chunks_mut::<2>();
    for (step, (numbers, lines)) in panel.numbers.iter().zip(lines).enumerate() {
        let factors = load(&panel.factors[if has_two_scales { step / 4 } else { 0 }]);
        // A byte under the exponent of 256 is the number 256 plus the byte.
        let moved = if storage.has_offsets() { 256.0 } else { 384.0 };
        let mut offsets = _mm512_mul_ps(factors, splat(-moved));
        if storage.has_offsets() {
            let own = load(&panel.factors[1]);
            let sign = if storage.is_super_block() { -1.0 } else { 1.0 };
            offsets = fma(own, splat(sign), offsets);
        }
        let fours = load_bytes(numbers);
        let bytes = [
            _mm512_slli_epi32::<15>(fours),
            _mm512_slli_epi32::<7>(fours),
            _mm512_srli_epi32::<1>(fours),
            _mm512_srli_epi32::<9>(fours),
        ];
        let mut wide = [splat(0.0); 4];
        for (wide, byte) in wide.iter_mut().zip(bytes) {
            let (mask, exponent) = (_mm512_set1_epi32(0x007f_8000), _mm512_set1_epi32(0x4380_0000));
            let number = _mm512_ternarylogic_epi32::<0b1110_1010>(byte, mask, exponent);
            *wide = fma(_mm512_castsi512_ps(number), factors, offsets);
        }
        for (pair, line) in wide.as_chunks::<2>().0.iter().zip(lines) {
            store_bytes(paired(split(*pair).0), line);
        }
    }
}

/// Packs rows of 16-bit numbers; prefetches `ahead` bytes ahead, unless its caller does.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn plain<const S: usize, const N: usize>(
    parts: &mut [Panels<N>],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    ahead: Option<usize>,
) {
    let mut buffers = [[0; 64]; PANEL];
    for p in 0..n_rows.div_ceil(PANEL) {
        let mut rows = [&[][..]; PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &job.w.row((r + p * PANEL + i).min(r + n_rows - 1)).bytes[2 * STEP * from..];
        }
        for step in 0..n {
            // All addresses first, then all loads: so rows stay in registers.
            let mut lines = [&[0; 64]; PANEL];
            for ((row, buffer), line) in rows.iter().zip(&mut buffers).zip(&mut lines) {
                let row = &row[2 * STEP * step..];
                if let Some(ahead) = ahead {
                    prefetch_line(row, ahead);
                }
                *line = padded(row, buffer);
            }
            if matches!(const { Storage::ALL[S] }, Storage::BF16) {
                let mut halves = [_mm512_setzero_si512(); PANEL];
                for i in 0..PANEL {
                    halves[i] = load_bytes(lines[i]);
                }
                store(&halves, &mut parts[0].steps[step][p]);
                continue;
            }
            let mut halves = [_mm512_setzero_si512(); PANEL];
            let mut rests = [_mm512_setzero_si512(); PANEL];
            for i in 0..PANEL {
                let (two, _) = lines[i].as_chunks::<32>();
                let (half, rest) = split([wide_f16(&two[0]), wide_f16(&two[1])]);
                (halves[i], rests[i]) = (joined(half), joined(split(rest).0));
            }
            for (part, rows) in parts.iter_mut().zip([halves, rests]) {
                store(&rows, &mut part.steps[step][p]);
            }
        }
    }
}

/// Stores two elements of each of sixteen rows side by side.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn store(rows: &[__m512i; PANEL], tile: &mut Tile) {
    for (line, column) in tile.iter_mut().zip(transpose(rows)) {
        store_bytes(column, line);
    }
}

/// The elements of some rows of a weighted sum as panels: two rows side by side, sixteen elements across.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn pairs<const S: usize, const N: usize>(
    parts: &mut [Panels<N>; 2],
    job: &WeightedSumView<'_>,
    (s, n_rows): (usize, usize),
    (e, n): (usize, usize),
) {
    for pair in 0..n_rows.div_ceil(STEP) * STEP / 2 {
        let mut rows = [[splat(0.0); 2]; 2];
        for (i, row) in rows.iter_mut().enumerate().take(n_rows.saturating_sub(2 * pair)) {
            *row = widened::<S>(job.v.row(s + 2 * pair + i).bytes, (e, n));
        }
        let (step, line) = (pair / PANEL, pair % PANEL);
        for p in 0..2 {
            let (halves, rests) = split([rows[0][p], rows[1][p]]);
            store_bytes(paired(halves), &mut parts[0].steps[step][p][line]);
            store_bytes(paired(split(rests).0), &mut parts[1].steps[step][p][line]);
        }
    }
}

/// Up to 32 numbers of a row, padded with zeros.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn widened<const S: usize>(row: &[u8], (e, n): (usize, usize)) -> [V; 2] {
    let storage = const { Storage::ALL[S] };
    if storage.blocks().is_some() {
        let block = &row[storage.bytes(e)..];
        return [wide_numbers::<S>(block, 0), wide_numbers::<S>(block, STEP / 2)];
    }
    let mut buffer = [0; 64];
    let (two, _) = padded(&row[2 * e..][..2 * n], &mut buffer).as_chunks();
    [wide_f16(&two[0]), wide_f16(&two[1])]
}
