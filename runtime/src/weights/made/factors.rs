//! Scales and offsets, as tensors of their own.
//!
//! In: a tensor of any type that scales have. Out: the factor of a row and a group of its columns, in single precision.
//!
//! ```text
//! one for all      [1] or []                 one for a row     [rows, 1] or [rows]
//! groups           [rows, groups]            groups, GPTQ      [groups, rows]
//! tiles            [rows / r, columns / c]   nested            bytes, a table, and factors for runs of bytes
//! ```

use half::{bf16, f16};

use crate::weights::made::part::{Files, Part};

/// The types that factors are stored in.
pub(super) const FLOATS: [&str; 3] = ["f32", "bf16", "f16"];

/// A factor for each row and group.
#[derive(Debug)]
pub(super) struct Factors {
    pub(super) part: Part,
    pub(super) nested: Option<Nested>,
    /// Rows that share a factor.
    pub(super) n_rows: usize,
    /// How far the next rows' factor is, and that of the next group.
    pub(super) strides: [usize; 2],
    /// What each is multiplied with, and divided by.
    pub(super) times: f32,
    pub(super) per: f32,
}

/// What bytes stand for that are factors in turn.
#[derive(Debug)]
pub(super) struct Nested {
    pub(super) table: Vec<f32>,
    pub(super) outer: Part,
    /// Bytes that share an outer factor.
    pub(super) len: usize,
    pub(super) offset: f32,
}

impl Factors {
    /// Those of a tensor with these strides.
    pub(super) fn new(part: Part, strides: [usize; 2]) -> Self {
        Self { part, nested: None, n_rows: 1, strides, times: 1.0, per: 1.0 }
    }

    fn at(&self, row: usize, group: usize) -> usize {
        row / self.n_rows * self.strides[0] + group * self.strides[1]
    }

    /// The factor of a group of a row.
    pub(super) fn get(&self, files: &Files, row: usize, group: usize) -> f32 {
        let at = self.at(row, group);
        let own = match &self.nested {
            None => float(&self.part, files, at),
            Some(nested) => {
                let code = usize::from(self.part.bytes(files)[at]);
                nested.table[code] * float(&nested.outer, files, at / nested.len) + nested.offset
            }
        };
        own * self.times / self.per
    }

    /// The byte of an exponent.
    pub(super) fn exponent(&self, files: &Files, row: usize, group: usize) -> u8 {
        self.part.bytes(files)[self.at(row, group)]
    }

    /// Whether half precision holds all of them exactly.
    pub(super) fn are_halves(&self, files: &Files, n_rows: usize, n_groups: usize) -> bool {
        if self.part.ty == "f16" && self.nested.is_none() && self.times == 1.0 && self.per == 1.0 {
            return true;
        }
        let is_half = |x: f32| f16::from_f32(x).to_f32() == x;
        (0..n_rows).all(|row| (0..n_groups).all(|group| is_half(self.get(files, row, group))))
    }
}

/// An element of a tensor.
pub(super) fn float(part: &Part, files: &Files, at: usize) -> f32 {
    let bytes = part.bytes(files);
    let half = || u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
    match part.ty.as_str() {
        "f32" => f32::from_bits(part.word(files, at)),
        "bf16" => bf16::from_bits(half()).to_f32(),
        "f16" => f16::from_bits(half()).to_f32(),
        "f8_e4m3" => e4m3(bytes[at]),
        // `u8` and `f8_e8m0`
        _ => e8m0(bytes[at]),
    }
}

/// The number of four bits of exponent and three of mantissa; there is no infinity.
pub(super) fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits >> 7 == 0 { size } else { -size }
}

/// A power of two.
pub(super) fn e8m0(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_have_an_exponent_of_four() {
        let known = [(0x00, 0.0), (0x01, 0.001_953_125), (0x08, 0.015_625), (0x38, 1.0), (0xc4, -3.0)];
        for (bits, number) in known.into_iter().chain([(0x7e, 448.0), (0xfe, -448.0)]) {
            assert_eq!(e4m3(bits), number, "{bits:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn eight_bits_are_an_exponent() {
        for exponent in 0..255 {
            assert_eq!(f64::from(e8m0(exponent)), 2f64.powi(i32::from(exponent) - 127));
        }
        assert!(e8m0(255).is_nan());
    }
}
