//! The operations that move elements and change none.
//!
//! In: values, and positions that are whole numbers by now. Out: a value whose elements are elements of the arguments.
//! Each is a view of its argument ([`View`]), or a copy of parts into a whole.
//! No element is computed here. `infer` has seen to it that every run of positions stays inside its axis.

use super::index::{Frame, View};
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::value::Value;

/// One axis becomes several, the last running fastest.
pub(super) fn split(frame: &Frame, x: &Value, axis: Axis, into: &Shape) -> Value {
    let whole = View::of(&x.axes);
    let mut step = whole.step(axis);
    let mut view = whole.without(axis);
    for part in into.axes().rev() {
        view = view.with(part, step);
        step *= frame.size(part);
    }
    frame.filled(frame.read_through(x, &view))
}

/// Several axes become one, the last running fastest.
pub(super) fn merge(frame: &Frame, x: &Value, axes: &[Axis], into: Axis) -> Value {
    // With the merged axis taken apart again, the elements come in the same order.
    let parts = |axis: Axis| if axis == into { axes.to_vec() } else { vec![axis] };
    let apart = frame.axes.iter().flat_map(|(axis, _)| parts(*axis));
    let apart: Vec<(Axis, usize)> = apart.map(|axis| (axis, x.size(axis).unwrap_or(1))).collect();
    frame.filled(View::of(&x.axes).offsets(&apart).map(|offset| x.number(offset)))
}

/// An axis gets another name.
pub(super) fn rename(frame: &Frame, x: &Value, from: Axis, to: Axis) -> Value {
    let view = View::of(&x.axes);
    let step = view.step(from);
    frame.filled(frame.read_through(x, &view.without(from).with(to, step)))
}

/// A run of positions of one axis, the length of the result's axis.
pub(super) fn slice(frame: &Frame, x: &Value, axis: Axis, start: usize) -> Value {
    frame.filled(frame.read_through(x, &View::of(&x.axes).starting(axis, start)))
}

/// Values one after another along an axis.
pub(super) fn concat(frame: &Frame, parts: &[&Value], axis: Axis) -> Value {
    let mut whole = vec![0.0; frame.len()];
    let mut at = 0;
    for part in parts {
        let view = View::of(&frame.axes).starting(axis, at);
        copy(part, &mut whole, &view);
        at += part.size(axis).unwrap_or(0);
    }
    frame.filled(whole)
}

/// Puts every element of a part where the view of the whole says.
fn copy(part: &Value, whole: &mut [f64], view: &View) {
    for (index, offset) in view.offsets(&part.axes).enumerate() {
        whole[offset] = part.number(index);
    }
}
