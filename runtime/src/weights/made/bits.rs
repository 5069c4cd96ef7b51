//! Codes of a few bits, as they lie in words or bytes.
//!
//! In: a tensor whose size was checked. Out: one code, by the row and the column of the matrix.
//! Words are little-endian and are filled from the lowest bits on, so the bytes of a line are one string of bits. Lines
//! run along rows or columns of the matrix, and their words lie one after another, or as far apart as there are lines.
//!
//! ```text
//! 3 bits, dense       word 0: 11 codes less a bit, the rest of the eleventh begins word 1
//! 3 bits, by words    word 0: 10 codes and two bits of nothing
//! ```

use crate::weights::made::part::{Files, Part};

/// Where AWQ puts each of eight neighbours, from the lowest bits on.
const AWQ: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of codes.
#[derive(Debug)]
pub(super) struct Bits {
    pub(super) part: Part,
    /// Bits of a code, at most eight.
    pub(super) width: usize,
    pub(super) lines: Lines,
    pub(super) places: Places,
    pub(super) fill: Fill,
    /// Whether lines are columns of the matrix.
    pub(super) is_across: bool,
    /// Bits that are the other way round: the sign of a byte.
    pub(super) flipped: u8,
}

/// Where the bytes of a line lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lines {
    /// One after another: the bytes of a line.
    Along(usize),
    /// Words apart by the number of lines.
    Down(usize),
}

/// How codes fill words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    Dense,
    /// This many codes in each word; none straddles two.
    PerWord(usize),
}

/// The order of codes in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Places {
    Same,
    /// Two neighbours change places.
    Swapped,
    Awq,
}

impl Bits {
    /// Codes along the rows of a tensor whose rows have `line_bytes` bytes.
    pub(super) fn along(part: Part, width: usize, line_bytes: usize) -> Self {
        let lines = Lines::Along(line_bytes);
        Self { part, width, lines, places: Places::Same, fill: Fill::Dense, is_across: false, flipped: 0 }
    }

    /// Codes down the columns of a matrix of words.
    pub(super) fn down(part: Part, width: usize, n_lines: usize) -> Self {
        Self { lines: Lines::Down(n_lines), ..Self::along(part, width, 0) }
    }

    /// The same, whose lines are columns of the matrix if they were rows, and rows if they were columns.
    pub(super) fn across(self) -> Self {
        Self { is_across: !self.is_across, ..self }
    }

    /// How many codes there are.
    pub(super) fn n_codes(&self) -> usize {
        1 << self.width
    }

    /// One code.
    pub(super) fn get(&self, files: &Files, row: usize, column: usize) -> u8 {
        let bytes = self.part.bytes(files);
        let (line, i) = if self.is_across { (column, row) } else { (row, column) };
        let i = match self.places {
            Places::Same => i,
            Places::Swapped => i ^ 1,
            Places::Awq => i / 8 * 8 + AWQ[i % 8],
        };
        let bit = match self.fill {
            Fill::Dense => i * self.width,
            Fill::PerWord(n) => i / n * 32 + i % n * self.width,
        };
        let at = |byte: usize| match self.lines {
            Lines::Along(line_bytes) => line * line_bytes + byte,
            Lines::Down(n_lines) => (byte / 4 * n_lines + line) * 4 + byte % 4,
        };
        let (byte, shift) = (bit / 8, bit % 8);
        let mut word = u16::from(bytes[at(byte)]);
        if shift + self.width > 8 {
            word |= u16::from(bytes[at(byte + 1)]) << 8;
        }
        (word >> shift) as u8 & (0xff >> (8 - self.width)) ^ self.flipped
    }
}

impl Fill {
    /// How so many codes fill this number of words, if they do.
    pub(super) fn of(n: usize, width: usize, n_words: usize) -> Option<Self> {
        let each = 32 / width;
        if n.checked_mul(width)?.div_ceil(32) == n_words {
            return Some(Self::Dense);
        }
        (n.div_ceil(each) == n_words).then_some(Self::PerWord(each))
    }
}
