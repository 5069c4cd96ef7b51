//! Vectors rounded to 8 bits a number, and how they lie.
//!
//! In: vectors in single precision. Out: numbers from -127 to 127 with a scale for each group, each vector a row.
//! Each number goes to the nearest. Of each 32 four neighbours may be twice as large: those with the largest of all, so
//! one large number does not make all others coarse. Groups that qwen3.c chose are rounded as it does it. The scale
//! of a group is infinite or NaN where one of its numbers is.
//! A row has five pieces, each of whole 64 bytes: the numbers; for each 32 of them the scale, the sum times the scale,
//! and what `Tail` says; and lines.
//! Numbers have 16 bits each, those of a group in the order in which the level has weights. With dot products of bytes
//! they are bytes of up to 127, sums are whole numbers of 16 bits, and all else that such a level wants is in the
//! tails. With AVX2 the last two pieces have for each group what its numbers exceed 127 by, and a line: those of up to
//! 127 as bytes, and the tail.
//! Everything is inlined into the functions of a level.

use bytemuck::cast;

use crate::codegen::cpu::micro::view::QuantiseView;
use crate::codegen::cpu::micro::{GROUP, LARGE};

/// Added to a number of a small size, it leaves the nearest whole number in the lowest bits.
pub(super) const SHIFT: f32 = 12_582_912.0;

/// Bytes of the pieces of a row.
#[inline(always)]
fn pieces(k: usize) -> [usize; 5] {
    let ends = |n: usize| n.next_multiple_of(64);
    [2 * ends(k), ends(k / 8), ends(k / 8), ends(k), 2 * ends(k)]
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
    pub(super) scales: &'a [u8],
    pub(super) sums: &'a [u8],
    pub(super) tails: &'a [u8],
    /// Of up to 127, each 32 with the tail behind them.
    pub(super) bytes: &'a [u8],
}

impl<'a> Rounded<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [wide, scales, sums, tails, near] = pieces(k);
        let (wide, rest) = bytes.split_at(wide);
        let (scales, rest) = rest.split_at(scales);
        let (sums, rest) = rest.split_at(sums);
        let (tails, rest) = rest.split_at(tails);
        Self { wide, scales, sums, tails, bytes: &rest[..near] }
    }

    /// Groups `from..from + n`, of numbers of 16 bits and of bytes.
    #[inline(always)]
    pub(super) fn lines(&self, from: usize, n: usize) -> Lines<'a> {
        Lines {
            words: &self.wide.as_chunks().0[from..from + n],
            bytes: &self.bytes.as_chunks().0[from..from + n],
            excess: &self.tails.as_chunks().0[from..from + n],
        }
    }

    /// Groups `from..from + n`, of numbers of 8 bits.
    #[inline(always)]
    pub(super) fn groups(&self, from: usize, n: usize) -> Groups<'a> {
        Groups {
            numbers: &self.wide.as_chunks().0.as_chunks().0[from..from + n],
            tails: &self.tails.as_chunks().0.as_chunks().0[from..from + n],
            sums: self.sums.as_chunks().0[from..from + n].as_chunks().0,
        }
    }

    /// The `idx`-th 32 numbers of 16 bits.
    #[inline(always)]
    pub(super) fn wide(&self, idx: usize) -> &'a [u8; 64] {
        self.wide[idx * 64..].first_chunk().expect("a vector has whole groups")
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

/// Some groups of a vector of numbers of 16 bits, with a line for each.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub(super) words: &'a [[u8; 64]],
    /// Of up to 127, each with the tail behind them.
    pub(super) bytes: &'a [[u8; 64]],
    /// What bytes exceed 127 by.
    pub(super) excess: &'a [[u8; 32]],
}

/// Some groups of a vector of numbers of 8 bits.
#[derive(Clone, Copy)]
pub(super) struct Groups<'a> {
    numbers: &'a [[[u8; 4]; 8]],
    tails: &'a [[[u8; 4]; 8]],
    /// The sums of each two, of 16 bits.
    sums: &'a [[[u8; 2]; 2]],
}

impl<'a> Groups<'a> {
    #[inline(always)]
    pub(super) fn two_sums(&self, at: usize) -> [u8; 4] {
        cast(self.sums[at])
    }

    #[inline(always)]
    pub(super) fn at(&self, g: usize) -> Column<'a> {
        Column { numbers: &self.numbers[g], tail: &self.tails[g] }
    }
}

/// One of them. In all rows of one length a tail is as far from its numbers.
#[derive(Clone, Copy)]
pub(super) struct Column<'a> {
    /// Four numbers each.
    pub(super) numbers: &'a [[u8; 4]; 8],
    pub(super) tail: &'a [[u8; 4]; 8],
}

impl Column<'_> {
    #[inline(always)]
    pub(super) fn single(&self, of: Tail) -> f32 {
        f32::from_le_bytes(self.tail[of as usize])
    }

    /// Which four may exceed 127.
    #[inline(always)]
    pub(super) fn large(&self) -> usize {
        u32::from_le_bytes(self.tail[Tail::Place as usize]) as usize / 64 % 8
    }
}

/// What stands in a group's tail, each of 32 bits.
#[derive(Clone, Copy)]
pub(super) enum Tail {
    /// -128 times the sum.
    Start,
    Scale,
    /// What the four that are large exceed 127 by.
    Excess,
    /// How many bytes of a panel lie in front of what meets these four.
    Place,
    /// -128 times the sum of the first half, and of the second.
    First,
    Second,
    /// The sum, times the scale.
    Sum,
    Zero,
}

/// 32 numbers of a vector, rounded: those of up to 127, and what they exceed it by.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) numbers: [u8; 32],
    pub(super) excess: [u8; 32],
    /// The sum of each half.
    pub(super) halves: [i32; 2],
}

/// Where four groups of a row belong.
pub(super) struct Four<'a> {
    pub(super) numbers: &'a mut [[u8; 32]; 4],
    pub(super) tails: &'a mut [[u8; 32]; 4],
    /// Of 16 bits.
    pub(super) sums: &'a mut [u8; 8],
}

/// A row that is being filled.
pub(super) struct Row<'a> {
    wide: &'a mut [u8],
    scales: &'a mut [[u8; 4]],
    sums: &'a mut [[u8; 4]],
    tails: &'a mut [[[u8; 4]; 8]],
    bytes: &'a mut [u8],
}

impl<'a> Row<'a> {
    #[inline(always)]
    pub(super) fn new(bytes: &'a mut [u8], k: usize) -> Self {
        let [wide, scales, sums, tails, near] = pieces(k);
        let (wide, rest) = bytes.split_at_mut(wide);
        let (scales, rest) = rest.split_at_mut(scales);
        let (sums, rest) = rest.split_at_mut(sums);
        let (tails, rest) = rest.split_at_mut(tails);
        Self {
            wide,
            scales: scales.as_chunks_mut().0,
            sums: sums.as_chunks_mut().0,
            tails: tails.as_chunks_mut().0.as_chunks_mut().0,
            bytes: &mut rest[..near],
        }
    }

    /// Stores the `idx`-th 32 numbers, of 16 bits, with their sum and scale.
    #[inline(always)]
    pub(super) fn put_wide(&mut self, idx: usize, numbers: [u8; 64], sum: i32, scale: f32) {
        self.wide.as_chunks_mut().0[idx] = numbers;
        self.scales[idx] = scale.to_le_bytes();
        self.sums[idx] = (sum as f32 * scale).to_le_bytes();
    }

    /// Stores the same numbers of up to 127 as bytes, and what they exceed it by, which only the `large`-th four do.
    #[inline(always)]
    pub(super) fn put_line(&mut self, idx: usize, numbers: [u8; 32], excess: [[u8; 4]; 8], large: usize) {
        self.tails[idx] = excess;
        let place = (32 * large as u32).to_le_bytes();
        let tail = [[0; 4], self.scales[idx], excess[large], place, [0; 4], [0; 4], self.sums[idx], [0; 4]];
        let line: &mut [[u8; 32]; 2] = &mut self.bytes.as_chunks_mut().0.as_chunks_mut().0[idx];
        *line = [numbers, cast(tail)];
    }

    /// Where those of each four groups belong, one after another.
    #[inline(always)]
    pub(super) fn fours(&mut self) -> impl Iterator<Item = Four<'_>> {
        let numbers = self.wide.as_chunks_mut().0.as_chunks_mut().0;
        let tails = self.tails.as_flattened_mut().as_flattened_mut().as_chunks_mut().0.as_chunks_mut().0;
        let sums = self.sums.as_flattened_mut().as_chunks_mut().0;
        let all = numbers.iter_mut().zip(tails).zip(sums);
        all.map(|((numbers, tails), sums)| Four { numbers, tails, sums })
    }

    /// Stores the `idx`-th 32 numbers as bytes, with their scale, and which four may be large.
    #[inline(always)]
    pub(super) fn put(&mut self, idx: usize, group: Group, scale: f32, large: usize) {
        let [first, second] = group.halves.map(|half| -128 * half);
        let sum = group.halves[0] + group.halves[1];
        self.sums.as_flattened_mut().as_chunks_mut().0[idx] = (sum as i16).to_le_bytes();
        let sum = sum as f32 * scale;
        self.tails[idx] = [
            (first + second).to_le_bytes(),
            scale.to_le_bytes(),
            group.excess.as_chunks().0[large],
            (64 * large as u32).to_le_bytes(),
            first.to_le_bytes(),
            second.to_le_bytes(),
            sum.to_le_bytes(),
            [0; 4],
        ];
        self.wide.as_chunks_mut().0[idx] = group.numbers;
    }
}

/// What the scale of so many numbers must hold of 32 of them: half of the largest, and the largest of those that are
/// not near it, but all of the largest where qwen3.c chose how many. Sizes are bits, in the order of sizes without a
/// sign; NaN counts as the largest.
#[inline(always)]
pub(super) fn held(group: usize, largest: u32, others: u32) -> u32 {
    let is_own = matches!(group, GROUP | LARGE);
    if is_own { (0.5 * f32::from_bits(largest)).to_bits().max(others) } else { largest }
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
        for first in (0..k).step_by(job.group) {
            let n = job.group.min(k - first);
            let x = x[4 * first..][..4 * n].as_chunks::<128>().0;
            let mut most = 0;
            for x in x {
                let (size, others) = largest(x);
                most = held(job.group, size, others).max(most);
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
