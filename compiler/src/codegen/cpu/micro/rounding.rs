//! Vectors rounded to 8 bits a number, and how they lie.
//!
//! In: vectors in single precision. Out: numbers from -127 to 127 with a scale for each group, each vector a row.
//! Each number goes to the nearest. Of 32 with a scale of their own, four neighbours may be twice as large: those with
//! the largest of all, so one large number does not make all others coarse. Larger groups are rounded as qwen3.c does
//! it. A group with an infinite number or one that is none has such a scale too.
//! A row has seven pieces, each of whole 64 bytes: the numbers; for each 32 of them the scale, the sum times the
//! scale, -128 times the sum, the same of each half, and which four are large; and fours of groups.
//! Numbers have 16 bits each, those of a group in the order in which the level has weights. For levels with dot
//! products of bytes they are pairs instead: first those of up to 127, then what they exceed 127 by. Only these levels
//! use the other pieces: three by which weights that were moved up by 128 are moved back, and the fours, which hold the
//! numbers once more, with 16 bits each: eight of each of four groups, then the next eight of each.
//! Everything is inlined into the functions of a level.

use crate::codegen::cpu::micro::view::QuantiseView;

/// Added to a number of a small size, it leaves the nearest whole number in the lowest bits.
const SHIFT: f32 = 12_582_912.0;

/// Bytes of the pieces of a row.
#[inline(always)]
fn pieces(k: usize) -> [usize; 7] {
    let ends = |n: usize| n.next_multiple_of(64);
    [2 * ends(k), ends(k / 8), ends(k / 8), ends(k / 8), ends(k / 4), ends(k / 32), k / 128 * 256]
}

/// Bytes of a row.
pub(super) fn row_bytes(k: usize) -> usize {
    pieces(k).into_iter().sum()
}

/// A vector that lies in a row.
#[derive(Clone, Copy)]
pub(super) struct Rounded<'a> {
    /// Of 16 bits.
    pub(super) wide: &'a [u8],
    pub(super) numbers: &'a [u8],
    pub(super) excess: &'a [u8],
    pub(super) scales: &'a [u8],
    pub(super) sums: &'a [u8],
    pub(super) starts: &'a [u8],
    pub(super) halves: &'a [u8],
    pub(super) large: &'a [u8],
    pub(super) fours: &'a [u8],
}

impl<'a> Rounded<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [wide, scales, sums, starts, halves, large, fours] = pieces(k);
        let (wide, rest) = bytes.split_at(wide);
        let (numbers, excess) = wide.split_at(wide.len() / 2);
        let (scales, rest) = rest.split_at(scales);
        let (sums, rest) = rest.split_at(sums);
        let (starts, rest) = rest.split_at(starts);
        let (halves, rest) = rest.split_at(halves);
        let (large, rest) = rest.split_at(large);
        Self { wide, numbers, excess, scales, sums, starts, halves, large, fours: &rest[..fours] }
    }

    /// Groups `from..from + n`, of numbers of 16 bits.
    #[inline(always)]
    pub(super) fn wides(&self, from: usize, n: usize) -> Wides<'a> {
        Wides {
            numbers: &self.wide.as_chunks().0.as_chunks().0[from..from + n],
            scales: &self.scales.as_chunks().0[from..from + n],
            sums: &self.sums.as_chunks().0[from..from + n],
        }
    }

    /// Groups `from..from + n`, of pairs.
    #[inline(always)]
    pub(super) fn groups(&self, from: usize, n: usize) -> Groups<'a> {
        Groups {
            numbers: &self.numbers.as_chunks().0.as_chunks().0[from..from + n],
            scales: &self.scales.as_chunks().0[from..from + n],
            sums: &self.sums.as_chunks().0[from..from + n],
            starts: &self.starts.as_chunks().0[from..from + n],
            halves: &self.halves.as_chunks().0.as_chunks().0[from..from + n],
            excess: &self.excess.as_chunks().0.as_chunks().0[from..from + n],
            large: &self.large[from..from + n],
        }
    }

    /// The `idx`-th 32 numbers of 16 bits.
    #[inline(always)]
    pub(super) fn wide(&self, idx: usize) -> &'a [u8; 64] {
        self.wide[idx * 64..].first_chunk().expect("a vector has whole groups")
    }

    /// The `idx`-th 32 numbers of up to 127.
    #[inline(always)]
    pub(super) fn numbers(&self, idx: usize) -> &'a [u8; 32] {
        self.numbers[idx * 32..].first_chunk().expect("a vector has whole groups")
    }

    /// What the `idx`-th 32 numbers exceed 127 by.
    #[inline(always)]
    pub(super) fn excess(&self, idx: usize) -> &'a [u8; 32] {
        self.excess[idx * 32..].first_chunk().expect("a vector has whole groups")
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

/// Some groups of a vector of numbers of 16 bits.
#[derive(Clone, Copy)]
pub(super) struct Wides<'a> {
    /// Two numbers each.
    pub(super) numbers: &'a [[[u8; 4]; 16]],
    pub(super) scales: &'a [[u8; 4]],
    pub(super) sums: &'a [[u8; 4]],
}

/// Some groups of a vector of pairs.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    /// Four numbers each.
    pub(super) numbers: &'a [[[u8; 4]; 8]],
    pub(super) scales: &'a [[u8; 4]],
    pub(super) sums: &'a [[u8; 4]],
    pub(super) starts: &'a [[u8; 4]],
    pub(super) halves: &'a [[[u8; 4]; 2]],
    excess: &'a [[[u8; 4]; 8]],
    large: &'a [u8],
}

impl Groups<'_> {
    /// Which four numbers of a group exceed 127, and by what.
    #[inline(always)]
    pub(super) fn excess(&self, g: usize) -> (usize, i32) {
        let large = usize::from(self.large[g] % 8);
        (large, i32::from_le_bytes(self.excess[g][large]))
    }
}

/// 32 numbers of a vector, rounded, as pairs of bytes.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) numbers: [u8; 32],
    pub(super) excess: [u8; 32],
    /// Of 16 bits.
    pub(super) wide: [[u8; 32]; 2],
    /// The sum of each half.
    pub(super) halves: [i32; 2],
}

/// A row that is being filled.
pub(super) struct Row<'a> {
    wide: &'a mut [u8],
    scales: &'a mut [[u8; 4]],
    sums: &'a mut [[u8; 4]],
    starts: &'a mut [[u8; 4]],
    halves: &'a mut [[u8; 8]],
    large: &'a mut [u8],
    /// Four eights of each of four groups.
    fours: &'a mut [[[[u8; 16]; 4]; 4]],
}

impl<'a> Row<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a mut [u8], k: usize) -> Self {
        let [wide, scales, sums, starts, halves, large, fours] = pieces(k);
        let (wide, rest) = bytes.split_at_mut(wide);
        let (scales, rest) = rest.split_at_mut(scales);
        let (sums, rest) = rest.split_at_mut(sums);
        let (starts, rest) = rest.split_at_mut(starts);
        let (halves, rest) = rest.split_at_mut(halves);
        let (large, rest) = rest.split_at_mut(large);
        let fours = &mut rest[..fours];
        Self {
            wide,
            scales: scales.as_chunks_mut().0,
            sums: sums.as_chunks_mut().0,
            starts: starts.as_chunks_mut().0,
            halves: halves.as_chunks_mut().0,
            large,
            fours: fours.as_chunks_mut().0.as_chunks_mut().0.as_chunks_mut().0,
        }
    }

    /// Notes which four of the `idx`-th 32 numbers may be large.
    #[inline(always)]
    pub(super) fn note(&mut self, idx: usize, large: u8) {
        self.large[idx] = large;
    }

    /// Stores the `idx`-th 32 numbers, of 16 bits, with their sum and scale.
    #[inline(always)]
    pub(super) fn put_wide(&mut self, idx: usize, numbers: [u8; 64], sum: i32, scale: f32) {
        self.wide.as_chunks_mut().0[idx] = numbers;
        self.scales[idx] = scale.to_le_bytes();
        self.sums[idx] = (sum as f32 * scale).to_le_bytes();
    }

    /// Stores the `idx`-th 32 numbers as pairs, with their scale.
    #[inline(always)]
    pub(super) fn put(&mut self, idx: usize, group: Group, scale: f32) {
        let [first, second] = group.halves;
        let sum = first + second;
        let (numbers, excess) = self.wide.split_at_mut(self.wide.len() / 2);
        numbers.as_chunks_mut().0[idx] = group.numbers;
        excess.as_chunks_mut().0[idx] = group.excess;
        self.scales[idx] = scale.to_le_bytes();
        self.sums[idx] = (sum as f32 * scale).to_le_bytes();
        self.starts[idx] = (-128 * sum).to_le_bytes();
        self.halves[idx][..4].copy_from_slice(&(-128 * first).to_le_bytes());
        self.halves[idx][4..].copy_from_slice(&(-128 * second).to_le_bytes());
        if let Some(four) = self.fours.get_mut(idx / 4) {
            for (eights, eight) in four.iter_mut().zip(group.wide.as_flattened().as_chunks().0) {
                eights[idx % 4] = *eight;
            }
        }
    }
}

/// What the scale of a group must hold of 32 numbers: the largest of all, or, where they have a scale of their own,
/// half of it and the largest of those that are not near it. Sizes are bits, in the order of sizes without a sign; what
/// is no number is largest.
#[inline(always)]
pub(super) fn held(is_alone: bool, largest: u32, others: u32) -> u32 {
    if is_alone { (0.5 * f32::from_bits(largest)).to_bits().max(others) } else { largest }
}

/// The scale of a group that must hold this size, and what its numbers are multiplied by.
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
        let is_alone = job.group == 32;
        for first in (0..k).step_by(job.group) {
            let n = job.group.min(k - first);
            let x = x[4 * first..][..4 * n].as_chunks::<128>().0;
            let mut most = 0;
            for x in x {
                let (size, others) = largest(x);
                most = held(is_alone, size, others).max(most);
            }
            let (scale, by) = scale_of(f32::from_bits(most));
            for (i, x) in x.iter().enumerate() {
                let (numbers, sum) = rounded(x, by);
                row.put_wide(first / 32 + i, numbers, sum, scale);
            }
        }
    }
}

/// The largest size of 32 numbers, and the largest of those that are not in the same four, as bits.
#[inline(always)]
fn largest(x: &[u8; 128]) -> (u32, u32) {
    let mut most = [0_u32; 8];
    for (most, four) in most.iter_mut().zip(x.as_chunks::<16>().0) {
        for x in four.as_chunks::<4>().0 {
            *most = (u32::from_le_bytes(*x) & 0x7fff_ffff).max(*most);
        }
    }
    let (mut size, mut others) = (0, 0);
    for most in most {
        others = others.max(most.min(size));
        size = size.max(most);
    }
    (size, others)
}

#[inline(always)]
fn rounded(x: &[u8; 128], by: f32) -> ([u8; 64], i32) {
    let (mut numbers, mut sum) = ([0; 64], 0);
    for (x, to) in x.as_chunks::<4>().0.iter().zip(numbers.as_chunks_mut().0) {
        let bits = (f32::from_le_bytes(*x) * by + SHIFT).to_bits();
        let whole = bits.wrapping_sub(SHIFT.to_bits()) as i16;
        *to = whole.to_le_bytes();
        sum += i32::from(whole);
    }
    (numbers, sum)
}
