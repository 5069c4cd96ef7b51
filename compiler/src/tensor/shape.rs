//! Named shapes: an ordered list of axes, each a name with a size.
//!
//! Operations meet by name: `x[t, d] * g[d]` needs no broadcast, and no axis is ever permuted. The order says only
//! how a tensor lies in memory, the last axis innermost.
//! A name stands once in a shape. Sizes may be symbolic; storage is laid out for the largest size.

use std::fmt;

use crate::tensor::dtype::DType;
use crate::tensor::label::Label;
use crate::tensor::sym::Sym;

/// The name of an axis.
pub type Axis = Label;

/// Axes with their sizes, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shape(Vec<(Axis, Sym)>);

impl Shape {
    /// A shape of these axes; nothing where a name stands twice.
    pub fn new(axes: impl IntoIterator<Item = (Axis, Sym)>) -> Option<Self> {
        let axes: Vec<(Axis, Sym)> = axes.into_iter().collect();
        let repeated = axes.iter().enumerate().any(|(i, (axis, _))| axes[..i].iter().any(|(a, _)| a == axis));
        (!repeated).then_some(Self(axes))
    }

    /// The shape of a single number.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// How many axes there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Axes and sizes, outermost first.
    pub fn iter(&self) -> std::slice::Iter<'_, (Axis, Sym)> {
        self.0.iter()
    }

    /// The axes, outermost first.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = Axis> + ExactSizeIterator {
        self.0.iter().map(|(axis, _)| *axis)
    }

    /// The size of an axis, if the shape has it.
    pub fn size(&self, axis: Axis) -> Option<&Sym> {
        self.0.iter().find(|(a, _)| *a == axis).map(|(_, size)| size)
    }

    /// Whether the shape has the axis.
    pub fn has(&self, axis: Axis) -> bool {
        self.size(axis).is_some()
    }

    /// Where the axis stands, counted from the outermost.
    pub fn position(&self, axis: Axis) -> Option<usize> {
        self.0.iter().position(|(a, _)| *a == axis)
    }

    /// The product of all sizes.
    pub fn len(&self) -> Sym {
        self.0.iter().fold(Sym::from(1i64), |product, (_, size)| product * size)
    }

    /// Whether a tensor of this shape can never hold an element.
    pub fn is_empty(&self) -> bool {
        self.0.iter().any(|(_, size)| size.most() <= 0)
    }

    /// The product of all largest sizes: the elements that storage is laid out for.
    pub fn max_len(&self) -> usize {
        self.0.iter().map(|(_, size)| size.most().max(0) as usize).product()
    }

    /// How many elements apart neighbours along each axis lie in storage.
    pub fn strides(&self) -> Vec<i64> {
        let mut strides = vec![1; self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i] * self.0[i].1.most().max(0);
        }
        strides
    }

    /// The same shape without some axes.
    #[must_use]
    pub fn without_all(&self, axes: &[Axis]) -> Self {
        axes.iter().fold(self.clone(), |shape, axis| shape.without(*axis))
    }

    /// The same shape without one axis.
    #[must_use]
    pub fn without(&self, axis: Axis) -> Self {
        Self(self.0.iter().filter(|(a, _)| *a != axis).cloned().collect())
    }

    /// The same shape with `with` standing where `axis` stood.
    pub fn replaced(&self, axis: Axis, with: impl IntoIterator<Item = (Axis, Sym)>) -> Option<Self> {
        let at = self.position(axis)?;
        let mut axes = self.0.clone();
        axes.splice(at..=at, with);
        Self::new(axes)
    }

    /// This shape's axes, then those of `other` it lacks; an error names an axis of two sizes.
    pub fn union(&self, other: &Self) -> Result<Self, Axis> {
        let mut axes = self.0.clone();
        for (axis, size) in &other.0 {
            match self.size(*axis) {
                None => axes.push((*axis, size.clone())),
                Some(own) if own == size => {}
                Some(_) => return Err(*axis),
            }
        }
        Ok(Self(axes))
    }

    /// Whether both shapes have the same axes of the same sizes, in whatever order.
    pub fn same_axes(&self, other: &Self) -> bool {
        self.rank() == other.rank() && self.0.iter().all(|(axis, size)| other.size(*axis) == Some(size))
    }
}

impl<'a> IntoIterator for &'a Shape {
    type Item = &'a (Axis, Sym);
    type IntoIter = std::slice::Iter<'a, (Axis, Sym)>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.0.iter().map(|(axis, size)| format!("{axis}:{size}")).collect();
        write!(f, "[{}]", axes.join(", "))
    }
}

/// The type of a value: what its elements are and which axes it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Type {
    /// The type of an element.
    pub dtype: DType,
    /// The axes.
    pub shape: Shape,
}

impl Type {
    /// A type.
    pub fn new(dtype: DType, shape: Shape) -> Self {
        Self { dtype, shape }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(axes: &[(&str, i64)]) -> Shape {
        Shape::new(axes.iter().map(|(a, n)| (Label::new(a).unwrap(), Sym::from(*n)))).unwrap()
    }

    #[test]
    fn shapes_meet_by_name() {
        let x = shape(&[("t", 2), ("d", 3)]);
        let g = shape(&[("d", 3)]);
        assert_eq!(x.union(&g).unwrap(), x);
        assert!(g.union(&x).unwrap().same_axes(&x));
        assert_eq!(g.union(&shape(&[("d", 4)])).unwrap_err().as_str(), "d");
        assert_eq!(x.strides(), [3, 1]);
        assert_eq!(x.to_string(), "[t:2, d:3]");
    }
}
