//! Micro-kernels in plain Rust, for any processor.
//!
//! In: addresses of argument structs. Out: see `lib.rs`. The compiler vectorises the arrays for the target.

use bytemuck::{cast_ref, cast_slice};

use crate::abi::{EncodeArgs, GROUP, GemmArgs, QuantiseArgs, Table, WeightedSumArgs};
use crate::generic::{padded, row_forms, single_forms};
use crate::layout::block_formats::{DequantisedBlock, Storage, for_format, some_numbers, widened};
use crate::layout::encode_blocks::blocks;
use crate::layout::int8_rows::{self, Int8Row};
use crate::view::{self, GemmView, WeightedSumView};

const N: usize = 8;

type V = [f32; N];

single_forms! { tile 2 by 2, tall 2, wide 4 }
row_forms! {}

#[inline(always)]
fn zero() -> V {
    [0.0; N]
}

#[inline(always)]
fn splat(x: f32) -> V {
    [x; N]
}

#[inline(always)]
fn load(x: &[u8; 4 * N]) -> V {
    let mut v = zero();
    for (v, x) in v.iter_mut().zip(x.as_chunks::<4>().0) {
        *v = f32::from_le_bytes(*x);
    }
    v
}

#[inline(always)]
fn wide_f16(x: &[u8; 2 * N]) -> V {
    let mut v = zero();
    for (v, x) in v.iter_mut().zip(x.as_chunks::<2>().0) {
        *v = widened(u16::from_le_bytes(*x));
    }
    v
}

/// The hardware prefetcher suffices.
#[inline(always)]
fn prefetch_stream(_piece: &[u8]) {}

use prefetch_stream as prefetch_row;

fn prefetch_rows(_piece: &[u8], _end_and_next: (*const u8, *const u8)) {}

use prefetch_rows as prefetch_one_of_rows;

#[inline(always)]
fn wide_bf16(x: &[u8; 2 * N]) -> V {
    let mut v = zero();
    for (v, x) in v.iter_mut().zip(x.as_chunks::<2>().0) {
        *v = f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
    }
    v
}

#[inline(always)]
fn wide_i8(x: [u8; N]) -> V {
    let mut v = zero();
    for i in 0..N {
        v[i] = f32::from(x[i].cast_signed());
    }
    v
}

#[inline(always)]
fn fma(a: V, b: V, mut c: V) -> V {
    for i in 0..N {
        c[i] += a[i] * b[i];
    }
    c
}

#[inline(always)]
fn add(a: V, mut b: V) -> V {
    for i in 0..N {
        b[i] += a[i];
    }
    b
}

#[inline(always)]
fn lanes(a: V) -> [f32; N] {
    a
}

#[inline(always)]
fn horizontal_sum(a: V) -> f32 {
    a.iter().sum()
}

#[inline(always)]
fn sum_each_of_4(all: [V; 4]) -> [f32; 4] {
    let mut out = [0.0; 4];
    for (out, own) in out.iter_mut().zip(all) {
        *out = horizontal_sum(own);
    }
    out
}

#[inline(always)]
fn blank() -> f32 {
    0.0
}

#[inline(always)]
fn total_of(sum: f32) -> f32 {
    sum
}

#[inline(always)]
fn dot(w: &[i8; 32], x: &[u8; 64], a: [f32; 2], sum: f32) -> f32 {
    let mut halves = [0; 2];
    for (i, x) in x.as_chunks::<2>().0.iter().enumerate() {
        halves[i / 16] += i32::from(w[i]) * i32::from(i16::from_le_bytes(*x));
    }
    sum + a[0] * halves[0] as f32 + a[1] * halves[1] as f32
}
