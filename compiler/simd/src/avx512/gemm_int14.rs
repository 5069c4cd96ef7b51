//! GEMM of half-precision or bfloat16 weights with 14-bit integers.
//!
//! In: rows, and activations in single precision. Out: activations in the layout `Int14` (`int14_rows.rs`), and their
//! products with rows, which are quantised in the same way, in tiles of 32 rows by up to six columns. `vpdpwssd`
//! multiplies and adds two pairs in each lane, twice the rate of single precision. Rows are packed once for all
//! columns, into panels with two elements of each of sixteen rows side by side.

use std::arch::x86_64::{
    __m512i, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps, _mm512_cmplt_ps_mask,
    _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtps_epi32, _mm512_div_ps, _mm512_dpwssd_epi32,
    _mm512_mask_blend_epi16, _mm512_mask_mov_ps, _mm512_max_epu32, _mm512_mul_ps, _mm512_reduce_max_epu32,
    _mm512_set1_epi32, _mm512_setzero_si512, _mm512_slli_epi32,
};

use bytemuck::{Pod, Zeroable};

use crate::avx512::amx::bf16_tiles::loaded;
use crate::avx512::unpack::pack_int8::{PANEL, add_panels};
use crate::avx512::vector::{
    V, broadcast_4_bytes, fma, lanes, load, load_bytes, splat, store_bytes, store_half, transpose, wide_bf16,
    wide_f16, zero,
};
use crate::layout::block_formats::Storage;
use crate::layout::int14_rows::{LEAST, MOST, STEP, Words, padded};
use crate::layout::sizes::int14_bytes;
use crate::prefetch::{distance_to_next, prefetch_line};
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, QuantiseView};

/// Steps of 32 elements that are quantised at a time.
const STEPS: usize = 16;

/// 32 elements of sixteen rows.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Panel {
    /// Two elements of each row.
    pairs: [[u8; 64]; STEP / 2],
    factors: [u8; 64],
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn quantise(job: &mut QuantiseView<'_>) {
    for (c, out) in job.out.chunks_exact_mut(int14_bytes(1, job.k)).enumerate() {
        let x = &job.x[c * job.x_col..][..4 * job.k];
        let (steps, scales) = out.split_at_mut(2 * STEP * job.k.div_ceil(STEP));
        let (scales, _) = scales.as_chunks_mut::<4>();
        for (idx, (step, scale)) in steps.chunks_exact_mut(2 * STEP).zip(scales).enumerate() {
            let numbers = loaded(&x[4 * STEP * idx..]);
            let most = _mm512_reduce_max_epu32(_mm512_max_epu32(size(numbers[0]), size(numbers[1])));
            let (scales, by) = scale_of(splat(f32::from_bits(most)));
            let [first, ..] = lanes(scales);
            *scale = first.to_le_bytes();
            for (x, out) in numbers.iter().zip(step.as_chunks_mut::<32>().0) {
                store_half(_mm512_cvtepi32_epi16(rounded(*x, by)), out);
            }
        }
    }
}

/// Absolute values as bits, which compare in the same order; NaN counts as the largest.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn size(x: V) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX))
}

/// The scales of groups with these largest numbers, and the inverse of each.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scale_of(most: V) -> (V, V) {
    let by = _mm512_div_ps(splat(MOST), most);
    let by = _mm512_mask_mov_ps(by, _mm512_cmplt_ps_mask(most, splat(LEAST)), zero());
    (_mm512_mul_ps(most, splat(1.0 / MOST)), by)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rounded(x: V, by: V) -> __m512i {
    _mm512_cvtps_epi32(_mm512_mul_ps(x, by))
}

/// All columns with all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn gemm<const S: usize>(job: &GemmView<'_>) {
    let n_steps = job.k.div_ceil(STEP);
    let mut buffer = StackBuffer::<[Panel; 2], STEPS>::new();
    let slab = buffer.open();
    for r in (0..job.n_rows).step_by(2 * PANEL) {
        let n_rows = (job.n_rows - r).min(2 * PANEL);
        for from in (0..n_steps).step_by(STEPS) {
            let n = (n_steps - from).min(STEPS);
            // Packing takes as long as reading: the next steps are prefetched while these are packed.
            let piece = (2 * STEP * from, 2 * STEP * n);
            let ahead = distance_to_next(piece, 2 * STEP * n_steps, 2 * PANEL * job.w.stride());
            for (step, panels) in slab[..n].iter_mut().enumerate() {
                for (p, panel) in panels.iter_mut().enumerate().take(n_rows.div_ceil(PANEL)) {
                    pack::<S>(panel, job, r + p * PANEL, from + step, ahead);
                }
            }
            let mut c = 0;
            while c < job.n_cols {
                c += match job.n_cols - c {
                    6.. => tile::<6>(&slab[..n], job, (r, n_rows), from, c),
                    4.. => tile::<4>(&slab[..n], job, (r, n_rows), from, c),
                    2.. => tile::<2>(&slab[..n], job, (r, n_rows), from, c),
                    _ => tile::<1>(&slab[..n], job, (r, n_rows), from, c),
                };
            }
        }
    }
}

/// Packs a step of sixteen rows, from `r` on; missing rows repeat the last. Prefetches `ahead` bytes ahead.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn pack<const S: usize>(panel: &mut Panel, job: &GemmView<'_>, r: usize, step: usize, ahead: usize) {
    let mut rows = [[_mm512_setzero_si512(); PANEL]; 2];
    for i in 0..PANEL {
        let row = &job.w.row((r + i).min(job.n_rows - 1)).bytes[2 * STEP * step..];
        prefetch_line(row, ahead);
        let mut buffer = [0; 2 * STEP];
        let (halves, _) = padded(row, &mut buffer).as_chunks();
        for (rows, half) in rows.iter_mut().zip(halves) {
            let wide = match const { Storage::ALL[S] } {
                Storage::F16 => wide_f16(half),
                _ => wide_bf16(half),
            };
            rows[i] = _mm512_castps_si512(wide);
        }
    }
    let columns = [transpose(&rows[0]), transpose(&rows[1])];
    let columns = columns.as_flattened();
    let mut most = _mm512_setzero_si512();
    for column in columns {
        most = _mm512_max_epu32(most, size(_mm512_castsi512_ps(*column)));
    }
    let (factors, by) = scale_of(_mm512_castsi512_ps(most));
    store_bytes(_mm512_castps_si512(factors), &mut panel.factors);
    for (two, pairs) in columns.as_chunks::<2>().0.iter().zip(&mut panel.pairs) {
        let first = rounded(_mm512_castsi512_ps(two[0]), by);
        let second = _mm512_slli_epi32::<16>(rounded(_mm512_castsi512_ps(two[1]), by));
        store_bytes(_mm512_mask_blend_epi16(0xaaaa_aaaa, first, second), pairs);
    }
}

/// Adds the products of two panels with `C` columns, from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const C: usize>(
    slab: &[[Panel; 2]],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    from: usize,
    c: usize,
) -> usize {
    let steps = (from, slab.len());
    let mut x = [Words::new(job.x.get(c), job.k, steps); C];
    for i in 1..C {
        x[i] = Words::new(job.x.get(c + i), job.k, steps);
    }
    let sums = products(slab, x);
    add_panels(&job.out, &sums, (r, n_rows), c);
    C
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const C: usize>(slab: &[[Panel; 2]], x: [Words<'_>; C]) -> [[V; C]; 2] {
    let mut sums = [[zero(); C]; 2];
    for (step, panels) in slab.iter().enumerate() {
        let mut dots = [[_mm512_setzero_si512(); C]; 2];
        for pair in 0..STEP / 2 {
            for c in 0..C {
                let two = broadcast_4_bytes(x[c].steps[step][pair]);
                for p in 0..2 {
                    dots[p][c] = _mm512_dpwssd_epi32(dots[p][c], load_bytes(&panels[p].pairs[pair]), two);
                }
            }
        }
        for c in 0..C {
            let scale = splat(f32::from_le_bytes(x[c].scales[step]));
            for p in 0..2 {
                let factors = _mm512_mul_ps(load(&panels[p].factors), scale);
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), factors, sums[p][c]);
            }
        }
    }
    sums
}
