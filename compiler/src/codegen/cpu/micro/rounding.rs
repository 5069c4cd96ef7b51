//! Vectors rounded to 8 bits a number, and how they lie.
//!
//! In: vectors in single precision. Out: numbers from -127 to 127 with a scale for each group, in rows or panels.
//! The scale is the largest size by 127, and each number goes to the nearest whole one, as GGML's `q8_0` and qwen3.c
//! have it. A group with an infinite number or one that is none has such a scale too.
//! Everything is inlined into the functions of a level.

use crate::codegen::cpu::micro::view::QuantiseView;
use crate::codegen::cpu::micro::{GROUP, PANEL, PANEL_BYTES, row_bytes};

/// Added to a number of a small size, it leaves the nearest whole number in the lowest bits.
const SHIFT: f32 = 12_582_912.0;

/// A vector that lies in a row.
#[derive(Clone, Copy)]
pub(super) struct Rounded<'a> {
    pub(super) numbers: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) sums: &'a [u8],
}

impl<'a> Rounded<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], k: usize) -> Self {
        let (numbers, rest) = bytes.split_at(k.next_multiple_of(64));
        let n_bytes = (k / GROUP * 4).next_multiple_of(64);
        let (scales, sums) = rest.split_at(n_bytes);
        Self { numbers, scales, sums: &sums[..n_bytes] }
    }

    /// The `idx`-th 32 numbers.
    #[inline(always)]
    pub(super) fn numbers(&self, idx: usize) -> &'a [u8; 32] {
        self.numbers[idx * 32..].first_chunk().expect("a vector has whole groups")
    }

    #[inline(always)]
    pub(super) fn scale(&self, idx: usize) -> f32 {
        f32::from_le_bytes(*self.scales[idx * 4..].first_chunk().expect("a scale for each group"))
    }

    /// The sum of the `idx`-th 32 numbers, times their scale.
    #[inline(always)]
    pub(super) fn sum(&self, idx: usize) -> f32 {
        f32::from_le_bytes(*self.sums[idx * 4..].first_chunk().expect("a sum for each group"))
    }
}

#[inline(always)]
pub(super) fn quantise(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for c in 0..job.n_cols {
        let x = &job.x[c * job.x_col..][..4 * k];
        for first in (0..k).step_by(job.group) {
            let n = job.group.min(k - first);
            let x = x[4 * first..][..4 * n].as_chunks::<128>().0;
            let scale = largest(x) / 127.0;
            let by = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (i, x) in x.iter().enumerate() {
                let idx = first / GROUP + i;
                let (q, sum) = rounded(x, by);
                let sum = sum as f32 * scale;
                if job.is_panel {
                    in_panel(job.out, (c, idx, k), (&q, scale, sum));
                } else {
                    in_row(&mut job.out[c * row_bytes(k)..], (idx, k), (&q, scale, sum));
                }
            }
        }
    }
}

/// The largest size. The bits of a number without its sign are in the order of sizes; what is no number is largest.
#[inline(always)]
fn largest(x: &[[u8; 128]]) -> f32 {
    let mut most = [0_u32; 32];
    for x in x {
        for (most, x) in most.iter_mut().zip(x.as_chunks::<4>().0) {
            *most = (u32::from_le_bytes(*x) & 0x7fff_ffff).max(*most);
        }
    }
    f32::from_bits(most.into_iter().fold(0, u32::max))
}

#[inline(always)]
fn rounded(x: &[u8; 128], by: f32) -> ([i8; 32], i32) {
    let mut q = [0_i8; 32];
    let mut sum = 0;
    for (q, x) in q.iter_mut().zip(x.as_chunks::<4>().0) {
        let bits = (f32::from_le_bytes(*x) * by + SHIFT).to_bits();
        let whole = bits.wrapping_sub(SHIFT.to_bits()) as i8;
        *q = whole;
        sum += i32::from(whole);
    }
    (q, sum)
}

#[inline(always)]
fn in_row(out: &mut [u8], (idx, k): (usize, usize), (q, scale, sum): (&[i8; 32], f32, f32)) {
    let scales = k.next_multiple_of(64);
    let sums = scales + (k / GROUP * 4).next_multiple_of(64);
    out[idx * 32..][..32].copy_from_slice(&q.map(i8::cast_unsigned));
    out[scales + idx * 4..][..4].copy_from_slice(&scale.to_le_bytes());
    out[sums + idx * 4..][..4].copy_from_slice(&sum.to_le_bytes());
}

/// Four numbers of each vector side by side, without sign: 128 more than they are.
#[inline(always)]
fn in_panel(out: &mut [u8], (c, idx, k): (usize, usize, usize), (q, scale, sum): (&[i8; 32], f32, f32)) {
    let (panel, lane) = (c / PANEL, c % PANEL);
    let out = &mut out[(panel * (k / GROUP) + idx) * PANEL_BYTES..][..PANEL_BYTES];
    let (numbers, rest) = out.split_at_mut(GROUP * PANEL);
    for (four, numbers) in q.as_chunks::<4>().0.iter().zip(numbers.chunks_exact_mut(4 * PANEL)) {
        numbers[4 * lane..][..4].copy_from_slice(&four.map(|q| q.cast_unsigned() ^ 0x80));
    }
    rest[4 * lane..][..4].copy_from_slice(&scale.to_le_bytes());
    rest[4 * (PANEL + lane)..][..4].copy_from_slice(&sum.to_le_bytes());
}
