//! The activation layout `Int14`: 14-bit integers in 16 bits, with a scale for each 32.
//!
//! In: the bytes of a quantised row. Out: its steps of 32 integers and their scales. `scale = max|x| / 8191` is the
//! largest range for which a sum of 32 products fits 32 bits. Elements within a factor of four of the largest are as
//! exact as in half precision, and the sum is more exact.
//!
//! ```text
//! row = [q: 32 x i16] * ceil(k / 32), [scale: f32] * ceil(k / 32), padded to 64 bytes
//! ```

use crate::view::Vectors;

/// The largest number: the sum of 32 squares of it has 31 bits.
pub(crate) const MOST: f32 = 8191.0;

/// If the largest of 32 numbers is smaller, all of them become zeros: its inverse may be infinite.
pub(crate) const LEAST: f32 = 1e-30;

/// Numbers that share a scale.
pub(crate) const STEP: usize = 32;

/// Some steps of a quantised column.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    pub(crate) steps: &'a [[[u8; 4]; STEP / 2]],
    pub(crate) scales: &'a [[u8; 4]],
}

impl<'a> Words<'a> {
    /// Some steps of a column of `k` elements.
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], k: usize, (from, n): (usize, usize)) -> Self {
        let (steps, scales) = bytes.split_at(2 * STEP * k.div_ceil(STEP));
        let steps = &steps.as_chunks().0.as_chunks().0[from..from + n];
        Self { steps, scales: &scales.as_chunks().0[from..from + n] }
    }

    /// The same steps of `C` columns, from `c` on.
    #[inline(always)]
    pub(crate) fn some<const C: usize>(
        x: &Vectors<'a>,
        c: usize,
        k: usize,
        steps: (usize, usize),
    ) -> [Self; C] {
        let mut all = [Self::new(x.get(c), k, steps); C];
        for i in 1..C {
            all[i] = Self::new(x.get(c + i), k, steps);
        }
        all
    }
}

/// The first `L` bytes, padded with zeros.
#[inline(always)]
pub(crate) fn padded<'a, const L: usize>(bytes: &'a [u8], room: &'a mut [u8; L]) -> &'a [u8; L] {
    if let Some(whole) = bytes.first_chunk() {
        return whole;
    }
    let (start, rest) = room.split_at_mut(bytes.len());
    start.copy_from_slice(bytes);
    rest.fill(0);
    room
}
