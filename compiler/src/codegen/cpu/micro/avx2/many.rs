//! Many rounded vectors with rows of quantised weights.
//!
//! In: rows and rounded vectors. Out: their products, in tiles of up to sixteen rows and a few vectors.
//! Rows are unpacked once for all vectors, so that a vector register holds two elements of each of eight rows
//! (`pack.rs`); two elements of a vector, in every lane, are then multiplied with all of them. Every 32 elements sums
//! are scaled.

use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32,
    _mm256_setzero_si256,
};

use crate::codegen::cpu::micro::avx2::fours::has_offsets;
use crate::codegen::cpu::micro::avx2::pack::{GROUPS, Group, PANEL, pack};
use crate::codegen::cpu::micro::avx2::vector::{fma, lanes, load, load_bytes, splat, zero};
use crate::codegen::cpu::micro::room::Room;
use crate::codegen::cpu::micro::rounding::Rounded;
use crate::codegen::cpu::micro::unpack::Storage;
use crate::codegen::cpu::micro::view::ProductView;

/// All vectors with all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn all<const S: usize>(job: &ProductView<'_>) {
    let n_groups = job.k / 32;
    let mut room = Room::<Group, GROUPS>::new();
    let slab = room.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_groups).step_by(GROUPS) {
            let n = (n_groups - from).min(GROUPS);
            pack::<S>(slab, job, (r, n_rows), (from, n));
            if n_rows > PANEL {
                columns::<S, 2>(slab, job, (r, n_rows), (from, n));
            } else {
                columns::<S, 1>(slab, job, (r, n_rows), (from, n));
            }
        }
    }
}

/// All vectors with the panels of a slab.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns<const S: usize, const P: usize>(
    slab: &[Group; GROUPS],
    job: &ProductView<'_>,
    rows: (usize, usize),
    groups: (usize, usize),
) {
    let mut c = 0;
    while c < job.n_cols {
        c += match job.n_cols - c {
            4.. => tile::<S, P, 4>(slab, job, rows, groups, c),
            2.. => tile::<S, P, 2>(slab, job, rows, groups, c),
            _ => tile::<S, P, 1>(slab, job, rows, groups, c),
        };
    }
}

/// Adds the products of `P` panels with `C` vectors, from `c` on; gives `C`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const S: usize, const P: usize, const C: usize>(
    slab: &[Group; GROUPS],
    job: &ProductView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
    c: usize,
) -> usize {
    let mut x = [Rounded::new(job.x.get(c), job.k).wides(from, n); C];
    for i in 1..C {
        x[i] = Rounded::new(job.x.get(c + i), job.k).wides(from, n);
    }
    let mut sums = [[zero(); C]; P];
    for (g, group) in slab[..n].iter().enumerate() {
        let mut dots = [[_mm256_setzero_si256(); C]; P];
        for step in 0..16 {
            for i in 0..C {
                let two = _mm256_set1_epi32(i32::from_le_bytes(x[i].numbers[g][step]));
                for p in 0..P {
                    let products = _mm256_madd_epi16(load_bytes(&group.panels[p].numbers[step]), two);
                    dots[p][i] = _mm256_add_epi32(dots[p][i], products);
                }
            }
        }
        for i in 0..C {
            let (scale, sum) = (f32::from_le_bytes(x[i].scales[g]), f32::from_le_bytes(x[i].sums[g]));
            for p in 0..P {
                let panel = &group.panels[p];
                let factors = _mm256_mul_ps(load(&panel.factors), splat(scale));
                sums[p][i] = fma(_mm256_cvtepi32_ps(dots[p][i]), factors, sums[p][i]);
                if has_offsets(const { Storage::ALL[S] }) {
                    sums[p][i] = fma(load(&panel.offsets), splat(sum), sums[p][i]);
                }
            }
        }
    }
    for p in 0..P {
        let n = (n_rows - p * PANEL).min(PANEL);
        for i in 0..C {
            job.out.add_down(r + p * PANEL, c + i, &lanes(sums[p][i])[..n]);
        }
    }
    C
}
