//! The activation layout `Int8Interleaved`: 8-bit integers of eight columns side by side, for `gemm_small.rs`.
//!
//! In: columns in single precision. Out: for each eight columns one [`Group`] for each 32 elements:
//!
//! ```text
//! numbers[j] = [x0: e(8j)..e(8j+8) | x1: ... | ... | x7: e(8j)..e(8j+8)]   j = 0..4, 64 bytes each
//! scales     = [x0: first four, last four | x1: ... | ... | x7]            16 x f32
//! ```
//!
//! Of each run of eight elements the first four use the column's first scale and the last four its second: so a 32-bit
//! lane of a dot product has one scale. Missing columns are zeros. A scale is infinite or NaN where one of its numbers
//! is.

use std::arch::x86_64::{
    _CMP_GT_OQ, _mm_castps_si128, _mm_cvtsi128_si64, _mm_unpacklo_ps, _mm512_castps512_ps128,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtepi32_epi8, _mm512_extractf32x4_ps,
    _mm512_maskz_div_ps, _mm512_max_epu32, _mm512_mul_ps, _mm512_shuffle_i64x2,
};

use bytemuck::{Pod, Zeroable, cast, cast_slice, cast_slice_mut};

use crate::abi::GROUP;
use crate::avx512::quantise::quantise_rows::{of_two_fours, whole};
use crate::avx512::vector::{splat, store_quarter};
use crate::layout::sizes::int8_interleaved_bytes;
use crate::view::QuantiseView;

/// Columns side by side.
pub(crate) const EIGHT: usize = 8;

/// The inverse of a smaller scale might be infinite: such numbers are zero.
const LEAST: f32 = 1e-38;

/// 32 elements of eight columns.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Group {
    /// Eight elements of each column, then the next eight of each.
    pub(crate) numbers: [[u8; 64]; 4],
    /// The scales of the two lanes of each column.
    pub(crate) scales: [u8; 64],
}

/// The groups of columns of `k` elements, for each eight columns.
#[inline(always)]
pub(crate) fn eights(bytes: &[u8], k: usize) -> impl Iterator<Item = &[Group]> {
    cast_slice(bytes).chunks_exact(k / GROUP)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn quantise(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for (e, out) in job.out.chunks_exact_mut(int8_interleaved_bytes(EIGHT, k)).enumerate() {
        let groups: &mut [Group] = cast_slice_mut(out);
        for i in 0..EIGHT {
            let c = e * EIGHT + i;
            if c < job.n_cols {
                let x = job.x[c * job.x_col..][..4 * k].as_chunks().0;
                for (group, x) in groups.iter_mut().zip(x) {
                    round_group(group, i, x);
                }
            } else {
                for group in &mut *groups {
                    group.put(i, [[0; 8]; 4], [0; 8]);
                }
            }
        }
    }
}

impl Group {
    /// Stores the numbers and scales of the `i`-th column.
    #[inline(always)]
    fn put(&mut self, i: usize, numbers: [[u8; 8]; 4], scales: [u8; 8]) {
        for (line, eight) in self.numbers.iter_mut().zip(numbers) {
            line.as_chunks_mut().0[i] = eight;
        }
        self.scales.as_chunks_mut().0[i] = scales;
    }
}

/// 32 elements of a column.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn round_group(group: &mut Group, i: usize, x: &[u8; 128]) {
    let fours = of_two_fours(x);
    // Now quarters have, alternating, the largest absolute values of even and of odd runs of four.
    let most = _mm512_max_epu32(fours, _mm512_shuffle_i64x2::<0b01_00_11_10>(fours, fours));
    let scales = _mm512_mul_ps(_mm512_castsi512_ps(most), splat(1.0 / 127.0));
    let are_scales = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(scales, splat(LEAST));
    let by = _mm512_maskz_div_ps(are_scales, splat(1.0), scales);
    let (halves, _) = x.as_chunks();
    let numbers: [[u8; 8]; 4] = cast([0, 1].map(|half| {
        let mut out = [0; 16];
        store_quarter(_mm512_cvtepi32_epi8(whole(&halves[half], by)), &mut out);
        out
    }));
    let both = _mm_unpacklo_ps(_mm512_castps512_ps128(scales), _mm512_extractf32x4_ps::<1>(scales));
    group.put(i, numbers, _mm_cvtsi128_si64(_mm_castps_si128(both)).to_le_bytes());
}
