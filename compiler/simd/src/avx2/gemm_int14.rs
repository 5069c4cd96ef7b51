//! GEMM of half-precision or bfloat16 weights with 14-bit integers.
//!
//! In: rows, and activations in single precision. Out: activations in the layout `Int14` (`int14_rows.rs`), and their
//! products with rows, which are quantised in the same way, in tiles of sixteen rows by up to four columns. Rows are
//! packed once for all columns, into panels with two elements of each of eight rows side by side, as `tile_16x4.rs`
//! multiplies them: one instruction multiplies and adds pairs, another one accumulates.

use std::arch::x86_64::{
    __m256i, _CMP_LT_OQ, _mm256_and_si256, _mm256_blend_epi16, _mm256_blendv_ps, _mm256_castps_si256,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtps_epi32, _mm256_div_ps, _mm256_max_epu32, _mm256_mul_ps,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_setzero_si256,
    _mm256_slli_epi32,
};

use bytemuck::cast_ref;

use crate::avx2::pack_panels::{Group, PANEL, Panel};
use crate::avx2::tile_16x4::{Column, Sums, add_products};
use crate::avx2::vector::{V, lanes, load, splat, store_bytes, transposed, wide_bf16, wide_f16, zero};
use crate::layout::block_formats::Storage;
use crate::layout::int14_rows::{LEAST, MOST, STEP, Words, padded};
use crate::layout::sizes::int14_bytes;
use crate::prefetch::{distance_to_next, prefetch_line};
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, QuantiseView};

/// Steps of rows that are quantised at a time.
const STEPS: usize = 16;

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantise(job: &mut QuantiseView<'_>) {
    for (c, out) in job.out.chunks_exact_mut(int14_bytes(1, job.k)).enumerate() {
        let x = &job.x[c * job.x_col..][..4 * job.k];
        let (steps, scales) = out.split_at_mut(2 * STEP * job.k.div_ceil(STEP));
        let (scales, _) = scales.as_chunks_mut::<4>();
        for (idx, (step, scale)) in steps.chunks_exact_mut(2 * STEP).zip(scales).enumerate() {
            let mut buffer = [0; 4 * STEP];
            let (numbers, _) = padded(&x[4 * STEP * idx..], &mut buffer).as_chunks();
            let mut sizes = _mm256_setzero_si256();
            for numbers in numbers {
                sizes = _mm256_max_epu32(sizes, size(load(numbers)));
            }
            let most = lanes(_mm256_castsi256_ps(sizes)).map(f32::to_bits).into_iter().fold(0, u32::max);
            let (scales, by) = scale_of(splat(f32::from_bits(most)));
            let [first, ..] = lanes(scales);
            *scale = first.to_le_bytes();
            for (two, out) in numbers.as_chunks::<2>().0.iter().zip(step.as_chunks_mut::<32>().0) {
                let words =
                    _mm256_packus_epi32(low(rounded(load(&two[0]), by)), low(rounded(load(&two[1]), by)));
                store_bytes(_mm256_permute4x64_epi64::<0b11_01_10_00>(words), out);
            }
        }
    }
}

/// Absolute values as bits, which compare in the same order; NaN counts as the largest.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn size(x: V) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX))
}

/// The scales of groups with these largest numbers, and the inverse of each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scale_of(most: V) -> (V, V) {
    let by = _mm256_div_ps(splat(MOST), most);
    let by = _mm256_blendv_ps(by, zero(), _mm256_cmp_ps::<_CMP_LT_OQ>(most, splat(LEAST)));
    (_mm256_mul_ps(most, splat(1.0 / MOST)), by)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rounded(x: V, by: V) -> __m256i {
    _mm256_cvtps_epi32(_mm256_mul_ps(x, by))
}

/// The lower 16 bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn low(x: __m256i) -> __m256i {
    _mm256_and_si256(x, _mm256_set1_epi32(0xffff))
}

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let mut buffer = StackBuffer::<Group, STEPS>::new();
    let slab = buffer.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_steps).step_by(STEPS) {
            let n = (n_steps - from).min(STEPS);
            // Packing takes as long as reading: the next steps are prefetched while these are packed.
            let piece = (2 * STEP * from, 2 * STEP * n);
            let ahead = distance_to_next(piece, 2 * STEP * n_steps, 2 * PANEL * job.w.stride());
            for (step, group) in slab[..n].iter_mut().enumerate() {
                for (p, panel) in group.panels.iter_mut().enumerate().take(n_rows.div_ceil(PANEL)) {
                    pack::<S>(panel, job, r + p * PANEL, from + step, ahead);
                }
            }
            for c in (0..job.n_cols).step_by(4) {
                match job.n_cols - c {
                    4.. => tile::<4>(&slab[..n], job, (r, n_rows), from, c),
                    3 => tile::<3>(&slab[..n], job, (r, n_rows), from, c),
                    2 => tile::<2>(&slab[..n], job, (r, n_rows), from, c),
                    _ => tile::<1>(&slab[..n], job, (r, n_rows), from, c),
                }
            }
        }
    }
}

/// Packs a step of eight rows, from `r` on; missing rows repeat the last. Prefetches `ahead` bytes ahead.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pack<const S: usize>(panel: &mut Panel, job: &GemmView<'_>, r: usize, step: usize, ahead: usize) {
    let mut rows = [[_mm256_setzero_si256(); PANEL]; 4];
    for i in 0..PANEL {
        let row = &job.w.row((r + i).min(job.n_rows - 1)).bytes[2 * STEP * step..];
        prefetch_line(row, ahead);
        let mut buffer = [0; 2 * STEP];
        let (eights, _) = padded(row, &mut buffer).as_chunks();
        for (rows, eight) in rows.iter_mut().zip(eights) {
            let wide = match const { Storage::ALL[S] } {
                Storage::F16 => wide_f16(eight),
                _ => wide_bf16(eight),
            };
            rows[i] = _mm256_castps_si256(wide);
        }
    }
    let mut most = _mm256_setzero_si256();
    for rows in &mut rows {
        *rows = transposed(rows);
        for column in rows {
            most = _mm256_max_epu32(most, size(_mm256_castsi256_ps(*column)));
        }
    }
    let (factors, by) = scale_of(_mm256_castsi256_ps(most));
    store_bytes(_mm256_castps_si256(factors), &mut panel.factors);
    for (two, pairs) in rows.as_flattened().as_chunks::<2>().0.iter().zip(&mut panel.numbers) {
        let first = rounded(_mm256_castsi256_ps(two[0]), by);
        let second = _mm256_slli_epi32::<16>(rounded(_mm256_castsi256_ps(two[1]), by));
        store_bytes(_mm256_blend_epi16::<0b1010_1010>(first, second), pairs);
    }
}

/// Adds the products of the panels of a slab with `C` columns, from `c` on. A second panel may have any content.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const C: usize>(
    slab: &[Group],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    from: usize,
    c: usize,
) {
    let steps = (from, slab.len());
    let mut x = [Words::new(job.x.get(c), job.k, steps); 4];
    for i in 1..C {
        x[i] = Words::new(job.x.get(c + i), job.k, steps);
    }
    let mut sums = Sums::default();
    for (step, group) in slab.iter().enumerate() {
        let mut columns = [column(&x[0], step); 4];
        for i in 1..4 {
            columns[i] = column(&x[i], step);
        }
        // The next columns.
        for column in columns {
            prefetch_line(column.numbers, 4 * job.x.step());
        }
        add_products::<C, 16, false, _>(&mut sums, group, columns);
    }
    sums.add_to::<C>(&job.out, (r, n_rows), c);
}

/// A step of a column, and its scale.
#[inline(always)]
fn column<'a>(x: &Words<'a>, step: usize) -> Column<'a, 4> {
    Column { numbers: cast_ref(&x.steps[step]), tail: &x.scales[step] }
}
