//! How quantised weights and states lie in the memory of a GPU.
//!
//! In: the bytes of a tensor as a file holds them. Out: the same bytes in another order, which `decode.rs` reads.
//! Blocks of 18 or 34 bytes make every other word straddle two. So each field of all blocks lies together: first the
//! elements of every block, then the scales of every block, each field from a multiple of sixteen bytes on.
//! No number changes, and a tensor grows by less than sixteen bytes a field.

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

/// The first byte of a field of a tensor of so many elements, and the bytes that it has of each block.
pub(super) fn place(format: Format, n_elements: usize, wanted: What) -> (usize, usize) {
    let n_blocks = n_elements / format.block_len();
    let mut start = 0;
    for (what, field) in fields(format) {
        if what == wanted {
            return (start, field.bytes);
        }
        start += (n_blocks * field.bytes).next_multiple_of(ALIGNMENT);
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
    fields.iter().map(|(_, field)| (n_blocks * field.bytes).next_multiple_of(ALIGNMENT)).sum()
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
    for (_, field) in fields {
        if let Format::Int8 { .. } = format {
            let start = if field.from == 0 { 0 } else { n_elements };
            arranged.extend_from_slice(&stored[start..start + n_blocks * field.bytes]);
        } else {
            let blocks = stored.chunks_exact(format.block_bytes());
            blocks.for_each(|block| arranged.extend_from_slice(&block[field.from..field.from + field.bytes]));
        }
        arranged.resize(arranged.len().next_multiple_of(ALIGNMENT), 0);
    }
    Cow::Owned(arranged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_block_has_one_place() {
        for format in Format::FIXED.into_iter().chain([Format::Int8 { group: 3 }]) {
            let fields = fields(format);
            let mut covered: Vec<usize> =
                fields.iter().flat_map(|(_, field)| field.from..field.from + field.bytes).collect();
            covered.sort_unstable();
            let expected: Vec<usize> =
                if fields.is_empty() { Vec::new() } else { (0..format.block_bytes()).collect() };
            assert_eq!(covered, expected, "{format}");
        }
    }

    #[test]
    fn elements_come_before_scales() {
        let stored: Vec<u8> = (0..68).collect();
        let arranged = arranged(Format::Q8_0, &stored);
        assert_eq!((arranged[0], arranged[32], arranged[64], arranged[66]), (2, 36, 0, 34));
        assert_eq!(arranged.len(), bytes(Format::Q8_0, 64));
        assert_eq!(place(Format::Q8_0, 64, What::Scales), (64, 2));
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
