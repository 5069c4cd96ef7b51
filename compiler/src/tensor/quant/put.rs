//! Puts numbers into the bytes of a block.
//!
//! In: scales, and quanta of 4 or 5 bits. Out: their bytes, in the order of GGUF.

use half::f16;

/// Writes a half-precision number.
pub(super) fn put_f16(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// Writes the whole parts of 32 numbers: their fifth bits first if they have any, then nibbles.
pub(super) fn put_quanta(to: &mut [u8], n_bits: u32, number: impl Fn(usize) -> f32) {
    to.fill(0);
    let n_top = if n_bits == 5 { 4 } else { 0 };
    let (top, nibbles) = to.split_at_mut(n_top);
    for i in 0..32 {
        let q = (number(i) as u8).min((1 << n_bits) - 1);
        nibbles[i % 16] |= (q & 15) << (i / 16 * 4);
        if n_bits == 5 {
            top[i / 8] |= (q >> 4) << (i % 8);
        }
    }
}
