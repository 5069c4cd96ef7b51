//! The weight formats, and their blocks dequantised 32 elements at a time.
//!
//! In: the bytes of a row and the index of a group of 32 elements. Out: integers `q`, scales `a` and an offset `b`, so
//! that `element = a * q + b`; each half of the 32 has its own `a`. The formulas are those of `tensor::quant::decode`.
//! Everything is inlined into the functions of a level and vectorised by the compiler there; the levels' own unpackers
//! are faster and must agree with this one.

use crate::codegen::cpu::micro::SUPER_BLOCK;
use crate::tensor::quant::Format;

/// A weight format with kernels, without its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Int8,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
    Q4Pairs,
}

impl Storage {
    /// All of them; generated code passes the index.
    pub(super) const ALL: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Int8,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q4Pairs,
    ];

    pub(super) fn of(format: Format) -> Option<Self> {
        Some(match format {
            Format::F32 => Self::F32,
            Format::F16 => Self::F16,
            Format::BF16 => Self::BF16,
            Format::Q8_0 => Self::Q8_0,
            Format::Q4_0 => Self::Q4_0,
            Format::Q4_1 => Self::Q4_1,
            Format::Q5_0 => Self::Q5_0,
            Format::Q5_1 => Self::Q5_1,
            Format::Q4K => Self::Q4K,
            Format::Q5K => Self::Q5K,
            Format::Q6K => Self::Q6K,
            Format::Q4Pairs => Self::Q4Pairs,
            Format::Int8 { group } if group > 0 && group % 32 == 0 => Self::Int8,
            Format::I32 | Format::Int8 { .. } => return None,
        })
    }

    /// Bytes of `k` elements, without scales that are stored apart.
    pub(super) const fn bytes(self, k: usize) -> usize {
        let (len, n_bytes) = self.block();
        k / len * n_bytes
    }

    /// Elements and bytes of a block.
    pub(super) const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Int8 => (32, 32),
            Self::Q4_1 | Self::Q4Pairs => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Whether a block has 256 elements: a K-quant.
    pub(super) const fn is_super_block(self) -> bool {
        self.block().0 == SUPER_BLOCK
    }

    /// Groups of 32 in a unit: four blocks of 32, or one super-block.
    pub(super) const fn unit_groups(self) -> usize {
        if self.is_super_block() { 8 } else { 4 }
    }

    /// Bytes of a unit.
    pub(super) const fn unit_bytes(self) -> usize {
        self.bytes(32 * self.unit_groups())
    }

    /// Whether each sixteen elements have a scale of their own.
    pub(super) const fn has_two_scales(self) -> bool {
        matches!(self, Self::Q6K)
    }

    /// Whether blocks have an offset `b` beside their scale.
    pub(super) const fn has_offsets(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K)
    }
}

/// Evaluates an expression monomorphised for the job's block format, one of a list or any. The expression sees two
/// constants: `S`, the index of the format in [`Storage::ALL`], and `B`, the bytes of a unit ([`Storage::unit_bytes`]).
macro_rules! for_format {
    ($job:ident, [$($format:ident)+], $done:expr) => {
        match $job.w.storage {
            $(Storage::$format => {
                const S: usize = Storage::$format as usize;
                #[allow(dead_code, reason = "not all code takes some bytes at a time")]
                const B: usize = Storage::$format.unit_bytes();
                $done
            })+
            _ => unreachable!("no table has this format here"),
        }
    };
    ($job:ident, $done:expr) => {
        for_format!($job, [Q8_0 Q4_0 Int8 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Q4Pairs], $done)
    };
}
pub(super) use for_format;

/// 32 elements: `a[i / 16] * q[i] + b`.
#[derive(Clone, Copy)]
pub(super) struct DequantisedBlock {
    pub(super) q: [i8; 32],
    pub(super) a: [f32; 2],
    pub(super) b: f32,
}

/// A row of blocks.
#[derive(Clone, Copy)]
pub(super) struct BlockRow<'a> {
    pub(super) bytes: &'a [u8],
    /// Where scales are stored apart: one for each `group` elements.
    pub(super) scales: &'a [u8],
    pub(super) group: usize,
}

impl BlockRow<'_> {
    /// The `idx`-th 32 elements.
    #[inline(always)]
    pub(super) fn unpack(&self, storage: Storage, idx: usize) -> DequantisedBlock {
        match storage {
            Storage::Q8_0 => {
                let block: &[u8; 34] = self.block(idx);
                let d = half(block, 0);
                DequantisedBlock {
                    q: signed(block[2..].first_chunk().expect("32 bytes"), 0),
                    a: [d; 2],
                    b: 0.0,
                }
            }
            Storage::Int8 => {
                let block: &[u8; 32] = self.block(idx);
                DequantisedBlock { q: signed(block, 0), a: [self.scale(idx); 2], b: 0.0 }
            }
            Storage::Q4_0 => {
                let block: &[u8; 18] = self.block(idx);
                let q = signed(&nibbles(block, 2), 8);
                DequantisedBlock { q, a: [half(block, 0); 2], b: 0.0 }
            }
            Storage::Q4_1 => {
                let block: &[u8; 20] = self.block(idx);
                let q = signed(&nibbles(block, 4), 0);
                DequantisedBlock { q, a: [half(block, 0); 2], b: half(block, 2) }
            }
            Storage::Q5_0 => {
                let block: &[u8; 22] = self.block(idx);
                let q = signed(&fifth(nibbles(block, 6), block, 2), 16);
                DequantisedBlock { q, a: [half(block, 0); 2], b: 0.0 }
            }
            Storage::Q5_1 => {
                let block: &[u8; 24] = self.block(idx);
                let q = signed(&fifth(nibbles(block, 8), block, 4), 0);
                DequantisedBlock { q, a: [half(block, 0); 2], b: half(block, 2) }
            }
            Storage::Q4K => {
                let (block, group): (&[u8; 144], usize) = (self.block(idx / 8), idx % 8);
                let (a, b) = scale_and_offset(block, group);
                DequantisedBlock { q: signed(&k_nibbles(block, 16, group), 0), a: [a; 2], b }
            }
            Storage::Q5K => {
                let (block, group): (&[u8; 176], usize) = (self.block(idx / 8), idx % 8);
                let (a, b) = scale_and_offset(block, group);
                let mut q = k_nibbles(block, 48, group);
                for i in 0..32 {
                    q[i] |= if block[16 + i] & 1 << group == 0 { 0 } else { 16 };
                }
                let q = signed(&q, 0);
                DequantisedBlock { q, a: [a; 2], b }
            }
            Storage::Q6K => q6_k(self.block(idx / 8), idx % 8),
            Storage::Q4Pairs => {
                let block: &[u8; 20] = self.block(idx);
                DequantisedBlock { q: signed(&neighbours(block), 8), a: [single(block, 16); 2], b: 0.0 }
            }
            Storage::F32 | Storage::F16 | Storage::BF16 => unreachable!("plain elements have no blocks"),
        }
    }

    /// The scale of the `idx`-th 32 elements where scales are stored apart.
    #[inline(always)]
    pub(super) fn scale(&self, idx: usize) -> f32 {
        let n = self.group / 32;
        // A division is slow.
        let at = if n.is_power_of_two() { idx >> n.trailing_zeros() } else { idx / n };
        f32::from_le_bytes(*self.scales[4 * at..].first_chunk().expect("a scale for each group"))
    }

    #[inline(always)]
    fn block<const N: usize>(&self, idx: usize) -> &[u8; N] {
        self.bytes[idx * N..].first_chunk().expect("a row has whole blocks")
    }
}

/// Half precision to single precision.
#[inline(always)]
pub(super) fn widened(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let rest = (bits & 0x7fff) << 13;
    // Subnormals as the excess over a power of two, so that no subnormal is computed with.
    let least = f32::from_bits(113 << 23);
    let small = (f32::from_bits(rest + (113 << 23)) - least).to_bits();
    let size = match rest {
        0..0x0080_0000 => small,
        0x0080_0000..0x0f80_0000 => rest + (112 << 23),
        _ => rest | 0x7f80_0000,
    };
    f32::from_bits(size | (bits & 0x8000) << 16)
}

#[inline(always)]
fn half<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    widened(u16::from_le_bytes([block[at], block[at + 1]]))
}

#[inline(always)]
fn single<const N: usize>(block: &[u8; N], at: usize) -> f32 {
    f32::from_le_bytes(*block[at..].first_chunk().expect("four bytes"))
}

/// Subtracts a zero point. A loop, as everywhere here: a closure passed to a library function might not be compiled
/// with the instructions of the level.
#[inline(always)]
fn signed(bytes: &[u8; 32], middle: u8) -> [i8; 32] {
    let mut q = [0; 32];
    for i in 0..32 {
        q[i] = bytes[i].wrapping_sub(middle).cast_signed();
    }
    q
}

/// Low nibbles first, then high ones.
#[inline(always)]
fn nibbles<const N: usize>(block: &[u8; N], at: usize) -> [u8; 32] {
    let mut q = [0; 32];
    for i in 0..16 {
        q[i] = block[at + i] & 15;
        q[i + 16] = block[at + i] >> 4;
    }
    q
}

/// Neighbours share a byte.
#[inline(always)]
fn neighbours<const N: usize>(block: &[u8; N]) -> [u8; 32] {
    let mut q = [0; 32];
    for i in 0..16 {
        q[2 * i] = block[i] & 15;
        q[2 * i + 1] = block[i] >> 4;
    }
    q
}

/// With the fifth bits.
#[inline(always)]
fn fifth<const N: usize>(low: [u8; 32], block: &[u8; N], at: usize) -> [u8; 32] {
    let bits = u32::from_le_bytes(*block[at..].first_chunk().expect("four bytes"));
    let mut q = low;
    for i in 0..32 {
        q[i] |= ((bits >> i & 1) as u8) << 4;
    }
    q
}

#[inline(always)]
fn k_nibbles<const N: usize>(block: &[u8; N], at: usize, group: usize) -> [u8; 32] {
    let from = at + group / 2 * 32;
    let mut q = [0; 32];
    for i in 0..32 {
        let two = block[from + i];
        q[i] = if group.is_multiple_of(2) { two & 15 } else { two >> 4 };
    }
    q
}

/// The scale and the offset of a group.
#[inline(always)]
fn scale_and_offset<const N: usize>(block: &[u8; N], group: usize) -> (f32, f32) {
    let own = k_words(block, group / 4).map(|four| f32::from((four >> (group % 4 * 8)) as u8));
    (half(block, 0) * own[0], -(half(block, 2) * own[1]))
}

/// The 6-bit numbers of half a super-block: four scales, and four offsets.
#[inline(always)]
pub(super) fn k_words(block: &[u8], half: usize) -> [u32; 2] {
    let word = |idx: usize| u32::from_le_bytes(*block[4 + 4 * idx..].first_chunk().expect("a whole block"));
    let two_bits = |word: u32| (word >> 6 & 0x0303_0303) << 4;
    if half == 0 {
        return [word(0) & 0x3f3f_3f3f, word(1) & 0x3f3f_3f3f];
    }
    [word(2) & 0x0f0f_0f0f | two_bits(word(0)), word(2) >> 4 & 0x0f0f_0f0f | two_bits(word(1))]
}

#[inline(always)]
fn q6_k(block: &[u8; 210], group: usize) -> DequantisedBlock {
    let (part, row) = (group / 4, group % 4);
    let (low, high) = (part * 64 + row % 2 * 32, 128 + part * 32);
    let (shift, two) = (row / 2 * 4, row * 2);
    let mut q = [0; 32];
    for i in 0..32 {
        let own = ((block[low + i] >> shift) & 15) | ((block[high + i] >> two) & 3) << 4;
        q[i] = own.cast_signed() - 32;
    }
    let d = half(block, 208);
    let a = [0, 1].map(|k| d * f32::from(block[192 + 2 * group + k].cast_signed()));
    DequantisedBlock { q, a, b: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (exact, own) = (half::f16::from_bits(bits).to_f32(), widened(bits));
            assert!(own.to_bits() == exact.to_bits() || own.is_nan() && exact.is_nan(), "{bits:#06x}");
        }
    }
}
