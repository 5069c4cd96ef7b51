//! Single-precision GEMM with packed rows of F32, F16 or BF16, and weighted sums with many columns.
//!
//! In: rows, and columns or factors. Out: products added to what is in `out`, in tiles of 32 rows by up to eight
//! columns. Rows are converted once for all columns, into a panel with one element of each of 32 rows side by side; a
//! weighted sum has 32 elements of one row there. One number of a column, broadcast, is multiplied with a line of the
//! panel, so nothing is added across lanes.

use std::arch::x86_64::{_mm512_castps_si512, _mm512_setzero_si512};

use bytemuck::{Pod, Zeroable};

use crate::avx512::single::{LONG, wide_numbers};
use crate::avx512::vector::{
    N, V, fma, lanes, load, padded, splat, store_bytes, transpose, wide_bf16, wide_f16, zero,
};
use crate::layout::block_formats::Storage;
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, Out, Vectors, WeightedSumView};

/// Whether packing pays for a number of columns of `k` elements. Long rows are memory-bound, and faster in place.
pub(super) const fn pays(n_cols: usize, k: usize) -> bool {
    n_cols >= if k < LONG { 8 } else { 64 }
}

/// Columns of a weighted sum from which packing pays: fewer use rows in place, with no reduction across lanes either.
pub(super) const MANY_MIXED: usize = 64;

/// Lines of a panel: it stays in the first cache.
const LINES: usize = 128;

/// Lines that are taken together.
const PIECE: usize = 8;

/// One element of each of 32 rows.
type Line = [[u8; 64]; 2];

/// Lines that are aligned to cache lines.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Panel {
    lines: [Line; LINES],
}

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    let mut buffer = StackBuffer::<Panel, 1>::new();
    let [panel] = buffer.open();
    for r in (0..job.n_rows).step_by(2 * N) {
        let n_rows = (job.n_rows - r).min(2 * N);
        for from in (0..job.k).step_by(LINES) {
            let n = (job.k - from).min(LINES);
            for half in 0..n_rows.div_ceil(N) {
                for at in (0..n).step_by(N) {
                    let mut rows = [_mm512_setzero_si512(); N];
                    for (i, row) in rows.iter_mut().enumerate() {
                        let r = (r + half * N + i).min(job.n_rows - 1);
                        let (bytes, at) = (job.w.row(r).bytes, from + at);
                        *row = _mm512_castps_si512(if at + N <= job.k {
                            widened::<S>(bytes, at)
                        } else {
                            widened::<S>(&padded(&bytes[const { Storage::ALL[S] }.bytes(at)..]), 0)
                        });
                    }
                    for (line, column) in panel.lines[at..].iter_mut().zip(transpose(&rows)) {
                        store_bytes(column, &mut line[half]);
                    }
                }
            }
            lines(&job.out, &panel.lines[..n], (&job.x, 4 * from), (job.n_cols, r, n_rows));
        }
    }
}

/// All columns of a weighted sum whose factors are contiguous and whose rows have a multiple of 32 elements.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn weighted_sum<const S: usize>(job: &WeightedSumView<'_>) {
    let mut buffer = StackBuffer::<Panel, 1>::new();
    let [panel] = buffer.open();
    for s in (0..job.n_rows).step_by(LINES) {
        let n = (job.n_rows - s).min(LINES);
        for e in (0..job.n).step_by(2 * N) {
            for (i, line) in panel.lines[..n].iter_mut().enumerate() {
                let row = job.v.row(s + i).bytes;
                for (half, out) in line.iter_mut().enumerate() {
                    store_bytes(_mm512_castps_si512(widened::<S>(row, e + half * N)), out);
                }
            }
            lines(&job.out.turned(), &panel.lines[..n], (&job.p, 4 * s), (job.n_cols, e, 2 * N));
        }
    }
}

/// Sixteen elements of a row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn widened<const S: usize>(row: &[u8], at: usize) -> V {
    match const { Storage::ALL[S] } {
        Storage::F32 => load(row[4 * at..].first_chunk().expect("within a row")),
        Storage::F16 => wide_f16(row[2 * at..].first_chunk().expect("within a row")),
        Storage::BF16 => wide_bf16(row[2 * at..].first_chunk().expect("within a row")),
        storage => wide_numbers::<S>(&row[storage.bytes(at / 32 * 32)..], at % 32),
    }
}

/// Adds the products of a panel with all columns, from a byte of theirs on, to the results from a row on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn lines(
    out: &Out<'_>,
    panel: &[Line],
    (x, byte): (&Vectors<'_>, usize),
    (n_cols, at, n): (usize, usize, usize),
) {
    let mut c = 0;
    while c < n_cols {
        c += match n_cols - c {
            8.. => tile::<8>(out, panel, (x, byte), (c, at, n)),
            4.. => tile::<4>(out, panel, (x, byte), (c, at, n)),
            2.. => tile::<2>(out, panel, (x, byte), (c, at, n)),
            _ => tile::<1>(out, panel, (x, byte), (c, at, n)),
        };
    }
}

/// The same for `C` columns, from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const C: usize>(
    out: &Out<'_>,
    panel: &[Line],
    (x, byte): (&Vectors<'_>, usize),
    (c, at, n): (usize, usize, usize),
) -> usize {
    let mut xs = [&x.get(c)[byte..][..4 * panel.len()]; C];
    for i in 1..C {
        xs[i] = &x.get(c + i)[byte..][..4 * panel.len()];
    }
    let sums = products(panel, xs);
    for (i, sums) in sums.iter().enumerate() {
        out.add_down(at, c + i, &[lanes(sums[0]), lanes(sums[1])].as_flattened()[..n]);
    }
    C
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const C: usize>(panel: &[Line], x: [&[u8]; C]) -> [[V; 2]; C] {
    let mut sums = [[zero(); 2]; C];
    let (pieces, rest) = panel.as_chunks::<PIECE>();
    for (idx, piece) in pieces.iter().enumerate() {
        // Slices of constant length: their bounds are checked here, and no element of them is checked again.
        let mut xs = x;
        for x in &mut xs {
            *x = &x[4 * PIECE * idx..][..4 * PIECE];
        }
        for (i, line) in piece.iter().enumerate() {
            add(&mut sums, line, &xs, i);
        }
    }
    for (i, line) in rest.iter().enumerate() {
        add(&mut sums, line, &x, PIECE * pieces.len() + i);
    }
    sums
}

/// Adds the products of a line with the `i`-th number of each column.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add<const C: usize>(sums: &mut [[V; 2]; C], line: &Line, x: &[&[u8]; C], i: usize) {
    let halves = [load(&line[0]), load(&line[1])];
    for c in 0..C {
        let x = splat(f32::from_le_bytes(*x[c][4 * i..].first_chunk().expect("a number")));
        for half in 0..2 {
            sums[c][half] = fma(halves[half], x, sums[c][half]);
        }
    }
}
