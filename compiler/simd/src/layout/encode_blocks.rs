//! Encodes single precision as blocks, in the formats of KV caches: `Q8_0` and `Q4_0`.
//!
//! In: numbers in single precision. Out: the bytes of llama.cpp's reference. Everything is inlined into the
//! functions of a level.

use half::f16;

use crate::layout::block_formats::Storage;
use crate::layout::int8_rows::SHIFT;
use crate::view::EncodeView;

#[inline(always)]
pub(crate) fn blocks(job: &mut EncodeView<'_>) {
    match job.storage {
        Storage::Q8_0 => blocks_of::<{ Storage::Q8_0 as usize }>(job),
        Storage::Q4_0 => blocks_of::<{ Storage::Q4_0 as usize }>(job),
        _ => unreachable!("no state is stored so"),
    }
}

#[inline(always)]
fn blocks_of<const S: usize>(job: &mut EncodeView<'_>) {
    let storage = const { Storage::ALL[S] };
    for (x, block) in job.x.as_chunks::<32>().0.iter().zip(job.out.chunks_exact_mut(storage.block().1)) {
        match storage {
            Storage::Q4_0 => q4_0(x, block),
            _ => q8_0(x, block),
        }
    }
}

/// `d qs:32`, the numbers with a sign.
#[inline(always)]
fn q8_0(x: &[f32; 32], block: &mut [u8]) {
    let d = f32::from_bits(greatest(x)) / 127.0;
    let inverse = inverse(d);
    let mut q = [0; 32];
    for i in 0..32 {
        // As a number of 8 bits is made of one in single precision, but in all lanes at once.
        let whole = (x[i] * inverse).round();
        let whole = if whole.is_nan() { 0.0 } else { whole.clamp(-128.0, 127.0) };
        q[i] = (whole + SHIFT).to_bits() as u8;
    }
    put(block, d, &q);
}

/// `d qs:16`, two numbers in a byte: the one of greatest size becomes the least, whatever its sign.
#[inline(always)]
fn q4_0(x: &[f32; 32], block: &mut [u8]) {
    let greatest = greatest(x);
    // The first of that size has the sign.
    let mut first = 31;
    for i in 0..32 {
        first = first.min(if size(x[i]) == greatest { i as u32 } else { 31 });
    }
    let extreme = f32::from_bits(greatest).copysign(x[first as usize]);
    let d = if greatest == 0 { 0.0 } else { extreme } / -8.0;
    let inverse = inverse(d);
    let mut q = [0; 16];
    for i in 0..16 {
        // NaN becomes 0.
        let [low, high] = [x[i], x[i + 16]].map(|x| (x * inverse + 8.5) as i32).map(|q| q.clamp(0, 15));
        q[i] = (low | high << 4) as u8;
    }
    put(block, d, &q);
}

/// Sizes are in the order of their bits, which several lanes compare at a time; NaN counts as 0.
#[inline(always)]
fn size(x: f32) -> u32 {
    let size = x.abs().to_bits();
    if size > f32::INFINITY.to_bits() { 0 } else { size }
}

#[inline(always)]
fn greatest(x: &[f32; 32]) -> u32 {
    let mut greatest = 0;
    for x in x {
        greatest = greatest.max(size(*x));
    }
    greatest
}

#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

#[inline(always)]
fn put(block: &mut [u8], d: f32, q: &[u8]) {
    let (scale, numbers) = block.split_at_mut(2);
    scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
    numbers.copy_from_slice(q);
}
