//! GEMM of half-precision or bfloat16 weights with 14-bit integers.
//!
//! In and out: as `generic/int14.rs` says. Tiles have sixteen rows and up to four columns, as `tile_16x4.rs` multiplies
//! them: one instruction multiplies and adds pairs, another one accumulates.

use std::arch::x86_64::{
    __m256i as I, _CMP_LT_OQ, _mm256_and_si256, _mm256_blend_epi16, _mm256_blendv_ps,
    _mm256_castps_si256 as bits, _mm256_castsi256_ps as numbers, _mm256_cmp_ps, _mm256_cvtps_epi32,
    _mm256_cvtss_f32 as first_lane, _mm256_div_ps, _mm256_max_epu32 as larger, _mm256_mul_ps as scaled,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_setzero_si256 as none,
    _mm256_slli_epi32,
};

use bytemuck::cast_ref;

use crate::avx2::pack_panels::{Group, PANEL, Panel};
use crate::avx2::tile_16x4::{Column, Sums, add_products};
use crate::avx2::vector::{N, V, lanes, load, splat, store_bytes, transposed, wide_bf16, wide_f16, zero};
use crate::generic::int14::int14_forms;
use crate::layout::block_formats::Storage;
use crate::layout::int14_rows::{LEAST, MOST, STEP, Words, padded};
use crate::layout::sizes::int14_bytes;
use crate::prefetch::{distance_to_next, prefetch_line};
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, QuantiseView};

int14_forms! { #[target_feature(enable = "avx2,fma,f16c")] }

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn size(x: V) -> I {
    _mm256_and_si256(bits(x), _mm256_set1_epi32(i32::MAX))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn largest(sizes: I) -> u32 {
    lanes(numbers(sizes)).map(f32::to_bits).into_iter().fold(0, u32::max)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn inverse(most: V) -> V {
    let by = _mm256_div_ps(splat(MOST), most);
    _mm256_blendv_ps(by, zero(), _mm256_cmp_ps::<_CMP_LT_OQ>(most, splat(LEAST)))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn rounded(x: V, by: V) -> I {
    _mm256_cvtps_epi32(scaled(x, by))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn put_words(x: &[[u8; 32]; 2], by: V, out: &mut [u8; 32]) {
    let mut halves = [none(); 2];
    for (half, x) in halves.iter_mut().zip(x) {
        *half = _mm256_and_si256(rounded(load(x), by), _mm256_set1_epi32(0xffff));
    }
    let words = _mm256_packus_epi32(halves[0], halves[1]);
    store_bytes(_mm256_permute4x64_epi64::<0b11_01_10_00>(words), out);
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn paired(first: I, second: I) -> I {
    _mm256_blend_epi16::<0b1010_1010>(first, _mm256_slli_epi32::<16>(second))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn columns(slab: &[Group], job: &GemmView<'_>, rows: (usize, usize), from: usize) {
    for c in (0..job.n_cols).step_by(4) {
        match job.n_cols - c {
            4.. => tile::<4>(slab, job, rows, from, c),
            3 => tile::<3>(slab, job, rows, from, c),
            2 => tile::<2>(slab, job, rows, from, c),
            _ => tile::<1>(slab, job, rows, from, c),
        }
    }
}

/// Adds the products of the panels of a slab with `C` columns, from `c` on. A second panel may have any content.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<const C: usize>(slab: &[Group], job: &GemmView<'_>, rows: (usize, usize), from: usize, c: usize) {
    let x = Words::some::<C>(&job.x, c, job.k, (from, slab.len()));
    let mut sums = Sums::default();
    for (step, group) in slab.iter().enumerate() {
        let mut columns = [column(&x[0], step); 4];
        for i in 1..C {
            columns[i] = column(&x[i], step);
        }
        // The next columns.
        for column in columns {
            prefetch_line(column.numbers, 4 * job.x.step());
        }
        add_products::<C, 16, false, _>(&mut sums, group, columns);
    }
    sums.add_to::<C>(&job.out, rows, c);
}

/// A step of a column, and its scale.
#[inline(always)]
fn column<'a>(x: &Words<'a>, step: usize) -> Column<'a, 4> {
    Column { numbers: cast_ref(&x.steps[step]), tail: &x.scales[step] }
}
