//! The last blocks of a row whose number of blocks is no multiple of four.
//!
//! In: a row of blocks of 32 elements, and the memory from its start on. Out: its last one to three blocks, with as
//! many others as fill a unit of four, so that the vector code for whole units handles them. The others are whatever
//! follows the row, or zeros at the end of the matrix: callers ignore their results, or mask their scales.

use crate::abi::GROUP;
use crate::layout::block_formats::BlockRow;
use crate::stack_buffer::StackBuffer;

/// Blocks of a unit.
pub(crate) const FOUR: usize = 4;

/// `N` units of a row from the `at`-th on, of which the last is not whole; `memory` begins with the row.
#[inline(always)]
pub(crate) fn last_units<'a, const B: usize, const N: usize>(
    row: &BlockRow<'_>,
    memory: &'a [u8],
    at: usize,
    buffer: &'a mut StackBuffer<[u8; B], N>,
) -> &'a [[u8; B]; N] {
    if let Some(units) = memory[B * at..].as_chunks().0.first_chunk() {
        return units;
    }
    copied(&row.bytes[B * at..], buffer.open())
}

/// Those at the end of a matrix.
#[cold]
fn copied<'a, const B: usize, const N: usize>(rest: &[u8], buffer: &'a mut [[u8; B]; N]) -> &'a [[u8; B]; N] {
    let (own, others) = buffer.as_flattened_mut().split_at_mut(rest.len());
    own.copy_from_slice(rest);
    others.fill(0);
    buffer
}

/// The last, `at`-th unit of a row as a row of its own; `scales` is a buffer for scales that are stored apart.
#[inline(always)]
pub(crate) fn last_row<'a>(
    unit: &'a [u8],
    row: &BlockRow<'_>,
    at: usize,
    scales: &'a mut [[u8; 4]; FOUR],
) -> BlockRow<'a> {
    if !row.scales.is_empty() {
        for (i, scale) in scales.iter_mut().enumerate().take(row.bytes.len() / GROUP - FOUR * at) {
            *scale = row.scale(FOUR * at + i).to_le_bytes();
        }
    }
    BlockRow { bytes: unit, scales: scales.as_flattened(), group: GROUP }
}
