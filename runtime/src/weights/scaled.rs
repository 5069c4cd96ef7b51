//! FP8 and MXFP4 of safetensors: numbers in one tensor, their scales in another.
//!
//! In: the tensors of a folder whose configuration names one of the two. Out: for each pair one tensor in a format that
//! kernels read; its bytes are made on first use and then stay in memory. A pair that does not fit is refused in one
//! sentence.
//!
//! ```text
//! fp8    X.weight: E4M3 [rows, columns]          X.weight_scale_inv: a scale for each tile of a size that is given
//!        becomes X.weight: BF16, the products rounded
//! mxfp4  X_blocks: bytes [.., rows, n, 16]       X_scales: an exponent for each of n blocks of 32
//!        becomes X: MXFP4 [.., rows, 32 n], where byte i has elements i and i + 16 instead of 2 i and 2 i + 1
//! ```

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;

use crate::error::{Error, Place};
use crate::weights::mapping::Mapping;
use crate::weights::value::{List, Value};
use crate::weights::{Checkpoint, Remade, Stored, TensorInfo};

/// Elements of a block of MXFP4, and bytes of their numbers.
const BLOCK: usize = 32;
const BLOCK_NUMBERS: usize = 16;

/// A tensor that is made of numbers and scales.
#[derive(Debug)]
pub(super) struct Scaled {
    numbers: TensorInfo,
    scales: TensorInfo,
    layout: Layout,
    n_bytes: usize,
    bytes: OnceLock<Vec<u8>>,
}

/// How scales belong to numbers.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Rows and columns that share a scale.
    Fp8 {
        tile: [usize; 2],
    },
    Mxfp4,
}

/// Makes tensors of pairs, where the configuration of a folder says that there are some.
pub(super) fn unpack(folder: &Path, checkpoint: &mut Checkpoint) -> Result<(), Error> {
    let method = checkpoint.metadata().get("quantization_config.quant_method").and_then(Value::as_text);
    let (layout, numbers, scales) = match method {
        Some("fp8") => (Layout::Fp8 { tile: tile(folder, checkpoint)? }, ".weight", ".weight_scale_inv"),
        Some("mxfp4") => (Layout::Mxfp4, "_blocks", "_scales"),
        _ => return Ok(()),
    };
    let names: Vec<String> = checkpoint.tensors().keys().cloned().collect();
    for name in names.iter().filter_map(|name| name.strip_suffix(scales)) {
        let parts = [format!("{name}{numbers}"), format!("{name}{scales}")];
        let scaled = Scaled::read(checkpoint, layout, &parts);
        let (scaled, shape) =
            scaled.map_err(|(part, what)| Error::input(folder, Place::Tensor(parts[part].clone()), what))?;
        let (stored, range) = (Stored::As(layout.format()), 0..scaled.n_bytes);
        let info = TensorInfo { shape, stored, file_idx: 0, remade: Some(checkpoint.remade.len()), range };
        for part in &parts {
            checkpoint.contents.tensors.shift_remove(part);
        }
        let made = if matches!(layout, Layout::Fp8 { .. }) { &parts[0] } else { name };
        checkpoint.contents.tensors.insert(made.to_owned(), info);
        checkpoint.remade.push(Remade::Scaled(scaled));
    }
    Ok(())
}

/// The rows and columns that share a scale.
fn tile(folder: &Path, checkpoint: &Checkpoint) -> Result<[usize; 2], Error> {
    let sizes = checkpoint.metadata().get("quantization_config.weight_block_size").and_then(Value::as_list);
    if let Some(List::Unsigned(sizes)) = sizes
        && let [rows, columns] = sizes[..]
        && let (Ok(rows @ 1..), Ok(columns @ 1..)) = (usize::try_from(rows), usize::try_from(columns))
    {
        return Ok([rows, columns]);
    }
    let place = Place::Key("quantization_config.weight_block_size".to_owned());
    let what = "expected two sizes of the tiles that share a scale, found none".to_owned();
    Err(Error::Unsupported { path: folder.to_owned(), place, what })
}

impl Layout {
    fn format(self) -> Format {
        match self {
            Self::Fp8 { .. } => Format::BF16,
            Self::Mxfp4 => Format::MXFP4,
        }
    }
}

/// What is wrong with which part of a pair.
type Fault = (usize, String);

type Files = [(PathBuf, Mapping)];

impl Scaled {
    /// A pair of these names, and the shape of what it becomes.
    fn read(
        checkpoint: &Checkpoint,
        layout: Layout,
        names: &[String; 2],
    ) -> Result<(Self, Vec<usize>), Fault> {
        let part = |part: usize, types: &[Stored]| {
            let info = checkpoint.tensors().get(&names[part]);
            let info = info.ok_or_else(|| (part, "expected a tensor, found none".to_owned()))?;
            let expected = || types.iter().map(Stored::to_string).collect::<Vec<_>>().join(" or ");
            let found = || (part, format!("expected {}, found {}", expected(), info.stored));
            if types.contains(&info.stored) { Ok(info.clone()) } else { Err(found()) }
        };
        let [bytes, exponents] = [Stored::Other("u8"), Stored::Other("f8_e8m0")];
        let floats = [Format::F32, Format::BF16, Format::F16].map(Stored::As);
        let (numbers, scales) = match layout {
            Layout::Fp8 { .. } => (part(0, &[Stored::Other("f8_e4m3")])?, part(1, &floats)?),
            Layout::Mxfp4 => (part(0, &[bytes])?, part(1, &[bytes, exponents])?),
        };
        let (shape, expected) = match (layout, &numbers.shape[..]) {
            (Layout::Fp8 { tile }, &[rows, columns]) => {
                (vec![rows, columns], vec![rows.div_ceil(tile[0]), columns.div_ceil(tile[1])])
            }
            (Layout::Mxfp4, [outer @ .., n, BLOCK_NUMBERS]) if !outer.is_empty() => {
                // It fits: a tensor of half as many bytes does.
                ([outer, &[n * BLOCK]].concat(), [outer, &[*n]].concat())
            }
            (Layout::Fp8 { .. }, found) => return Err((0, format!("expected a matrix, found {found:?}"))),
            (Layout::Mxfp4, found) => {
                return Err((
                    0,
                    format!("expected rows of blocks of {BLOCK_NUMBERS} bytes, found {found:?}"),
                ));
            }
        };
        if scales.shape != expected {
            return Err((1, format!("expected the shape {expected:?}, found {:?}", scales.shape)));
        }
        let n_bytes = layout.format().bytes_for(shape.iter().product());
        let n_bytes = n_bytes.ok_or_else(|| (0, "expected a smaller tensor".to_owned()))?;
        Ok((Self { numbers, scales, layout, n_bytes, bytes: OnceLock::new() }, shape))
    }

    /// The bytes of the tensor, made on first use.
    pub(super) fn bytes(&self, files: &Files) -> &[u8] {
        self.bytes.get_or_init(|| {
            let [numbers, scales] =
                [&self.numbers, &self.scales].map(|info| &files[info.file_idx].1.bytes()[info.range.clone()]);
            match self.layout {
                Layout::Fp8 { tile } => self.products(numbers, scales, tile),
                Layout::Mxfp4 => blocks(numbers, scales),
            }
        })
    }

    /// Numbers times the scales of their tiles, as BF16.
    fn products(&self, numbers: &[u8], scales: &[u8], tile: [usize; 2]) -> Vec<u8> {
        let Stored::As(format) = self.scales.stored else { return Vec::new() };
        let scales = format.decode_all(scales, self.scales.n_elements()).expect("their length was checked");
        let n_columns = self.numbers.shape.last().copied().unwrap_or(1).max(1);
        let n_tiles = n_columns.div_ceil(tile[1]);
        let values: Vec<f32> = (0..=u8::MAX).map(e4m3).collect();
        let mut out = vec![0; self.n_bytes];
        let row_bytes = self.layout.format().block_bytes() * n_columns;
        let rows = numbers.chunks_exact(n_columns).zip(out.chunks_exact_mut(row_bytes));
        for (row, (numbers, out)) in rows.enumerate() {
            let scales = &scales[row / tile[0] * n_tiles..];
            let product = |(i, bits): (usize, &u8)| values[usize::from(*bits)] * scales[i / tile[1]];
            let products: Vec<f32> = numbers.iter().enumerate().map(product).collect();
            self.layout.format().encode(&products, out).expect("a row has this many bytes");
        }
        out
    }
}

/// The number of four bits of exponent and three of mantissa; there is no infinity.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits >> 7 == 0 { size } else { -size }
}

/// Blocks of an exponent and sixteen bytes, in which the first sixteen elements are low nibbles.
fn blocks(numbers: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(numbers.len() + scales.len());
    for (numbers, scale) in numbers.as_chunks::<BLOCK_NUMBERS>().0.iter().zip(scales) {
        let element = |i: usize| numbers[i / 2] >> (i % 2 * 4) & 15;
        out.push(*scale);
        out.extend((0..BLOCK_NUMBERS).map(|i| element(i) | element(i + BLOCK_NUMBERS) << 4));
    }
    out
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
    fn neighbours_come_apart() {
        let numbers: [u8; 16] = std::array::from_fn(|i| (2 * i % 16 + (2 * i + 1) % 16 * 16) as u8);
        let block = blocks(&numbers, &[0x81]);
        let found = Format::MXFP4.decode_all(&block, 32).unwrap();
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let expected: Vec<f32> =
            (0..32).map(|i| 4.0 * values[i % 8] * if i % 16 < 8 { 1.0 } else { -1.0 }).collect();
        assert_eq!(found, expected);
    }
}
