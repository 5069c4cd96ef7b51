//! Quantised GEMM for many columns, with packed weights.
//!
//! In: rows, and activations in the layout `Int8Rows`. Out: their products, in tiles of up to 32 rows by six columns.
//! Rows are packed once for all columns (`pack_int8.rs`): a register holds four elements of each of sixteen rows, and
//! four elements of a column, broadcast, are multiplied with it. The four elements with an excess are multiplied twice.
//! Weights have the zero point 128; accumulators start from the value that cancels it. Sums are scaled every 32
//! elements (16 for `Q6_K`), by the activation's scale as well, except with K-quants, where 256 activations share one.
//! `tile_32x6.rs` is the inner loop for 32 rows and six columns, which is nearly all of the work.

use std::arch::x86_64::{
    _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_dpbusd_epi32, _mm512_dpwssd_epi32, _mm512_fnmadd_ps,
    _mm512_mul_ps, _mm512_set1_epi32, _mm512_setzero_si512, _mm512_srli_epi32, _mm512_srlv_epi32,
};

use crate::avx512::tile_32x6;
use crate::avx512::unpack::pack_int8::{GROUPS, Group, Next, PANEL, add_panels, pack};
use crate::avx512::vector::{V, broadcast_4_bytes, fma, load, load_bytes, splat, zero};
use crate::layout::block_formats::Storage;
use crate::layout::int8_rows::{Column, Groups, Int8Row, Tail};
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// Groups of a super-block.
const GROUPS_OF_SUPER_BLOCK: usize = Storage::Q4K.unit_groups();

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemm<const S: usize, const B: usize>(job: &GemmView<'_>) {
    let n_groups = job.k / 32;
    let mut buffer = StackBuffer::<Group, GROUPS>::new();
    let slab = buffer.open();
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

/// All columns with the panels of a slab.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn columns<const S: usize, const B: usize, const P: usize>(
    slab: &[Group; GROUPS],
    job: &GemmView<'_>,
    rows: (usize, usize),
    groups: (usize, usize),
) {
    // Where 32 elements have two scales, registers hold the accumulators of four columns and no more.
    let most = const { if Storage::ALL[S].has_two_scales() { 4 } else { 6 } };
    let mut c = 0;
    while c < job.n_cols {
        // Eight are two fours: two columns alone would leave registers unused.
        let n_left = if job.n_cols - c == 8 { 4 } else { job.n_cols - c };
        c += match most.min(n_left) {
            6.. => tile::<S, B, P, 6>(slab, job, rows, groups, c),
            4.. => tile::<S, B, P, 4>(slab, job, rows, groups, c),
            2.. => tile::<S, B, P, 2>(slab, job, rows, groups, c),
            _ => tile::<S, B, P, 1>(slab, job, rows, groups, c),
        };
    }
}

/// Adds the products of `P` panels with `C` columns, from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const S: usize, const B: usize, const P: usize, const C: usize>(
    slab: &[Group; GROUPS],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    c: usize,
) -> usize {
    let mut x = [Int8Row::new(job.x.get(c), job.k).groups(from, n); C];
    for i in 1..C {
        x[i] = Int8Row::new(job.x.get(c + i), job.k).groups(from, n);
    }
    let next = Next::new::<S, B>(job, r, (from, n), (c, C));
    let sums = products::<S, B, P, C>(slab, x, n, &next);
    add_panels(&job.out, &sums, (r, n_rows), c);
    C
}

/// The products of `P` panels with `C` columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const S: usize, const B: usize, const P: usize, const C: usize>(
    slab: &[Group; GROUPS],
    x: [Groups<'_>; C],
    n: usize,
    next: &Next,
) -> [[V; C]; P] {
    let mut sums = [[zero(); C]; P];
    if const { Storage::ALL[S].is_super_block() } {
        for (at, groups) in slab[..n].as_chunks().0.iter().enumerate() {
            add_large::<S, B, P, C>(&mut sums, groups, (&x, at), next);
        }
        return sums;
    }
    for (g, group) in slab[..n].iter().enumerate() {
        next.prefetch::<S, B>(g);
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

/// Adds the products of the `at`-th super-block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_large<const S: usize, const B: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    groups: &[Group; GROUPS_OF_SUPER_BLOCK],
    (x, at): (&[Groups<'_>; C], usize),
    next: &Next,
) {
    let mut own = [[zero(); C]; P];
    for (i, group) in groups.iter().enumerate() {
        let g = GROUPS_OF_SUPER_BLOCK * at + i;
        next.prefetch::<S, B>(g);
        if const { Storage::ALL[S].has_two_offsets() } {
            add_halves::<P, C>(&mut own, (group, groups), &columns_of(x, g));
        } else {
            add_products::<S, P, C>(&mut own, group, &columns_of(x, g));
        }
    }
    if const { Storage::ALL[S].has_offsets() && !Storage::ALL[S].has_two_offsets() } {
        let mut dots = [[_mm512_setzero_si512(); C]; P];
        for i in 0..GROUPS_OF_SUPER_BLOCK / 2 {
            for c in 0..C {
                let two = broadcast_4_bytes(x[c].two_sums(GROUPS_OF_SUPER_BLOCK / 2 * at + i));
                for p in 0..P {
                    let steps = load_bytes(&groups[i].panels[p].factors[1]);
                    dots[p][c] = _mm512_dpwssd_epi32(dots[p][c], steps, two);
                }
            }
        }
        for p in 0..P {
            let step = load(&groups[GROUPS_OF_SUPER_BLOCK / 2].panels[p].factors[1]);
            for c in 0..C {
                own[p][c] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(dots[p][c]), step, own[p][c]);
            }
        }
    }
    for c in 0..C {
        let scale = splat(x[c].at(GROUPS_OF_SUPER_BLOCK * at).single(Tail::Scale));
        for p in 0..P {
            sums[p][c] = fma(own[p][c], scale, sums[p][c]);
        }
    }
}

/// Adds the products of one group whose halves have a scale and an offset each, as bytes; `d` and `dmin` are in the
/// first groups of its super-block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_halves<const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    (group, groups): (&Group, &[Group; GROUPS_OF_SUPER_BLOCK]),
    x: &[Column<'_>; C],
) {
    for half in 0..2 {
        let start = [Tail::First, Tail::Second][half];
        let mut dots = [[_mm512_setzero_si512(); C]; P];
        for c in 0..C {
            for p in 0..P {
                dots[p][c] = broadcast_4_bytes(x[c].tail[start as usize]);
            }
        }
        for step in 4 * half..4 * half + 4 {
            for c in 0..C {
                let four = broadcast_4_bytes(x[c].numbers[step]);
                for p in 0..P {
                    let w = load_bytes(&group.panels[p].numbers[step]);
                    dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
                }
            }
        }
        for c in 0..C {
            let step = x[c].large();
            let is_own = step / 4 == half;
            let four = broadcast_4_bytes(x[c].tail[if is_own { Tail::Excess } else { Tail::Zero } as usize]);
            for p in 0..P {
                let w = load_bytes(&group.panels[p].numbers[step]);
                dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
            }
        }
        for p in 0..P {
            let bytes = _mm512_srlv_epi32(
                load_bytes(&group.panels[p].factors[0]),
                _mm512_set1_epi32(16 * half as i32),
            );
            let byte = |bytes| _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(255)));
            let scale = _mm512_mul_ps(byte(bytes), load(&groups[0].panels[p].factors[1]));
            let offset = byte(_mm512_srli_epi32::<8>(bytes));
            let offset = _mm512_mul_ps(offset, load(&groups[1].panels[p].factors[1]));
            for c in 0..C {
                // -128 times the sum that the offset multiplies.
                let sum = i32::from_le_bytes(x[c].tail[start as usize]) as f32 / 128.0;
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), scale, sums[p][c]);
                sums[p][c] = fma(splat(sum), offset, sums[p][c]);
            }
        }
    }
}

/// The `g`-th group of each column.
#[inline(always)]
fn columns_of<'a, const C: usize>(x: &[Groups<'a>; C], g: usize) -> [Column<'a>; C] {
    let mut columns = [x[0].at(g); C];
    for c in 1..C {
        columns[c] = x[c].at(g);
    }
    columns
}

/// Adds the products of one group without offsets; those of a super-block are not yet scaled by the activations' scale.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_products<const S: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    group: &Group,
    x: &[Column<'_>; C],
) {
    match sums.as_flattened_mut().as_mut_array().zip(x.as_array()) {
        None => add_few::<S, P, C>(sums, group, x),
        Some((sums, x)) => tile_32x6::add_products::<S>(sums, group, x),
    }
}

/// The same for fewer than two panels or six columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn add_few<const S: usize, const P: usize, const C: usize>(
    sums: &mut [[V; C]; P],
    group: &Group,
    x: &[Column<'_>; C],
) {
    let storage = const { Storage::ALL[S] };
    let has_two_scales = storage.has_two_scales();
    let is_super_block = storage.is_super_block();
    let n_halves = if has_two_scales { 2 } else { 1 };
    let n_steps = 8 / n_halves;
    for half in 0..n_halves {
        let mut dots = [[_mm512_setzero_si512(); C]; P];
        if !storage.has_offsets() {
            for c in 0..C {
                let start = match (has_two_scales, half) {
                    (false, _) => Tail::Start,
                    (true, 0) => Tail::First,
                    (true, _) => Tail::Second,
                };
                for p in 0..P {
                    dots[p][c] = broadcast_4_bytes(x[c].tail[start as usize]);
                }
            }
        }
        for step in half * n_steps..(half + 1) * n_steps {
            for c in 0..C {
                let four = broadcast_4_bytes(x[c].numbers[step]);
                for p in 0..P {
                    let w = load_bytes(&group.panels[p].numbers[step]);
                    dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
                }
            }
        }
        for c in 0..C {
            let step = x[c].large();
            let is_other = has_two_scales && step / n_steps != half;
            let four =
                broadcast_4_bytes(x[c].tail[if is_other { Tail::Zero } else { Tail::Excess } as usize]);
            for p in 0..P {
                let w = load_bytes(&group.panels[p].numbers[step]);
                dots[p][c] = _mm512_dpbusd_epi32(dots[p][c], w, four);
            }
        }
        for c in 0..C {
            let scale = splat(x[c].single(Tail::Scale));
            for p in 0..P {
                let factors = load(&group.panels[p].factors[half]);
                let factors = if is_super_block { factors } else { _mm512_mul_ps(factors, scale) };
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), factors, sums[p][c]);
            }
        }
    }
}
