//! All layouts of activations in plain Rust, one number at a time: what the code of the levels is tested against.
//!
//! In: columns in single precision. Out: what each number is rounded to, and all bytes of a layout. Nothing is shared
//! with the levels but the sizes of `sizes.rs`: the files that `abi.rs` names with a layout have its diagram.

use crate::abi::{ActivationLayout, INTERLEAVED_COLS};
use crate::layout::sizes::{SUPER_BLOCK_ACTIVATION_BYTES, activation_bytes, int8_gemv_pieces, int14_bytes};

/// Who writes `Int8Rows`, of which each has its own pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Portable,
    Avx2,
    Avx512,
}

/// A rounded number: `q * steps * unit`. Only `Int8Gemv` has steps other than one.
#[derive(Clone, Copy, Default)]
pub(crate) struct Number {
    q: i32,
    steps: f32,
    unit: f32,
}

impl Number {
    /// The nearest integer of `x * by`, and `i32::MIN` for what is none, as the processor has it.
    fn new(x: f32, by: f32, steps: f32, unit: f32) -> Self {
        let x = x * by;
        let q = if x.abs() < 2.0_f32.powi(31) { x.round_ties_even() as i32 } else { i32::MIN };
        Self { q, steps, unit }
    }

    fn scale(self) -> f32 {
        self.steps * self.unit
    }

    pub(crate) fn value(self) -> f64 {
        f64::from(self.q) * f64::from(self.scale())
    }

    fn clamped(self) -> i8 {
        self.q.clamp(-127, 127) as i8
    }

    /// The part above 127, which is stored apart.
    fn excess(self) -> i8 {
        self.q.wrapping_sub(self.clamped().into()) as i8
    }

    /// Both parts as they are stored.
    fn whole(self) -> i32 {
        i32::from(self.clamped()) + i32::from(self.excess())
    }
}

/// The largest absolute value. NaN counts as the largest.
fn largest<'a>(x: impl IntoIterator<Item = &'a f32>) -> f32 {
    f32::from_bits(x.into_iter().map(|x| x.abs().to_bits()).max().unwrap_or(0))
}

/// The first of eight runs of four that has the largest of 32 numbers.
fn large_run(x: &[f32]) -> usize {
    let of_four = |run: usize| largest(&x[4 * run..][..4]).to_bits();
    (0..8).rev().max_by_key(|run| of_four(*run)).expect("eight runs")
}

/// The largest number of 32 that is rounded to 127: half the largest, or the largest outside of its run of four.
fn held(x: &[f32]) -> f32 {
    let large = large_run(x);
    let others = x.iter().enumerate().filter(|(i, _)| i / 4 != large).map(|(_, x)| x);
    largest(&[0.5 * largest(x), largest(others)])
}

/// The first bfloat16 number of `x`, and the next for what is left of it; halves go away from zero.
pub(crate) fn parts(x: f32) -> [f32; 2] {
    let first = |x: f32| f32::from_bits(x.to_bits().wrapping_add(0x8000) & 0xffff_0000);
    [first(x), first(x - first(x))]
}

/// The numbers of one of `n_cols` columns in a layout of integers.
pub(crate) fn rounded(layout: ActivationLayout, n_cols: usize, x: &[f32]) -> Vec<Number> {
    match layout {
        ActivationLayout::Int8Rows { group } | ActivationLayout::Int8Amx { group } => {
            x.chunks(group).flat_map(|x| of_group(group, x)).collect()
        }
        ActivationLayout::Int8Interleaved if n_cols >= *INTERLEAVED_COLS.start() => {
            x.chunks(32).flat_map(of_two_fours).collect()
        }
        ActivationLayout::Int8Gemv | ActivationLayout::Int8Interleaved => {
            x.chunks(256).flat_map(of_eight_groups).collect()
        }
        ActivationLayout::Int14 => x.chunks(32).flat_map(of_words).collect(),
        ActivationLayout::Bf16Tiles { .. } => unreachable!("these are no integers"),
    }
}

/// Numbers with one scale. Those of qwen3.c have no run with an excess.
fn of_group(group: usize, x: &[f32]) -> Vec<Number> {
    let is_own = matches!(group, 32 | 256);
    let most = if is_own { largest(&x.chunks(32).map(held).collect::<Vec<_>>()) } else { largest(x) };
    let scale = most / 127.0;
    let by = if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
    x.iter().map(|x| Number::new(*x, by, 1.0, scale)).collect()
}

/// 32 numbers: runs of four have two scales, alternating.
fn of_two_fours(x: &[f32]) -> Vec<Number> {
    let scales = [0, 1].map(|lane| largest(x.chunks(4).skip(lane).step_by(2).flatten()) * (1.0_f32 / 127.0));
    let number = |(i, x): (usize, &f32)| {
        let scale = scales[i / 4 % 2];
        Number::new(*x, if scale > 1e-38 { 1.0 / scale } else { 0.0 }, 1.0, scale)
    };
    x.iter().enumerate().map(number).collect()
}

/// Up to eight groups that share a unit: in each of them runs of eight have two scales, alternating.
fn of_eight_groups(x: &[f32]) -> Vec<Number> {
    let most = largest(x);
    let (unit, by) = if most < 1e-34 { (0.0, 0.0) } else { (most / (127.0 * 63.0), 63.0 / most) };
    let group = |x: &[f32]| -> Vec<Number> {
        // No number is more than 63.
        let steps = [0, 1]
            .map(|lane| 63.0_f32.min((largest(x.chunks(8).skip(lane).step_by(2).flatten()) * by).ceil()));
        let number = |(i, x): (usize, &f32)| {
            let scale = steps[i / 8 % 2] * unit;
            Number::new(*x, if scale > 0.0 { 1.0 / scale } else { 0.0 }, steps[i / 8 % 2], unit)
        };
        x.iter().enumerate().map(number).collect()
    };
    x.chunks(32).flat_map(group).collect()
}

/// Up to 32 numbers of 14 bits; weights are rounded so, too.
pub(crate) fn of_words(x: &[f32]) -> Vec<Number> {
    let most = largest(x);
    let by = if most < 1e-30 { 0.0 } else { 8191.0 / most };
    x.iter().map(|x| Number::new(*x, by, 1.0, most * (1.0 / 8191.0))).collect()
}

/// What stays as it was before.
pub(crate) const UNTOUCHED: u8 = 0xa5;

/// All bytes of columns of one length.
pub(crate) fn bytes(writer: Writer, layout: ActivationLayout, x: &[&[f32]]) -> Vec<u8> {
    let (n_cols, k) = (x.len(), x[0].len());
    let mut out = vec![UNTOUCHED; activation_bytes(layout, n_cols, k)];
    let out = &mut out;
    if let ActivationLayout::Bf16Tiles { n_parts } = layout {
        bf16_tiles(out, n_parts as usize, x);
        return out.clone();
    }
    for (c, x) in x.iter().enumerate() {
        let numbers = rounded(layout, n_cols, x);
        match (layout, writer) {
            (ActivationLayout::Int8Rows { .. }, Writer::Portable) => portable_row(out, c, &numbers),
            (ActivationLayout::Int8Rows { .. }, Writer::Avx2) => avx2_row(out, c, &numbers),
            (ActivationLayout::Int8Rows { .. }, Writer::Avx512) => avx512_row(out, c, &numbers, x),
            (ActivationLayout::Int8Interleaved, _) if n_cols >= *INTERLEAVED_COLS.start() => {
                interleaved(out, c, &numbers);
            }
            (ActivationLayout::Int8Gemv | ActivationLayout::Int8Interleaved, _) => gemv_row(out, c, &numbers),
            (ActivationLayout::Int8Amx { .. }, _) => amx_tiles(out, c, &numbers),
            (ActivationLayout::Int14, _) => words(out, c, &numbers),
            (ActivationLayout::Bf16Tiles { .. }, _) => unreachable!("these are no integers"),
        }
    }
    out.clone()
}

/// Stores bytes at a place.
fn put<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

/// Stores numbers of 32 bits one after another.
fn put_words(out: &mut [u8], at: usize, words: [[u8; 4]; 8]) {
    out[at..at + 32].copy_from_slice(words.as_flattened());
}

/// The starts of the five pieces of the `c`-th `Int8Rows`: numbers, scales, sums, tails, bytes.
fn rows_pieces(c: usize, k: usize) -> [usize; 5] {
    let (all, eighth) = (k.next_multiple_of(64), (k / 8).next_multiple_of(64));
    let from = c * (5 * all + 2 * eighth);
    [0, 2 * all, 2 * all + eighth, 2 * all + 2 * eighth, 3 * all + 2 * eighth].map(|piece| from + piece)
}

fn portable_row(out: &mut [u8], c: usize, numbers: &[Number]) {
    let [wide, scales, sums, ..] = rows_pieces(c, numbers.len());
    for (g, group) in numbers.chunks(32).enumerate() {
        // What is no number is a zero here.
        let word = |number: &Number| if number.q == i32::MIN { 0 } else { number.q as i16 };
        let words: Vec<i16> = group.iter().map(word).collect();
        for (i, q) in words.iter().enumerate() {
            put(out, wide + 64 * g + 2 * i, q.to_le_bytes());
        }
        let sum: i32 = words.iter().map(|q| i32::from(*q)).sum();
        put(out, scales + 4 * g, group[0].scale().to_le_bytes());
        put(out, sums + 4 * g, (sum as f32 * group[0].scale()).to_le_bytes());
    }
}

fn avx2_row(out: &mut [u8], c: usize, numbers: &[Number]) {
    let [wide, scales, sums, tails, bytes] = rows_pieces(c, numbers.len());
    for (g, group) in numbers.chunks(32).enumerate() {
        let words: Vec<i16> = group.iter().map(|number| number.q.max(i16::MIN.into()) as i16).collect();
        for (i, (q, number)) in words.iter().zip(group).enumerate() {
            // Even ones first.
            put(out, wide + 64 * g + 32 * (i % 2) + 2 * (i / 2), q.to_le_bytes());
            put(out, tails + 32 * g + i, number.excess().to_le_bytes());
            put(out, bytes + 64 * g + i, number.clamped().to_le_bytes());
        }
        let scale = group[0].scale().to_le_bytes();
        let sum = words.iter().map(|q| i32::from(*q)).sum::<i32>() as f32 * group[0].scale();
        put(out, scales + 4 * g, scale);
        put(out, sums + 4 * g, sum.to_le_bytes());
        let large = group.iter().position(|number| number.excess() != 0).unwrap_or(0) / 4;
        let excess = [0, 1, 2, 3].map(|i| group[4 * large + i].excess() as u8);
        let (none, place) = ([0; 4], (32 * large as u32).to_le_bytes());
        let tail = [none, scale, excess, place, none, none, sum.to_le_bytes(), none];
        put_words(out, bytes + 64 * g + 32, tail);
    }
}

fn avx512_row(out: &mut [u8], c: usize, numbers: &[Number], x: &[f32]) {
    let [near, _, sums, tails, _] = rows_pieces(c, numbers.len());
    for (g, (group, x)) in numbers.chunks(32).zip(x.chunks(32)).enumerate() {
        for (i, number) in group.iter().enumerate() {
            put(out, near + 32 * g + i, number.clamped().to_le_bytes());
        }
        let [first, second] =
            [0, 16].map(|i| group[i..i + 16].iter().map(|number| number.whole()).sum::<i32>());
        let (sum, scale) = (first + second, group[0].scale());
        put(out, sums + 2 * g, (sum as i16).to_le_bytes());
        let large = large_run(x);
        let tail = [
            (-128 * sum).to_le_bytes(),
            scale.to_le_bytes(),
            [0, 1, 2, 3].map(|i| group[4 * large + i].excess() as u8),
            (64 * large as u32).to_le_bytes(),
            (-128 * first).to_le_bytes(),
            (-128 * second).to_le_bytes(),
            (sum as f32 * scale).to_le_bytes(),
            [0; 4],
        ];
        put_words(out, tails + 32 * g, tail);
    }
}

fn gemv_row(out: &mut [u8], c: usize, numbers: &[Number]) {
    let pieces = int8_gemv_pieces(numbers.len());
    let mut at = c * pieces.iter().sum::<usize>();
    let [bytes, halves, even, odd, sums, larges] = pieces.map(|n| {
        at += n;
        at - n
    });
    out[bytes..larges].fill(0);
    let larges: Vec<usize> = (larges..at).step_by(SUPER_BLOCK_ACTIVATION_BYTES).collect();
    for large in &larges {
        out[large + 2304..][..32].fill(0);
    }
    for (g, group) in numbers.chunks(32).enumerate() {
        for (i, number) in group.iter().enumerate() {
            put(out, bytes + 32 * g + i, [number.q as u8]);
            put(out, halves + g / 4 * 128 + i / 16 * 64 + g % 4 * 16 + i % 16, [number.q as u8]);
        }
        let scales = [group[0].scale(), group[8].scale()];
        let eights: Vec<i16> =
            group.chunks(8).map(|run| run.iter().map(|number| i16::from(number.q as i8)).sum()).collect();
        let by_turns = [eights[0] + eights[2], eights[1] + eights[3]];
        put(out, even + 4 * g, scales[0].to_le_bytes());
        put(out, odd + 4 * g, scales[1].to_le_bytes());
        let sum = f32::from(by_turns[0]) * scales[0] + f32::from(by_turns[1]) * scales[1];
        put(out, sums + 4 * g, sum.to_le_bytes());
        let Some(large) = larges.get(g / 32) else { continue };
        let (block, in_block) = (g / 8 % 4, g % 8);
        put(out, large + 2304 + 8 * block, group[0].unit.to_le_bytes());
        put(out, large + 2308 + 8 * block, group[0].unit.to_le_bytes());
        let block = large + 512 * block;
        for (i, number) in group.iter().enumerate() {
            let line = in_block / 4 * 2 + in_block % 2;
            put(out, block + 64 * line + in_block / 2 % 2 * 32 + i, [number.q as u8]);
        }
        for (run, sum) in eights.iter().enumerate() {
            let place =
                in_block / 4 * 64 + 32 * (in_block % 2) + 16 * (run / 2) + in_block / 2 % 2 * 8 + run % 2 * 4;
            let (steps, moved) = (group[8 * run].steps as i16 * 256, -32 * sum);
            let two = [steps, steps].map(i16::to_le_bytes);
            out[block + 256 + place..][..4].copy_from_slice(two.as_flattened());
            out[block + 384 + place..][..4].copy_from_slice([moved, 0].map(i16::to_le_bytes).as_flattened());
        }
        for lane in 0..2 {
            let place = large + 64 * lane + 2 * (g % 32);
            put(out, place + 2048, (group[8 * lane].steps as i16).to_le_bytes());
            put(out, place + 2176, by_turns[lane].to_le_bytes());
        }
    }
}

fn interleaved(out: &mut [u8], c: usize, numbers: &[Number]) {
    let eight = &mut out[c / 8 * numbers.len() * 10..][..numbers.len() * 10];
    if c.is_multiple_of(8) {
        eight.fill(0);
    }
    for (i, number) in numbers.iter().enumerate() {
        let group = i / 32 * 320;
        put(eight, group + i % 32 / 8 * 64 + c % 8 * 8 + i % 8, [number.q as u8]);
        put(eight, group + 256 + c % 8 * 8 + i / 4 % 2 * 4, number.scale().to_le_bytes());
    }
}

fn amx_tiles(out: &mut [u8], c: usize, numbers: &[Number]) {
    let n = (numbers.len() / 32).next_multiple_of(4);
    let eight = &mut out[c / 8 * n * 640..][..n * 640];
    if c.is_multiple_of(8) {
        eight.fill(0);
    }
    for (g, group) in numbers.chunks(32).enumerate() {
        for (i, number) in group.iter().enumerate() {
            let place = 512 * g + i / 4 * 32 + c % 8 * 4 + i % 4;
            put(eight, place, number.clamped().to_le_bytes());
            put(eight, place + 256, number.excess().to_le_bytes());
        }
        let (scale, sum) = (group[0].scale(), group.iter().map(|number| number.whole()).sum::<i32>());
        for twice in [0, 32] {
            let place = 64 * g + c % 8 * 4 + twice;
            put(eight, 512 * n + place, scale.to_le_bytes());
            put(eight, 576 * n + place, (sum as f32 * scale).to_le_bytes());
        }
    }
}

fn words(out: &mut [u8], c: usize, numbers: &[Number]) {
    let (n, from) = (numbers.len().div_ceil(32), c * int14_bytes(1, numbers.len()));
    out[from..from + 64 * n].fill(0);
    for (i, number) in numbers.iter().enumerate() {
        put(out, from + 2 * i, (number.q as i16).to_le_bytes());
        put(out, from + 64 * n + 4 * (i / 32), number.scale().to_le_bytes());
    }
}

fn bf16_tiles(out: &mut [u8], n_parts: usize, x: &[&[f32]]) {
    for (c, x) in x.iter().enumerate() {
        let n = x.len().div_ceil(32);
        for (part, i) in (0..n_parts).flat_map(|part| (0..32 * n).map(move |i| (part, i))) {
            let [.., low, high] = parts(x.get(i).copied().unwrap_or(0.0))[part].to_le_bytes();
            put(out, ((c / 16 * n_parts + part) * n + i / 32) * 1024 + c % 16 * 64 + i % 32 * 2, [low, high]);
        }
    }
}
