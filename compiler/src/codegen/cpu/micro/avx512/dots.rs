//! Vectors of bfloat16 numbers with rows of weights, by dot products of pairs.
//!
//! In: rows of bfloat16 numbers and vectors in tiles. Out: their products, in tiles of some rows and a few vectors.
//! For many vectors rows lie in panels as `panels.rs` makes them; two elements of a vector, in every lane, meet all
//! rows of a panel. A few meet rows as they lie, 32 elements of each at a time.

use std::slice::from_ref;

use crate::codegen::cpu::micro::MANY;
use crate::codegen::cpu::micro::asking::{LINE, Share, ask_beside, to_next};
use crate::codegen::cpu::micro::avx512::amx::Tile;
use crate::codegen::cpu::micro::avx512::halves::{LINES, STEP, Vectors};
use crate::codegen::cpu::micro::avx512::pack::{PANEL, add_panels};
use crate::codegen::cpu::micro::avx512::panels::{Panels, plain};
use crate::codegen::cpu::micro::avx512::vector::{V, dot_pairs, load_bytes, splat_word, totals, zero};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::view::ProductView;

/// Steps of 32 elements that are unpacked at a time.
const STEPS: usize = 16;

/// All vectors with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
pub(super) fn product<const S: usize>(job: &ProductView<'_>) {
    if job.n_cols < MANY { few(job) } else { many::<S>(job) }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn many<const S: usize>(job: &ProductView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let x = Vectors::<1>::new(job.x.tiles(), job.k);
    let mut room = Room::<Panels<STEPS>, 1>::new();
    let panels = room.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_steps).step_by(STEPS) {
            let n = (n_steps - from).min(STEPS);
            plain::<S, STEPS>(panels, job, (r, n_rows), (from, n), None);
            let ahead = to_next((2 * STEP * from, 2 * STEP * n), 2 * job.k, 2 * PANEL * job.w.stride());
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

/// Adds the products of two panels with `C` vectors, from `c` on, which ask for their share of what is unpacked next;
/// gives `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn tile<const C: usize>(
    panels: &[[Tile; 2]],
    x: &[Tile],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    c: usize,
    next: *const u8,
) -> usize {
    let next = Share::new(next, (2 * PANEL, job.w.stride()), (c, C), job.n_cols);
    let sums = products::<C>(panels, x, c % LINES, &next);
    add_panels(&job.out, &sums, (r, n_rows), c);
    C
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn products<const C: usize>(panels: &[[Tile; 2]], x: &[Tile], at: usize, next: &Share) -> [[V; C]; 2] {
    let mut sums = [[zero(); C]; 2];
    for (step, (panels, x)) in panels.iter().zip(x).enumerate() {
        next.ask(LINE * step);
        let x: &[[u8; 64]; C] = x[at..].first_chunk().expect("vectors of one tile");
        for pair in 0..16 {
            for i in 0..C {
                let two = splat_word(x[i].as_chunks().0[pair]);
                for p in 0..2 {
                    sums[p][i] = dot_pairs(sums[p][i], load_bytes(&panels[p][pair]), two);
                }
            }
        }
    }
    sums
}

/// Rows, and vectors, that are multiplied at a time where vectors are few.
const FEW: usize = 4;

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn few(job: &ProductView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let x = Vectors::<1>::new(job.x.tiles(), job.k);
    for r in (0..job.n_rows).step_by(FEW) {
        let n_rows = (job.n_rows - r).min(FEW);
        let mut rows = [&[][..]; FEW];
        // What is behind the last whole step of each.
        let mut rests = [[0; LINE]; FEW];
        for (i, (row, rest)) in rows.iter_mut().zip(&mut rests).enumerate() {
            let bytes = &job.w.row(r + i.min(n_rows - 1)).bytes[..2 * job.k];
            let behind;
            (*row, behind) = bytes.as_chunks();
            rest[..behind.len()].copy_from_slice(behind);
        }
        for c in (0..job.n_cols).step_by(FEW) {
            let x = x.steps(c / LINES, 0, (0, n_steps));
            let (whole, last) = x.split_at(rows[0].len());
            let mut sums = [[zero(); FEW]; FEW];
            add_steps(&mut sums, rows, whole, c % LINES);
            add_steps(&mut sums, rests.each_ref().map(from_ref), last, c % LINES);
            for (i, sums) in sums.into_iter().enumerate().take(job.n_cols - c) {
                job.out.add_down(r, c + i, &totals(sums)[..n_rows]);
            }
        }
    }
}

/// Adds the products of steps of rows with vectors, from line `at` of their tiles on: for each vector with all rows.
/// Every few vectors ask for what follows: asked for by the first of them alone, it would come too late.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni,avx512bf16")]
fn add_steps(sums: &mut [[V; FEW]; FEW], [a, b, c, d]: [&[[u8; LINE]]; FEW], x: &[Tile], at: usize) {
    let mut own = *sums;
    for ((((x, a), b), c), d) in x.iter().zip(a).zip(b).zip(c).zip(d) {
        let x: &[[u8; LINE]; FEW] = x[at..].first_chunk().expect("vectors of one tile");
        for (i, row) in [a, b, c, d].into_iter().enumerate() {
            ask_beside(row);
            let elements = load_bytes(row);
            for j in 0..FEW {
                own[j][i] = dot_pairs(own[j][i], load_bytes(&x[j]), elements);
            }
        }
    }
    *sums = own;
}
