//! The operations whose positions depend on numbers: rows by index, positions of the largest.
//!
//! In: a table and indices, or numbers to rank. Out: the rows, or whole-number positions.
//! No index leaves its axis: one out of range picks the nearest row. Of equal numbers the lowest position ranks first,
//! and NaN ranks with -∞.

use std::cmp::Ordering;

use super::index::{Frame, View, numbers};
use crate::tensor::shape::Axis;
use crate::tensor::value::Value;

/// Rows of a table, picked by an index along one of its axes; axes that both have are walked together.
///
/// A table without rows reads as zeros.
pub(super) fn gather(frame: &Frame, table: &Value, index: &Value, axis: Axis) -> Value {
    let Some(last) = table.size(axis).and_then(|size| size.checked_sub(1)) else {
        return frame.filled(vec![0.0; frame.len()]);
    };
    let view = View::of(&table.axes);
    let step = view.step(axis);
    let rows = frame.read(index).map(|row| row.clamp(0.0, last as f64) as usize);
    frame.filled(view.offsets(&frame.axes).zip(rows).map(|(base, row)| table.number(base + row * step)))
}

/// A state with elements of a value put where the indices along some of its axes say; of two at one place, the later.
pub(super) fn write(frame: &Frame, state: &Value, value: &Value, axes: &[Axis], indices: &[&Value]) -> Value {
    let mut whole = numbers(state);
    let view = View::of(&state.axes);
    let of_value = Frame { dtype: value.dtype, axes: value.axes.clone() };
    let mut places: Vec<usize> = view.offsets(&value.axes).collect();
    for (axis, index) in axes.iter().zip(indices) {
        let (step, last) = (view.step(*axis), state.size(*axis).unwrap_or(0).saturating_sub(1));
        for (place, at) in places.iter_mut().zip(of_value.read(index)) {
            *place += at.clamp(0.0, last as f64) as usize * step;
        }
    }
    for (element, place) in places.into_iter().enumerate() {
        whole[place] = value.number(element);
    }
    frame.filled(whole)
}

/// The positions of the `k` largest along an axis, largest first, along the axis `into`.
pub(super) fn top_k(frame: &Frame, x: &Value, axis: Axis, into: Axis, k: usize) -> Value {
    let from = View::of(&x.axes);
    let to = View::of(&frame.axes);
    let (step, rank_step) = (from.step(axis), to.step(into));
    let rest: Vec<(Axis, usize)> = x.axes.iter().copied().filter(|(a, _)| *a != axis).collect();
    // The ranks may bear the name of the searched axis; `rest` has neither.
    let bases = from.offsets(&rest).zip(to.offsets(&rest));
    let mut positions = vec![0.0; frame.len()];
    for (base, out) in bases {
        let row = (0..x.size(axis).unwrap_or(0)).map(|i| x.number(base + i * step));
        for (rank, position) in ranked(row).into_iter().take(k).enumerate() {
            positions[out + rank * rank_step] = position as f64;
        }
    }
    frame.filled(positions)
}

/// All positions, that of the largest number first.
fn ranked(numbers: impl Iterator<Item = f64>) -> Vec<usize> {
    let keys: Vec<f64> = numbers.map(|x| if x.is_nan() { f64::NEG_INFINITY } else { x }).collect();
    let mut positions: Vec<usize> = (0..keys.len()).collect();
    // A stable sort leaves equal numbers in the order of their positions.
    positions.sort_by(|a, b| keys[*b].partial_cmp(&keys[*a]).unwrap_or(Ordering::Equal));
    positions
}
