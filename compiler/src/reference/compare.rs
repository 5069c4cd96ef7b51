//! When two values are equal enough: the one place of tolerances.
//!
//! In: the value that should be, the value that is, and a [`Tolerance`]. Out: nothing, or a sentence that shows the
//! first element too far off. Whole numbers are compared exactly, always.
//! A tolerance is computed from what was summed and rounded on the way, never guessed to make a test pass.
//! Choices are not covered: where a comparison, a `TopK` or a cast to whole numbers reads inexact numbers that are
//! nearly equal, it may turn out the other way. Test data must stay clear of that.

use super::index::{View, numbers};
use crate::foundation::entity::List;
use crate::graph::op::{Fold, Op};
use crate::graph::{Graph, Node, NodeId};
use crate::tensor::dtype::DType;
use crate::tensor::quant::Format;
use crate::tensor::shape::{Axis, Shape};
use crate::tensor::value::Value;

/// How far an element may be off: by `absolute + relative * scale`.
///
/// The scale is the larger of the expected element and the root of the mean square of the expected tensor: where an
/// element is small because large terms cancel, it carries the errors of the large ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Allowed whatever the numbers are.
    pub absolute: f64,
    /// Allowed for each unit of the scale.
    pub relative: f64,
}

/// The relative distance of neighbouring numbers in single precision.
const EPSILON: f64 = f32::EPSILON as f64;

/// A sum of `n` rounded terms walks off like a drunkard: by about half a spacing times `√n`. Four spacings are eight
/// standard deviations, which even the worst of a million elements does not reach.
const DEVIATIONS: f64 = 4.0;

/// Spacings a function of elements may be off, approximations of `exp` and `sin` on any device included.
const FUNCTION: f64 = 4.0;

/// How much later operations may enlarge a relative error: `exp` of scores near 4 does it fourfold. Sines of angles
/// in the thousands do it far more; keep positions small in tests that change the arithmetic before them.
const CONDITION: f64 = 4.0;

impl Tolerance {
    /// No difference at all.
    pub fn exact() -> Self {
        Self { absolute: 0.0, relative: 0.0 }
    }

    /// For one sum of `len` products in single precision, in any order.
    pub fn for_reduction(len: usize) -> Self {
        Self::spacings(DEVIATIONS * (len.max(1) as f64).sqrt())
    }

    /// For a whole graph in single precision, every sum in any order.
    ///
    /// Each node may be off by what its own rounding adds to the worst of its arguments; the longest such path counts.
    pub fn of(graph: &Graph) -> Self {
        let mut errors: List<NodeId, f64> = List::default();
        for (_, node) in graph.nodes.iter() {
            let inherited = node.args.iter().map(|arg| errors[*arg]).fold(0.0, f64::max);
            let own = own_error(graph, node);
            // Whole numbers are right or wrong.
            errors.push(if node.ty.dtype == DType::I32 { 0.0 } else { inherited + own });
        }
        let worst = errors.values().copied().fold(0.0, f64::max);
        if worst == 0.0 { Self::exact() } else { Self::spacings(CONDITION * worst) }
    }

    fn spacings(n_spacings: f64) -> Self {
        // Below the smallest normal number devices may round to zero.
        Self { absolute: f64::from(f32::MIN_POSITIVE), relative: n_spacings * EPSILON }
    }
}

/// Spacings of single precision that one node adds to the error of its arguments.
fn own_error(graph: &Graph, node: &Node) -> f64 {
    let length = |axis: Axis| {
        let arg = node.args.first().map(|arg| &graph.nodes[*arg].ty.shape);
        arg.and_then(|shape| shape.size(axis)).map_or(1.0, |size| size.most().max(1) as f64)
    };
    let sum = |axes: &[Axis]| DEVIATIONS * axes.iter().map(|axis| length(*axis)).product::<f64>().sqrt();
    match &node.op {
        Op::Reduce { fold: Fold::Sum, axis } => sum(&[*axis]),
        Op::Contract { over } => sum(over),
        Op::Attend { over } => 2.0 * sum(over) + FUNCTION,
        Op::Unary(_) | Op::Binary(_) => FUNCTION,
        Op::Cast(dtype) => spacing(*dtype),
        Op::Write { .. } => node.args.first().and_then(|arg| graph.stored_format(*arg)).map_or(0.0, blocks),
        Op::Input { .. }
        | Op::Weight { .. }
        | Op::State { .. }
        | Op::Const(_)
        | Op::Table { .. }
        | Op::Iota { .. }
        | Op::Symbolic(_)
        | Op::Select
        | Op::Reduce { fold: Fold::Max, .. }
        | Op::Split { .. }
        | Op::Merge { .. }
        | Op::Rename { .. }
        | Op::Expand { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::TopK { .. }
        | Op::Barrier => 0.0,
    }
}

/// How much farther apart the numbers of a type are than those of single precision. Two results that differ by
/// nothing to speak of may be rounded to neighbours.
fn spacing(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 1.0,
        DType::F16 => f64::from(half::f16::EPSILON) / EPSILON,
        DType::BF16 => f64::from(half::bf16::EPSILON) / EPSILON,
        DType::I32 => 0.0,
    }
}

/// The same for a format of blocks.
fn blocks(format: Format) -> f64 {
    format.written_steps().map_or(0.0, |steps| 1.0 / f64::from(steps) / EPSILON)
}

/// Whether a value is what it should be; its axes may stand in another order.
///
/// NaN equals NaN, and an infinity equals itself only.
///
/// # Errors
/// A sentence that names the first element too far off with both numbers, or both types.
pub fn close(expected: &Value, actual: &Value, tolerance: Tolerance) -> Result<(), String> {
    let sorted = |value: &Value| {
        let mut axes = value.axes.clone();
        axes.sort_unstable();
        axes
    };
    if expected.dtype != actual.dtype || sorted(expected) != sorted(actual) {
        return Err(format!("expected {}, got {}", shown(expected), shown(actual)));
    }
    let wanted = numbers(expected);
    let typical = root_mean_square(&wanted);
    let places = View::of(&actual.axes).offsets(&expected.axes);
    for (index, (a, place)) in wanted.iter().copied().zip(places).enumerate() {
        let b = actual.number(place);
        let exact = expected.dtype == DType::I32;
        let allowed =
            if exact { 0.0 } else { tolerance.absolute + tolerance.relative * typical.max(a.abs()) };
        if !matches(a, b, allowed) {
            let at = position(expected, index);
            return Err(format!(
                "at [{at}]: expected {a}, got {b}, allowed is a difference of {allowed:.1e}"
            ));
        }
    }
    Ok(())
}

fn matches(a: f64, b: f64, allowed: f64) -> bool {
    // The difference of equal infinities is NaN, and an infinite scale would allow everything.
    a == b || (a.is_nan() && b.is_nan()) || (a.is_finite() && b.is_finite() && (a - b).abs() <= allowed)
}

fn root_mean_square(numbers: &[f64]) -> f64 {
    let finite: Vec<f64> = numbers.iter().copied().filter(|x| x.is_finite()).collect();
    let squares: f64 = finite.iter().map(|x| x * x).sum();
    (squares / finite.len().max(1) as f64).sqrt()
}

fn position(value: &Value, index: usize) -> String {
    let place = |((axis, size), stride): (&(Axis, usize), usize)| format!("{axis}={}", index / stride % size);
    value.axes.iter().zip(value.strides()).map(place).collect::<Vec<_>>().join(", ")
}

fn shown(value: &Value) -> String {
    let axes = value.axes.iter().map(|(axis, size)| (*axis, (*size).into()));
    format!("{}{}", value.dtype, Shape::new(axes).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::build::Builder;
    use crate::tensor::label::Label;

    fn value(axes: &[(&str, usize)], data: &[f32]) -> Value {
        let axes = axes.iter().map(|(name, size)| (Label::new(name).unwrap(), *size)).collect();
        Value::float(DType::F32, axes, data.to_vec())
    }

    fn check(expected: &[f32], actual: &[f32], tolerance: Tolerance) -> Result<(), String> {
        let n = expected.len();
        close(&value(&[("i", n)], expected), &value(&[("i", n)], actual), tolerance)
    }

    #[test]
    fn axes_are_aligned_by_name() {
        let rows = value(&[("a", 2), ("b", 3)], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let columns = value(&[("b", 3), ("a", 2)], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(close(&rows, &columns, Tolerance::exact()), Ok(()));
        let other = value(&[("b", 2), ("a", 3)], &[1.0; 6]);
        let error = close(&rows, &other, Tolerance::exact()).unwrap_err();
        assert_eq!(error, "expected f32[a:2, b:3], got f32[b:2, a:3]");
    }

    #[test]
    fn the_error_names_the_element_and_both_numbers() {
        let (a, b) =
            (value(&[("a", 2), ("b", 2)], &[0.0; 4]), value(&[("a", 2), ("b", 2)], &[0.0, 0.0, 0.5, 0.0]));
        let error = close(&a, &b, Tolerance::exact()).unwrap_err();
        assert_eq!(error, "at [a=1, b=0]: expected 0, got 0.5, allowed is a difference of 0.0e0");
    }

    #[test]
    fn what_is_not_finite_must_be_the_same() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        assert!(check(&[nan, inf, -inf], &[nan, inf, -inf], Tolerance::exact()).is_ok());
        for (a, b) in [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, inf), (inf, -inf), (inf, nan)] {
            assert!(check(&[a], &[b], Tolerance::for_reduction(9)).is_err(), "{a} {b}");
        }
    }

    #[test]
    fn small_elements_may_carry_the_errors_of_typical_ones() {
        let tolerance = Tolerance { absolute: 0.0, relative: 1e-3 };
        assert!(check(&[1.0, 0.0], &[1.0, 5e-4], tolerance).is_ok());
        assert!(check(&[1.0, 0.0], &[1.0, 2e-3], tolerance).is_err());
        assert!(check(&[1000.0, 0.0, 0.0], &[1000.9, 0.0, 0.0], tolerance).is_ok());
    }

    #[test]
    fn whole_numbers_are_exact_under_any_tolerance() {
        let int = |x| Value::int(vec![], vec![x]);
        let tolerance = Tolerance { absolute: 9.0, relative: 9.0 };
        assert!(close(&int(5), &int(5), tolerance).is_ok() && close(&int(5), &int(6), tolerance).is_err());
    }

    #[test]
    fn the_longest_path_of_sums_and_roundings_counts() {
        let g = Builder::new();
        let (t, d) = (g.dim("t", 2), g.dim("d", 64));
        let x = g.input("x", DType::F32, &[&t, &d]);
        let w = g.input("w", DType::F32, &[&d]);
        let of = |y: &crate::graph::build::Tensor| {
            // Every node recorded so far counts, so the cases come in the order of their tolerance.
            Tolerance::of(&g.finish(&[("y", y)]).unwrap()).relative
        };
        assert_eq!(of(&x.rename(&t, &g.dim("u", 2))), 0.0);
        let dot = of(&x.contract(&w, [&d]));
        assert_eq!(dot, CONDITION * Tolerance::for_reduction(64).relative);
        let scaled = of(&(x.contract(&w, [&d]) * 2.0));
        assert!(scaled > dot && scaled < 2.0 * dot);
        assert!(of(&x.contract(&w, [&d]).cast(DType::BF16)) > 1e-2);
    }

    #[test]
    fn sums_in_single_precision_stay_within_the_tolerance() {
        for n in [1, 10, 100, 1000, 10_000] {
            let terms: Vec<f32> = (0..n).map(|i| ((i * 7919 % 1000) as f32 - 300.0) / 700.0).collect();
            let forward: f32 = terms.iter().sum();
            let exact: f64 = terms.iter().map(|x| f64::from(*x)).sum();
            check(&[exact as f32], &[forward], Tolerance::for_reduction(n)).unwrap();
        }
    }
}
