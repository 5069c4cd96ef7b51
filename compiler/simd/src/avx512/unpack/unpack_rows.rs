//! Unpacks rows of quantised weights for `gemm_small.rs`.
//!
//! In: up to sixteen rows, and a range of their groups. Out: strips of 128 elements: bytes in the order of
//! `unpack_blocks.rs`, with the zero point added, and the scales and offsets of each 32. Nothing is transposed: that
//! would take longer than it saves for a few columns.

use std::arch::x86_64::{__m128, __m512i, _mm_castps_si128, _mm512_castps512_ps128, _mm512_extractf32x4_ps};

use bytemuck::{Pod, Zeroable};

use crate::avx512::unpack::last_blocks::{FOUR, last_row, last_units};
use crate::avx512::unpack::unpack_blocks::{
    Order, block_offsets_shuffled, block_scales_shuffled, k_block_scales, order, unpack_128,
};
use crate::avx512::vector::{store_bytes, store_quarter};
use crate::layout::block_formats::{BlockRow, Storage};
use crate::stack_buffer::StackBuffer;
use crate::view::GemmView;

/// Rows side by side.
pub(crate) const ROWS: usize = 16;

/// Strips that are unpacked at a time.
pub(crate) const STRIPS: usize = 8;

/// Four groups of each row.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(crate) struct Strip {
    pub(crate) numbers: [[u8; 128]; ROWS],
    /// The scale of each group and its offset; or the scales of both of its halves.
    pub(crate) factors: [[[[u8; 4]; FOUR]; 2]; ROWS],
}

/// Unpacks groups `from..from + n` of rows; missing rows repeat the last. With `L` only scales are unpacked.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn fill<const S: usize, const B: usize, const L: bool>(
    slab: &mut [Strip; STRIPS],
    job: &GemmView<'_>,
    (r, n_rows): (usize, usize),
    (from, n): (usize, usize),
) {
    const { assert!(B == Storage::ALL[S].unit_bytes()) };
    let n_groups = const { Storage::ALL[S].unit_groups() };
    for i in 0..ROWS {
        let row = job.w.row(r + i.min(n_rows - 1));
        let (first, n_units) = (from / n_groups, n / n_groups);
        let units = &row.bytes.as_chunks::<B>().0[first..first + n_units];
        if n_groups == 2 * FOUR {
            for (strips, unit) in slab.as_chunks_mut::<2>().0.iter_mut().zip(units) {
                large::<S>(strips, i, unit);
            }
            continue;
        }
        for (at, (strip, unit)) in slab.iter_mut().zip(units).enumerate() {
            small::<S, B, L>(strip, i, unit, (&row, first + at));
        }
        if n % n_groups > 0 {
            let (at, mut buffer, mut scales) = (first + n_units, StackBuffer::new(), [[0; 4]; FOUR]);
            let [unit] = last_units::<B, 1>(&row, job.w.rows_from(r + i.min(n_rows - 1)), at, &mut buffer);
            let own = last_row(unit, &row, at, &mut scales);
            small::<S, B, L>(&mut slab[n_units], i, unit, (&own, 0));
        }
    }
}

/// Unpacks four blocks of 32 elements of the `i`-th row: the `at`-th unit of `row`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn small<const S: usize, const B: usize, const L: bool>(
    strip: &mut Strip,
    i: usize,
    unit: &[u8; B],
    (row, at): (&BlockRow<'_>, usize),
) {
    if !L {
        put_numbers(strip, i, unpack_128::<S>(unit, 0));
    }
    put_factors(block_scales_shuffled::<S>(unit, row, at), &mut strip.factors[i][0]);
    if const { Storage::ALL[S].has_offsets() } {
        put_factors(block_offsets_shuffled::<S>(unit), &mut strip.factors[i][1]);
    }
}

/// A block of 256 elements of the `i`-th row.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn large<const S: usize>(strips: &mut [Strip; 2], i: usize, unit: &[u8]) {
    let k = k_block_scales::<S>(unit);
    let quarters = [
        _mm512_castps512_ps128(k),
        _mm512_extractf32x4_ps::<1>(k),
        _mm512_extractf32x4_ps::<2>(k),
        _mm512_extractf32x4_ps::<3>(k),
    ];
    for (half, strip) in strips.iter_mut().enumerate() {
        put_numbers(strip, i, unpack_128::<S>(unit, half));
        let two = if const { Storage::ALL[S] }.has_two_scales() {
            [2 * half, 2 * half + 1]
        } else {
            [half, 2 + half]
        };
        for (factors, of) in strip.factors[i].iter_mut().zip(two) {
            put_factors(quarters[of], factors);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put_numbers(strip: &mut Strip, i: usize, numbers: [__m512i; 2]) {
    let (lines, _) = strip.numbers[i].as_chunks_mut();
    for (line, numbers) in lines.iter_mut().zip(numbers) {
        store_bytes(numbers, line);
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn put_factors(factors: __m128, out: &mut [[u8; 4]; FOUR]) {
    store_quarter(_mm_castps_si128(factors), out.as_flattened_mut().as_mut_array().expect("four factors"));
}

/// The index of the `j`-th run of eight bytes of group `g` in a strip's row.
pub(crate) const fn place(storage: Storage, g: usize, j: usize) -> usize {
    match order(storage) {
        Order::Sequential => 4 * g + j,
        Order::SplitHalves => 2 * g + j / 2 * 8 + j % 2,
    }
}
