//! Many vectors in single precision with rows of plain numbers, and mixtures of many columns.
//!
//! In: rows, and vectors or factors. Out: sums added to what is there, in tiles of 32 rows and up to eight vectors.
//! Rows are widened once for all vectors, into a panel that has one element of each of 32 rows side by side; a mixture
//! has 32 elements of one row there. One number of a vector, in every lane, then meets all of a line, so nothing is
//! added up across lanes.

use std::arch::x86_64::{_mm512_castps_si512, _mm512_setzero_si512};

use bytemuck::{Pod, Zeroable};

use crate::codegen::cpu::micro::avx512::LONG;
use crate::codegen::cpu::micro::avx512::vector::{
    N, V, fma, lanes, load, padded, splat, store_bytes, transposed, wide_bf16, wide_f16, zero,
};
use crate::codegen::cpu::micro::avx512::wide_bytes;
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::{MixView, Out, ProductView, Vectors};

/// Whether panels pay for so many vectors of so many elements. Long rows come from memory, and faster as they lie.
pub(super) const fn pays(n_cols: usize, k: usize) -> bool {
    n_cols >= if k < LONG { 8 } else { 64 }
}

/// Columns of a mixture from which on they pay: few meet its rows as they lie, with nothing to add up across lanes.
pub(super) const MANY_MIXED: usize = 64;

/// Lines of a panel: it stays in the first level of the cache.
const LINES: usize = 128;

/// Lines that are taken together.
const PIECE: usize = 8;

/// What meets one number of each vector.
type Line = [[u8; 64]; 2];

/// Lines that start where lines of the cache do.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Panel {
    lines: [Line; LINES],
}

/// All vectors with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn product<const S: usize>(job: &ProductView<'_>) {
    let mut room = Room::<Panel, 1>::new();
    let [panel] = room.open();
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
                    for (line, column) in panel.lines[at..].iter_mut().zip(transposed(&rows)) {
                        store_bytes(column, &mut line[half]);
                    }
                }
            }
            lines(&job.out, &panel.lines[..n], (&job.x, 4 * from), (job.n_cols, r, n_rows));
        }
    }
}

/// All columns of a mixture whose factors are neighbours and whose rows are multiples of 32.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn mixture<const S: usize>(job: &MixView<'_>) {
    let mut room = Room::<Panel, 1>::new();
    let [panel] = room.open();
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
fn widened<const S: usize>(row: &[u8], at: usize) -> V {
    match const { Storage::ALL[S] } {
        Storage::F32 => load(row[4 * at..].first_chunk().expect("within a row")),
        Storage::F16 => wide_f16(row[2 * at..].first_chunk().expect("within a row")),
        Storage::BF16 => wide_bf16(row[2 * at..].first_chunk().expect("within a row")),
        _ => wide_bytes(row[at / 32 * 34..].first_chunk().expect("whole blocks"), at % 32),
    }
}

/// Adds the products of a panel with all vectors, from a byte of theirs on, to columns of results, from a row on.
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

/// The same for `C` vectors, from `c` on; gives `C`.
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
        // Slices of a length that the compiler knows: it checks them here, and nothing that is taken of them.
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

/// Adds the products of a line with the `i`-th number of each vector.
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
