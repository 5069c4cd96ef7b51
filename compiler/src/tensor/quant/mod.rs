//! Block formats as data: how the elements of a stored tensor lie in bytes.
//!
//! In: the bytes of one tensor, as a file holds them, and its number of elements. Out: the numbers they stand for, or
//! nothing where the bytes are too few; and the other way round, the bytes of numbers.
//! A format is one row of the table of `fusebox_formats`; everything else follows from that row.
//! `Int8` is the odd one: its scales are stored after all elements of the tensor instead of inside the blocks.
//! Nothing here may be fast or know of kernels: this is the definition that kernels are held against.
//! The meaning of the bits of a block stands beside the table, that of other bytes in `decode.rs`; which bits numbers
//! become is in `encode.rs`.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use fusebox_formats::{self as formats, Blocks, Code};

use crate::tensor::dtype::DType;

mod codebook;
mod decode;
mod encode;
mod fit;
mod put;
mod superblock;
mod weighted;

/// How the elements of a stored tensor lie in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Plain single-precision numbers.
    F32,
    /// Plain half-precision numbers.
    F16,
    /// Plain upper halves of single-precision numbers.
    BF16,
    /// Plain whole numbers.
    I32,
    /// GGML: 32 elements of 4 bits, one scale.
    Q4_0,
    /// GGML: 32 elements of 4 bits, one scale and one offset.
    Q4_1,
    /// GGML: 32 elements of 5 bits, one scale.
    Q5_0,
    /// GGML: 32 elements of 5 bits, one scale and one offset.
    Q5_1,
    /// GGML: 32 elements of 8 bits, one half-precision scale.
    Q8_0,
    /// GGML: 16 groups of 16 elements of 2 bits, each with a scale and an offset of 4 bits.
    Q2K,
    /// GGML: 16 groups of 16 elements of 3 bits, each with a scale of 6 bits.
    Q3K,
    /// GGML: 8 groups of 32 elements of 4 bits, each with a scale and an offset of 6 bits.
    Q4K,
    /// GGML: 8 groups of 32 elements of 5 bits, each with a scale and an offset of 6 bits.
    Q5K,
    /// GGML: 16 groups of 16 elements of 6 bits, each with a scale of 8 bits.
    Q6K,
    /// GGML: 32 elements, each one of sixteen values, one scale.
    IQ4NL,
    /// GGML: 8 groups of 32 elements, each one of sixteen values, each group with a scale of 6 bits.
    IQ4XS,
    /// OCP: 32 elements of four bits with an exponent (E2M1), one scale that is a power of two.
    MXFP4,
    /// Qorus: 32 elements of 4 bits, neighbours in a byte, and one single-precision scale.
    Q4Pairs,
    /// qwen3.c: all elements of the tensor as bytes, then one single-precision scale for every `group` of them.
    Int8 {
        /// How many elements share a scale; never zero in a tensor that can be read.
        group: u32,
    },
}

/// What the blocks of a format are.
enum Layout {
    Plain(DType),
    Blocks(&'static Blocks),
    /// Groups of this many, with their scales apart.
    Apart(u32),
}

const INT8_PREFIX: &str = "int8.g";

impl Format {
    /// Every format without a parameter, in the order of the declaration: all but `Int8`.
    pub const FIXED: [Self; 18] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::I32,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ4NL,
        Self::IQ4XS,
        Self::MXFP4,
        Self::Q4Pairs,
    ];

    const fn layout(self) -> Layout {
        Layout::Blocks(match self {
            Self::F32 => return Layout::Plain(DType::F32),
            Self::F16 => return Layout::Plain(DType::F16),
            Self::BF16 => return Layout::Plain(DType::BF16),
            Self::I32 => return Layout::Plain(DType::I32),
            Self::Int8 { group } => return Layout::Apart(group),
            Self::Q4_0 => &formats::Q4_0,
            Self::Q4_1 => &formats::Q4_1,
            Self::Q5_0 => &formats::Q5_0,
            Self::Q5_1 => &formats::Q5_1,
            Self::Q8_0 => &formats::Q8_0,
            Self::Q2K => &formats::Q2_K,
            Self::Q3K => &formats::Q3_K,
            Self::Q4K => &formats::Q4_K,
            Self::Q5K => &formats::Q5_K,
            Self::Q6K => &formats::Q6_K,
            Self::IQ4NL => &formats::IQ4_NL,
            Self::IQ4XS => &formats::IQ4_XS,
            Self::MXFP4 => &formats::MXFP4,
            Self::Q4Pairs => &formats::Q4_PAIRS,
        })
    }

    /// The row of the table of block formats; nothing for plain formats, and for `Int8`.
    pub const fn blocks(self) -> Option<&'static Blocks> {
        match self.layout() {
            Layout::Blocks(blocks) => Some(blocks),
            Layout::Plain(_) | Layout::Apart(_) => None,
        }
    }

    /// The name in text forms: `q4_k`, or `int8.g64` for groups of 64.
    pub fn name(self) -> String {
        self.to_string()
    }

    /// The format of this name.
    pub fn named(name: &str) -> Option<Self> {
        if let Some(format) = Self::FIXED.into_iter().find(|format| format.name() == name) {
            return Some(format);
        }
        let group = name.strip_prefix(INT8_PREFIX)?.parse().ok().filter(|group| *group > 0)?;
        let format = Self::Int8 { group };
        // A number has many spellings and a format has one name.
        (format.name() == name).then_some(format)
    }

    /// The format that stores elements of a type as they are.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::I32 => Self::I32,
        }
    }

    /// The type whose elements lie here as they are; nothing for quantised formats.
    pub fn plain(self) -> Option<DType> {
        match self.layout() {
            Layout::Plain(dtype) => Some(dtype),
            Layout::Blocks(_) | Layout::Apart(_) => None,
        }
    }

    /// The type of a decoded element: single precision for every quantised format.
    pub fn dtype(self) -> DType {
        self.plain().unwrap_or(DType::F32)
    }

    /// Operations that decode one element, about.
    pub fn decoding_operations(self) -> i64 {
        match self.layout() {
            Layout::Plain(DType::F32 | DType::I32) => 0,
            Layout::Plain(DType::F16 | DType::BF16) => 1,
            Layout::Apart(_) => 2,
            Layout::Blocks(Blocks { groups: Some(_), .. }) => 5,
            Layout::Blocks(Blocks { quanta, .. }) => match quanta.code {
                Code::Signed => 2,
                Code::From(_) => 2 + quanta.planes.len() as i64,
                Code::Table(_) => 4,
            },
        }
    }

    /// Bytes that one element takes, on average.
    pub fn bytes_per_element(self) -> f64 {
        self.block_bytes() as f64 / self.block_len() as f64
    }

    /// Elements of one block.
    pub const fn block_len(self) -> usize {
        match self.layout() {
            Layout::Plain(_) => 1,
            Layout::Blocks(blocks) => blocks.len,
            Layout::Apart(group) => group as usize,
        }
    }

    /// Bytes of one block with its scales.
    pub const fn block_bytes(self) -> usize {
        match self.layout() {
            Layout::Plain(DType::F32 | DType::I32) => 4,
            Layout::Plain(DType::F16 | DType::BF16) => 2,
            Layout::Blocks(blocks) => blocks.bytes,
            Layout::Apart(group) => group as usize + 4,
        }
    }

    /// The number of this type in GGUF files, if they may have it.
    pub fn ggml(self) -> Option<u32> {
        match self.layout() {
            Layout::Plain(DType::F32) => Some(0),
            Layout::Plain(DType::F16) => Some(1),
            Layout::Plain(DType::BF16) => Some(30),
            Layout::Plain(DType::I32) => Some(26),
            Layout::Blocks(blocks) => blocks.ggml,
            Layout::Apart(_) => None,
        }
    }

    /// Bytes of a tensor; nothing where the elements do not fill whole blocks or no machine could hold them.
    pub fn bytes_for(self, n_elements: usize) -> Option<usize> {
        let (block_len, block_bytes) = (self.block_len(), self.block_bytes());
        let rest = n_elements.checked_rem(block_len)?;
        if rest == 0 { (n_elements / block_len).checked_mul(block_bytes) } else { None }
    }

    /// One element, by its index in storage order; nothing where the bytes are too few for the whole tensor or there
    /// is no such element.
    ///
    /// It decodes the whole block for it. Whole numbers come rounded to single precision.
    pub fn decode(self, bytes: &[u8], n_elements: usize, index: usize) -> Option<f32> {
        if index >= n_elements || bytes.len() < self.bytes_for(n_elements)? {
            return None;
        }
        let block_len = self.block_len();
        let mut block = vec![0.0; block_len];
        self.decode_block(&self.block(bytes, n_elements, index / block_len)?, &mut block);
        block.get(index % block_len).copied()
    }

    /// All elements in storage order; nothing where the bytes are too few.
    pub fn decode_all(self, bytes: &[u8], n_elements: usize) -> Option<Vec<f32>> {
        self.decode_some(bytes, n_elements, 0..n_elements)
    }

    /// Some of the elements, in storage order; nothing where the bytes are too few for the whole tensor or these are
    /// no whole blocks of it.
    pub fn decode_some(self, bytes: &[u8], n_elements: usize, range: Range<usize>) -> Option<Vec<f32>> {
        // Checked before anything is allocated: the number of elements may come from a broken file.
        if range.end > n_elements || bytes.len() < self.bytes_for(n_elements)? {
            return None;
        }
        let block_len = self.block_len();
        if !range.start.is_multiple_of(block_len) || !range.end.is_multiple_of(block_len) {
            return None;
        }
        let mut elements = vec![0.0; range.len()];
        for (block_idx, out) in (range.start / block_len..).zip(elements.chunks_exact_mut(block_len)) {
            self.decode_block(&self.block(bytes, n_elements, block_idx)?, out);
        }
        Some(elements)
    }

    fn decode_block(self, block: &[u8], out: &mut [f32]) {
        match self.layout() {
            Layout::Plain(dtype) => out[0] = decode::plain(dtype, block),
            Layout::Blocks(blocks) => blocks.decode(block, out),
            Layout::Apart(_) => decode::int8(block, out),
        }
    }

    /// Writes elements as whole blocks; nothing where they do not fill the bytes, or nothing is put into this format.
    ///
    /// The elements must be finite, and so must their scales in half precision: none may be larger than 65504.
    pub fn encode(self, elements: &[f32], bytes: &mut [u8]) -> Option<()> {
        let encode = encode::encoder(self)?;
        if self.bytes_for(elements.len()) != Some(bytes.len()) {
            return None;
        }
        let (block_len, block_bytes) = (self.block_len(), self.block_bytes());
        for (elements, block) in elements.chunks_exact(block_len).zip(bytes.chunks_exact_mut(block_bytes)) {
            encode(elements, block);
        }
        Some(())
    }

    /// The same for rows whose columns count differently, as an importance matrix says; `weights` are those of a row.
    /// Formats without a search for scales are written as ever.
    pub fn encode_weighted(self, elements: &[f32], weights: &[f32], bytes: &mut [u8]) -> Option<()> {
        let Some(encode) = weighted::encoder(self) else { return self.encode(elements, bytes) };
        let row_len = weights.len().max(1);
        let row_bytes = self.bytes_for(row_len)?;
        if !elements.len().is_multiple_of(row_len) || self.bytes_for(elements.len()) != Some(bytes.len()) {
            return None;
        }
        let (block_len, block_bytes) = (self.block_len(), self.block_bytes());
        for (row, bytes) in elements.chunks_exact(row_len).zip(bytes.chunks_exact_mut(row_bytes)) {
            let size = weighted::mean_square(row);
            let blocks = row.chunks_exact(block_len).zip(weights.chunks_exact(block_len));
            for ((x, weights), block) in blocks.zip(bytes.chunks_exact_mut(block_bytes)) {
                encode(x, weights, size, block);
            }
        }
        Some(())
    }

    /// Whether elements can be put into this format.
    pub fn is_encoded(self) -> bool {
        encode::encoder(self).is_some()
    }

    /// Whether kernels store elements of this format.
    pub fn is_written(self) -> bool {
        self.plain().is_some() || self.written_steps().is_some()
    }

    /// Steps from zero to the element of greatest size in a block that kernels store; nothing for other formats.
    ///
    /// Each such block has one scale, of half precision, for all its numbers. Micro-kernels encode and mix these
    /// formats.
    pub fn written_steps(self) -> Option<f32> {
        match (self, self.blocks()?.quanta.code) {
            (Self::Q8_0, Code::Signed) => Some(127.0),
            (Self::Q4_0, Code::From(zero)) => Some(zero.into()),
            _ => None,
        }
    }

    /// Elements as this format holds them, once they are written; nothing where they do not fill whole blocks, or
    /// nothing is put into this format.
    pub fn rounded(self, elements: &[f32]) -> Option<Vec<f32>> {
        let mut bytes = vec![0; self.bytes_for(elements.len())?];
        self.encode(elements, &mut bytes)?;
        self.decode_all(&bytes, elements.len())
    }

    /// The bytes of one block; for `Int8` the elements of one group followed by their scale.
    fn block(self, bytes: &[u8], n_elements: usize, block_idx: usize) -> Option<Cow<'_, [u8]>> {
        let (block_len, block_bytes) = (self.block_len(), self.block_bytes());
        let piece = |start: usize, n_bytes: usize| bytes.get(start..start + n_bytes);
        if let Self::Int8 { .. } = self {
            let elements = piece(block_idx * block_len, block_len)?;
            let scale = piece(n_elements + block_idx * 4, 4)?;
            return Some(Cow::Owned([elements, scale].concat()));
        }
        piece(block_idx * block_bytes, block_bytes).map(Cow::Borrowed)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout() {
            Layout::Plain(dtype) => f.write_str(dtype.name()),
            Layout::Blocks(blocks) => f.write_str(blocks.name),
            Layout::Apart(group) => write!(f, "{INT8_PREFIX}{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_format() -> Vec<Format> {
        Format::FIXED.into_iter().chain([Format::Int8 { group: 64 }, Format::Int8 { group: 3 }]).collect()
    }

    #[test]
    fn names_round_trip() {
        for format in every_format() {
            assert_eq!(Format::named(&format.name()), Some(format));
        }
        assert_eq!(Format::Int8 { group: 64 }.name(), "int8.g64");
        assert_eq!(Format::Q4K.to_string(), "q4_k");
    }

    #[test]
    fn other_spellings_are_no_names() {
        for name in ["", "Q4_0", "q4k", "int8.g", "int8.g0", "int8.g+64", "int8.g064", "int8.g4294967296"] {
            assert_eq!(Format::named(name), None, "{name}");
        }
    }

    #[test]
    fn plain_formats_are_element_types() {
        for dtype in DType::ALL {
            let format = Format::of(dtype);
            assert_eq!((format.plain(), format.dtype()), (Some(dtype), dtype));
            assert_eq!((format.block_len(), format.block_bytes()), (1, dtype.bytes()));
            assert_eq!(format.name(), dtype.name());
        }
        assert_eq!((Format::Q6K.plain(), Format::Q6K.dtype()), (None, DType::F32));
        assert_eq!(Format::Int8 { group: 1 }.plain(), None);
    }

    #[test]
    fn only_whole_blocks_have_bytes() {
        assert_eq!(Format::F16.bytes_for(7), Some(14));
        assert_eq!(Format::Q4_0.bytes_for(64), Some(36));
        assert_eq!(Format::Q4_0.bytes_for(48), None);
        assert_eq!(Format::Q6K.bytes_for(512), Some(420));
        assert_eq!(Format::Int8 { group: 64 }.bytes_for(128), Some(136));
        assert_eq!(Format::Int8 { group: 64 }.bytes_for(96), None);
        assert_eq!(Format::Int8 { group: 0 }.bytes_for(0), None);
        assert_eq!(Format::F32.bytes_for(usize::MAX), None);
    }

    #[test]
    fn too_few_bytes_decode_to_nothing() {
        for format in every_format() {
            let n_elements = 2 * format.block_len();
            let bytes = vec![0; 2 * format.block_bytes()];
            assert_eq!(format.decode_all(&bytes, n_elements).map(|all| all.len()), Some(n_elements));
            assert!(format.decode(&bytes, n_elements, n_elements - 1).is_some());
            assert_eq!(format.decode(&bytes, n_elements, n_elements), None);
            for len in 0..bytes.len() {
                assert_eq!(format.decode_all(&bytes[..len], n_elements), None);
                assert_eq!(format.decode(&bytes[..len], n_elements, 0), None);
            }
        }
    }

    #[test]
    fn absurd_lengths_decode_to_nothing() {
        let odd_groups = [0, u32::MAX].map(|group| Format::Int8 { group });
        for format in every_format().into_iter().chain(odd_groups) {
            let n_elements = usize::MAX - usize::MAX.checked_rem(format.block_len()).unwrap_or(0);
            assert_eq!(format.decode_all(&[0; 64], n_elements), None);
            assert_eq!(format.decode(&[0; 64], n_elements, n_elements - 1), None);
        }
    }

    #[test]
    fn one_element_is_the_same_as_among_all() {
        for format in every_format() {
            let n_elements = 3 * format.block_len();
            // Without the bits that would make an exponent too great, no element is infinite or not a number.
            let bytes: Vec<u8> = (0..3 * format.block_bytes()).map(|i| (i * 37 % 251) as u8 & 0xbf).collect();
            let all = format.decode_all(&bytes, n_elements).unwrap();
            for (index, element) in all.iter().enumerate() {
                assert_eq!(format.decode(&bytes, n_elements, index), Some(*element), "{format} {index}");
            }
        }
    }

    #[test]
    fn scales_of_int8_lie_behind_all_elements() {
        let mut bytes: Vec<u8> = [3_i8, -5, 127, -127, 0, 1].into_iter().map(i8::cast_unsigned).collect();
        for scale in [0.5_f32, 2.0, -0.25] {
            bytes.extend(scale.to_le_bytes());
        }
        let elements = Format::Int8 { group: 2 }.decode_all(&bytes, 6).unwrap();
        assert_eq!(elements, [1.5, -2.5, 254.0, -254.0, 0.0, -0.25]);
    }
}
