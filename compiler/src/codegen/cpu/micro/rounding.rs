//! Vectors rounded to 8 bits a number, and how they lie.
//!
//! In: vectors in single precision. Out: numbers from -127 to 127 with a scale for each group, each vector a row.
//! The scale is the largest size by 127, and each number goes to the nearest whole one, as GGML's `q8_0` and qwen3.c
//! have it. A group with an infinite number or one that is none has such a scale too.
//! A row has five pieces, each of whole 64 bytes: the numbers, and for each 32 of them the scale, the sum times the
//! scale, -128 times the sum, and the same of each half. Weights that were moved up by 128 are moved back by these.
//! Everything is inlined into the functions of a level.

use crate::codegen::cpu::micro::view::QuantiseView;

/// Added to a number of a small size, it leaves the nearest whole number in the lowest bits.
const SHIFT: f32 = 12_582_912.0;

/// Bytes of the pieces of a row.
#[inline(always)]
fn pieces(k: usize) -> [usize; 5] {
    let ends = |n: usize| n.next_multiple_of(64);
    [ends(k), ends(k / 8), ends(k / 8), ends(k / 8), ends(k / 4)]
}

/// Bytes of a row.
pub(super) fn row_bytes(k: usize) -> usize {
    pieces(k).into_iter().sum()
}

/// A vector that lies in a row.
#[derive(Clone, Copy)]
pub(super) struct Rounded<'a> {
    pub(super) numbers: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) sums: &'a [u8],
    pub(super) starts: &'a [u8],
    pub(super) halves: &'a [u8],
}

impl<'a> Rounded<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [numbers, scales, sums, starts, halves] = pieces(k);
        let (numbers, rest) = bytes.split_at(numbers);
        let (scales, rest) = rest.split_at(scales);
        let (sums, rest) = rest.split_at(sums);
        let (starts, rest) = rest.split_at(starts);
        Self { numbers, scales, sums, starts, halves: &rest[..halves] }
    }

    /// Groups `from..from + n`.
    #[inline(always)]
    pub(super) fn groups(&self, from: usize, n: usize) -> Groups<'a> {
        Groups {
            numbers: &self.numbers.as_chunks().0.as_chunks().0[from..from + n],
            scales: &self.scales.as_chunks().0[from..from + n],
            sums: &self.sums.as_chunks().0[from..from + n],
            starts: &self.starts.as_chunks().0[from..from + n],
            halves: &self.halves.as_chunks().0.as_chunks().0[from..from + n],
        }
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

/// Some groups of a vector.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// Four numbers each.
    pub(super) numbers: &'a [[[u8; 4]; 8]],
    pub(super) scales: &'a [[u8; 4]],
    pub(super) sums: &'a [[u8; 4]],
    pub(super) starts: &'a [[u8; 4]],
    pub(super) halves: &'a [[[u8; 4]; 2]],
}

/// A row that is being filled.
pub(super) struct Row<'a> {
    numbers: &'a mut [[u8; 32]],
    scales: &'a mut [[u8; 4]],
    sums: &'a mut [[u8; 4]],
    starts: &'a mut [[u8; 4]],
    halves: &'a mut [[u8; 8]],
}

impl<'a> Row<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a mut [u8], k: usize) -> Self {
        let [numbers, scales, sums, starts, halves] = pieces(k);
        let (numbers, rest) = bytes.split_at_mut(numbers);
        let (scales, rest) = rest.split_at_mut(scales);
        let (sums, rest) = rest.split_at_mut(sums);
        let (starts, rest) = rest.split_at_mut(starts);
        Self {
            numbers: numbers.as_chunks_mut().0,
            scales: scales.as_chunks_mut().0,
            sums: sums.as_chunks_mut().0,
            starts: starts.as_chunks_mut().0,
            halves: rest[..halves].as_chunks_mut().0,
        }
    }

    /// Stores the `idx`-th 32 numbers, with their scale and the sum of each half.
    #[inline(always)]
    pub(super) fn put(&mut self, idx: usize, numbers: [u8; 32], scale: f32, [first, second]: [i32; 2]) {
        let sum = first + second;
        self.numbers[idx] = numbers;
        self.scales[idx] = scale.to_le_bytes();
        self.sums[idx] = (sum as f32 * scale).to_le_bytes();
        self.starts[idx] = (-128 * sum).to_le_bytes();
        self.halves[idx][..4].copy_from_slice(&(-128 * first).to_le_bytes());
        self.halves[idx][4..].copy_from_slice(&(-128 * second).to_le_bytes());
    }
}

/// The scale of a group whose largest size is given, and what its numbers are multiplied by.
#[inline(always)]
pub(super) fn scale_of(most: f32) -> (f32, f32) {
    let scale = most / 127.0;
    (scale, if scale > 0.0 { 1.0 / scale } else { 0.0 })
}

#[inline(always)]
pub(super) fn quantise(job: &mut QuantiseView<'_>) {
    let k = job.k;
    for (c, row) in job.out.chunks_exact_mut(row_bytes(k)).enumerate().take(job.n_cols) {
        let x = &job.x[c * job.x_col..][..4 * k];
        let mut row = Row::new(row, k);
        for first in (0..k).step_by(job.group) {
            let n = job.group.min(k - first);
            let x = x[4 * first..][..4 * n].as_chunks::<128>().0;
            let (scale, by) = scale_of(largest(x));
            for (i, x) in x.iter().enumerate() {
                let (numbers, halves) = rounded(x, by);
                row.put(first / 32 + i, numbers, scale, halves);
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
fn rounded(x: &[u8; 128], by: f32) -> ([u8; 32], [i32; 2]) {
    let mut numbers = [0_u8; 32];
    let mut halves = [0; 2];
    for (i, x) in x.as_chunks::<4>().0.iter().enumerate() {
        let bits = (f32::from_le_bytes(*x) * by + SHIFT).to_bits();
        let whole = bits.wrapping_sub(SHIFT.to_bits()) as i8;
        numbers[i] = whole.cast_unsigned();
        halves[i / 16] += i32::from(whole);
    }
    (numbers, halves)
}
