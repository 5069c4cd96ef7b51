//! Rows of weights as bfloat16 numbers, in tiles.
//!
//! In: up to 32 rows and which elements of theirs. Out: [`Panels`]: for every 32 elements two tiles, of sixteen rows
//! each, with two elements of each row side by side. Quantised rows go through the slab of `pack.rs`, which knows their
//! formats; numbers of 16 bits that a bfloat16 number cannot hold leave the rest in second panels.

use std::arch::x86_64::{
    __m512i, _mm512_castsi512_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_srli_epi32, _mm512_ternarylogic_epi32,
};

use bytemuck::AnyBitPattern;

use crate::codegen::cpu::micro::asking::{ask_for, to_next};
use crate::codegen::cpu::micro::avx512::amx::Tile;
use crate::codegen::cpu::micro::avx512::halves::{STEP, joined, paired, split};
use crate::codegen::cpu::micro::avx512::pack::{Group, PANEL, Panel, pack};
use crate::codegen::cpu::micro::avx512::vector::{
    V, fma, load, load_bytes, splat, store_bytes, transposed, wide_f16,
};
use crate::codegen::cpu::micro::avx512::wide_bytes;
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::{MixView, ProductView};
use crate::codegen::cpu::micro::words::padded;

/// `N` steps of 32 elements of 32 rows.
#[derive(Clone, Copy, AnyBitPattern)]
#[repr(C, align(64))]
pub(super) struct Panels<const N: usize> {
    pub(super) steps: [[Tile; 2]; N],
}

impl<const N: usize> Panels<N> {
    pub(super) const EMPTY: Self = Self { steps: [[[[0; 64]; 16]; 2]; N] };
}

/// Unpacks steps `from..from + n` of rows `r..r + n_rows`, with the rests if there are panels for them.
/// A panel that is not full has its last row several times.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn unpack<const S: usize, const B: usize, const N: usize>(
    parts: &mut [Panels<N>],
    slab: &mut [Group],
    job: &ProductView<'_>,
    rows: (usize, usize),
    (from, n): (usize, usize),
) {
    if matches!(const { Storage::ALL[S] }, Storage::F16 | Storage::BF16) {
        let ahead = to_next((2 * STEP * from, 2 * STEP * n), 2 * job.k, 2 * PANEL * job.w.stride());
        return plain::<S, N>(parts, job, rows, (from, n), Some(ahead));
    }
    // What goes through the slab at a time stays close.
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

/// Multiplies the bytes of a panel by their factors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn widen<const S: usize>(panel: &Panel, tile: &mut Tile) {
    let storage = const { Storage::ALL[S] };
    let is_halved = storage.is_halved();
    let (lines, _) = tile.as_chunks_mut::<2>();
    for (step, (numbers, lines)) in panel.numbers.iter().zip(lines).enumerate() {
        let factors = load(&panel.factors[if is_halved { step / 4 } else { 0 }]);
        // A byte behind the exponent of 256 is 256 more than it says.
        let moved = if storage.has_offsets() { 256.0 } else { 384.0 };
        let mut offsets = _mm512_mul_ps(factors, splat(-moved));
        if storage.has_offsets() {
            let own = load(&panel.factors[1]);
            let sign = if storage.is_large() { -1.0 } else { 1.0 };
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

/// Numbers of 16 bits; asks for the memory so many bytes behind them, where its caller does not.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn plain<const S: usize, const N: usize>(
    parts: &mut [Panels<N>],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    ahead: Option<usize>,
) {
    let mut rooms = [[0; 64]; PANEL];
    for p in 0..n_rows.div_ceil(PANEL) {
        let mut rows = [&[][..]; PANEL];
        for (i, row) in rows.iter_mut().enumerate() {
            *row = &job.w.row((r + p * PANEL + i).min(r + n_rows - 1)).bytes[2 * STEP * from..];
        }
        for step in 0..n {
            // First where all rows lie, then the rows: so these stay in registers.
            let mut lines = [&[0; 64]; PANEL];
            for ((row, room), line) in rows.iter().zip(&mut rooms).zip(&mut lines) {
                let row = &row[2 * STEP * step..];
                if let Some(ahead) = ahead {
                    ask_for(row, ahead);
                }
                *line = padded(row, room);
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
    for (line, column) in tile.iter_mut().zip(transposed(rows)) {
        store_bytes(column, line);
    }
}

/// The elements of some rows of a mixture as panels: two rows side by side, sixteen elements across.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn pairs<const S: usize, const N: usize>(
    parts: &mut [Panels<N>; 2],
    job: &MixView<'_>,
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

/// Up to 32 numbers of a row; behind the end are zeros.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn widened<const S: usize>(row: &[u8], (e, n): (usize, usize)) -> [V; 2] {
    if const { matches!(Storage::ALL[S], Storage::Q8_0) } {
        let block: &[u8; 34] = row[e / 32 * 34..].first_chunk().expect("rows have whole blocks");
        return [wide_bytes(block, 0), wide_bytes(block, STEP / 2)];
    }
    let mut room = [0; 64];
    let (two, _) = padded(&row[2 * e..][..2 * n], &mut room).as_chunks();
    [wide_f16(&two[0]), wide_f16(&two[1])]
}
