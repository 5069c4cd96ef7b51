//! The activation layout `Int8Amx`: 8-bit integers of eight columns in AMX tiles, for `gemm_amx_int8.rs`.
//!
//! In: columns in single precision. Out: for each eight columns one tile for each 32 elements, then a line of scales
//! and a line of sums for each tile:
//!
//! ```text
//! tile   = 16 half lines of 32 bytes: 8 of numbers, 8 of their excess (`int8_rows.rs`)
//! half line j = [x0: e(4j)..e(4j+4) | x1: ... | ... | x7: e(4j)..e(4j+4)]
//! scales = [x0 .. x7 | x0 .. x7]   f32, twice: for a row of each of two weight tiles
//! sums   = the same of the sums of numbers times their scale
//! ```
//!
//! Groups are padded with zeros to a multiple of four. Numbers, scales and sums are those of `int8_rows.rs`.

use std::arch::x86_64::{_mm512_castsi512_si256, _mm512_extracti64x4_epi64, _mm512_setzero_si512};
use std::array::from_fn;

use bytemuck::cast_slice;

use crate::abi::GROUP;
use crate::avx512::quantise::quantise_rows::{largest, rounded};
use crate::avx512::vector::{load_bytes, store_half, transpose};
use crate::layout::int8_rows::{held, scale_of};
use crate::layout::sizes::int8_amx_bytes;
use crate::view::QuantiseView;

/// Columns side by side.
pub(crate) const EIGHT: usize = 8;

/// Lines of a group.
const LINES: usize = 8;

/// Groups that are stored together.
pub(crate) const FOUR: usize = 4;

/// A line of a tile, or of sixteen numbers in single precision.
type Line = [u8; 64];

/// Eight columns, four groups at a time.
#[derive(Clone, Copy)]
pub(crate) struct Eight<'a> {
    pub(crate) numbers: &'a [[[Line; LINES]; FOUR]],
    pub(crate) scales: &'a [[Line; FOUR]],
    pub(crate) sums: &'a [[Line; FOUR]],
}

impl<'a> Eight<'a> {
    /// The `idx`-th eight columns of `k` elements.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], k: usize, idx: usize) -> Self {
        let n_bytes = int8_amx_bytes(EIGHT, k);
        let (lines, _) = bytes[idx * n_bytes..][..n_bytes].as_chunks();
        let n_groups = lines.len() / (LINES + 2);
        let (numbers, rest) = lines.split_at(LINES * n_groups);
        let (scales, sums) = rest.split_at(n_groups);
        Self {
            numbers: numbers.as_chunks().0.as_chunks().0,
            scales: scales.as_chunks().0,
            sums: sums.as_chunks().0,
        }
    }
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn quantise(job: &mut QuantiseView<'_>) {
    let (k, n_together) = (job.k, job.group / GROUP);
    for (e, out) in job.out.chunks_exact_mut(int8_amx_bytes(EIGHT, k)).enumerate() {
        let first = e * EIGHT;
        let n = (job.n_cols - first).min(EIGHT);
        let x: [&[[u8; 128]]; EIGHT] = from_fn(|i| {
            let c = first + i.min(n - 1);
            job.x[c * job.x_col..][..4 * k].as_chunks().0
        });
        let (lines, _) = out.as_chunks_mut::<64>();
        let n_groups = lines.len() / (LINES + 2);
        let (numbers, rest) = lines.split_at_mut(LINES * n_groups);
        let (scales, sums) = rest.split_at_mut(n_groups);
        let (mut scale, mut by) = ([0.0; EIGHT], [0.0; EIGHT]);
        for (pair, numbers) in numbers.chunks_exact_mut(2 * LINES).enumerate() {
            let mut rows = [[[0; 32]; 2]; 2 * EIGHT];
            for half in 0..2 {
                let idx = 2 * pair + half;
                let (mut own_scales, mut own_sums) = ([0.0_f32; 2 * EIGHT], [0.0_f32; 2 * EIGHT]);
                if idx < k / GROUP {
                    for i in 0..n {
                        if idx % n_together == 0 {
                            (scale[i], by[i]) = scale_of_group(&x[i][idx..][..n_together]);
                        }
                        let group = rounded(&x[i][idx], by[i]);
                        (rows[i][half], rows[EIGHT + i][half]) = (group.numbers, group.excess);
                        (own_scales[i], own_scales[EIGHT + i]) = (scale[i], scale[i]);
                        let sum = (group.halves[0] + group.halves[1]) as f32 * scale[i];
                        (own_sums[i], own_sums[EIGHT + i]) = (sum, sum);
                    }
                }
                scales[idx].copy_from_slice(cast_slice(&own_scales));
                sums[idx].copy_from_slice(cast_slice(&own_sums));
            }
            let mut all = [_mm512_setzero_si512(); 2 * EIGHT];
            for (all, row) in all.iter_mut().zip(&rows) {
                *all = load_bytes(row.as_flattened().as_array().expect("two groups"));
            }
            let (halves, _) = numbers.as_flattened_mut().as_chunks_mut::<32>();
            for (i, column) in transpose(&all).into_iter().enumerate() {
                let at = i / LINES * 2 * LINES + i % LINES;
                store_half(_mm512_castsi512_si256(column), &mut halves[at]);
                store_half(_mm512_extracti64x4_epi64::<1>(column), &mut halves[at + LINES]);
            }
        }
    }
}

/// The scales of some groups, and their inverses.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scale_of_group(x: &[[u8; 128]]) -> (f32, f32) {
    let mut most = 0;
    for own in x {
        let (_, size, others) = largest(own);
        most = held(32 * x.len(), size, others).max(most);
    }
    scale_of(f32::from_bits(most))
}
