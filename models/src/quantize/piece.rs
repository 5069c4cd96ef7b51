//! A tensor of a new file, and where its numbers come from.
//!
//! In: a checkpoint, and which rows are wanted. Out: their numbers. A tensor is one of the checkpoint's, or some of its
//! rows, or several tensors one after another; its rows may have another order.
//! Only the rows that are asked for are decoded, and those of their head where rows become columns.

use std::ops::Range;

use fusebox_runtime::weights::store::Entry;
use fusebox_runtime::weights::{Checkpoint, Stored};

/// A tensor that is to be written.
pub(super) struct Piece {
    pub(super) entry: Entry,
    /// The tensors of the checkpoint that it is made of, one after another.
    pub(super) origins: Vec<String>,
    /// How many of their elements come before its own.
    pub(super) offset: usize,
    pub(super) order: Order,
    /// Whether its rows are no whole blocks of the format that it should have got.
    pub(super) is_unfit: bool,
}

/// How rows follow from those of the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Order {
    /// As they are.
    Same,
    /// The two halves of each head row by row, for pairs that are neighbours.
    Neighbours {
        /// Rows of a head.
        head: usize,
    },
    /// Of each head the rows from `first`, so many.
    Part { head: usize, first: usize, len: usize },
    /// Of each head the first rows, so many, as columns.
    Columns { head: usize, len: usize },
    /// Not from the checkpoint: these numbers.
    Computed(Vec<f32>),
}

impl Piece {
    pub(super) fn row_len(&self) -> usize {
        self.entry.shape.last().copied().unwrap_or(1)
    }

    pub(super) fn n_rows(&self) -> usize {
        self.entry.shape.iter().rev().skip(1).product()
    }

    /// The bytes of the checkpoint, where nothing is to be changed.
    pub(super) fn as_stored<'a>(&self, checkpoint: &'a Checkpoint) -> Option<&'a [u8]> {
        let [origin] = self.origins.as_slice() else { return None };
        let info = checkpoint.tensors().get(origin)?;
        let is_whole = self.order == Order::Same && info.n_elements() == self.n_rows() * self.row_len();
        (is_whole && info.stored == self.entry.stored).then(|| checkpoint.bytes(origin))?
    }

    /// The numbers of some rows.
    pub(super) fn elements(&self, checkpoint: &Checkpoint, rows: Range<usize>) -> Option<Vec<f32>> {
        let len = self.row_len();
        match &self.order {
            Order::Same => self.flat(checkpoint, rows.start * len..rows.end * len),
            Order::Computed(numbers) => Some(numbers.get(rows.start * len..rows.end * len)?.to_vec()),
            Order::Neighbours { head } => {
                // A vector is a column: its elements change places like rows.
                let (len, lines) = if self.entry.shape.len() == 1 { (1, 0..len) } else { (len, rows) };
                let line = |line: usize| {
                    let (start, at) = (line / head * head, line % head);
                    start + at % 2 * (head / 2) + at / 2
                };
                self.lines(checkpoint, lines.map(line), len)
            }
            Order::Part { head, first, len: n } => {
                self.lines(checkpoint, rows.map(|row| row / n * head + first + row % n), len)
            }
            Order::Columns { head, len: n } => self.columns(checkpoint, *head, *n, rows),
        }
    }

    /// Rows by their numbers in the checkpoint.
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

    /// A run of the elements of all tensors it is made of; within one tensor it begins and ends with a block.
    fn flat(&self, checkpoint: &Checkpoint, range: Range<usize>) -> Option<Vec<f32>> {
        let (mut start, end) = (range.start + self.offset, range.end + self.offset);
        let (mut before, mut elements) = (0, Vec::with_capacity(range.len()));
        for origin in &self.origins {
            let info = checkpoint.tensors().get(origin)?;
            let n = info.n_elements();
            if start < (before + n).min(end) {
                let Stored::As(format) = info.stored else { return None };
                let (first, last) = (start - before, (end - before).min(n));
                let bytes =
                    checkpoint.bytes(origin)?.get(format.bytes_for(first)?..format.bytes_for(last)?)?;
                elements.extend(format.decode_all(bytes, last - first)?);
                start = before + last;
            }
            before += n;
        }
        (start == end).then_some(elements)
    }

    /// Whether it was quantised before and is now quantised again.
    pub(super) fn is_twice(&self, checkpoint: &Checkpoint) -> bool {
        let is_quantised = |stored: Stored| matches!(stored, Stored::As(format) if format.plain().is_none());
        let before = self.origins.first().and_then(|origin| checkpoint.tensors().get(origin));
        before.is_some_and(|info| info.stored != self.entry.stored && is_quantised(info.stored))
    }
}
