//! Walking over tensors by the names of their axes.
//!
//! In: the axes of a result, and values that have some of them. Out: for each index of the result, in storage order,
//! where every value has its element.
//! A [`View`] lacks an axis by taking no step along it: that is all there is to broadcasting. Nothing is allocated per
//! element. The operations of `movement.rs` are views of their arguments.

use crate::tensor::dtype::DType;
use crate::tensor::shape::Axis;
use crate::tensor::value::{Data, Value};

/// What a result is like before it has elements.
pub(super) struct Frame {
    pub(super) dtype: DType,
    pub(super) axes: Vec<(Axis, usize)>,
}

impl Frame {
    /// How many elements there will be.
    pub(super) fn len(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// The size of an axis; 1 where the result lacks it.
    pub(super) fn size(&self, axis: Axis) -> usize {
        self.axes.iter().find(|(a, _)| *a == axis).map_or(1, |(_, size)| *size)
    }

    /// The value of these elements in storage order, each rounded to the type.
    pub(super) fn filled(&self, numbers: impl IntoIterator<Item = f64>) -> Value {
        let axes = self.axes.clone();
        if self.dtype == DType::I32 {
            // Not `as i32`, which saturates: the negative of the smallest number is itself.
            Value::int(axes, numbers.into_iter().map(|x| x as i64 as i32).collect())
        } else {
            Value::float(self.dtype, axes, numbers.into_iter().map(|x| x as f32).collect())
        }
    }

    /// For each element of the result, the element of a value that meets it by name.
    pub(super) fn read<'a>(&self, value: &'a Value) -> impl Iterator<Item = f64> + use<'a> {
        self.read_through(value, &View::of(&value.axes))
    }

    /// For each element of the result, the element of a value that a view of it shows there.
    pub(super) fn read_through<'a>(
        &self,
        value: &'a Value,
        view: &View,
    ) -> impl Iterator<Item = f64> + use<'a> {
        view.offsets(&self.axes).map(|offset| value.number(offset))
    }
}

/// Where elements lie in storage: the first, and how far apart neighbours along each axis are.
#[derive(Clone)]
pub(super) struct View {
    start: usize,
    steps: Vec<(Axis, usize)>,
}

impl View {
    /// Everything of a tensor of these axes.
    pub(super) fn of(axes: &[(Axis, usize)]) -> Self {
        let mut steps = Vec::with_capacity(axes.len());
        let mut step = 1;
        for (axis, size) in axes.iter().rev() {
            steps.push((*axis, step));
            step *= size;
        }
        Self { start: 0, steps }
    }

    /// How far apart neighbours along an axis lie: not at all where the tensor lacks it.
    pub(super) fn step(&self, axis: Axis) -> usize {
        self.steps.iter().find(|(a, _)| *a == axis).map_or(0, |(_, step)| *step)
    }

    /// The same, beginning at a position of an axis.
    pub(super) fn starting(mut self, axis: Axis, position: usize) -> Self {
        self.start += position * self.step(axis);
        self
    }

    /// The same at the first position of an axis only.
    pub(super) fn without(mut self, axis: Axis) -> Self {
        self.steps.retain(|(a, _)| *a != axis);
        self
    }

    /// The same with one more axis.
    pub(super) fn with(mut self, axis: Axis, step: usize) -> Self {
        self.steps.push((axis, step));
        self
    }

    /// Where each element over these axes lies, the last axis running fastest.
    pub(super) fn offsets(&self, axes: &[(Axis, usize)]) -> Offsets {
        let wheels: Vec<Wheel> =
            axes.iter().map(|(axis, size)| Wheel { size: *size, step: self.step(*axis), at: 0 }).collect();
        let n_left = axes.iter().map(|(_, size)| size).product();
        Offsets { wheels, offset: self.start, n_left }
    }
}

/// The offsets of a view, one after another: an odometer.
pub(super) struct Offsets {
    wheels: Vec<Wheel>,
    offset: usize,
    n_left: usize,
}

struct Wheel {
    size: usize,
    step: usize,
    at: usize,
}

impl Iterator for Offsets {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.n_left = self.n_left.checked_sub(1)?;
        let here = self.offset;
        for wheel in self.wheels.iter_mut().rev() {
            wheel.at += 1;
            self.offset += wheel.step;
            if wheel.at < wheel.size {
                break;
            }
            self.offset -= wheel.step * wheel.size;
            wheel.at = 0;
        }
        Some(here)
    }
}

/// All elements of a value in storage order.
pub(super) fn numbers(value: &Value) -> Vec<f64> {
    match &value.data {
        Data::Float(data) => data.iter().map(|x| f64::from(*x)).collect(),
        Data::Int(data) => data.iter().map(|x| f64::from(*x)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::label::Label;

    fn axes(axes: &[(&str, usize)]) -> Vec<(Axis, usize)> {
        axes.iter().map(|(name, size)| (Label::new(name).unwrap(), *size)).collect()
    }

    #[test]
    fn a_view_is_walked_in_any_order_of_its_axes() {
        let view = View::of(&axes(&[("a", 2), ("b", 3)]));
        let walked: Vec<usize> = view.offsets(&axes(&[("b", 3), ("a", 2)])).collect();
        assert_eq!(walked, [0, 3, 1, 4, 2, 5]);
    }

    #[test]
    fn no_step_is_taken_along_an_axis_that_is_not_there() {
        let view = View::of(&axes(&[("b", 2)]));
        let walked: Vec<usize> = view.offsets(&axes(&[("a", 2), ("b", 2), ("c", 2)])).collect();
        assert_eq!(walked, [0, 0, 1, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn an_empty_axis_has_no_elements_and_no_axis_has_one() {
        let view = View::of(&axes(&[("a", 0), ("b", 2)]));
        assert_eq!(view.offsets(&axes(&[("a", 0), ("b", 2)])).count(), 0);
        assert_eq!(view.offsets(&[]).collect::<Vec<_>>(), [0]);
    }
}
