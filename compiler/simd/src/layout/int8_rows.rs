//! The activation layout `Int8Rows`: 8-bit integers with a scale for each group, one row per column.
//!
//! In: columns in single precision. Out: `x[i] = q[i] * scale`, rounded to nearest, with `|q|` up to 127 but for one
//! run of four neighbours of each 32, the one with the largest number, whose `|q|` may reach 254. So one outlier does
//! not make the other 28 coarse. The part above 127 is the excess: `excess = q - clamp(q, -127, 127)`. Groups of
//! qwen3.c checkpoints (sizes other than 32 and 256) have no excess. A scale is infinite or NaN where one of its
//! numbers is.
//!
//! A row has five pieces, each padded to 64 bytes:
//!
//! ```text
//!            wide           scales      sums           tails            bytes
//! size       2 k            k / 8       k / 8          k                2 k
//! portable   q: i16         scale: f32  q-sum * scale  -                -
//! AVX2       q: i16         scale: f32  q-sum * scale  excess: i8       per 32: [q clamped: i8 * 32][tail: 32 bit * 8]
//! AVX-512    q clamped: i8  -           q-sum: i16     tail: 32 bit * 8 -
//! ```
//!
//! With AVX-512 each 32 elements have a tail of eight words, [`Tail`]. With AVX2 the 16-bit numbers of 32 elements are
//! in the order in which that level unpacks weights. Everything is inlined into the functions of a level.

use bytemuck::cast;

use crate::abi::GROUP;
use crate::layout::block_formats::SUPER_BLOCK;
use crate::view::{QuantiseView, Vectors};

/// Added to a small number, it leaves the nearest integer in the lowest bits.
pub(crate) const SHIFT: f32 = 12_582_912.0;

/// Bytes of the pieces of a row.
#[inline(always)]
fn pieces(k: usize) -> [usize; 5] {
    let ends = |n: usize| n.next_multiple_of(64);
    [2 * ends(k), ends(k / 8), ends(k / 8), ends(k), 2 * ends(k)]
}

/// Bytes of a row.
pub(crate) fn row_bytes(k: usize) -> usize {
    pieces(k).into_iter().sum()
}

/// A quantised column.
#[derive(Clone, Copy)]
pub(crate) struct Int8Row<'a> {
    /// 16-bit integers.
    pub(crate) wide: &'a [u8],
    pub(crate) scales: &'a [u8],
    pub(crate) sums: &'a [u8],
    pub(crate) tails: &'a [u8],
    /// Clamped to ±127, each 32 followed by their tail.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Int8Row<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], k: usize) -> Self {
        let [wide, scales, sums, tails, near] = pieces(k);
        let (wide, rest) = bytes.split_at(wide);
        let (scales, rest) = rest.split_at(scales);
        let (sums, rest) = rest.split_at(sums);
        let (tails, rest) = rest.split_at(tails);
        Self { wide, scales, sums, tails, bytes: &rest[..near] }
    }

    /// `C` columns, from `c` on.
    #[inline(always)]
    pub(crate) fn some<const C: usize>(x: &Vectors<'a>, c: usize, k: usize) -> [Self; C] {
        let mut all = [Self::new(x.get(c), k); C];
        for i in 1..C {
            all[i] = Self::new(x.get(c + i), k);
        }
        all
    }

    /// Groups `from..from + n`, as 16-bit integers and as bytes.
    #[inline(always)]
    pub(crate) fn lines(&self, from: usize, n: usize) -> Lines<'a> {
        Lines {
            words: &self.wide.as_chunks().0[from..from + n],
            bytes: &self.bytes.as_chunks().0[from..from + n],
            excess: &self.tails.as_chunks().0[from..from + n],
        }
    }

    /// Groups `from..from + n`, as 8-bit integers.
    #[inline(always)]
    pub(crate) fn groups(&self, from: usize, n: usize) -> Groups<'a> {
        Groups {
            numbers: &self.wide.as_chunks().0.as_chunks().0[from..from + n],
            tails: &self.tails.as_chunks().0.as_chunks().0[from..from + n],
            sums: self.sums.as_chunks().0[from..from + n].as_chunks().0,
        }
    }

    /// The `idx`-th 32 numbers as 16-bit integers.
    #[inline(always)]
    pub(crate) fn wide(&self, idx: usize) -> &'a [u8; 64] {
        self.wide[idx * 64..].first_chunk().expect("a vector has whole groups")
    }

    #[inline(always)]
    pub(crate) fn scale(&self, idx: usize) -> f32 {
        f32::from_le_bytes(*self.scales[idx * 4..].first_chunk().expect("a scale for each group"))
    }

    /// The sum of the `idx`-th 32 numbers, times their scale.
    #[inline(always)]
    pub(crate) fn sum(&self, idx: usize) -> f32 {
        f32::from_le_bytes(*self.sums[idx * 4..].first_chunk().expect("a sum for each group"))
    }
}

/// Some groups of a column of 16-bit integers, with a line for each.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) words: &'a [[u8; 64]],
    /// Clamped to ±127, each followed by its tail.
    pub(crate) bytes: &'a [[u8; 64]],
    /// The excess of the bytes.
    pub(crate) excess: &'a [[u8; 32]],
}

/// Some groups of a column of 8-bit integers.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    numbers: &'a [[[u8; 4]; 8]],
    tails: &'a [[[u8; 4]; 8]],
    /// The sums of each two, of 16 bits.
    sums: &'a [[[u8; 2]; 2]],
}

impl<'a> Groups<'a> {
    #[inline(always)]
    pub(crate) fn two_sums(&self, at: usize) -> [u8; 4] {
        cast(self.sums[at])
    }

    #[inline(always)]
    pub(crate) fn at(&self, g: usize) -> Column<'a> {
        Column { numbers: &self.numbers[g], tail: &self.tails[g] }
    }
}

/// One of them. In all rows of one length a tail is as far from its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Column<'a> {
    /// Four numbers each.
    pub(crate) numbers: &'a [[u8; 4]; 8],
    pub(crate) tail: &'a [[u8; 4]; 8],
}

impl Column<'_> {
    #[inline(always)]
    pub(crate) fn single(&self, of: Tail) -> f32 {
        f32::from_le_bytes(self.tail[of as usize])
    }

    /// The run of four that may exceed 127.
    #[inline(always)]
    pub(crate) fn large(&self) -> usize {
        u32::from_le_bytes(self.tail[Tail::Place as usize]) as usize / 64 % 8
    }
}

/// The words of a group's tail, of 32 bits each.
#[derive(Clone, Copy)]
pub(crate) enum Tail {
    /// -128 times the sum.
    Start,
    Scale,
    /// The excess above 127 of the run of four that has one.
    Excess,
    /// The byte offset, in a panel of weights, of the elements that this run is multiplied with.
    Place,
    /// -128 times the sum of the first half, and of the second.
    First,
    Second,
    /// The sum, times the scale.
    Sum,
    Zero,
}

/// 32 quantised numbers, clamped to ±127, and their excess.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) numbers: [u8; 32],
    pub(crate) excess: [u8; 32],
    /// The sum of each half.
    pub(crate) halves: [i32; 2],
}

/// The memory of four groups of a row.
pub(crate) struct Four<'a> {
    pub(crate) numbers: &'a mut [[u8; 32]; 4],
    pub(crate) tails: &'a mut [[u8; 32]; 4],
    /// 16-bit integers.
    pub(crate) sums: &'a mut [u8; 8],
}

/// A row that is being written.
pub(crate) struct Row<'a> {
    wide: &'a mut [u8],
    scales: &'a mut [[u8; 4]],
    sums: &'a mut [[u8; 4]],
    tails: &'a mut [[[u8; 4]; 8]],
    bytes: &'a mut [u8],
}

impl<'a> Row<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a mut [u8], k: usize) -> Self {
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

    /// Stores the `idx`-th 32 numbers as 16-bit integers, with their sum and scale.
    #[inline(always)]
    pub(crate) fn put_wide(&mut self, idx: usize, numbers: [u8; 64], sum: i32, scale: f32) {
        self.wide.as_chunks_mut().0[idx] = numbers;
        self.scales[idx] = scale.to_le_bytes();
        self.sums[idx] = (sum as f32 * scale).to_le_bytes();
    }

    /// Stores the same numbers as bytes clamped to ±127, and their excess, which only the `large`-th run of four has.
    #[inline(always)]
    pub(crate) fn put_line(&mut self, idx: usize, numbers: [u8; 32], excess: [[u8; 4]; 8], large: usize) {
        self.tails[idx] = excess;
        let place = (32 * large as u32).to_le_bytes();
        let tail = [[0; 4], self.scales[idx], excess[large], place, [0; 4], [0; 4], self.sums[idx], [0; 4]];
        let line: &mut [[u8; 32]; 2] = &mut self.bytes.as_chunks_mut().0.as_chunks_mut().0[idx];
        *line = [numbers, cast(tail)];
    }

    /// The memory of each four groups, one after another.
    #[inline(always)]
    pub(crate) fn fours(&mut self) -> impl Iterator<Item = Four<'_>> {
        let numbers = self.wide.as_chunks_mut().0.as_chunks_mut().0;
        let tails = self.tails.as_flattened_mut().as_flattened_mut().as_chunks_mut().0.as_chunks_mut().0;
        let sums = self.sums.as_flattened_mut().as_chunks_mut().0;
        let all = numbers.iter_mut().zip(tails).zip(sums);
        all.map(|((numbers, tails), sums)| Four { numbers, tails, sums })
    }

    /// Stores the `idx`-th 32 numbers as bytes, with their scale, and the run of four that has an excess.
    #[inline(always)]
    pub(crate) fn put(&mut self, idx: usize, group: Group, scale: f32, large: usize) {
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

/// The range that the scale of a group must cover for 32 of its numbers: half of the largest absolute value, and the
/// largest outside its run of four; with groups of qwen3.c all of the largest. Absolute values are compared as bits;
/// NaN counts as the largest.
#[inline(always)]
pub(crate) fn held(group: usize, largest: u32, others: u32) -> u32 {
    let is_own = matches!(group, GROUP | SUPER_BLOCK);
    if is_own { (0.5 * f32::from_bits(largest)).to_bits().max(others) } else { largest }
}

/// The scale of a group with this range, and its inverse: zero where it would be infinite.
#[inline(always)]
pub(crate) fn scale_of(most: f32) -> (f32, f32) {
    let scale = most / 127.0;
    (scale, if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 })
}

#[inline(always)]
pub(crate) fn quantise(job: &mut QuantiseView<'_>) {
    quantise_with(
        job,
        |_, _| 0,
        largest,
        |row, idx, x, (scale, by)| {
            let (numbers, sum) = rounded(x, by);
            row.put_wide(idx, numbers, sum, scale);
        },
    );
}

/// Quantises all columns: `first` may do the first groups of a row, of a number of 32 numbers each, and returns how
/// many; `largest` returns the largest absolute value of 32 numbers and the largest outside its run of four, as bits;
/// `put` stores the `idx`-th 32 numbers with a scale, whose inverse it gets, too.
#[inline(always)]
pub(crate) fn quantise_with(
    job: &mut QuantiseView<'_>,
    first: impl Fn(&mut Row<'_>, &[[u8; 128]]) -> usize,
    largest: impl Fn(&[u8; 128]) -> (u32, u32),
    put: impl Fn(&mut Row<'_>, usize, &[u8; 128], (f32, f32)),
) {
    let (k, n) = (job.k, job.group / 32);
    for (c, row) in job.out.chunks_exact_mut(row_bytes(k)).enumerate().take(job.n_cols) {
        let x = job.x[c * job.x_col..][..4 * k].as_chunks().0;
        let mut row = Row::new(row, k);
        let n_done = first(&mut row, x);
        for (idx, x) in x.chunks(n).enumerate().skip(n_done) {
            let mut most = 0;
            for x in x {
                let (size, others) = largest(x);
                most = held(job.group, size, others).max(most);
            }
            let scale = scale_of(f32::from_bits(most));
            for (i, x) in x.iter().enumerate() {
                put(&mut row, idx * n + i, x, scale);
            }
        }
    }
}

/// The largest absolute value of 32 numbers, and the largest outside its run of four, as bits.
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
