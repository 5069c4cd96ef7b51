//! The operations that run over whole axes: folds, sums of products, weighted averages.
//!
//! In: values and the axes that go. Out: a value without them; each element is accumulated in double precision and
//! rounded once.
//! Of no elements the sum is 0, the largest is -∞ (for whole numbers the smallest there is), the average is 0.
//! The order of summation is nobody's business: `compare.rs` allows for another.

use super::element;
use super::index::{Frame, View, numbers};
use crate::graph::op::Fold;
use crate::tensor::shape::Axis;
use crate::tensor::value::Value;

/// Folds one axis away.
pub(super) fn reduce(frame: &Frame, x: &Value, fold: Fold, axis: Axis) -> Value {
    let view = View::of(&x.axes);
    let inner: Vec<usize> = view.offsets(&sized(x, &[axis])).collect();
    let folded = |base: usize| {
        let start = element::identity(fold, x.dtype);
        inner.iter().fold(start, |so_far, i| element::fold(fold, x.dtype, so_far, x.number(base + i)))
    };
    frame.filled(view.offsets(&frame.axes).map(folded))
}

/// The product of two values that meet by name, summed over some of the axes both have.
pub(super) fn contract(frame: &Frame, a: &Value, b: &Value, over: &[Axis]) -> Value {
    pairwise(frame, a, b, over, |_, pairs| pairs.iter().map(|(a, b)| a * b).sum())
}

/// The values averaged over some axes with weights `softmax(scores)`; a sink is one more score, of a value of 0.
pub(super) fn attend(
    frame: &Frame,
    scores: &Value,
    values: &Value,
    sink: Option<&Value>,
    over: &[Axis],
) -> Value {
    let sinks: Vec<f64> = match sink {
        None => Vec::new(),
        Some(sink) => {
            let all = numbers(sink);
            View::of(&sink.axes).offsets(&frame.axes).map(|i| all[i]).collect()
        }
    };
    pairwise(frame, scores, values, over, |at, pairs| average(pairs, sinks.get(at).copied()))
}

/// The average of the second numbers with weights `softmax` of the first, and of a sink.
///
/// It is 0 where there are no numbers and where every score is -∞, which a composed softmax would make NaN. A score
/// that is NaN or +∞ makes the result NaN, as there.
fn average(pairs: &Pairs<'_>, sink: Option<f64>) -> f64 {
    let sink = sink.unwrap_or(f64::NEG_INFINITY);
    if sink == f64::NEG_INFINITY && pairs.iter().all(|(score, _)| score == f64::NEG_INFINITY) {
        return 0.0;
    }
    let highest = pairs.iter().map(|(score, _)| score).fold(sink, f64::max);
    let (mut total, mut weighted) = ((sink - highest).exp(), 0.0);
    for (score, value) in pairs.iter() {
        let weight = (score - highest).exp();
        total += weight;
        weighted += weight * value;
    }
    weighted / total
}

/// The pairs of elements that meet at one element of a result.
struct Pairs<'a> {
    left: (&'a [f64], usize),
    right: (&'a [f64], usize),
    inner: &'a [(usize, usize)],
}

impl Pairs<'_> {
    fn iter(&self) -> impl Iterator<Item = (f64, f64)> {
        let ((a, i), (b, j)) = (self.left, self.right);
        self.inner.iter().map(move |(k, l)| (a[i + k], b[j + l]))
    }
}

/// For each element of the result, by its number, a number made of all pairs that meet there.
fn pairwise(
    frame: &Frame,
    a: &Value,
    b: &Value,
    over: &[Axis],
    of: impl Fn(usize, &Pairs<'_>) -> f64,
) -> Value {
    let axes = sized(a, over);
    let (left, right) = (View::of(&a.axes), View::of(&b.axes));
    let inner: Vec<(usize, usize)> = left.offsets(&axes).zip(right.offsets(&axes)).collect();
    let (a, b) = (numbers(a), numbers(b));
    let outer = left.offsets(&frame.axes).zip(right.offsets(&frame.axes));
    let each = outer.enumerate();
    frame.filled(each.map(|(at, (i, j))| of(at, &Pairs { left: (&a, i), right: (&b, j), inner: &inner })))
}

/// Axes with the sizes a value has of them.
fn sized(value: &Value, axes: &[Axis]) -> Vec<(Axis, usize)> {
    axes.iter().map(|axis| (*axis, value.size(*axis).unwrap_or(1))).collect()
}
