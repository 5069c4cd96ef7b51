//! The weight formats, and their blocks dequantised 32 elements at a time.
//!
//! In: the bytes of a row and the index of a group of 32 elements. Out: integers `q`, scales `a` and offsets `b`, so
//! that `element = a * q + b`; each half of the 32 has its own `a`. The formulas are those of [`Blocks::decode`].
//! Everything is inlined into the functions of a level and vectorised by the compiler there; the levels' own unpackers
//! are faster and must agree with this one.

use fusebox_formats::{self as formats, Blocks, Code, Factor, FactorKind, half_e8m0};

/// Elements of a super-block, the block of a K-quant.
pub(crate) const SUPER_BLOCK: usize = 256;

/// Declares the weight formats that have kernels, with their rows of the table of blocks.
macro_rules! storages {
    ($n:literal: $($(#[$doc:meta])* $name:ident = $blocks:expr,)+) => {
        /// A weight format with kernels, without its parameters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Storage {
            $($(#[$doc])* $name),+
        }

        impl Storage {
            /// All of them; an argument struct has the index.
            pub const ALL: [Self; $n] = [$(Self::$name),+];

            /// The row of the table of blocks; nothing for plain numbers and `Int8`.
            #[inline]
            pub const fn blocks(self) -> Option<&'static Blocks> {
                match self {
                    $(Self::$name => $blocks),+
                }
            }
        }
    };
}

storages! {
    18:
    /// Single precision.
    F32 = None,
    /// Half precision.
    F16 = None,
    /// The upper halves of single precision.
    BF16 = None,
    /// Blocks of [`fusebox_formats::Q8_0`].
    Q8_0 = Some(&formats::Q8_0),
    /// Blocks of [`fusebox_formats::Q4_0`].
    Q4_0 = Some(&formats::Q4_0),
    /// Bytes, and apart from them a scale for each group, of 32 or a multiple of it.
    Int8 = None,
    /// Blocks of [`fusebox_formats::Q4_1`].
    Q4_1 = Some(&formats::Q4_1),
    /// Blocks of [`fusebox_formats::Q5_0`].
    Q5_0 = Some(&formats::Q5_0),
    /// Blocks of [`fusebox_formats::Q5_1`].
    Q5_1 = Some(&formats::Q5_1),
    /// Blocks of [`fusebox_formats::Q4_K`].
    Q4K = Some(&formats::Q4_K),
    /// Blocks of [`fusebox_formats::Q5_K`].
    Q5K = Some(&formats::Q5_K),
    /// Blocks of [`fusebox_formats::Q6_K`].
    Q6K = Some(&formats::Q6_K),
    /// Blocks of [`fusebox_formats::Q4_PAIRS`].
    Q4Pairs = Some(&formats::Q4_PAIRS),
    /// Blocks of [`fusebox_formats::Q2_K`].
    Q2K = Some(&formats::Q2_K),
    /// Blocks of [`fusebox_formats::Q3_K`].
    Q3K = Some(&formats::Q3_K),
    /// Blocks of [`fusebox_formats::IQ4_NL`].
    IQ4NL = Some(&formats::IQ4_NL),
    /// Blocks of [`fusebox_formats::IQ4_XS`].
    IQ4XS = Some(&formats::IQ4_XS),
    /// Blocks of [`fusebox_formats::MXFP4`].
    MXFP4 = Some(&formats::MXFP4),
}

impl Storage {
    /// The number of the format in an argument struct: its index in [`ALL`](Self::ALL).
    pub const fn number(self) -> i64 {
        self as i64
    }

    /// Bytes of `k` elements, without scales that are stored apart.
    #[inline]
    pub const fn bytes(self, k: usize) -> usize {
        let (len, n_bytes) = self.block();
        k / len * n_bytes
    }

    /// Elements and bytes of a block, without scales that are stored apart.
    #[inline]
    pub const fn block(self) -> (usize, usize) {
        match (self, self.blocks()) {
            (Self::F32, _) => (1, 4),
            (Self::F16 | Self::BF16, _) => (1, 2),
            (_, Some(blocks)) => (blocks.len, blocks.bytes),
            (_, None) => (32, 32),
        }
    }

    /// Whether a block has 256 elements: a K-quant.
    pub(crate) const fn is_super_block(self) -> bool {
        self.block().0 == SUPER_BLOCK
    }

    /// Groups of 32 in a unit: four blocks of 32, or one super-block.
    pub(crate) const fn unit_groups(self) -> usize {
        if self.is_super_block() { 8 } else { 4 }
    }

    /// Bytes of a unit.
    pub(crate) const fn unit_bytes(self) -> usize {
        self.bytes(32 * self.unit_groups())
    }

    /// Whether each sixteen elements have a scale of their own.
    pub(crate) const fn has_two_scales(self) -> bool {
        match self.blocks() {
            Some(blocks) => blocks.group_len() == 16,
            None => false,
        }
    }

    /// Whether blocks have an offset `b` beside their scale.
    pub(crate) const fn has_offsets(self) -> bool {
        match self.blocks() {
            Some(blocks) => blocks.offset.is_some(),
            None => false,
        }
    }

    /// Whether each sixteen elements have an offset of their own, which products of 32 elements have no place for.
    pub(crate) const fn has_two_offsets(self) -> bool {
        self.has_two_scales() && self.has_offsets()
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
    // All that have blocks.
    ($job:ident, $done:expr) => {
        for_format!(
            $job,
            [Q8_0 Q4_0 Int8 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Q4Pairs Q2K Q3K IQ4NL IQ4XS MXFP4],
            $done
        )
    };
    // Those without two offsets in 32 elements.
    ($job:ident, by 32, $done:expr) => {
        for_format!($job, [Q8_0 Q4_0 Int8 Q4_1 Q5_0 Q5_1 Q4K Q5K Q6K Q4Pairs Q3K IQ4NL IQ4XS MXFP4], $done)
    };
}
pub(crate) use for_format;

/// 32 elements: `a[i / 16] * q[i] + b[i / 16]`.
#[derive(Clone, Copy)]
pub(crate) struct DequantisedBlock {
    pub(crate) q: [i8; 32],
    pub(crate) a: [f32; 2],
    pub(crate) b: [f32; 2],
}

/// A row of blocks.
#[derive(Clone, Copy)]
pub(crate) struct BlockRow<'a> {
    pub(crate) bytes: &'a [u8],
    /// Where scales are stored apart: one for each `group` elements.
    pub(crate) scales: &'a [u8],
    pub(crate) group: usize,
}

impl BlockRow<'_> {
    /// The `idx`-th 32 elements.
    #[inline(always)]
    pub(crate) fn unpack(&self, storage: Storage, idx: usize) -> DequantisedBlock {
        let Some(blocks) = (match storage {
            Storage::Int8 => {
                let q = self.bytes[idx * 32..].first_chunk().expect("a row has whole blocks");
                return DequantisedBlock { q: signed::<32>(q), a: [self.scale(idx); 2], b: [0.0; 2] };
            }
            _ => storage.blocks(),
        }) else {
            unreachable!("plain elements have no blocks")
        };
        let n = blocks.len / 32;
        let block = &self.bytes[idx / n * blocks.bytes..][..blocks.bytes];
        let q = numbers(blocks, block, idx % n * 32);
        let n_groups = 32 / blocks.group_len().min(32);
        let first = idx % n * n_groups;
        let (a, b) = scale_and_offset(blocks, block, first);
        let (last_a, last_b) = scale_and_offset(blocks, block, first + n_groups - 1);
        DequantisedBlock { q, a: [a, last_a], b: [b, last_b] }
    }

    /// The scale of the `idx`-th 32 elements where scales are stored apart.
    #[inline(always)]
    pub(crate) fn scale(&self, idx: usize) -> f32 {
        let n = self.group / 32;
        // A division is slow.
        let at = if n.is_power_of_two() { idx >> n.trailing_zeros() } else { idx / n };
        f32::from_le_bytes(*self.scales[4 * at..].first_chunk().expect("a scale for each group"))
    }
}

/// Half precision to single precision.
#[inline(always)]
pub(crate) fn widened(bits: u16) -> f32 {
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

/// `N` numbers of a block, as bytes with a sign, from a multiple of `N` on.
#[inline(always)]
pub(crate) fn some_numbers<const N: usize>(storage: Storage, block: &[u8], first: usize) -> [u8; N] {
    let Some(blocks) = storage.blocks() else { unreachable!("plain elements have no blocks") };
    let numbers = numbers::<N>(blocks, block, first);
    let mut bytes = [0; N];
    for i in 0..N {
        bytes[i] = numbers[i].cast_unsigned();
    }
    bytes
}

/// The bits of `N` numbers of a block, from the `first` on, as those numbers: a power of two of them, up to 32, and
/// `first` is a multiple of it. Loops, as everywhere here: a closure passed to a library function might not be compiled
/// with the instructions of the level.
#[inline(always)]
fn numbers<const N: usize>(blocks: &Blocks, block: &[u8], first: usize) -> [i8; N] {
    // These lie side by side in a plane of that width or more.
    let run = const { if N < 16 { N } else { 16 } };
    let mut bits = [0_u8; N];
    for plane in blocks.quanta.planes {
        // Bytes by themselves follow each other, whatever the width.
        if plane.width < 16 && plane.per_byte > 1 {
            for i in 0..N {
                bits[i] |= plane.bits(block, first + i);
            }
            continue;
        }
        for from in (0..N).step_by(run) {
            let (byte, shift) = plane.place(first + from);
            let bytes = &block[byte..][..run];
            for i in 0..run {
                bits[from + i] |= (bytes[i] >> shift & plane.mask()) << plane.to;
            }
        }
    }
    let mut numbers = signed(&bits);
    match blocks.quanta.code {
        Code::Signed => {}
        Code::From(zero) => {
            for number in &mut numbers {
                *number = number.wrapping_sub(zero.cast_signed());
            }
        }
        Code::Table(table) => {
            for i in 0..N {
                numbers[i] = table[usize::from(bits[i] & 15)];
            }
        }
    }
    numbers
}

/// The scale of a group and what is added after it, zero if there is nothing.
#[inline(always)]
fn scale_and_offset(blocks: &Blocks, block: &[u8], group: usize) -> (f32, f32) {
    let scale = factor(blocks.scale, block);
    let offset = match blocks.offset {
        Some(offset) => factor(offset, block),
        None => 0.0,
    };
    let Some(groups) = &blocks.groups else { return (scale, offset) };
    let own = groups.scales.number(block, group) as f32;
    let offset = match &groups.offsets {
        Some(offsets) => -(offset * offsets.number(block, group) as f32),
        None => 0.0,
    };
    (scale * own, offset)
}

#[inline(always)]
fn factor(Factor { at, kind }: Factor, block: &[u8]) -> f32 {
    match kind {
        FactorKind::F16 => widened(u16::from_le_bytes([block[at], block[at + 1]])),
        FactorKind::F32 => f32::from_le_bytes(*block[at..].first_chunk().expect("four bytes")),
        FactorKind::HalfE8M0 => f32::from_bits(half_e8m0(block[at])),
    }
}

#[inline(always)]
fn signed<const N: usize>(bytes: &[u8; N]) -> [i8; N] {
    let mut q = [0; N];
    for i in 0..N {
        q[i] = bytes[i].cast_signed();
    }
    q
}

/// The 6-bit numbers of half a super-block: four scales, and four offsets.
#[inline(always)]
pub(crate) fn k_words(block: &[u8], half: usize) -> [u32; 2] {
    let word = |idx: usize| u32::from_le_bytes(*block[4 + 4 * idx..].first_chunk().expect("a whole block"));
    let two_bits = |word: u32| (word >> 6 & 0x0303_0303) << 4;
    if half == 0 {
        return [word(0) & 0x3f3f_3f3f, word(1) & 0x3f3f_3f3f];
    }
    [word(2) & 0x0f0f_0f0f | two_bits(word(0)), word(2) >> 4 & 0x0f0f_0f0f | two_bits(word(1))]
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
