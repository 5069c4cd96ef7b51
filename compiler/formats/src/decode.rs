//! Dequantises blocks: what their bits mean.
//!
//! In: the bytes of exactly one block, and a buffer of its elements; the caller sees to both. Out: the elements. Where
//! the bits of a format lie is a row of `blocks.rs`, all little-endian. The order of the arithmetic is GGML's, so that
//! results are equal bit by bit.

use half::f16;

use crate::blocks::{Blocks, Factor, FactorKind, half_e8m0};

/// The most elements of a block.
const MAX_LEN: usize = 256;

impl Blocks {
    /// The elements of a block.
    ///
    /// # Panics
    /// Where the bytes are fewer than those of a block, or the elements.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) {
        let mut bits = [0_u8; MAX_LEN];
        for plane in self.quanta.planes {
            for (i, bits) in bits.chunks_mut(plane.width).enumerate().take(self.len.div_ceil(plane.width)) {
                let (from, shift) = plane.place(i * plane.width);
                for (bits, byte) in bits.iter_mut().zip(&block[from..]) {
                    *bits |= (byte >> shift & plane.mask()) << plane.to;
                }
            }
        }
        let len = self.group_len();
        for (group, (bits, out)) in bits.chunks(len).zip(out.chunks_exact_mut(len)).enumerate() {
            let (scale, offset) = self.scale_and_offset(block, group);
            for (y, bits) in out.iter_mut().zip(bits) {
                *y = scale * self.quanta.code.number(*bits) as f32;
                if let Some(offset) = offset {
                    *y = if self.groups.is_some() { *y - offset } else { *y + offset };
                }
            }
        }
    }

    /// What multiplies the numbers of a group, and what is then subtracted, or added where blocks have no groups.
    pub fn scale_and_offset(&self, block: &[u8], group: usize) -> (f32, Option<f32>) {
        let (scale, offset) = (factor(self.scale, block), self.offset.map(|offset| factor(offset, block)));
        let Some(groups) = &self.groups else { return (scale, offset) };
        let offsets = groups.offsets.as_ref();
        let own = offsets.map(|offsets| offsets.number(block, group) as f32);
        (scale * groups.scales.number(block, group) as f32, offset.zip(own).map(|(offset, own)| offset * own))
    }
}

fn factor(Factor { at, kind }: Factor, block: &[u8]) -> f32 {
    match kind {
        FactorKind::F16 => f16::from_le_bytes(bytes_at(block, at)).to_f32(),
        FactorKind::F32 => f32::from_le_bytes(bytes_at(block, at)),
        FactorKind::HalfE8M0 => f32::from_bits(half_e8m0(block[at])),
    }
}

fn bytes_at<const N: usize>(block: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|i| block[start + i])
}

#[cfg(test)]
mod tests {
    use crate::blocks::*;

    fn decoded(format: &Blocks, block: &[u8]) -> Vec<f32> {
        let mut elements = vec![f32::NAN; format.len];
        format.decode(block, &mut elements);
        elements
    }

    /// Compares a block with what each element should be.
    fn check(format: &Blocks, block: &[&[u8]], expected: impl Fn(usize) -> f32) {
        let expected: Vec<f32> = (0..format.len).map(expected).collect();
        assert_eq!(decoded(format, &block.concat()), expected, "{}", format.name);
    }

    // 0.5, 0.25 and -3 in half precision.
    const HALF: [u8; 2] = [0x00, 0x38];
    const QUARTER: [u8; 2] = [0x00, 0x34];
    const MINUS_THREE: [u8; 2] = [0x00, 0xc2];

    /// A quantum of 4, 5 or 6 bits for element `i`: different for neighbours, and for elements that share a byte.
    fn quantum(i: usize, n_bits: u32) -> u8 {
        ((i * 7 + i / 16 * 3 + 1) % (1 << n_bits)) as u8
    }

    /// Writes a block of 32 as GGML's quantiser does: sixteen bytes of nibbles, and the fifth bits.
    fn packed_32(n_bits: u32) -> ([u8; 16], [u8; 4]) {
        let (mut qs, mut qh) = ([0; 16], 0_u32);
        for (j, packed) in qs.iter_mut().enumerate() {
            let (first, second) = (quantum(j, n_bits), quantum(j + 16, n_bits));
            *packed = first % 16 + second % 16 * 16;
            qh += u32::from(first >= 16) << j;
            qh += u32::from(second >= 16) << (j + 16);
        }
        (qs, qh.to_le_bytes())
    }

    /// The scale and the offset of a group, both of 6 bits.
    fn six_bits(group: usize) -> (u8, u8) {
        ((group * 5 + 28) as u8, (group * 23 + 11) as u8 % 64)
    }

    /// Writes sixteen numbers of 6 bits as GGML's quantiser does.
    fn packed_scales() -> [u8; 12] {
        let mut bytes = [0; 12];
        for j in 0..4 {
            (bytes[j], bytes[j + 4]) = six_bits(j);
        }
        for j in 4..8 {
            let (scale, offset) = six_bits(j);
            bytes[j + 4] = scale % 16 + offset % 16 * 16;
            bytes[j - 4] += scale / 16 * 64;
            bytes[j] += offset / 16 * 64;
        }
        bytes
    }

    /// Writes a block of 256 as GGML's quantiser does: 64 elements by 64, and the fifth bits under a moving mask.
    fn packed_256(n_bits: u32) -> ([u8; 128], [u8; 32]) {
        let (mut qs, mut qh) = ([0; 128], [0; 32]);
        for (step, qs) in qs.chunks_exact_mut(32).enumerate() {
            for j in 0..32 {
                let (first, second) = (quantum(step * 64 + j, n_bits), quantum(step * 64 + j + 32, n_bits));
                qs[j] = first % 16 + second % 16 * 16;
                qh[j] += (u8::from(first >= 16) + u8::from(second >= 16) * 2) << (2 * step);
            }
        }
        (qs, qh)
    }

    #[test]
    fn four_bits_are_two_halves_of_nibbles() {
        let (qs, _) = packed_32(4);
        check(&Q4_0, &[&HALF, &qs], |i| 0.5 * (f32::from(quantum(i, 4)) - 8.0));
        check(&Q4_1, &[&HALF, &MINUS_THREE, &qs], |i| 0.5 * f32::from(quantum(i, 4)) - 3.0);
    }

    #[test]
    fn four_bits_may_be_pairs_of_neighbours() {
        let qs: [u8; 16] = std::array::from_fn(|j| quantum(2 * j, 4) + 16 * quantum(2 * j + 1, 4));
        check(&Q4_PAIRS, &[&qs, &0.3_f32.to_le_bytes()], |i| 0.3 * (f32::from(quantum(i, 4)) - 8.0));
    }

    #[test]
    fn five_bits_have_their_top_bits_apart() {
        let (qs, qh) = packed_32(5);
        check(&Q5_0, &[&HALF, &qh, &qs], |i| 0.5 * (f32::from(quantum(i, 5)) - 16.0));
        check(&Q5_1, &[&HALF, &MINUS_THREE, &qh, &qs], |i| 0.5 * f32::from(quantum(i, 5)) - 3.0);
    }

    #[test]
    fn eight_bits_have_a_sign() {
        let qs: Vec<u8> = (0..32).map(|i: i16| (i * 8 - 127) as u8).collect();
        check(&Q8_0, &[&MINUS_THREE, &qs], |i| -3.0 * (i as f32 * 8.0 - 127.0));
    }

    #[test]
    fn groups_of_32_have_scales_and_offsets_of_six_bits() {
        let expected = |i: usize, n_bits| {
            let (scale, offset) = six_bits(i / 32);
            0.5 * f32::from(scale) * f32::from(quantum(i, n_bits)) - 0.25 * f32::from(offset)
        };
        let ((qs4, _), (qs5, qh5)) = (packed_256(4), packed_256(5));
        check(&Q4_K, &[&HALF, &QUARTER, &packed_scales(), &qs4], |i| expected(i, 4));
        check(&Q5_K, &[&HALF, &QUARTER, &packed_scales(), &qh5, &qs5], |i| expected(i, 5));
    }

    #[test]
    fn groups_of_16_have_scales_of_eight_bits() {
        let (mut ql, mut qh) = ([0; 128], [0; 64]);
        for half in 0..2 {
            for l in 0..32 {
                let [a, b, c, d] = [0, 32, 64, 96].map(|row| quantum(half * 128 + l + row, 6));
                ql[half * 64 + l] = a % 16 + c % 16 * 16;
                ql[half * 64 + l + 32] = b % 16 + d % 16 * 16;
                qh[half * 32 + l] = a / 16 + b / 16 * 4 + c / 16 * 16 + d / 16 * 64;
            }
        }
        let scales: [i8; 16] = std::array::from_fn(|group| (group as i8 - 8) * 15 + 7);
        check(&Q6_K, &[&ql, &qh, &scales.map(i8::cast_unsigned), &HALF], |i| {
            0.5 * f32::from(scales[i / 16]) * (f32::from(quantum(i, 6)) - 32.0)
        });
    }

    // Where the scales of a block are: 0.1 and -0.35 or so in half precision.
    const D: &[(usize, u16)] = &[(0, 0x2e66)];
    const D_AND_M: &[(usize, u16)] = &[(0, 0x2e66), (2, 0xb59a)];

    /// Compares a block of scattered bytes with what `gguf.quants.dequantize` of gguf-py makes of it: two elements,
    /// and the sum of all elements times their indices from one.
    fn recorded(format: &Blocks, scales: &[(usize, u16)], two: [(usize, f32); 2], weighted_sum: f64) {
        let scattered = |i: usize| ((i as u32 + 1).wrapping_mul(2_654_435_761) >> 24) as u8;
        let mut block: Vec<u8> = (0..format.bytes).map(scattered).collect();
        for (at, half) in scales {
            block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
        let elements = decoded(format, &block);
        assert_eq!(two.map(|(i, _)| (i, elements[i])), two, "{}", format.name);
        let sum = elements.iter().enumerate().fold(0.0, |sum, (i, y)| sum + (i + 1) as f64 * f64::from(*y));
        assert_eq!(sum, weighted_sum, "{}", format.name);
    }

    #[test]
    fn scattered_bytes_decode_as_in_gguf_py() {
        recorded(&Q4_0, D, [(17, -0.099_975_586), (31, -0.699_829_1)], -37.190_917_968_75);
        recorded(&Q4_1, D_AND_M, [(17, 0.749_633_8), (31, 0.149_780_27)], 212.651_367_187_5);
        recorded(&Q5_0, D, [(17, 1.499_633_8), (31, 0.899_780_3)], 65.284_057_617_187_5);
        recorded(&Q5_1, D_AND_M, [(17, 1.449_462_9), (31, 2.549_194_3)], 712.329_345_703_125);
        recorded(&Q8_0, D, [(17, 9.197_754), (31, 0.299_926_76)], -104.574_462_890_625);
        recorded(&Q4_K, D_AND_M, [(100, 73.489_746), (255, 86.984_25)], 1_204_910.513_671_875);
        recorded(&Q5_K, D_AND_M, [(100, 132.275_39), (255, 153.268_07)], 2_123_097.492_187_5);
        let d_last = |at| [(at, 0x2e66)];
        recorded(&Q6_K, &d_last(208), [(100, 5.698_608_4), (255, -11.497_192)], 317_339.005_737_304_7);
        let d_and_m_last = [(80, 0x2e66), (82, 0xb59a)];
        recorded(&Q2_K, &d_and_m_last, [(100, 2.650_268_6), (255, 5.201_294)], 125_241.677_856_445_31);
        recorded(&Q3_K, &d_last(108), [(100, 2.399_414), (255, 0.399_902_34)], -1_078.836_547_851_562_5);
        recorded(&IQ4_NL, D, [(17, -0.999_755_86), (31, -10.397_461)], -455.188_842_773_437_5);
        recorded(&IQ4_XS, D, [(100, -175.457_15), (255, 12.696_899)], -40_315.354_980_468_75);
        // Its first byte is a power of two: here 2^-2.
        recorded(&MXFP4, &[(0, 0xe67e)], [(17, -1.5), (31, 0.0)], -12.25);
    }
}
