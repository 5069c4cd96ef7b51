//! Repacks quantised tensors for GPUs: structure of arrays instead of array of blocks.
//!
//! In: the bytes of a tensor as a file holds them. Out: the same numbers in the order that `decode.rs` reads.
//!
//! ```text
//!  file    [d q q q … q][d q q q … q][d q q q … q]        blocks of 18 or 34 bytes: unaligned words
//!  GPU     [q q q … q | q q q … q | q q q … q][d d d]      each field on its own, from a multiple of 16 bytes on
//! ```
//!
//! 4- to 6-bit formats have the low four bits of 32 elements in 16 bytes, so that a 16-byte load has 32 quants and a
//! word four quants of each half: byte j holds element j in its low nibble and element j + 16 in its high one. The
//! fields of `Q2_K` and `Q3_K` and the scales of `IQ4_XS` keep the order of the file. No number changes. A tensor grows
//! by less than 16 bytes a field, and by 4 bytes for every 256 elements of `Q4_K` and `Q5_K`, whose 6-bit scales become
//! bytes.

use std::borrow::Cow;

use fusebox_formats::Groups;

use crate::kernel::Param;
use crate::tensor::quant::Format;

/// Fields start at multiples of this many bytes: vector loads take 16.
const ALIGNMENT: usize = 16;

/// A field of every block of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    /// Its first byte in a block of the file.
    from: usize,
    /// Its bytes in a block of the file.
    bytes: usize,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldKind {
    /// The low bits of the quants, or all of them.
    Elements,
    /// The high bits of the quants.
    High,
    /// Sub-block scales, narrower than a block's scale.
    Groups,
    /// Scales and offsets of blocks.
    Scales,
}

/// The fields of a block format, in GPU order; none for plain formats.
fn fields(format: Format) -> Vec<(FieldKind, Field)> {
    let field = |what, from, end| (what, Field { from, bytes: end - from });
    if let Format::Int8 { group } = format {
        // Files store these apart already.
        let (group, end) = (group as usize, format.block_bytes());
        return vec![field(FieldKind::Elements, 0, group), field(FieldKind::Scales, group, end)];
    }
    let Some(blocks) = format.blocks() else { return Vec::new() };
    let mut fields = Vec::new();
    for (what, plane) in [FieldKind::Elements, FieldKind::High].into_iter().zip(blocks.quanta.planes) {
        fields.push(field(what, plane.at, plane.at + plane.extent(blocks.len)));
    }
    if let Some(Groups { len, scales, offsets }) = &blocks.groups {
        let planes = || scales.planes.iter().chain(offsets.iter().flat_map(|offsets| offsets.planes));
        let from = planes().map(|plane| plane.at).min().unwrap_or(0);
        let end = planes().map(|plane| plane.at + plane.extent(blocks.len / len)).max().unwrap_or(0);
        fields.push(field(FieldKind::Groups, from, end));
    }
    let factors = [Some(blocks.scale), blocks.offset].into_iter().flatten();
    let end = factors.map(|factor| factor.at + factor.kind.bytes()).max().unwrap_or(0);
    fields.push(field(FieldKind::Scales, blocks.scale.at, end));
    fields
}

/// The first byte of a field in a block of the file.
pub(crate) fn field_start(format: Format, wanted: FieldKind) -> usize {
    let own = fields(format).into_iter().find(|(what, _)| *what == wanted);
    own.map_or_else(|| unreachable!("callers pass fields that the format has"), |(_, field)| field.from)
}

/// Bytes of a field of a block on the GPU.
pub(crate) fn field_bytes(format: Format, wanted: FieldKind) -> usize {
    let own = fields(format).into_iter().find(|(what, _)| *what == wanted);
    own.map_or_else(|| unreachable!("callers pass fields that the format has"), |own| bytes_of(format, own))
}

/// Bytes of a block's field on the GPU.
fn bytes_of(format: Format, (what, field): (FieldKind, Field)) -> usize {
    match (what, format) {
        (FieldKind::Groups, Format::Q4K | Format::Q5K) => 16,
        _ => field.bytes,
    }
}

/// Appends a block's field as the GPU has it.
fn append(format: Format, what: FieldKind, stored: &[u8], to: &mut Vec<u8>) {
    match (what, format) {
        (FieldKind::Elements, Format::Q4K | Format::Q5K) => append_pairs(stored, to),
        (FieldKind::Elements, Format::Q6K) => append_rows(stored, to),
        (FieldKind::High, Format::Q5K) => append_fifths(stored, to),
        (FieldKind::High, Format::Q6K) => append_top_bits(stored, to),
        (FieldKind::Groups, Format::Q4K | Format::Q5K) => append_groups(stored, to),
        _ => to.extend_from_slice(stored),
    }
}

/// Each 32 bytes hold 32 elements in their low nibbles, and the next 32 in their high ones.
fn append_pairs(elements: &[u8], to: &mut Vec<u8>) {
    for pair in elements.chunks_exact(32) {
        let (first, second) = pair.split_at(16);
        to.extend(first.iter().zip(second).map(|(a, b)| a & 15 | b << 4));
        to.extend(first.iter().zip(second).map(|(a, b)| a >> 4 | b & 0xf0));
    }
}

/// Each 64 bytes hold 64 elements in their low nibbles, and the next 64 in their high ones.
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

/// Byte `i` holds the fifth bits of element `i` of all eight groups: each group gets a word of its own.
fn append_fifths(high: &[u8], to: &mut Vec<u8>) {
    for group in 0..8 {
        let bits = high.iter().enumerate().map(|(i, byte)| u32::from(byte >> group & 1) << i);
        to.extend_from_slice(&bits.sum::<u32>().to_le_bytes());
    }
}

/// Byte `i` of 32 holds two bits of element `i` of each of four groups. Sixteen elements get a word, whose byte `k`
/// holds the bits of elements `k`, `4 + k`, `8 + k` and `12 + k`.
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

/// 6-bit scales and offsets of eight groups, as bytes: groups 4 to 7 keep their upper two bits with groups 0 to 3.
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

/// The first byte of a field of a tensor.
pub(crate) fn field_offset(format: Format, n_elements: usize, wanted: FieldKind) -> usize {
    let n_blocks = n_elements / format.block_len();
    let mut start = 0;
    for (what, field) in fields(format) {
        if what == wanted {
            return start;
        }
        start += (n_blocks * bytes_of(format, (what, field))).next_multiple_of(ALIGNMENT);
    }
    unreachable!("callers pass fields that the format has")
}

/// Bytes of a tensor in GPU memory: whole words, whatever the format.
pub fn bytes(format: Format, n_elements: usize) -> usize {
    let fields = fields(format);
    if fields.is_empty() {
        return (n_elements * format.block_bytes()).next_multiple_of(4);
    }
    let n_blocks = n_elements / format.block_len();
    fields.into_iter().map(|field| (n_blocks * bytes_of(format, field)).next_multiple_of(ALIGNMENT)).sum()
}

/// Where a field of some blocks lies in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRun {
    /// The first byte in GPU memory.
    pub start: usize,
    /// The first byte of the field in a stored block.
    pub from: usize,
    /// Bytes of the field in a block.
    pub bytes: usize,
}

/// The fields of a run of blocks of a tensor that kernels write: plain, or of blocks whose fields are only moved.
pub fn field_runs(format: Format, n_elements: usize, first_block: usize) -> Vec<FieldRun> {
    let fields = fields(format);
    if fields.is_empty() {
        let bytes = format.block_bytes();
        return vec![FieldRun { start: first_block * bytes, from: 0, bytes }];
    }
    let run = |(what, Field { from, bytes })| FieldRun {
        start: field_offset(format, n_elements, what) + first_block * bytes,
        from,
        bytes,
    };
    fields.into_iter().map(run).collect()
}

/// Bytes of a kernel's buffer in GPU memory.
pub fn param_bytes(param: &Param) -> usize {
    bytes(param.format, param.shape.max_len())
}

/// A stored tensor, repacked for the GPU.
pub fn repacked(format: Format, stored: &[u8]) -> Cow<'_, [u8]> {
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
    let mut repacked = Vec::with_capacity(bytes(format, n_elements));
    for (what, Field { from, bytes }) in fields {
        if let Format::Int8 { .. } = format {
            let start = if from == 0 { 0 } else { n_elements };
            repacked.extend_from_slice(&stored[start..start + n_blocks * bytes]);
        } else {
            let blocks = stored.chunks_exact(format.block_bytes());
            blocks.for_each(|block| append(format, what, &block[from..from + bytes], &mut repacked));
        }
        repacked.resize(repacked.len().next_multiple_of(ALIGNMENT), 0);
    }
    Cow::Owned(repacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_a_block_has_a_place() {
        for format in Format::FIXED {
            let block: Vec<u8> = (0..format.block_bytes()).map(|i| (i * 37 + 11) as u8).collect();
            let before = repacked(format, &block).into_owned();
            assert_eq!(before.len(), bytes(format, format.block_len()).next_multiple_of(4), "{format}");
            for bit in 0..8 * block.len() {
                let mut other = block.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let after = repacked(format, &other).into_owned();
                let n: u32 = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones()).sum();
                assert_eq!(n, 1, "bit {bit} of {format}");
            }
        }
    }

    #[test]
    fn elements_come_before_scales() {
        let stored: Vec<u8> = (0..68).collect();
        let repacked = repacked(Format::Q8_0, &stored);
        assert_eq!((repacked[0], repacked[32], repacked[64], repacked[66]), (2, 36, 0, 34));
        assert_eq!(repacked.len(), bytes(Format::Q8_0, 64));
        assert_eq!(field_offset(Format::Q8_0, 64, FieldKind::Scales), 64);
    }

    #[test]
    fn plain_tensors_stay_and_fill_words() {
        assert_eq!(repacked(Format::F32, &[1, 2, 3, 4]).as_ref(), [1, 2, 3, 4]);
        assert_eq!(repacked(Format::F16, &[1, 2]).as_ref(), [1, 2, 0, 0]);
        assert_eq!(bytes(Format::F16, 3), 8);
    }

    #[test]
    fn scales_of_int8_start_at_a_word() {
        let stored: Vec<u8> = (0..14).collect();
        let repacked = repacked(Format::Int8 { group: 3 }, &stored);
        assert_eq!((repacked[5], repacked[16], repacked.len()), (5, 6, 32));
    }
}
