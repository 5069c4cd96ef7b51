//! Micro-kernels with 128-bit NEON.
//!
//! In: addresses of argument structs. Out: see `lib.rs`. Every processor of this architecture has these instructions.

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vaddq_f32, vaddvq_f32, vcreate_s8, vcvtq_f32_s32, vdupq_n_f32, vdupq_n_s32,
    vfmaq_f32, vfmaq_n_f32, vget_high_s8, vget_low_s8, vget_low_s16, vld1_u16, vld1q_f32, vld1q_s8,
    vld1q_s16, vmlal_high_s16, vmlal_s16, vmovl_s8, vmovl_s16, vmovl_u16, vreinterpretq_f32_u32, vshlq_n_u32,
    vst1q_f32,
};

use bytemuck::{cast_ref, cast_slice};

use crate::abi::{EncodeArgs, GROUP, GemmArgs, QuantiseArgs, Table, WeightedSumArgs};
use crate::generic::{padded, row_forms, single_forms};
use crate::layout::block_formats::{DequantisedBlock, Storage, for_format, some_numbers, widened};
use crate::layout::encode_blocks::blocks;
use crate::layout::int8_rows::{self, Int8Row};
use crate::view::{self, GemmView, WeightedSumView};

const N: usize = 4;

type V = float32x4_t;

single_forms! { #[target_feature(enable = "neon")] tile 4 by 4, tall 8, wide 8 }
row_forms! { #[target_feature(enable = "neon")] }

#[inline]
#[target_feature(enable = "neon")]
fn zero() -> V {
    vdupq_n_f32(0.0)
}

#[inline]
#[target_feature(enable = "neon")]
fn splat(x: f32) -> V {
    vdupq_n_f32(x)
}

#[inline]
#[target_feature(enable = "neon")]
fn load(x: &[u8; 4 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    unsafe { vld1q_f32(x.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn wide_f16(x: &[u8; 2 * N]) -> V {
    let mut wide = [0.0; N];
    for (wide, x) in wide.iter_mut().zip(x.as_chunks::<2>().0) {
        *wide = widened(u16::from_le_bytes(*x));
    }
    // SAFETY: the array is as long as the vector.
    unsafe { vld1q_f32(wide.as_ptr()) }
}

/// The hardware prefetcher suffices.
#[inline(always)]
fn prefetch_stream(_piece: &[u8]) {}

use prefetch_stream as prefetch_row;

fn prefetch_rows(_piece: &[u8], _end_and_next: (*const u8, *const u8)) {}

use prefetch_rows as prefetch_one_of_rows;

#[inline]
#[target_feature(enable = "neon")]
fn wide_bf16(x: &[u8; 2 * N]) -> V {
    // SAFETY: the array is as long as the vector.
    let bits = unsafe { vld1_u16(x.as_ptr().cast()) };
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(bits)))
}

#[inline]
#[target_feature(enable = "neon")]
fn wide_i8(x: [u8; N]) -> V {
    let four = vcreate_s8(u32::from_le_bytes(x).into());
    vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
}

#[inline]
#[target_feature(enable = "neon")]
fn fma(a: V, b: V, c: V) -> V {
    vfmaq_f32(c, a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn add(a: V, b: V) -> V {
    vaddq_f32(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn lanes(a: V) -> [f32; N] {
    let mut out = [0.0; N];
    // SAFETY: the array is as long as the vector.
    unsafe { vst1q_f32(out.as_mut_ptr(), a) };
    out
}

#[inline]
#[target_feature(enable = "neon")]
fn horizontal_sum(a: V) -> f32 {
    vaddvq_f32(a)
}

#[inline]
#[target_feature(enable = "neon")]
fn sum_each_of_4(all: [V; 4]) -> [f32; 4] {
    let mut out = [0.0; 4];
    for (out, own) in out.iter_mut().zip(all) {
        *out = horizontal_sum(own);
    }
    out
}

#[inline]
#[target_feature(enable = "neon")]
fn blank() -> V {
    zero()
}

#[inline]
#[target_feature(enable = "neon")]
fn total_of(sum: V) -> f32 {
    horizontal_sum(sum)
}

/// Sums of the products of 16 numbers.
#[inline]
#[target_feature(enable = "neon")]
fn half_dot(w: &[i8], x: &[u8]) -> int32x4_t {
    let (w, x): (&[i8; 16], &[u8; 32]) = (w.first_chunk().expect("16"), x.first_chunk().expect("16"));
    // SAFETY: the array is as long as the vector.
    let w = unsafe { vld1q_s8(w.as_ptr()) };
    let mut sum = vdupq_n_s32(0);
    for (w, x) in [vget_low_s8(w), vget_high_s8(w)].into_iter().zip(x.as_chunks::<16>().0) {
        // SAFETY: the array is as long as the vector.
        let (w, x) = (vmovl_s8(w), unsafe { vld1q_s16(x.as_ptr().cast()) });
        sum = vmlal_s16(sum, vget_low_s16(w), vget_low_s16(x));
        sum = vmlal_high_s16(sum, w, x);
    }
    sum
}

#[inline]
#[target_feature(enable = "neon")]
fn dot(w: &[i8; 32], x: &[u8; 64], a: [f32; 2], mut sum: V) -> V {
    for (half, a) in a.into_iter().enumerate() {
        let whole = half_dot(&w[16 * half..], &x[32 * half..]);
        sum = vfmaq_n_f32(sum, vcvtq_f32_s32(whole), a);
    }
    sum
}
