//! Where the bytes of a tensor come from: mostly from a run of the file, else they are made when they are first needed.
//!
//! In: a checkpoint. Out: bytes. Nothing is checked here; `mod.rs` has seen that every tensor fits.

use std::borrow::Cow;
use std::ops::Range;
use std::slice;
use std::sync::OnceLock;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::Checkpoint;

/// How many numbers are looked at together.
const PIECE_LEN: usize = 1 << 10;

/// Where the bytes of a tensor come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A run of the bytes of one stored tensor.
    Run { tensor: String, bytes: Range<usize> },
    /// What is made, and kept once it was needed.
    Made { recipe: Recipe, bytes: OnceLock<Vec<u8>> },
}

/// How bytes are made.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    /// Stored tensors one after another.
    Pieces(Vec<String>),
    /// A small tensor as numbers in single precision.
    Single { tensor: String, format: Format, n_elements: usize },
    /// Numbers in single precision that are bfloat16 numbers, as such.
    Narrow(Box<Source>),
    /// Elements of a tensor in another order.
    Cut { tensor: String, element_bytes: usize, from: usize, axes: [Axis; 3] },
}

/// An axis of what is made: how many elements, and how far apart they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(super) len: usize,
    pub(super) stride: usize,
}

impl Source {
    pub(super) fn made(recipe: Recipe) -> Self {
        Self::Made { recipe, bytes: OnceLock::new() }
    }

    pub(super) fn bytes<'a>(&'a self, checkpoint: &'a Checkpoint) -> Option<&'a [u8]> {
        match self {
            Self::Run { tensor, bytes } => checkpoint.bytes(tensor)?.get(bytes.clone()),
            Self::Made { recipe, bytes } => Some(bytes.get_or_init(|| recipe.make(checkpoint))),
        }
    }

    /// The stored tensors that it is made of.
    pub(super) fn tensors(&self) -> &[String] {
        match self {
            Self::Run { tensor, .. } => slice::from_ref(tensor),
            Self::Made { recipe, .. } => match recipe {
                Recipe::Pieces(tensors) => tensors,
                Recipe::Single { tensor, .. } | Recipe::Cut { tensor, .. } => slice::from_ref(tensor),
                Recipe::Narrow(source) => source.tensors(),
            },
        }
    }

    /// What it is made of, one run after another, as it is stored: with another format where that was changed. Only
    /// what is cut apart is made for it.
    pub(crate) fn runs<'a>(&'a self, checkpoint: &'a Checkpoint) -> (Vec<&'a [u8]>, Option<Format>) {
        let stored = |tensor: &String| checkpoint.bytes(tensor).unwrap_or_default();
        match self {
            Self::Made { recipe: Recipe::Pieces(tensors), .. } => {
                (tensors.iter().map(stored).collect(), None)
            }
            Self::Made { recipe: Recipe::Single { tensor, format, .. }, .. } => {
                (vec![stored(tensor)], Some(*format))
            }
            Self::Made { recipe: Recipe::Narrow(source), .. } => {
                (source.runs(checkpoint).0, Some(Format::F32))
            }
            Self::Run { .. } | Self::Made { recipe: Recipe::Cut { .. }, .. } => {
                (vec![self.bytes(checkpoint).unwrap_or_default()], None)
            }
        }
    }

    /// The bytes, not kept where they are made.
    fn once<'a>(&'a self, checkpoint: &'a Checkpoint) -> Cow<'a, [u8]> {
        match self {
            Self::Run { .. } => Cow::Borrowed(self.bytes(checkpoint).unwrap_or_default()),
            Self::Made { recipe, .. } => Cow::Owned(recipe.make(checkpoint)),
        }
    }

    /// Whether all of its numbers in single precision are bfloat16 numbers. One look at a piece tells for most.
    pub(super) fn is_narrow(&self, checkpoint: &Checkpoint) -> bool {
        let bytes = self.once(checkpoint);
        let any = |piece: &[[u8; 4]]| piece.iter().fold(0, |any, number| any | u32::from_le_bytes(*number));
        let is_narrow = |piece| any(piece) as u16 == 0;
        bytes.as_chunks().0.chunks(PIECE_LEN).all(is_narrow)
    }
}

impl Recipe {
    fn make(&self, checkpoint: &Checkpoint) -> Vec<u8> {
        let stored = |tensor: &String| checkpoint.bytes(tensor).unwrap_or_default();
        match self {
            Self::Pieces(tensors) => tensors.iter().map(stored).collect::<Vec<_>>().concat(),
            Self::Single { tensor, format, n_elements } => {
                let numbers = format.decode_all(stored(tensor), *n_elements).unwrap_or_default();
                numbers.into_iter().flat_map(f32::to_le_bytes).collect()
            }
            Self::Narrow(source) => {
                let upper = |number: &[u8; 4]| [number[2], number[3]];
                source.once(checkpoint).as_chunks().0.iter().flat_map(upper).collect()
            }
            Self::Cut { tensor, element_bytes, from, axes } => {
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
