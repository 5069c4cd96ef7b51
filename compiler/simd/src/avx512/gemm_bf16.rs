//! GEMM of bfloat16 weights with `vdpbf16ps`.
//!
//! In: rows of bfloat16 numbers, and activations in the layout of `bf16_tiles.rs`. Out: their products. For sixteen
//! columns and more, rows are packed into panels (`pack_bf16.rs`), and two elements of a column, broadcast, are
//! multiplied with all rows of a panel. Fewer columns are multiplied with rows in place, 32 elements at a time.

use std::slice::from_ref;

use crate::abi::MIN_COLS_PACKED;
use crate::avx512::amx::Tile;
use crate::avx512::amx::bf16_tiles::{LINES, STEP, Vectors};
use crate::avx512::unpack::pack_bf16::{Panels, plain};
use crate::avx512::unpack::pack_int8::{PANEL, add_panels};
use crate::avx512::vector::{V, broadcast_4_bytes, dot_pairs, load_bytes, sum_each_of_4, zero};
use crate::prefetch::{LINE, PrefetchShare, distance_to_next, prefetch_interleaved};
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// Steps of 32 elements that are unpacked at a time.
const STEPS: usize = 16;

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    if job.n_cols < MIN_COLS_PACKED { gemm_in_place(job) } else { gemm_packed::<S>(job) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn gemm_packed<const S: usize>(job: &GemmView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let x = Vectors::<1>::new(job.x.tiles(), job.k);
    let mut buffer = StackBuffer::<Panels<STEPS>, 1>::new();
    let panels = buffer.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_steps).step_by(STEPS) {
            let n = (n_steps - from).min(STEPS);
            plain::<S, STEPS>(panels, job, (r, n_rows), (from, n), None);
            let ahead =
                distance_to_next((2 * STEP * from, 2 * STEP * n), 2 * job.k, 2 * PANEL * job.w.stride());
            let next = job.w.row(r).bytes.as_ptr().wrapping_add(2 * STEP * from + ahead);
            let mut c = 0;
            while c < job.n_cols {
                let at = c % LINES;
                let tiles = x.steps(c / LINES, 0, (from, n));
                c += match (job.n_cols - c).min(LINES - at) {
                    8.. => tile::<8>(&panels[0].steps[..n], tiles, job, (r, n_rows), c, next),
                    4.. => tile::<4>(&panels[0].steps[..n], tiles, job, (r, n_rows), c, next),
                    _ => tile::<1>(&panels[0].steps[..n], tiles, job, (r, n_rows), c, next),
                };
            }
        }
    }
}

/// Adds the products of two panels with `C` columns, from `c` on, which prefetch their share of the next rows; returns
/// `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn tile<const C: usize>(
    panels: &[[Tile; 2]],
    x: &[Tile],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    c: usize,
    next: *const u8,
) -> usize {
    let next = PrefetchShare::new(next, (2 * PANEL, job.w.stride()), (c, C), job.n_cols);
    let sums = products::<C>(panels, x, c % LINES, &next);
    add_panels(&job.out, &sums, (r, n_rows), c);
    C
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn products<const C: usize>(
    panels: &[[Tile; 2]],
    x: &[Tile],
    at: usize,
    next: &PrefetchShare,
) -> [[V; C]; 2] {
    let mut sums = [[zero(); C]; 2];
    for (step, (panels, x)) in panels.iter().zip(x).enumerate() {
        next.prefetch(LINE * step);
        let x: &[[u8; 64]; C] = x[at..].first_chunk().expect("vectors of one tile");
        for pair in 0..16 {
            for i in 0..C {
                let two = broadcast_4_bytes(x[i].as_chunks().0[pair]);
                for p in 0..2 {
                    sums[p][i] = dot_pairs(sums[p][i], load_bytes(&panels[p][pair]), two);
                }
            }
        }
    }
    sums
}

/// Rows and columns of a tile for rows in place.
const TILE: usize = 4;

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn gemm_in_place(job: &GemmView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let x = Vectors::<1>::new(job.x.tiles(), job.k);
    for r in (0..job.n_rows).step_by(TILE) {
        let n_rows = (job.n_rows - r).min(TILE);
        let mut rows = [&[][..]; TILE];
        // The elements after the last whole step, padded with zeros.
        let mut rests = [[0; LINE]; TILE];
        for (i, (row, rest)) in rows.iter_mut().zip(&mut rests).enumerate() {
            let bytes = &job.w.row(r + i.min(n_rows - 1)).bytes[..2 * job.k];
            let after;
            (*row, after) = bytes.as_chunks();
            rest[..after.len()].copy_from_slice(after);
        }
        for c in (0..job.n_cols).step_by(TILE) {
            let x = x.steps(c / LINES, 0, (0, n_steps));
            let (whole, last) = x.split_at(rows[0].len());
            let mut sums = [[zero(); TILE]; TILE];
            add_steps(&mut sums, rows, whole, c % LINES);
            add_steps(&mut sums, rests.each_ref().map(from_ref), last, c % LINES);
            for (i, sums) in sums.into_iter().enumerate().take(job.n_cols - c) {
                job.out.add_down(r, c + i, &sum_each_of_4(sums)[..n_rows]);
            }
        }
    }
}

/// Adds the products of steps of rows with columns, from line `at` of their tiles on. Every tile of columns prefetches:
/// prefetched by the first of them alone, data would come too late.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn add_steps(sums: &mut [[V; TILE]; TILE], [a, b, c, d]: [&[[u8; LINE]]; TILE], x: &[Tile], at: usize) {
    let mut own = *sums;
    for ((((x, a), b), c), d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        let x: &[[u8; LINE]; TILE] = x[at..].first_chunk().expect("vectors of one tile");
        for (i, row) in [a, b, c, d].into_iter().enumerate() {
            prefetch_interleaved(row);
            let elements = load_bytes(row);
            for j in 0..TILE {
                own[j][i] = dot_pairs(own[j][i], load_bytes(&x[j]), elements);
            }
        }
    }
    *sums = own;
}
