//! Encodes single precision as `Q8_0` blocks, the format of 8-bit KV caches.
//!
//! In: numbers in single precision. Out: the bytes of llama.cpp's reference. Everything is inlined into the
//! functions of a level.

use half::f16;

use crate::layout::int8_rows::SHIFT;
use crate::view::EncodeView;

#[inline(always)]
pub(crate) fn blocks(job: &mut EncodeView<'_>) {
    for (x, block) in job.x.as_chunks::<32>().0.iter().zip(job.blocks.iter_mut()) {
        // Sizes are in the order of their bits, which several lanes compare at a time; NaN counts as 0.
        let mut greatest = 0;
        for x in x {
            let size = x.abs().to_bits();
            greatest = greatest.max(if size > f32::INFINITY.to_bits() { 0 } else { size });
        }
        let d = f32::from_bits(greatest) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut q = [0; 32];
        for i in 0..32 {
            // As a number of 8 bits is made of one in single precision, but in all lanes at once.
            let whole = (x[i] * inverse).round();
            let whole = if whole.is_nan() { 0.0 } else { whole.clamp(-128.0, 127.0) };
            q[i] = (whole + SHIFT).to_bits() as u8;
        }
        let (scale, numbers) = block.split_at_mut(2);
        scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
        numbers.copy_from_slice(&q);
    }
}
