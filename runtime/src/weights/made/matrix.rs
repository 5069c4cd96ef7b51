//! A matrix whose elements are codes with a factor for each group, written in a format that kernels read.
//!
//! In: codes, what they mean, scales and offsets. Out: the smallest format that holds the elements exactly, and their
//! bytes.
//!
//! ```text
//! element = scale * (code - zero)                    blocks, or bytes with scales apart
//! element = scale * code + offset                    blocks with an offset, or single precision
//! element = scale * table[code]                      MXFP4, bytes with scales apart, or rounded to a plain format
//! ```
//!
//! Blocks have scales in half precision and never more than one group, so scales that are no halves, groups that are no
//! multiple of 32 and columns in another order than their groups take another format.

use fusebox_compiler::formats::{Blocks, Code, FactorKind};
use fusebox_compiler::tensor::quant::Format;
use half::f16;

use crate::weights::made::bits::Bits;
use crate::weights::made::factors::Factors;
use crate::weights::made::part::{Files, Part};

/// Elements of a block.
const BLOCK: usize = 32;
/// Formats with a scale, and with an offset, the smallest first.
const SCALED: [Format; 4] = [Format::Q4_0, Format::Q4Pairs, Format::Q5_0, Format::Q8_0];
const SHIFTED: [Format; 2] = [Format::Q4_1, Format::Q5_1];
/// Twice the numbers of four bits E2M1.
pub(in crate::weights) const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// A matrix that is made of others.
#[derive(Debug)]
pub(super) struct Matrix {
    pub(super) n_rows: usize,
    pub(super) n_columns: usize,
    pub(super) codes: Bits,
    pub(super) meaning: Meaning,
    pub(super) scales: Factors,
    pub(super) offsets: Option<Factors>,
    /// Columns that share a factor; never zero.
    pub(super) group: usize,
    pub(super) n_groups: usize,
    /// The group of each column, where they are in another order.
    pub(super) order: Option<Part>,
}

/// What codes stand for.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Whole numbers above a zero.
    Whole(Zeros),
    /// Twice E2M1.
    E2m1,
    /// Any numbers; the products are rounded to a plain format.
    Table(Vec<f32>, Format),
}

/// What is taken off codes.
#[derive(Debug)]
pub(super) enum Zeros {
    All(i32),
    /// By row and group, and so much more.
    Each(Bits, i32),
}

/// A row before it is written: a code for each column, and for each group what makes numbers of codes.
struct Row {
    codes: Vec<u8>,
    zeros: Vec<i32>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

impl Matrix {
    /// The format that holds it exactly.
    pub(super) fn format(&self, files: &Files) -> Format {
        let [least, most] = match &self.meaning {
            Meaning::Table(_, format) => return *format,
            Meaning::E2m1 if self.scales.part.ty.as_str() != "f8_e4m3" && self.group == BLOCK => {
                return Format::MXFP4;
            }
            Meaning::E2m1 => [-12, 12],
            Meaning::Whole(zeros) => self.ends(files, zeros),
        };
        if self.order.is_some() {
            return Format::F32;
        }
        let is_even = self.n_columns.is_multiple_of(self.group);
        if self.group.is_multiple_of(BLOCK) && is_even {
            let formats = if self.offsets.is_some() { &SHIFTED[..] } else { &SCALED };
            let mut fitting = formats.iter().filter_map(|format| Some((format, format.blocks()?)));
            let are_halves = self.are_halves(files);
            let found = fitting.find(|(_, blocks)| {
                let ends = blocks.quanta.ends();
                let is_exact = are_halves || blocks.scale.kind == FactorKind::F32;
                ends[0] <= least && most <= ends[1] && is_exact
            });
            if let Some((format, _)) = found {
                return *format;
            }
        }
        let is_byte = self.offsets.is_none() && least >= -128 && most <= 127;
        let group = u32::try_from(self.group).ok().filter(|_| is_even && is_byte);
        group.map_or(Format::F32, |group| Format::Int8 { group })
    }

    /// The least and the largest number that there may be.
    fn ends(&self, files: &Files, zeros: &Zeros) -> [i32; 2] {
        let last = self.codes.n_codes() as i32 - 1;
        let [low, high] = match zeros {
            Zeros::All(zero) => [*zero, *zero],
            Zeros::Each(bits, more) => {
                let mut ends = [u8::MAX, 0];
                for row in 0..self.n_rows {
                    for group in 0..self.n_groups {
                        let zero = bits.get(files, row, group);
                        ends = [ends[0].min(zero), ends[1].max(zero)];
                    }
                }
                ends.map(|end| i32::from(end) + more)
            }
        };
        [-high, last - low]
    }

    /// Whether half precision holds all scales and offsets.
    fn are_halves(&self, files: &Files) -> bool {
        let mut all = [Some(&self.scales), self.offsets.as_ref()].into_iter().flatten();
        all.all(|factors| factors.are_halves(files, self.n_rows, self.n_groups))
    }

    /// The bytes in the format that [`Self::format`] chose.
    pub(super) fn bytes(&self, files: &Files, format: Format) -> Vec<u8> {
        let n_elements = self.n_rows * self.n_columns;
        let mut out = vec![0; format.bytes_for(n_elements).unwrap_or_default()];
        let n_numbers = if let Format::Int8 { .. } = format { n_elements } else { out.len() };
        let (all, apart) = out.split_at_mut(n_numbers);
        let row_bytes = (all.len() / self.n_rows.max(1)).max(1);
        let mut apart = apart.as_chunks_mut::<4>().0.iter_mut();
        for (idx, out) in all.chunks_exact_mut(row_bytes).enumerate() {
            let row = self.row(files, idx);
            match (format, format.blocks()) {
                (_, Some(blocks)) => self.put_blocks(files, idx, &row, blocks, out),
                (Format::Int8 { .. }, _) => {
                    let numbers = (0..self.n_columns)
                        .map(|column| self.number(&row, column, self.group_of(files, column)));
                    out.iter_mut().zip(numbers).for_each(|(to, number)| *to = number as u8);
                    apart.by_ref().zip(&row.scales).for_each(|(to, scale)| *to = scale.to_le_bytes());
                }
                _ => {
                    let elements: Vec<f32> =
                        (0..self.n_columns).map(|column| self.element(files, &row, column)).collect();
                    format.encode(&elements, out).expect("a row has this many bytes");
                }
            }
        }
        out
    }

    fn row(&self, files: &Files, row: usize) -> Row {
        let of_groups =
            |factors: &Factors| (0..self.n_groups).map(|group| factors.get(files, row, group)).collect();
        let zero = |group| match &self.meaning {
            Meaning::Whole(Zeros::All(zero)) => *zero,
            Meaning::Whole(Zeros::Each(bits, more)) => i32::from(bits.get(files, row, group)) + more,
            Meaning::E2m1 | Meaning::Table(..) => 0,
        };
        Row {
            codes: (0..self.n_columns).map(|column| self.codes.get(files, row, column)).collect(),
            zeros: (0..self.n_groups).map(zero).collect(),
            scales: of_groups(&self.scales),
            offsets: self.offsets.as_ref().map(of_groups).unwrap_or_default(),
        }
    }

    fn group_of(&self, files: &Files, column: usize) -> usize {
        self.order.as_ref().map_or(column / self.group, |part| part.word(files, column) as usize)
    }

    /// The whole number of a column.
    fn number(&self, row: &Row, column: usize, group: usize) -> i32 {
        let code = row.codes[column];
        if let Meaning::E2m1 = self.meaning {
            return TWICE_E2M1[usize::from(code) & 15].into();
        }
        i32::from(code) - row.zeros[group]
    }

    fn element(&self, files: &Files, row: &Row, column: usize) -> f32 {
        let group = self.group_of(files, column);
        let number = match &self.meaning {
            Meaning::Table(table, _) => table[usize::from(row.codes[column])],
            Meaning::Whole(_) | Meaning::E2m1 => self.number(row, column, group) as f32,
        };
        row.scales[group] * number + row.offsets.get(group).copied().unwrap_or(0.0)
    }

    /// Blocks of a row.
    fn put_blocks(&self, files: &Files, idx: usize, row: &Row, blocks: &Blocks, out: &mut [u8]) {
        for (i, block) in out.chunks_exact_mut(blocks.bytes).enumerate() {
            let first = i * blocks.len;
            let group = first / self.group;
            match blocks.scale.kind {
                FactorKind::HalfE8M0 => block[blocks.scale.at] = self.scales.exponent(files, idx, group),
                FactorKind::F16 => put_half(block, blocks.scale.at, row.scales[group]),
                FactorKind::F32 => {
                    block[blocks.scale.at..][..4].copy_from_slice(&row.scales[group].to_le_bytes());
                }
            }
            if let (Some(offset), Some(of_group)) = (blocks.offset, row.offsets.get(group)) {
                put_half(block, offset.at, *of_group);
            }
            for column in 0..blocks.len {
                let bits = match blocks.quanta.code {
                    Code::From(zero) => self.number(row, first + column, group) + i32::from(zero),
                    Code::Signed => self.number(row, first + column, group),
                    Code::Table(_) => row.codes[first + column].into(),
                };
                blocks.quanta.put(block, column, bits as u8);
            }
        }
    }
}

fn put_half(block: &mut [u8], at: usize, number: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
}
