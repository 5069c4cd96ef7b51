//! A tensor of the new file, and the origin of its elements.
//!
//! In: a checkpoint, and a range of rows. Out: their elements in single precision. A tensor is what the binding found
//! for a weight, some rows of it in another order, or computed from the hyper-parameters.
//! Only the rows that are needed are decoded; for a transposed part, all rows of its head are.

use std::ops::Range;

use fusebox_compiler::tensor::quant::Format;
use fusebox_runtime::weights::gguf::store::Entry;
use fusebox_runtime::weights::{Checkpoint, Stored};

use crate::adapters::lora::Product;
use crate::binding::source::Source;

/// A tensor to write.
pub(super) struct OutputTensor {
    pub(super) entry: Entry,
    pub(super) origin: Origin,
    pub(super) order: Order,
    /// Whether its format is a fallback, because rows are no multiple of the block size.
    pub(super) is_fallback: bool,
    /// What adapters add to its elements.
    pub(super) added: Vec<Product>,
    /// What its columns count.
    pub(super) importance: Option<Vec<f32>>,
}

/// The origin of a tensor's elements.
pub(super) enum Origin {
    /// Tensors of the checkpoint, in a format.
    Stored(Source, Stored),
    /// These numbers.
    Computed(Vec<f32>),
}

/// The order of rows, relative to the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// Unchanged.
    Same,
    /// The two halves of a head's rotated rows are interleaved, for interleaved RoPE pairs.
    Interleaved {
        /// Rows of a head.
        head: usize,
        /// How many of them are rotated, from the first on.
        rotary_dim: usize,
    },
    /// `len` rows of each head, from `first` on.
    Part { head: usize, first: usize, len: usize },
    /// The first `len` rows of each head, transposed.
    Columns { head: usize, len: usize },
    /// From row `first` on, the value heads of one key head, which are adjacent, become apart by the number of key
    /// heads; a head has `width` rows.
    Tiled { first: usize, n_key: usize, n_value: usize, width: usize },
    /// The same with columns, of all rows.
    TiledColumns { n_key: usize, n_value: usize, width: usize },
}

/// Where an element of tiled value heads lies while those of a key head are adjacent.
fn untiled(at: usize, n_key: usize, n_value: usize, width: usize) -> usize {
    let (head, rest) = (at / width, at % width);
    (head % n_key * (n_value / n_key) + head / n_key) * width + rest
}

impl Origin {
    /// The format of the elements, in words.
    pub(super) fn format(&self) -> String {
        match self {
            Self::Stored(_, stored) => stored.to_string(),
            Self::Computed(_) => Format::F32.to_string(),
        }
    }

    /// The format that elements keep in GGUF: their own, unless GGUF has none like it.
    pub(super) fn kept(&self) -> Option<Format> {
        match self {
            Self::Stored(_, Stored::As(format)) => {
                Some(if format.ggml().is_some() { *format } else { Format::Q8_0 })
            }
            Self::Stored(..) | Self::Computed(_) => None,
        }
    }
}

impl OutputTensor {
    pub(super) fn row_len(&self) -> usize {
        self.entry.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn n_rows(&self) -> usize {
        self.entry.shape.iter().rev().skip(1).product()
    }

    /// The bytes of the checkpoint, where nothing changes.
    pub(super) fn as_stored<'a>(&'a self, checkpoint: &'a Checkpoint) -> Option<&'a [u8]> {
        let Origin::Stored(source, stored) = &self.origin else { return None };
        let (runs, changed) = source.runs(checkpoint);
        let [run] = runs.as_slice() else { return None };
        let is_same = self.added.is_empty()
            && self.order == Order::Same
            && changed.map_or(*stored, Stored::As) == self.entry.stored;
        (is_same && Some(run.len()) == self.entry.n_bytes()).then_some(*run)
    }

    /// The elements of some rows, with what adapters add.
    pub(super) fn elements(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Option<Vec<f32>> {
        let mut elements = self.own_elements(checkpoint, rows.clone())?;
        self.added.iter().for_each(|product| product.add_to(&mut elements, rows.start));
        Some(elements)
    }

    fn own_elements(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Option<Vec<f32>> {
        let len = self.row_len();
        match &self.order {
            Order::Same => self.flat(checkpoint, rows.start * len..rows.end * len),
            Order::Interleaved { head, rotary_dim } => {
                let (len, lines) = self.lines_of(rows);
                let line = |line: usize| {
                    let (start, at) = (line / head * head, line % head);
                    if at < *rotary_dim { start + at % 2 * (rotary_dim / 2) + at / 2 } else { line }
                };
                self.lines(checkpoint, lines.map(line), len)
            }
            Order::Part { head, first, len: n } => {
                self.lines(checkpoint, rows.map(|row| row / n * head + first + row % n), len)
            }
            Order::Columns { head, len: n } => self.columns(checkpoint, *head, *n, rows),
            Order::Tiled { first, n_key, n_value, width } => {
                let (len, lines) = self.lines_of(rows);
                let line = |line: usize| match line.checked_sub(*first) {
                    Some(at) => first + untiled(at, *n_key, *n_value, *width),
                    None => line,
                };
                self.lines(checkpoint, lines.map(line), len)
            }
            Order::TiledColumns { n_key, n_value, width } => {
                let elements = self.flat(checkpoint, rows.start * len..rows.end * len)?;
                let row =
                    |row: &[f32]| (0..len).map(|at| row[untiled(at, *n_key, *n_value, *width)]).collect();
                Some(elements.chunks_exact(len).flat_map(|own| -> Vec<f32> { row(own) }).collect())
            }
        }
    }

    /// What is reordered of some rows, and the elements of one: a vector is a column, and its elements are the rows.
    fn lines_of(&self, rows: Range<usize>) -> (usize, Range<usize>) {
        let len = self.row_len();
        if self.entry.shape.len() == 1 { (1, rows.start * len..rows.end * len) } else { (len, rows) }
    }

    /// Rows by their indices in the checkpoint.
    fn lines(
        &self,
        checkpoint: &Checkpoint,
        lines: impl Iterator<Item = usize>,
        len: usize,
    ) -> Option<Vec<f32>> {
        let lines = lines.map(|line| self.flat(checkpoint, line * len..(line + 1) * len));
        Some(lines.collect::<Option<Vec<_>>>()?.concat())
    }

    /// Rows that are columns of the first `n` rows of a head of the checkpoint.
    fn columns(
        &self,
        checkpoint: &Checkpoint,
        head: usize,
        n: usize,
        rows: Range<usize>,
    ) -> Option<Vec<f32>> {
        let [_, width, _] = self.entry.shape.as_slice() else { return None };
        let mut elements = Vec::with_capacity(rows.len() * n);
        let mut row = rows.start;
        while row < rows.end {
            let (of, start) = (row / width, row % width);
            let end = (start + rows.end - row).min(*width);
            let block = self.flat(checkpoint, of * head * width..(of * head + n) * width)?;
            for column in start..end {
                elements.extend((0..n).map(|line| block[line * width + column]));
            }
            row += end - start;
        }
        Some(elements)
    }

    /// A range of elements over all runs of the origin, one after another; within a run they are whole blocks.
    fn flat(&self, checkpoint: &Checkpoint, range: Range<usize>) -> Option<Vec<f32>> {
        let (source, stored) = match &self.origin {
            Origin::Stored(source, stored) => (source, stored),
            Origin::Computed(numbers) => return numbers.get(range).map(<[f32]>::to_vec),
        };
        let (runs, changed) = source.runs(checkpoint);
        let Stored::As(format) = changed.map_or(*stored, Stored::As) else { return None };
        let (mut before, mut elements) = (0, Vec::with_capacity(range.len()));
        for run in runs {
            let n = run.len() / format.block_bytes() * format.block_len();
            let own = range.start.max(before)..range.end.min(before + n);
            if !own.is_empty() {
                elements.extend(format.decode_some(run, n, own.start - before..own.end - before)?);
            }
            before += n;
        }
        (elements.len() == range.len()).then_some(elements)
    }

    /// Whether it was quantised before and is quantised again; F32 and the same format do not count.
    pub(super) fn is_requantised(&self) -> bool {
        let Origin::Stored(_, Stored::As(format)) = self.origin else { return false };
        let is_same = self.added.is_empty() && self.entry.stored == Stored::As(format);
        format.plain().is_none() && !is_same && self.entry.stored != Stored::As(Format::F32)
    }
}
