//! Many vectors of 8-bit numbers with rows of quantised weights.
//!
//! In: rows and rounded vectors. Out: their products, in tiles of up to 32 rows and a few vectors.
//! Rows are unpacked once for all vectors, so that a vector register holds four elements of each of sixteen rows
//! (`pack.rs`); four elements of a vector, in every lane, are then multiplied with all of them; the four that are
//! large, twice. Weights are moved up by 128, and sums start from what takes this off again. Every 32 elements, or 16,
//! sums are scaled. `sixes.rs` does the same for two panels and six vectors, as nearly all are.

use std::arch::x86_64::{_mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_mul_ps, _mm512_setzero_si512};

use crate::codegen::cpu::micro::avx512::pack::{GROUPS, Group, Next, PANEL, add_panels, pack};
use crate::codegen::cpu::micro::avx512::sixes;
use crate::codegen::cpu::micro::avx512::vector::{V, fma, load, load_bytes, splat, splat_word, zero};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::rounding::{Column, Groups, Rounded, Tail};
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::ProductView;

/// All vectors with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn all<const S: usize, const B: usize>(job: &ProductView<'_>) {
    let n_groups = job.k / 32;
    let mut room = Room::<Group, GROUPS>::new();
    let slab = room.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_groups).step_by(GROUPS) {
            let n = (n_groups - from).min(GROUPS);
            pack::<S, B>(slab, job, (r, n_rows), (from, n), 1);
            if n_rows > PANEL {
                columns::<S, B, 2>(slab, job, (r, n_rows), (from, n));
            } else {
                columns::<S, B, 1>(slab, job, (r, n_rows), (from, n));
            }
        }
    }
}

/// All vectors with the panels of a slab.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn columns<const S: usize, const B: usize, const P: usize>(
    slab: &[Group; GROUPS],
    job: &ProductView<'_>,
    rows: (usize, usize),
    groups: (usize, usize),
) {
    // Where 32 elements have two factors, registers hold the sums of four vectors and no more.
    let most = const { if Storage::ALL[S].is_halved() { 4 } else { 6 } };
    let mut c = 0;
    while c < job.n_cols {
        // Eight are two fours: two vectors alone would leave registers empty.
        let n_left = if job.n_cols - c == 8 { 4 } else { job.n_cols - c };
        c += match most.min(n_left) {
            6.. => tile::<S, B, P, 6>(slab, job, rows, groups, c),
            4.. => tile::<S, B, P, 4>(slab, job, rows, groups, c),
            2.. => tile::<S, B, P, 2>(slab, job, rows, groups, c),
            _ => tile::<S, B, P, 1>(slab, job, rows, groups, c),
        };
    }
}

/// Adds the products of `P` panels with `C` vectors, from `c` on; gives `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const S: usize, const B: usize, const P: usize, const C: usize>(
    slab: &[Group; GROUPS],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    c: usize,
) -> usize {
    let mut x = [Rounded::new(job.x.get(c), job.k).groups(from, n); C];
    for i in 1..C {
        x[i] = Rounded::new(job.x.get(c + i), job.k).groups(from, n);
    }
    let next = Next::new::<S, B>(job, r, (from, n), (c, C));
    let sums = products::<S, B, P, C>(slab, x, n, &next);
    add_panels(&job.out, &sums, (r, n_rows), c);
    C
}

/// Sums of products of `P` panels with `C` vectors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const S: usize, const B: usize, const P: usize, const C: usize>(
    slab: &[Group; GROUPS],
    x: [Groups<'_>; C],
    n: usize,
    next: &Next,
) -> [[V; C]; P] {
    let storage = const { Storage::ALL[S] };
    let mut sums = [[zero(); C]; P];
    for (g, group) in slab[..n].iter().enumerate() {
        next.ask::<S, B>(g);
        let mut columns = [x[0].at(g); C];
        for c in 1..C {
            columns[c] = x[c].at(g);
        }
        let six = sums.as_flattened_mut().as_mut_array().zip(columns.as_array());
        match six {
            None => add_products::<S, P, C>(&mut sums, group, &columns),
            Some((sums, x)) => sixes::add_products::<S>(sums, group, x),
        }
        if storage.has_offsets() {
            for c in 0..C {
                let sum = columns[c].single(Tail::Sum);
                // Those of larger blocks are taken off.
                let sum = splat(if storage.block().0 == 256 { -sum } else { sum });
                for p in 0..P {
                    sums[p][c] = fma(load(&group.panels[p].factors[1]), sum, sums[p][c]);
                }
            }
        }
    }
    sums
}

/// Adds the products of one group, but for what offsets add.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_products<const S: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    group: &Group,
    x: &[Column<'_>; C],
) {
    let storage = const { Storage::ALL[S] };
    let is_halved = storage.is_halved();
    let n_halves = if is_halved { 2 } else { 1 };
    let n_steps = 8 / n_halves;
    for half in 0..n_halves {
        let mut dots = [[_mm512_setzero_si512(); C]; P];
        if !storage.has_offsets() {
            for c in 0..C {
                let start = match (is_halved, half) {
                    (false, _) => Tail::Start,
                    (true, 0) => Tail::First,
                    (true, _) => Tail::Second,
                };
                for p in 0..P {
                    dots[p][c] = splat_word(x[c].tail[start as usize]);
                }
            }
        }
        for step in half * n_steps..(half + 1) * n_steps {
            for c in 0..C {
                let four = splat_word(x[c].numbers[step]);
                for p in 0..P {
                    let w = load_bytes(&group.panels[p].numbers[step]);
                    dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
                }
            }
        }
        for c in 0..C {
            let step = x[c].large();
            let is_other = is_halved && step / n_steps != half;
            let four = splat_word(x[c].tail[if is_other { Tail::Zero } else { Tail::Excess } as usize]);
            for p in 0..P {
                let w = load_bytes(&group.panels[p].numbers[step]);
                dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
            }
        }
        for c in 0..C {
            let scale = splat(x[c].single(Tail::Scale));
            for p in 0..P {
                let factors = _mm512_mul_ps(load(&group.panels[p].factors[half]), scale);
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), factors, sums[p][c]);
            }
        }
    }
}
