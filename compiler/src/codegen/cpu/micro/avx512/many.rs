//! Many vectors of 8-bit numbers with rows of quantised weights.
//!
//! In: rows and rounded vectors. Out: their products, in tiles of up to 32 rows and a few vectors.
//! Rows are unpacked once for all vectors, so that a vector register holds four elements of each of sixteen rows
//! (`pack.rs`); four elements of a vector, in every lane, are then multiplied with all of them; the four that are
//! large, twice. Weights are moved up by 128, and sums start from what takes this off again. Every 32 elements, or 16,
//! sums are scaled, by the vectors' scales as well unless blocks are large: then 256 elements of a vector share one.
//! `sixes.rs` does the same for two panels and six vectors, as nearly all are.

use std::arch::x86_64::{
    _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fnmadd_ps, _mm512_mul_ps,
    _mm512_setzero_si512,
};

use crate::codegen::cpu::micro::avx512::pack::{GROUPS, Group, Next, PANEL, add_panels, pack};
use crate::codegen::cpu::micro::avx512::sixes;
use crate::codegen::cpu::micro::avx512::vector::{V, fma, load, load_bytes, splat, splat_word, zero};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::rounding::{Column, Groups, Rounded, Tail};
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::ProductView;

/// Groups of a large block.
const LARGE: usize = Storage::Q4K.unit_groups();

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
            pack::<S, B, true>(slab, job, (r, n_rows), (from, n), 1);
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
    let mut sums = [[zero(); C]; P];
    if const { Storage::ALL[S].is_large() } {
        for (at, groups) in slab[..n].as_chunks().0.iter().enumerate() {
            add_large::<S, B, P, C>(&mut sums, groups, (&x, at), next);
        }
        return sums;
    }
    for (g, group) in slab[..n].iter().enumerate() {
        next.ask::<S, B>(g);
        let columns = columns_of(&x, g);
        add_products::<S, P, C>(&mut sums, group, &columns);
        if const { Storage::ALL[S].has_offsets() } {
            for c in 0..C {
                let sum = splat(columns[c].single(Tail::Sum));
                for p in 0..P {
                    sums[p][c] = fma(load(&group.panels[p].factors[1]), sum, sums[p][c]);
                }
            }
        }
    }
    sums
}

/// Adds the products of large blocks, of which `at` vectors have seen so many before.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_large<const S: usize, const B: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    groups: &[Group; LARGE],
    (x, at): (&[Groups<'_>; C], usize),
    next: &Next,
) {
    let mut own = [[zero(); C]; P];
    for (i, group) in groups.iter().enumerate() {
        let g = LARGE * at + i;
        next.ask::<S, B>(g);
        add_products::<S, P, C>(&mut own, group, &columns_of(x, g));
    }
    if const { Storage::ALL[S].has_offsets() } {
        let mut dots = [[_mm512_setzero_si512(); C]; P];
        for i in 0..LARGE / 2 {
            for c in 0..C {
                let two = splat_word(x[c].two_sums(LARGE / 2 * at + i));
                for p in 0..P {
                    let steps = load_bytes(&groups[i].panels[p].factors[1]);
                    dots[p][c] = _mm512_dpwssd_epi32(dots[p][c], steps, two);
                }
            }
        }
        for p in 0..P {
            let step = load(&groups[LARGE / 2].panels[p].factors[1]);
            for c in 0..C {
                own[p][c] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(dots[p][c]), step, own[p][c]);
            }
        }
    }
    for c in 0..C {
        let scale = splat(x[c].at(LARGE * at).single(Tail::Scale));
        for p in 0..P {
            sums[p][c] = fma(own[p][c], scale, sums[p][c]);
        }
    }
}

/// The `g`-th group of each vector.
#[inline(always)]
fn columns_of<'a, const C: usize>(x: &[Groups<'a>; C], g: usize) -> [Column<'a>; C] {
    let mut columns = [x[0].at(g); C];
    for c in 1..C {
        columns[c] = x[c].at(g);
    }
    columns
}

/// Adds the products of one group, but for what offsets add; those of a large block are not scaled by its vectors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_products<const S: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    group: &Group,
    x: &[Column<'_>; C],
) {
    match sums.as_flattened_mut().as_mut_array().zip(x.as_array()) {
        None => add_few::<S, P, C>(sums, group, x),
        Some((sums, x)) => sixes::add_products::<S>(sums, group, x),
    }
}

/// The same of fewer than two panels or six vectors.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_few<const S: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    group: &Group,
    x: &[Column<'_>; C],
) {
    let storage = const { Storage::ALL[S] };
    let is_halved = storage.is_halved();
    let is_large = storage.is_large();
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
                let factors = load(&group.panels[p].factors[half]);
                let factors = if is_large { factors } else { _mm512_mul_ps(factors, scale) };
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), factors, sums[p][c]);
            }
        }
    }
}
