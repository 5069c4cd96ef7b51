//! The bytes of a weight: mostly a range of a stored tensor, else derived on first use.
//!
//! In: a checkpoint. Out: bytes. Nothing is checked here; `mod.rs` has checked that every tensor fits.

use std::borrow::Cow;
use std::ops::Range;
use std::slice;
use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::expand::expand;
use fusebox_runtime::weights::{Checkpoint, Stored, TensorInfo};

/// How many elements are tested together.
const PIECE_LEN: usize = 1 << 10;

/// Where the bytes of a weight come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A range of the bytes of one stored tensor.
    Run { tensor: String, bytes: Range<usize> },
    /// Derived on first use, and kept.
    Derived { recipe: Recipe, bytes: OnceLock<Vec<u8>> },
}

/// How bytes are derived.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    /// Stored tensors one after another.
    Concatenated(Vec<String>),
    /// A small tensor, decoded to F32, and what graphs want of each number.
    AsF32 { source: Box<Source>, format: Format, n_elements: usize, number: Number },
    /// A range of the bytes of a stored tensor, in the format that its type becomes.
    Expanded { tensor: String, bytes: Range<usize>, ty: &'static str },
    /// Ranges of the bytes of a stored tensor, one after another.
    Rows { tensor: String, ranges: Vec<Range<usize>> },
    /// F32 elements that are bfloat16 numbers, as such.
    AsBf16(Box<Source>),
    /// Elements of a tensor in another order, given by strides.
    Strided { tensor: String, element_bytes: usize, from: usize, axes: [Axis; 3] },
}

/// What graphs want of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// The number itself.
    Same,
    /// 1 more.
    PlusOne,
    /// `-e^x`.
    NegativeExp,
}

impl Number {
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Same => x,
            Self::PlusOne => x + 1.0,
            Self::NegativeExp => -x.exp(),
        }
    }
}

/// An axis of the result: its length, and its stride in the stored tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(super) len: usize,
    pub(super) stride: usize,
}

impl Source {
    pub(super) fn derived(recipe: Recipe) -> Self {
        Self::Derived { recipe, bytes: OnceLock::new() }
    }

    pub(super) fn bytes<'a>(&'a self, checkpoint: &'a Checkpoint) -> Option<&'a [u8]> {
        match self {
            Self::Run { tensor, bytes } => checkpoint.bytes(tensor)?.get(bytes.clone()),
            Self::Derived { recipe, bytes } => Some(bytes.get_or_init(|| recipe.derive(checkpoint))),
        }
    }

    /// The stored tensors that it comes from.
    pub(super) fn tensors(&self) -> &[String] {
        match self {
            Self::Run { tensor, .. } => slice::from_ref(tensor),
            Self::Derived { recipe, .. } => match recipe {
                Recipe::Concatenated(tensors) => tensors,
                Recipe::Rows { tensor, .. }
                | Recipe::Strided { tensor, .. }
                | Recipe::Expanded { tensor, .. } => slice::from_ref(tensor),
                Recipe::AsF32 { source, .. } | Recipe::AsBf16(source) => source.tensors(),
            },
        }
    }

    /// The stored byte ranges that it comes from, in order, and their format where it differs. Only strided elements
    /// are derived for it.
    pub(crate) fn runs<'a>(&'a self, checkpoint: &'a Checkpoint) -> (Vec<&'a [u8]>, Option<Format>) {
        let stored = |tensor: &String| checkpoint.bytes(tensor).unwrap_or_default();
        match self {
            Self::Derived { recipe: Recipe::Concatenated(tensors), .. } => {
                (tensors.iter().map(stored).collect(), None)
            }
            Self::Derived { recipe: Recipe::AsF32 { source, format, number: Number::Same, .. }, .. } => {
                (source.runs(checkpoint).0, Some(*format))
            }
            Self::Derived { recipe: Recipe::AsBf16(source), .. } => {
                (source.runs(checkpoint).0, Some(Format::F32))
            }
            Self::Run { .. }
            | Self::Derived {
                recipe:
                    Recipe::Strided { .. } | Recipe::Rows { .. } | Recipe::AsF32 { .. } | Recipe::Expanded { .. },
                ..
            } => (vec![self.bytes(checkpoint).unwrap_or_default()], None),
        }
    }

    /// The bytes, not kept if derived.
    fn transient_bytes<'a>(&'a self, checkpoint: &'a Checkpoint) -> Cow<'a, [u8]> {
        match self {
            Self::Run { .. } => Cow::Borrowed(self.bytes(checkpoint).unwrap_or_default()),
            Self::Derived { recipe, .. } => Cow::Owned(recipe.derive(checkpoint)),
        }
    }

    /// Whether all F32 elements are bfloat16 numbers. The first piece decides for most tensors.
    pub(super) fn is_exact_in_bf16(&self, checkpoint: &Checkpoint) -> bool {
        let bytes = self.transient_bytes(checkpoint);
        let any = |piece: &[[u8; 4]]| piece.iter().fold(0, |any, number| any | u32::from_le_bytes(*number));
        let is_bf16 = |piece| any(piece) as u16 == 0;
        bytes.as_chunks().0.chunks(PIECE_LEN).all(is_bf16)
    }
}

/// The bytes of a tensor in two parts: its scales are the second where they follow all numbers.
fn numbers_and_scales<'a>(checkpoint: &'a Checkpoint, tensor: &str) -> (&'a [u8], &'a [u8]) {
    let bytes = checkpoint.bytes(tensor).unwrap_or_default();
    let info = checkpoint.tensors().get(tensor);
    let n_numbers = info.filter(|info| matches!(info.stored, Stored::As(Format::Int8 { .. })));
    bytes.split_at(n_numbers.map_or(bytes.len(), TensorInfo::n_elements))
}

impl Recipe {
    fn derive(&self, checkpoint: &Checkpoint) -> Vec<u8> {
        let stored = |tensor: &String| checkpoint.bytes(tensor).unwrap_or_default();
        match self {
            Self::Concatenated(tensors) => {
                let parts = tensors.iter().map(|tensor| numbers_and_scales(checkpoint, tensor));
                let (numbers, scales): (Vec<&[u8]>, Vec<&[u8]>) = parts.unzip();
                [numbers, scales].concat().concat()
            }
            Self::AsF32 { source, format, n_elements, number } => {
                let bytes = source.transient_bytes(checkpoint);
                let numbers = format.decode_all(&bytes, *n_elements).unwrap_or_default();
                numbers.into_iter().flat_map(|x| number.of(x).to_le_bytes()).collect()
            }
            Self::Rows { tensor, ranges } => {
                let bytes = stored(tensor);
                ranges.iter().flat_map(|range| &bytes[range.clone()]).copied().collect()
            }
            Self::Expanded { tensor, bytes, ty } => {
                let own = stored(tensor).get(bytes.clone()).unwrap_or_default();
                expand(ty, own).unwrap_or_default()
            }
            Self::AsBf16(source) => {
                let upper = |number: &[u8; 4]| [number[2], number[3]];
                source.transient_bytes(checkpoint).as_chunks().0.iter().flat_map(upper).collect()
            }
            Self::Strided { tensor, element_bytes, from, axes } => {
                let (stored, [a, b, c]) = (stored(tensor), axes);
                let mut made = Vec::with_capacity(a.len * b.len * c.len * element_bytes);
                for i in 0..a.len {
                    for j in 0..b.len {
                        for k in 0..c.len {
                            let at = (from + i * a.stride + j * b.stride + k * c.stride) * element_bytes;
                            made.extend_from_slice(&stored[at..at + element_bytes]);
                        }
                    }
                }
                made
            }
        }
    }
}
