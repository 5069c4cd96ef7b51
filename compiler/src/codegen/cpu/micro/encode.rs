//! Blocks of numbers of 8 bits, as a state holds them.
//!
//! In: numbers in single precision. Out: blocks of format `Q8_0`, the same bytes that `tensor::quant` makes of them.
//! Everything is inlined into the functions of a level.

use half::f16;

use crate::codegen::cpu::micro::view::EncodeView;

#[inline(always)]
pub(super) fn blocks(job: &mut EncodeView<'_>) {
    for (x, block) in job.x.as_chunks::<32>().0.iter().zip(job.blocks.iter_mut()) {
        let mut greatest = 0.0f32;
        for x in x {
            // A number that is none is never greater.
            greatest = if x.abs() > greatest { x.abs() } else { greatest };
        }
        let d = greatest / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut q = [0; 32];
        for i in 0..32 {
            let quotient = x[i] * inverse;
            let whole = quotient as i32;
            let rest = quotient - whole as f32;
            q[i] = (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8;
        }
        let (scale, numbers) = block.split_at_mut(2);
        scale.copy_from_slice(&f16::from_f32(d).to_le_bytes());
        for (number, q) in numbers.iter_mut().zip(q) {
            *number = q.cast_unsigned();
        }
    }
}
