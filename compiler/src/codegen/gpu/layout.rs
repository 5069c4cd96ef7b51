//! How quantised weights and states lie in the memory of a GPU.
//!
//! In: the bytes of a tensor as a file holds them. Out: the same numbers in another order, which `decode.rs` reads.
//! Blocks of 18 or 34 bytes make every other word straddle two. So each field of all blocks lies together: first the
//! elements of every block, then the scales of every block, each field from a multiple of sixteen bytes on.
//! All formats of four to six bits have the low four bits of 32 elements in sixteen bytes, the first half of them in
//! the lower half of each byte, so that threads take 32 elements at a time and words give four of them at once.
//! No number changes. A tensor grows by less than sixteen bytes a field, and by four bytes for every 256 elements where
//! scales of six bits get bytes of their own.

use std::borrow::Cow;

use crate::kernel::Param;
use crate::tensor::quant::Format;

/// Where a field starts, in bytes, and words are read sixteen bytes at a time.
const ALIGNMENT: usize = 16;

/// A piece of every block of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    /// Its first byte in a block of a file.
    from: usize,
    /// Its bytes there.
    bytes: usize,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The low bits of elements, or all of them.
    Elements,
    /// Their higher bits.
    High,
    /// Numbers that several elements share, of fewer bits than a scale.
    Groups,
    /// Scales and offsets.
    Scales,
}

/// The fields of a block format, in the order in which a GPU has them; none where elements lie as they are.
fn fields(format: Format) -> Vec<(What, Field)> {
    let field = |what, from, bytes| (what, Field { from, bytes });
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::I32 => Vec::new(),
        Format::Q4_0 => vec![field(What::Elements, 2, 16), field(What::Scales, 0, 2)],
        Format::Q4_1 => vec![field(What::Elements, 4, 16), field(What::Scales, 0, 4)],
        Format::Q5_0 => {
            vec![field(What::Elements, 6, 16), field(What::High, 2, 4), field(What::Scales, 0, 2)]
        }
        Format::Q5_1 => {
            vec![field(What::Elements, 8, 16), field(What::High, 4, 4), field(What::Scales, 0, 4)]
        }
        Format::Q8_0 => vec![field(What::Elements, 2, 32), field(What::Scales, 0, 2)],
        Format::Q4K => {
            vec![field(What::Elements, 16, 128), field(What::Groups, 4, 12), field(What::Scales, 0, 4)]
        }
        Format::Q5K => vec![
            field(What::Elements, 48, 128),
            field(What::High, 16, 32),
            field(What::Groups, 4, 12),
            field(What::Scales, 0, 4),
        ],
        Format::Q6K => vec![
            field(What::Elements, 0, 128),
            field(What::High, 128, 64),
            field(What::Groups, 192, 16),
            field(What::Scales, 208, 2),
        ],
        Format::Q4Pairs => vec![field(What::Elements, 0, 16), field(What::Scales, 16, 4)],
        // A file has these apart already.
        Format::Int8 { group } => {
            vec![field(What::Elements, 0, group as usize), field(What::Scales, group as usize, 4)]
        }
    }
}

/// Bytes that a field of a block has on a GPU.
fn bytes_of(format: Format, (what, field): (What, Field)) -> usize {
    match (what, format) {
        (What::Groups, Format::Q4K | Format::Q5K) => 16,
        _ => field.bytes,
    }
}

/// Appends a field of a block as a GPU has it.
fn append(format: Format, what: What, stored: &[u8], to: &mut Vec<u8>) {
    match (what, format) {
        (What::Elements, Format::Q4K | Format::Q5K) => append_pairs(stored, to),
        (What::Elements, Format::Q6K) => append_rows(stored, to),
        (What::High, Format::Q5K) => append_fifths(stored, to),
        (What::High, Format::Q6K) => append_top_bits(stored, to),
        (What::Groups, Format::Q4K | Format::Q5K) => append_groups(stored, to),
        _ => to.extend_from_slice(stored),
    }
}

/// Of each 32 bytes the lower halves are one group of 32 elements, and the upper ones the next.
fn append_pairs(elements: &[u8], to: &mut Vec<u8>) {
    for pair in elements.chunks_exact(32) {
        let (first, second) = pair.split_at(16);
        to.extend(first.iter().zip(second).map(|(a, b)| a & 15 | b << 4));
        to.extend(first.iter().zip(second).map(|(a, b)| a >> 4 | b & 0xf0));
    }
}

/// Of each 64 bytes the lower halves are 64 elements, and the upper ones the next.
fn append_rows(elements: &[u8], to: &mut Vec<u8>) {
    for half in elements.chunks_exact(64) {
        let runs = [0, 32].map(|start| half[start..start + 32].split_at(16));
        for (first, second) in runs {
            to.extend(first.iter().zip(second).map(|(a, b)| a & 15 | b << 4));
        }
        for (first, second) in runs {
            to.extend(first.iter().zip(second).map(|(a, b)| a >> 4 | b & 0xf0));
        }
    }
}

/// Byte `i` has the fifth bits of element `i` of all eight groups: each group gets a word of its own.
fn append_fifths(high: &[u8], to: &mut Vec<u8>) {
    for group in 0..8 {
        let bits = high.iter().enumerate().map(|(i, byte)| u32::from(byte >> group & 1) << i);
        to.extend_from_slice(&bits.sum::<u32>().to_le_bytes());
    }
}

/// Byte `i` of 32 has two bits of element `i` of each of four groups. Sixteen elements get a word, of which byte `k`
/// has the bits of elements `k`, `4 + k`, `8 + k` and `12 + k`.
fn append_top_bits(high: &[u8], to: &mut Vec<u8>) {
    for half in high.chunks_exact(32) {
        for group in 0..4 {
            for sixteen in half.chunks_exact(16) {
                for k in 0..4 {
                    let bits = (0..4).map(|quad| (sixteen[4 * quad + k] >> (2 * group) & 3) << (2 * quad));
                    to.push(bits.sum());
                }
            }
        }
    }
}

/// Scales and offsets of eight groups, six bits each: groups 4 to 7 keep their upper two bits with groups 0 to 3.
fn append_groups(packed: &[u8], to: &mut Vec<u8>) {
    for group in 0..8 {
        let pair = if group < 4 {
            [packed[group] & 63, packed[group + 4] & 63]
        } else {
            let low = [packed[group + 4] & 15, packed[group + 4] >> 4];
            [low[0] | packed[group - 4] >> 6 << 4, low[1] | packed[group] >> 6 << 4]
        };
        to.extend_from_slice(&pair);
    }
}

/// The first byte of a field of a tensor of so many elements.
pub(super) fn place(format: Format, n_elements: usize, wanted: What) -> usize {
    let n_blocks = n_elements / format.block_len();
    let mut start = 0;
    for (what, field) in fields(format) {
        if what == wanted {
            return start;
        }
        start += (n_blocks * bytes_of(format, (what, field))).next_multiple_of(ALIGNMENT);
    }
    unreachable!("a format is asked for fields that it has")
}

/// Bytes of a tensor in the memory of a GPU: whole words, whatever the format.
pub fn bytes(format: Format, n_elements: usize) -> usize {
    let fields = fields(format);
    if fields.is_empty() {
        return (n_elements * format.block_bytes()).next_multiple_of(4);
    }
    let n_blocks = n_elements / format.block_len();
    fields.into_iter().map(|field| (n_blocks * bytes_of(format, field)).next_multiple_of(ALIGNMENT)).sum()
}

/// Bytes of a kernel's buffer in the memory of a GPU.
pub fn param_bytes(param: &Param) -> usize {
    bytes(param.format, param.shape.max_len())
}

/// A stored tensor as it lies in the memory of a GPU.
pub fn arranged(format: Format, stored: &[u8]) -> Cow<'_, [u8]> {
    let fields = fields(format);
    let n_blocks = stored.len() / format.block_bytes();
    let n_elements = n_blocks * format.block_len();
    if fields.is_empty() {
        if stored.len().is_multiple_of(4) {
            return Cow::Borrowed(stored);
        }
        let mut whole = stored.to_vec();
        whole.resize(stored.len().next_multiple_of(4), 0);
        return Cow::Owned(whole);
    }
    let mut arranged = Vec::with_capacity(bytes(format, n_elements));
    for (what, Field { from, bytes }) in fields {
        if let Format::Int8 { .. } = format {
            let start = if from == 0 { 0 } else { n_elements };
            arranged.extend_from_slice(&stored[start..start + n_blocks * bytes]);
        } else {
            let blocks = stored.chunks_exact(format.block_bytes());
            blocks.for_each(|block| append(format, what, &block[from..from + bytes], &mut arranged));
        }
        arranged.resize(arranged.len().next_multiple_of(ALIGNMENT), 0);
    }
    Cow::Owned(arranged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_block_has_a_place() {
        for format in Format::FIXED {
            let block: Vec<u8> = (0..format.block_bytes()).map(|i| (i * 37 + 11) as u8).collect();
            let before = arranged(format, &block).into_owned();
            assert_eq!(before.len(), bytes(format, format.block_len()).next_multiple_of(4), "{format}");
            for bit in 0..8 * block.len() {
                let mut other = block.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let after = arranged(format, &other).into_owned();
                let n: u32 = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(n, 1, "bit {bit} of {format}");
            }
        }
    }

    #[test]
    fn elements_come_before_scales() {
        let stored: Vec<u8> = (0..68).collect();
        let arranged = arranged(Format::Q8_0, &stored);
        assert_eq!((arranged[0], arranged[32], arranged[64], arranged[66]), (2, 36, 0, 34));
        assert_eq!(arranged.len(), bytes(Format::Q8_0, 64));
        assert_eq!(place(Format::Q8_0, 64, What::Scales), 64);
    }

    #[test]
    fn plain_tensors_stay_and_fill_words() {
        assert_eq!(arranged(Format::F32, &[1, 2, 3, 4]).as_ref(), [1, 2, 3, 4]);
        assert_eq!(arranged(Format::F16, &[1, 2]).as_ref(), [1, 2, 0, 0]);
        assert_eq!(bytes(Format::F16, 3), 8);
    }

    #[test]
    fn scales_of_int8_start_at_a_word() {
        let stored: Vec<u8> = (0..14).collect();
        let arranged = arranged(Format::Int8 { group: 3 }, &stored);
        assert_eq!((arranged[5], arranged[16], arranged.len()), (5, 6, 32));
    }
}
