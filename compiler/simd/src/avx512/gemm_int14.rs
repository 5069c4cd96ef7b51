//! GEMM of half-precision or bfloat16 weights with 14-bit integers.
//!
//! In and out: as `generic/int14.rs` says. Tiles have 32 rows and up to six columns: `vpdpwssd` multiplies and adds two
//! pairs in each lane, twice the rate of single precision.

use std::arch::x86_64::{
    __m512i as I, _mm512_and_si512, _mm512_castps_si512 as bits, _mm512_castsi512_ps as numbers,
    _mm512_cmplt_ps_mask, _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtps_epi32,
    _mm512_cvtss_f32 as first_lane, _mm512_div_ps, _mm512_dpwssd_epi32, _mm512_mask_blend_epi16,
    _mm512_mask_mov_ps, _mm512_max_epu32 as larger, _mm512_mul_ps as scaled,
    _mm512_reduce_max_epu32 as largest, _mm512_set1_epi32, _mm512_setzero_si512 as none, _mm512_slli_epi32,
};

use bytemuck::{Pod, Zeroable};

use crate::avx512::unpack::pack_int8::{PANEL, add_panels};
use crate::avx512::vector::{
    N, V, broadcast_4_bytes, fma, load, load_bytes, splat, store_bytes, store_half, transpose as transposed,
    wide_bf16, wide_f16, zero,
};
use crate::generic::int14::int14_forms;
use crate::layout::block_formats::Storage;
use crate::layout::int14_rows::{LEAST, MOST, STEP, Words, padded};
use crate::layout::sizes::int14_bytes;
use crate::prefetch::{distance_to_next, prefetch_line};
use crate::stack_buffer::StackBuffer;
use crate::view::{GemmView, QuantiseView};

/// 32 elements of each row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C)]
struct Group {
    panels: [Panel; 2],
}

/// 32 elements of sixteen rows.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Panel {
    /// Two elements of each row.
    numbers: [[u8; 64]; STEP / 2],
    factors: [u8; 64],
}

int14_forms! { #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")] }

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn size(x: V) -> I {
    _mm512_and_si512(bits(x), _mm512_set1_epi32(i32::MAX))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn inverse(most: V) -> V {
    let by = _mm512_div_ps(splat(MOST), most);
    _mm512_mask_mov_ps(by, _mm512_cmplt_ps_mask(most, splat(LEAST)), zero())
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn rounded(x: V, by: V) -> I {
    _mm512_cvtps_epi32(scaled(x, by))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put_words([x]: &[[u8; 64]; 1], by: V, out: &mut [u8; 32]) {
    store_half(_mm512_cvtepi32_epi16(rounded(load(x), by)), out);
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn paired(first: I, second: I) -> I {
    _mm512_mask_blend_epi16(0xaaaa_aaaa, first, _mm512_slli_epi32::<16>(second))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn columns(slab: &[Group], job: &GemmView<'_>, rows: (usize, usize), from: usize) {
    let mut c = 0;
    while c < job.n_cols {
        c += match job.n_cols - c {
            6.. => tile::<6>(slab, job, rows, from, c),
            4.. => tile::<4>(slab, job, rows, from, c),
            2.. => tile::<2>(slab, job, rows, from, c),
            _ => tile::<1>(slab, job, rows, from, c),
        };
    }
}

/// Adds the products of two panels with `C` columns, from `c` on; returns `C`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn tile<const C: usize>(
    slab: &[Group],
    job: &GemmView<'_>,
    rows: (usize, usize),
    from: usize,
    c: usize,
) -> usize {
    let sums = products(slab, Words::some::<C>(&job.x, c, job.k, (from, slab.len())));
    add_panels(&job.out, &sums, rows, c);
    C
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<const C: usize>(slab: &[Group], x: [Words<'_>; C]) -> [[V; C]; 2] {
    let mut sums = [[zero(); C]; 2];
    for (step, Group { panels }) in slab.iter().enumerate() {
        let mut dots = [[none(); C]; 2];
        for pair in 0..STEP / 2 {
            for c in 0..C {
                let two = broadcast_4_bytes(x[c].steps[step][pair]);
                for p in 0..2 {
                    dots[p][c] = _mm512_dpwssd_epi32(dots[p][c], load_bytes(&panels[p].numbers[pair]), two);
                }
            }
        }
        for c in 0..C {
            let scale = splat(f32::from_le_bytes(x[c].scales[step]));
            for p in 0..2 {
                let factors = scaled(load(&panels[p].factors), scale);
                sums[p][c] = fma(_mm512_cvtepi32_ps(dots[p][c]), factors, sums[p][c]);
            }
        }
    }
    sums
}
