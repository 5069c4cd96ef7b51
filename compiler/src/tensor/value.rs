//! Tensors that hold numbers: what the reference evaluator and the kernel interpreter compute with.
//!
//! A value has whole sizes and its elements in storage order, the last axis innermost. Half precisions are kept as
//! the single-precision numbers they round to.
//! No arithmetic lives here; `reference/` gives operations their meaning.

use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::Axis;

/// The elements of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Elements of the three floating-point types.
    Float(Vec<f32>),
    /// Elements of type `I32`.
    Int(Vec<i32>),
}

/// A tensor with its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The type of an element.
    pub dtype: DType,
    /// Axes with their sizes, outermost first.
    pub axes: Vec<(Axis, usize)>,
    /// The elements in storage order.
    pub data: Data,
}

impl Value {
    /// A floating-point value; every element is rounded to `dtype`.
    pub fn float(dtype: DType, axes: Vec<(Axis, usize)>, data: Vec<f32>) -> Self {
        debug_assert_eq!(axes.iter().map(|(_, n)| n).product::<usize>(), data.len());
        let data =
            if dtype == DType::F32 { data } else { data.into_iter().map(|x| dtype.round(x)).collect() };
        Self { dtype, axes, data: Data::Float(data) }
    }

    /// A value of indices, positions or truth values.
    pub fn int(axes: Vec<(Axis, usize)>, data: Vec<i32>) -> Self {
        debug_assert_eq!(axes.iter().map(|(_, n)| n).product::<usize>(), data.len());
        Self { dtype: DType::I32, axes, data: Data::Int(data) }
    }

    /// The same value as a format holds it; nothing where its elements do not fill whole blocks, or nothing is put into
    /// this format.
    pub fn stored_as(&self, format: Format) -> Option<Self> {
        if format.plain().is_some() {
            return Some(self.clone());
        }
        Some(Self { data: Data::Float(format.rounded(self.floats())?), ..self.clone() })
    }

    /// The elements, where they are of a floating-point type; else none.
    pub fn floats(&self) -> &[f32] {
        match &self.data {
            Data::Float(data) => data,
            Data::Int(_) => &[],
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::Float(data) => data.len(),
            Data::Int(data) => data.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One element as a number.
    pub fn number(&self, index: usize) -> f64 {
        match &self.data {
            Data::Float(data) => f64::from(data[index]),
            Data::Int(data) => f64::from(data[index]),
        }
    }

    /// The size of an axis; nothing where the value lacks it.
    pub fn size(&self, axis: Axis) -> Option<usize> {
        self.axes.iter().find(|(a, _)| *a == axis).map(|(_, n)| *n)
    }

    /// How many elements apart neighbours along each axis lie.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.axes.len()];
        for i in (1..self.axes.len()).rev() {
            strides[i - 1] = strides[i] * self.axes[i].1;
        }
        strides
    }
}
