//! Formats that keep few bits of several elements together: IQ1, IQ2, IQ3, `TQ1_0` and `TQ2_0`; and NVFP4.
//!
//! In: the bytes of a tensor, or of whole rows of it. Out: the same numbers exactly, as bytes with a sign and a scale
//! in single precision for each group of them ([`Format::Int8`]), which kernels read.
//! A code stands for eight or four elements by a table in `codebooks.rs`. Signs are bits; where eight have seven, the
//! last makes their number even. What a number of a table means is a row of values, multiplied so that all are whole.

use fusebox_compiler::tensor::quant::Format;
use half::f16;

use crate::weights::expand::codebooks::{IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use crate::weights::made::matrix::TWICE_E2M1;

mod codebooks;

/// Elements of a block.
const BLOCK: usize = 256;
/// The values of numbers in tables.
const TWO_BITS: [i8; 4] = [8, 25, 43, 0];
const THREE_BITS: [i8; 8] = [4, 12, 20, 28, 36, 44, 52, 62];
const ODD: [i8; 8] = [1, 3, 5, 7, 9, 11, 13, 15];
const TERNARY: [i8; 4] = [-8, 0, 8, 0];

/// A block as it becomes numbers and scales.
#[derive(Default)]
struct Expanded {
    numbers: Vec<u8>,
    scales: Vec<f32>,
}

/// Reads the bytes of a block.
type Read = fn(block: &[u8], to: &mut Expanded);

/// A format: its bytes a block, the elements that share a scale, and what reads it.
fn row(name: &str) -> Option<(usize, usize, Read)> {
    let read: (usize, usize, Read) = match name {
        "iq2_xxs" => (66, 32, iq2_xxs),
        "iq2_xs" => (74, 16, iq2_xs),
        "iq2_s" => (82, 16, iq2_s),
        "iq3_xxs" => (98, 32, iq3_xxs),
        "iq3_s" => (110, 32, iq3_s),
        "iq1_s" => (50, 32, iq1_s),
        "iq1_m" => (56, 16, iq1_m),
        "tq1_0" => (54, 32, tq1_0),
        "tq2_0" => (66, 32, tq2_0),
        "nvfp4" => (36, 16, nvfp4),
        _ => return None,
    };
    Some(read)
}

/// The format that tensors of a type become; nothing for a type that stays as it is.
pub fn expanded(name: &str) -> Option<Format> {
    row(name).map(|(_, group, _)| Format::Int8 { group: group as u32 })
}

/// The bytes of whole blocks in the format of [`expanded`].
pub fn expand(name: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (block_bytes, _, read) = row(name)?;
    let mut to = Expanded::default();
    bytes.chunks_exact(block_bytes).for_each(|block| read(block, &mut to));
    let scales = to.scales.iter().flat_map(|scale| scale.to_le_bytes());
    to.numbers.extend(scales);
    Some(to.numbers)
}

impl Expanded {
    fn put(&mut self, number: i8) {
        self.numbers.push(number.cast_unsigned());
    }

    /// The elements of a code, of which `bits` each have a value; a set bit of `signs` is a minus.
    fn code(&mut self, code: u16, bits: usize, values: &[i8], signs: u8) {
        for i in 0..if bits == 2 { 8 } else { 4 } {
            let value = values[usize::from(code >> (bits * i)) & (values.len() - 1)];
            self.put(if signs >> i & 1 == 1 { -value } else { value });
        }
    }

    /// The elements of a ternary code, in eighths, with an eighth added or taken off.
    fn shifted(&mut self, code: u16, is_less: bool) {
        for i in 0..8 {
            let value = TERNARY[usize::from(code >> (2 * i)) & 3];
            self.put(if is_less { value - 1 } else { value + 1 });
        }
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_bits(word(block, at)).to_f32()
}

fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn long(block: &[u8], at: usize) -> u32 {
    u32::from(word(block, at)) | u32::from(word(block, at + 2)) << 16
}

/// Eight signs from seven.
fn even(signs: u32) -> u8 {
    let seven = (signs & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

fn nibble(byte: u8, i: usize) -> f32 {
    f32::from(byte >> (4 * i) & 15)
}

/// `d`, then for 32 elements four codes of 8 bits, four times seven signs and a scale of four bits.
fn iq2_xxs(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 32 {
        let at = 2 + 8 * group;
        let rest = long(block, at + 4);
        to.scales.push(d * (0.5 + (rest >> 28) as f32) * 0.25);
        for i in 0..4 {
            to.code(IQ2_XXS[usize::from(block[at + i])], 2, &TWO_BITS, even(rest >> (7 * i)));
        }
    }
}

/// `d`, 32 words of a code of 9 bits and seven signs, 16 scales of four bits.
fn iq2_xs(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 16 {
        to.scales.push(d * (0.5 + nibble(block[66 + group / 2], group % 2)) * 0.25);
        for i in 0..2 {
            let word = word(block, 2 + 4 * group + 2 * i);
            to.code(IQ2_XS[usize::from(word & 511)], 2, &TWO_BITS, even(u32::from(word >> 9)));
        }
    }
}

/// `d`, the low bytes of 32 codes, their signs, two high bits of each, 16 scales of four bits.
fn iq2_s(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 16 {
        to.scales.push(d * (0.5 + nibble(block[74 + group / 2], group % 2)) * 0.25);
        for i in 2 * group..2 * group + 2 {
            let high = usize::from(block[66 + i / 4] >> (i % 4 * 2) & 3);
            let code = usize::from(block[2 + i]) | high << 8;
            to.code(IQ2_S[code], 2, &TWO_BITS, block[34 + i]);
        }
    }
}

/// `d`, 64 codes of 8 bits, then for 32 elements four times seven signs and a scale of four bits.
fn iq3_xxs(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 32 {
        let rest = long(block, 66 + 4 * group);
        to.scales.push(d * (0.5 + (rest >> 28) as f32) * 0.5);
        for i in 0..8 {
            let signs = even(rest >> (7 * (i / 2))) >> (i % 2 * 4);
            to.code(IQ3_XXS[usize::from(block[2 + 8 * group + i])], 3, &THREE_BITS, signs);
        }
    }
}

/// `d`, the low bytes of 64 codes, a high bit of each, 256 signs, eight scales of four bits.
fn iq3_s(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 32 {
        to.scales.push(d * (1.0 + 2.0 * nibble(block[106 + group / 2], group % 2)));
        for i in 8 * group..8 * group + 8 {
            let high = usize::from(block[66 + i / 8] >> (i % 8) & 1);
            let signs = block[74 + i / 2] >> (i % 2 * 4);
            to.code(IQ3_S[usize::from(block[2 + i]) | high << 8], 3, &ODD, signs);
        }
    }
}

/// `d`, the low bytes of 32 codes, then for 32 elements three high bits of each code, a scale and which way they are
/// shifted.
fn iq1_s(block: &[u8], to: &mut Expanded) {
    let d = half(block, 0);
    for group in 0..BLOCK / 32 {
        let high = word(block, 34 + 2 * group);
        to.scales.push(d * f32::from(2 * (high >> 12 & 7) + 1) * 0.125);
        for i in 0..4 {
            let code = usize::from(block[2 + 4 * group + i]) | usize::from(high >> (3 * i) & 7) << 8;
            to.shifted(IQ1[code], high >> 15 == 1);
        }
    }
}

/// The low bytes of 32 codes, three high bits of each and which way it is shifted, 16 scales of three bits, and four
/// bits of `d` in each of four words of them.
fn iq1_m(block: &[u8], to: &mut Expanded) {
    let scales = |i: usize| word(block, 48 + 2 * i);
    let d = (0..4).fold(0, |d, i| d | (scales(i) >> 12) << (4 * i));
    let d = f16::from_bits(d).to_f32();
    for group in 0..BLOCK / 16 {
        let scale = scales(group / 4) >> (group % 4 * 3) & 7;
        to.scales.push(d * f32::from(2 * scale + 1) * 0.125);
        for i in 2 * group..2 * group + 2 {
            let high = block[32 + i / 2] >> (i % 2 * 4);
            let code = usize::from(block[i]) | usize::from(high & 7) << 8;
            to.shifted(IQ1[code], high & 8 != 0);
        }
    }
}

/// Five ternary numbers in each of 48 bytes, four in each of four more, then `d`.
fn tq1_0(block: &[u8], to: &mut Expanded) {
    let digit = |byte: u8, power: u8| ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
    for (bytes, powers) in [
        (&block[..32], &[1, 3, 9, 27, 81][..]),
        (&block[32..48], &[1, 3, 9, 27, 81]),
        (&block[48..52], &[1, 3, 9, 27]),
    ] {
        for power in powers {
            for byte in bytes {
                to.put(digit(*byte, *power));
            }
        }
    }
    to.scales.extend([half(block, 52); BLOCK / 32]);
}

/// Four ternary numbers in each of 64 bytes, then `d`.
fn tq2_0(block: &[u8], to: &mut Expanded) {
    for bytes in block[..64].chunks(32) {
        for shift in [0, 2, 4, 6] {
            for byte in bytes {
                to.put((byte >> shift & 3) as i8 - 1);
            }
        }
    }
    to.scales.extend([half(block, 64); BLOCK / 32]);
}

/// A scale in E4M3 without sign for each 16 of 64 elements; then of each 16 the codes of the first eight elements in
/// the lower halves of eight bytes, and those of the others in the upper halves.
fn nvfp4(block: &[u8], to: &mut Expanded) {
    let (scales, codes) = block.split_at(4);
    for (scale, codes) in scales.iter().zip(codes.chunks_exact(8)) {
        // The numbers are twice those of E2M1.
        to.scales.push(unsigned_e4m3(*scale) * 0.5);
        for shift in [0, 4] {
            for byte in codes {
                to.put(TWICE_E2M1[usize::from(byte >> shift & 15)]);
            }
        }
    }
}

/// As GGML has it: the sign is not looked at, and what is no number is 0.
fn unsigned_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa * 2_f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2_f32.powi(exponent - 7),
    }
}
