//! The table of block formats: where the bits of a block lie, and what they mean.
//!
//! In: nothing. Out: a [`Blocks`] for each format, as constants. Decoding in `decode.rs`, unpacking in micro-kernels,
//! generated code for CPUs and GPUs, the fields of a tensor in GPU memory and the names follow from it.
//!
//! ```text
//! element = scale * number [+ offset]                              a block of 32
//! element = (scale * its group's) * number [- offset * its group's]    a super-block
//! ```
//!
//! Numbers are the sums of the bits of their planes. A plane holds some bits of every number, and in a byte those of
//! numbers that lie `width` apart:
//!
//! ```text
//!            width 16, 2 a byte               width 1, 8 a byte
//! byte 0     bits of 16 and 0                 bits of 7, 6, 5, 4, 3, 2, 1, 0
//! byte 1     bits of 17 and 1                 bits of 15, 14, ... 8
//! ```

/// How the blocks of a format lie in bytes.
#[derive(Debug)]
pub struct Blocks {
    /// The name in text forms.
    pub name: &'static str,
    /// Elements of a block.
    pub len: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// The numbers of the elements.
    pub quanta: Numbers,
    /// What multiplies the numbers of a block.
    pub scale: Factor,
    /// What is added to each, or multiplies the offsets of groups.
    pub offset: Option<Factor>,
    /// Scales and offsets of groups.
    pub groups: Option<Groups>,
    /// The number of the type in GGUF files.
    pub ggml: Option<u32>,
}

/// Scales and offsets of the groups of a block.
#[derive(Debug)]
pub struct Groups {
    /// Elements of a group.
    pub len: usize,
    /// What multiplies the scale of the block.
    pub scales: Numbers,
    /// What multiplies the offset of the block, which is subtracted then.
    pub offsets: Option<Numbers>,
}

/// Small whole numbers.
#[derive(Debug)]
pub struct Numbers {
    /// Their bits.
    pub planes: &'static [Plane],
    /// What the bits stand for.
    pub code: Code,
}

/// What bits stand for.
#[derive(Clone, Copy, Debug)]
pub enum Code {
    /// What they are above a zero point.
    From(u8),
    /// Eight bits with a sign.
    Signed,
    /// One of sixteen.
    Table(&'static [i8; 16]),
}

/// Some bits of each number.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// The first byte in the block.
    pub at: usize,
    /// Bits of a number.
    pub bits: u32,
    /// Numbers before the next one in the same byte, or in the next run: a power of two.
    pub width: usize,
    /// Numbers in a byte: a power of two.
    pub per_byte: usize,
    /// Bytes from one run to the next; a run is the numbers of `width` bytes.
    pub stride: usize,
    /// Bytes from a number to the one that is `width` further on in the same run.
    pub step: usize,
    /// The place of the first number's bits in its byte.
    pub first: u32,
    /// The place of the bits in the number.
    pub to: u32,
}

/// A scale or an offset of a block.
#[derive(Clone, Copy, Debug)]
pub struct Factor {
    /// The first byte in the block.
    pub at: usize,
    /// How it is stored.
    pub kind: FactorKind,
}

/// How a scale is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorKind {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
    /// A byte `e` for `2^(e - 128)`: E8M0, halved because the numbers are doubled.
    HalfE8M0,
}

impl FactorKind {
    /// Bytes that it takes.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
            Self::HalfE8M0 => 1,
        }
    }
}

/// The bits of `2^(e - 128)` in single precision.
#[inline]
pub const fn half_e8m0(e: u8) -> u32 {
    if e < 2 { 0x0020_0000 << e } else { (e as u32 - 1) << 23 }
}

impl Plane {
    /// Numbers of `bits`; those that lie `width` apart fill a byte.
    const fn new(at: usize, bits: u32, width: usize) -> Self {
        let per_byte = 8 / bits as usize;
        Self { at, bits, width, per_byte, stride: width, step: 0, first: 0, to: 0 }
    }

    /// These bits of numbers.
    const fn to(self, to: u32) -> Self {
        Self { to, ..self }
    }

    /// From this bit of each byte on, with fewer numbers in it.
    const fn starting_at(self, first: u32, per_byte: usize) -> Self {
        Self { per_byte, first, ..self }
    }

    const fn strides(self, stride: usize, step: usize) -> Self {
        Self { stride, step, ..self }
    }

    /// The byte of a number in its block, and the place of its bits there.
    #[inline]
    pub const fn place(&self, i: usize) -> (usize, u32) {
        let (column, rest) = (i % self.width, i / self.width);
        let (layer, run) = (rest % self.per_byte, rest / self.per_byte);
        (self.at + run * self.stride + layer * self.step + column, self.first + layer as u32 * self.bits)
    }

    /// The bits of a number, at their place.
    #[inline]
    pub const fn bits(&self, block: &[u8], i: usize) -> u8 {
        let (byte, shift) = self.place(i);
        (block[byte] >> shift & self.mask()) << self.to
    }

    /// As many ones as a number has bits here.
    #[inline]
    pub const fn mask(&self) -> u8 {
        (0xff_u16 >> (8 - self.bits)) as u8
    }

    /// The bytes that the first `n` numbers take.
    #[inline]
    pub const fn extent(&self, n: usize) -> usize {
        let rows = n.div_ceil(self.width);
        let layers = if rows < self.per_byte { rows } else { self.per_byte };
        (rows.div_ceil(self.per_byte) - 1) * self.stride + (layers - 1) * self.step + self.width
    }
}

impl Code {
    /// The number that bits stand for.
    #[inline]
    pub const fn number(self, bits: u8) -> i32 {
        match self {
            Self::From(zero) => bits as i32 - zero as i32,
            Self::Signed => bits.cast_signed() as i32,
            Self::Table(table) => table[bits as usize & 15] as i32,
        }
    }
}

impl Numbers {
    const fn new(planes: &'static [Plane], code: Code) -> Self {
        Self { planes, code }
    }

    /// One number of a block.
    #[inline]
    pub const fn number(&self, block: &[u8], i: usize) -> i32 {
        let (mut bits, mut plane) = (0, 0);
        while plane < self.planes.len() {
            bits |= self.planes[plane].bits(block, i);
            plane += 1;
        }
        self.code.number(bits)
    }

    /// Writes the bits of a number into a block that has none there.
    pub fn put(&self, block: &mut [u8], i: usize, bits: u8) {
        for plane in self.planes {
            let (byte, shift) = plane.place(i);
            block[byte] |= (bits >> plane.to & plane.mask()) << shift;
        }
    }

    /// The least number and the largest.
    pub fn ends(&self) -> [i32; 2] {
        let n_bits: u32 = self.planes.iter().map(|plane| plane.bits).sum();
        let all = (0..1_u32 << n_bits).map(|bits| self.code.number(bits as u8));
        all.fold([i32::MAX, i32::MIN], |[least, most], number| [least.min(number), most.max(number)])
    }
}

impl Blocks {
    const fn new(name: &'static str, [len, bytes]: [usize; 2], quanta: Numbers, scale: Factor) -> Self {
        Self { name, len, bytes, quanta, scale, offset: None, groups: None, ggml: None }
    }

    const fn offset(self, at: usize) -> Self {
        Self { offset: Some(half(at)), ..self }
    }

    const fn groups(self, len: usize, scales: Numbers, offsets: Option<Numbers>) -> Self {
        Self { groups: Some(Groups { len, scales, offsets }), ..self }
    }

    const fn ggml(self, number: u32) -> Self {
        Self { ggml: Some(number), ..self }
    }

    /// Elements that share a scale and an offset.
    #[inline]
    pub const fn group_len(&self) -> usize {
        match &self.groups {
            Some(groups) => groups.len,
            None => self.len,
        }
    }
}

const fn half(at: usize) -> Factor {
    Factor { at, kind: FactorKind::F16 }
}

/// 4 bits of blocks of 32: the low nibbles of sixteen bytes, then the high ones.
const fn nibbles(at: usize) -> Plane {
    Plane::new(at, 4, 16)
}

/// Sixteen numbers of 6 bits, for eight groups: groups 0 to 3 have a byte for each number, groups 4 to 7 share a byte
/// for the low four bits of both and keep the upper two in the spare bits of the others.
const SIX_BIT_SCALES: Numbers = Numbers::new(
    &[Plane::new(4, 4, 4).starting_at(0, 1).strides(8, 0), Plane::new(4, 2, 4).starting_at(4, 2).to(4)],
    Code::From(0),
);
const SIX_BIT_OFFSETS: Numbers = Numbers::new(
    &[Plane::new(8, 4, 4).strides(8, 4), Plane::new(8, 2, 4).starting_at(4, 2).to(4)],
    Code::From(0),
);

/// The sixteen values of the formats `IQ4`.
const IQ4: Code = Code::Table(&[-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]);

/// Twice the numbers of four bits E2M1.
const E2M1: Code = Code::Table(&[0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]);

/// `d:f16 qs:16`
pub const Q4_0: Blocks =
    Blocks::new("q4_0", [32, 18], Numbers::new(&[nibbles(2)], Code::From(8)), half(0)).ggml(2);
/// `d:f16 m:f16 qs:16`
pub const Q4_1: Blocks =
    Blocks::new("q4_1", [32, 20], Numbers::new(&[nibbles(4)], Code::From(0)), half(0)).offset(2).ggml(3);
/// `d:f16 qh:4 qs:16`
pub const Q5_0: Blocks = Blocks::new(
    "q5_0",
    [32, 22],
    Numbers::new(&[nibbles(6), Plane::new(2, 1, 1).to(4)], Code::From(16)),
    half(0),
)
.ggml(6);
/// `d:f16 m:f16 qh:4 qs:16`
pub const Q5_1: Blocks = Blocks::new(
    "q5_1",
    [32, 24],
    Numbers::new(&[nibbles(8), Plane::new(4, 1, 1).to(4)], Code::From(0)),
    half(0),
)
.offset(2)
.ggml(7);
/// `d:f16 qs:32`, the elements with a sign
pub const Q8_0: Blocks =
    Blocks::new("q8_0", [32, 34], Numbers::new(&[Plane::new(2, 8, 1)], Code::Signed), half(0)).ggml(8);
/// `scales:16 qs:64 d:f16 dmin:f16`, a scale and an offset of 4 bits in each byte of `scales`
pub const Q2_K: Blocks =
    Blocks::new("q2_k", [256, 84], Numbers::new(&[Plane::new(16, 2, 32)], Code::From(0)), half(80))
        .offset(82)
        .groups(
            16,
            Numbers::new(&[Plane::new(0, 4, 1).starting_at(0, 1)], Code::From(0)),
            Some(Numbers::new(&[Plane::new(0, 4, 1).starting_at(4, 1)], Code::From(0))),
        )
        .ggml(10);
/// `qh:32 qs:64 scales:12 d:f16`
pub const Q3_K: Blocks = Blocks::new(
    "q3_k",
    [256, 110],
    Numbers::new(&[Plane::new(32, 2, 32), Plane::new(0, 1, 32).to(2)], Code::From(4)),
    half(108),
)
.groups(16, Numbers::new(&[Plane::new(96, 4, 8), Plane::new(104, 2, 4).to(4)], Code::From(32)), None)
.ggml(11);
/// `d:f16 dmin:f16 scales:12 qs:128`
pub const Q4_K: Blocks =
    Blocks::new("q4_k", [256, 144], Numbers::new(&[Plane::new(16, 4, 32)], Code::From(0)), half(0))
        .offset(2)
        .groups(32, SIX_BIT_SCALES, Some(SIX_BIT_OFFSETS))
        .ggml(12);
/// `d:f16 dmin:f16 scales:12 qh:32 qs:128`
pub const Q5_K: Blocks = Blocks::new(
    "q5_k",
    [256, 176],
    Numbers::new(&[Plane::new(48, 4, 32), Plane::new(16, 1, 32).to(4)], Code::From(0)),
    half(0),
)
.offset(2)
.groups(32, SIX_BIT_SCALES, Some(SIX_BIT_OFFSETS))
.ggml(13);
/// `ql:128 qh:64 scales:16 d:f16`, the scales with a sign
pub const Q6_K: Blocks = Blocks::new(
    "q6_k",
    [256, 210],
    Numbers::new(&[Plane::new(0, 4, 64), Plane::new(128, 2, 32).to(4)], Code::From(32)),
    half(208),
)
.groups(16, Numbers::new(&[Plane::new(192, 8, 1)], Code::Signed), None)
.ggml(14);
/// `d:f16 qs:16`
pub const IQ4_NL: Blocks =
    Blocks::new("iq4_nl", [32, 18], Numbers::new(&[nibbles(2)], IQ4), half(0)).ggml(20);
/// `d:f16 scales_h:2 scales_l:4 qs:128`
pub const IQ4_XS: Blocks = Blocks::new("iq4_xs", [256, 136], Numbers::new(&[nibbles(8)], IQ4), half(0))
    .groups(32, Numbers::new(&[Plane::new(4, 4, 1), Plane::new(2, 2, 1).to(4)], Code::From(32)), None)
    .ggml(23);
/// `e:1 qs:16`
pub const MXFP4: Blocks = Blocks::new(
    "mxfp4",
    [32, 17],
    Numbers::new(&[nibbles(1)], E2M1),
    Factor { at: 0, kind: FactorKind::HalfE8M0 },
)
.ggml(39);
/// `qs:16 d:f32`, two neighbours in each byte
pub const Q4_PAIRS: Blocks = Blocks::new(
    "q4_pairs",
    [32, 20],
    Numbers::new(&[Plane::new(0, 4, 1)], Code::From(8)),
    Factor { at: 16, kind: FactorKind::F32 },
);

/// Every format.
pub const ALL: [&Blocks; 14] = [
    &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q8_0, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &IQ4_NL, &IQ4_XS, &MXFP4, &Q4_PAIRS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_block_belongs_to_one_number() {
        for blocks in ALL {
            let format = blocks.name;
            let mut taken = vec![0_u8; blocks.bytes];
            let groups = blocks.groups.iter().flat_map(|groups| {
                let all = [Some(&groups.scales), groups.offsets.as_ref()];
                all.into_iter().flatten().map(|numbers| (numbers, blocks.len / groups.len))
            });
            for (numbers, n) in [(&blocks.quanta, blocks.len)].into_iter().chain(groups) {
                for plane in numbers.planes {
                    for i in 0..n {
                        let (byte, shift) = plane.place(i);
                        assert_eq!(taken[byte] & plane.mask() << shift, 0, "{format} {byte} {shift}");
                        taken[byte] |= plane.mask() << shift;
                        assert!(byte < plane.at + plane.extent(n), "{format} {byte}");
                    }
                }
            }
            for factor in [Some(blocks.scale), blocks.offset].into_iter().flatten() {
                for taken in &mut taken[factor.at..][..factor.kind.bytes()] {
                    assert_eq!(*taken, 0, "{format}");
                    *taken = 0xff;
                }
            }
            assert!(taken.iter().all(|taken| *taken == 0xff), "{format} {taken:?}");
        }
    }
}
